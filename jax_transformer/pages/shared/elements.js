// Makes all elements of a page. Content is always text, never markup, so no sentence can become an element.

const SVG = 'http://www.w3.org/2000/svg';

/** element('p', {class: 'note'}, 'text', child, …): adds functions as listeners, and omits null attributes and children. */
function element(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

function svg(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

function filled(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === 'function') node.addEventListener(name, value);
    else if (value !== null && value !== undefined) node.setAttribute(name, value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return node;
}

/** Makes a section of the page with its heading and a line that describes it. */
function section(id, title, lead, ...children) {
  const heading = element('h2', { id: `${id}-title` }, title);
  return element('section', { id, 'aria-labelledby': `${id}-title` }, heading, lead ? element('p', { class: 'lead' }, lead) : null, ...children);
}

/** Makes the bar at the top, with a link to each section and to other pages; sections: [id, title]; pages: [address, title]. */
function topBar(sections, pages = []) {
  const links = [...sections.map(([id, title]) => [`#${id}`, title]), ...pages].map(([href, title]) => element('a', { href }, title));
  return element('div', { class: 'top' }, element('nav', { 'aria-label': 'Sections' }, links), themeButton());
}

/** Shows large figures; entries: [title, figure, explanation]. */
function figures(entries) {
  return element('dl', { class: 'figures' }, entries.map(([title, figure, ...more]) => element('div', {},
    element('dt', {}, title), element('dd', {}, figure), element('dd', { class: 'more' }, ...more))));
}

/** Lists pairs of a title and a text or elements, and omits empty ones. */
function factList(className, pairs) {
  const shown = pairs.filter(([, value]) => value !== null && value !== undefined && value !== '');
  return element('dl', { class: className }, shown.map(([title, ...value]) => element('div', {}, element('dt', {}, title), element('dd', {}, ...value))));
}

/** Makes a button that turns a logarithmic scale on and off; a press calls `change(isLog)`. */
function logButton(title, isPressed, change) {
  const button = element('button', { type: 'button', class: 'small', 'aria-pressed': isPressed, click: () => {
    const isLog = button.getAttribute('aria-pressed') !== 'true';
    button.setAttribute('aria-pressed', isLog);
    change(isLog);
  } }, 'log', element('span', { class: 'unseen' }, ` scale of ${title}`));
  return button;
}

/** Returns the data that the page embeds. */
function pageData() {
  return JSON.parse(document.getElementById('data').textContent);
}

/** Fills the page: its head and its content, from which null is left out, and the text at its foot. */
function fillPage(masthead, content, colophon) {
  document.getElementById('masthead').replaceChildren(...masthead.filter(Boolean));
  document.getElementById('content').replaceChildren(...content.filter(Boolean));
  document.getElementById('colophon').replaceChildren(element('p', {}, colophon));
  document.documentElement.dataset.ready = 'true';
}

function announce(text) {
  document.getElementById('announcement').textContent = text;
}

/** Calls draw(width) now and whenever the width of `node` changes. */
function atEachWidth(node, draw) {
  let last = 0;
  new ResizeObserver((entries) => {
    const width = Math.floor(entries[0].contentRect.width);
    if (width && width !== last) {
      last = width;
      draw(width);
    }
  }).observe(node);
}
