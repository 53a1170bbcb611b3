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
