// All maps of a kind side by side, each a button that enlarges it.

/** Makes a table of small maps: a row per layer, a column for the mean and for each head. Clicks call `choose(layer, head)`. */
function overview(kind, choose) {
  const [layers, heads] = kind.shape;
  const columns = [null, ...Array.from({ length: heads }, (_, head) => head)];
  const buttons = [];
  const rows = Array.from({ length: layers }, (_, layer) => element('tr', {},
    element('th', { scope: 'row' }, layer),
    columns.map((head) => {
      const button = element('button', { type: 'button', 'aria-pressed': 'false', title: nameOf(layer, head), 'aria-label': nameOf(layer, head), click: () => choose(layer, head) },
        miniature(mapOf(kind, layer, head)));
      buttons.push({ button, layer, head });
      return element('td', {}, button);
    })));
  const head = element('tr', {}, element('th', { scope: 'col' }, element('span', { class: 'unseen' }, 'Layer')),
    columns.map((column) => element('th', { scope: 'col' }, column === null ? 'mean' : column)));
  const node = element('div', { class: 'scroll', tabindex: '0', role: 'region', 'aria-label': 'All layers and heads' },
    element('table', { class: 'overview' }, element('thead', {}, head), element('tbody', {}, rows)));
  const select = (layer, chosen) => buttons.forEach((one) => one.button.setAttribute('aria-pressed', one.layer === layer && one.head === chosen));
  return { node, select };
}

function nameOf(layer, head) {
  return head === null ? `layer ${layer}, mean over heads` : `layer ${layer}, head ${head}`;
}

/** Draws the map with a pixel per weight, in the colour of the theme; the largest weight is opaque. */
function miniature(map) {
  const canvas = element('canvas', { width: map.columns, height: map.rows, 'aria-hidden': 'true' });
  const context = canvas.getContext('2d');
  const image = context.createImageData(map.columns, map.rows);
  map.values.forEach((value, i) => { image.data[4 * i + 3] = map.largest ? (255 * value) / map.largest : 0; });
  context.putImageData(image, 0, 0);
  context.globalCompositeOperation = 'source-in';
  tint(canvas);
  return canvas;
}

/** Gives the drawing the colour of the theme. */
function tint(canvas) {
  const context = canvas.getContext('2d');
  context.fillStyle = getComputedStyle(document.documentElement).getPropertyValue('--slot-0');
  context.fillRect(0, 0, canvas.width, canvas.height);
}

new MutationObserver(() => document.querySelectorAll('canvas').forEach(tint)).observe(document.documentElement, { attributeFilter: ['data-theme'] });
