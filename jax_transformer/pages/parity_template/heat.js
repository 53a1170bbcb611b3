// The heat map: where the sides differ within an activation.

const SPAN = { linear: 1, logarithmic: 4 };
const HEAT_CELL = { most: 26, least: 5, high: 22, low: 11 };

function heatSection(map) {
  if (!map || !map.values.length || !map.values[0].length) return section('heat', 'Where it diverges', 'There is no heat map.');
  const state = { isLog: false };
  const all = map.values.flat();
  const largest = all.reduce((most, value) => Math.max(most, value ?? 0), 0);
  const canvas = element('div', { class: 'scroll canvas' });
  const readout = element('p', { class: 'readout' });
  const ramp = element('span', { class: 'scale' });
  const toggle = logButton('the heat map', state.isLog, (isLog) => {
    state.isLog = isLog;
    cells.redraw();
  });
  const caption = element('figcaption', {}, element('span', { class: 'title' }, nameOf(map.name), map.case ? element('span', { class: 'unit' }, ` ${map.case}`) : null), element('span', { class: 'side' }, ramp, toggle));
  const titles = element('p', { class: 'titles' }, '↓ ', map.rows, ' · → ', map.columns);

  /** Returns how dark a value is, from 0 to 1; the logarithmic scale covers the last decades. */
  function share(value) {
    if (!largest || !value) return 0;
    return state.isLog ? Math.max(0.04, 1 + Math.log10(value / largest) / SPAN.logarithmic) : value / largest;
  }

  function draw(width, listeners) {
    const label = `${map.name}: a row for each ${map.rows}, a column for each ${map.columns}. The arrow keys read each value.`;
    ramp.replaceChildren(state.isLog ? formatError(largest / 10 ** SPAN.logarithmic) : '0', element('span', { class: 'ramp', 'aria-hidden': 'true' }), formatError(largest));
    return heatPlot(map, share, width, { 'aria-label': label, ...listeners });
  }

  function markCell({ around, left, wide, high }, at) {
    around.setAttribute('visibility', at ? 'visible' : 'hidden');
    if (!at) {
      readout.replaceChildren(element('span', { class: 'hint' }, `|candidate − reference| / RMS of the reference, at most ${formatError(largest)}. Point at a cell, or move with the arrow keys.`));
      return;
    }
    const [row, column] = at;
    around.setAttribute('x', left + column * wide);
    around.setAttribute('y', row * high);
    const value = map.values[row][column];
    readout.replaceChildren(element('b', { class: 'value' }, value === null ? 'not finite' : formatError(value)), ' ', element('bdi', {}, map.row_labels[row] ?? row), `, column ${column}`);
  }

  const cells = cellMap(canvas, readout, draw, markCell);
  return section('heat', 'Where it diverges', 'The difference between the sides at the first node that diverges.', element('figure', { class: 'heat' }, caption, readout, canvas, titles));
}

/** Returns the drawing, and where its cells are. It skips row labels that would overlap. */
function heatPlot(map, share, width, listeners) {
  const [rows, columns] = [map.values.length, map.values[0].length];
  const longest = map.values.reduce((most, _, row) => Math.max(most, String(map.row_labels[row] ?? row).length), 0);
  const left = Math.min(Math.ceil(longest * 7.2) + 12, Math.floor(width * 0.35));
  const wide = Math.max(HEAT_CELL.least, Math.min(HEAT_CELL.most * 2, (width - left - 4) / columns));
  const high = Math.max(HEAT_CELL.low, Math.min(HEAT_CELL.high, 420 / rows));
  const every = Math.ceil(13 / high);
  const whole = left + columns * wide + 4;
  const cells = map.values.flatMap((values, row) => values.map((value, column) => {
    const dark = share(value);
    if (value !== null && !dark) return null;
    const place = { x: (left + column * wide).toFixed(2), y: (row * high).toFixed(2), width: wide.toFixed(2), height: high.toFixed(2) };
    return svg('rect', value === null ? { class: 'lost', ...place } : { 'fill-opacity': dark.toFixed(3), ...place });
  }));
  const labels = map.values.flatMap((_, row) => (row % every ? [] : [svg('text', { x: left - 8, y: (row + 0.5) * high, dy: '0.34em', 'text-anchor': 'end' }, clipped(map.row_labels[row] ?? row, (left - 8) / 7.2))]));
  const around = svg('rect', { class: 'around', width: wide, height: high, visibility: 'hidden' });
  const node = svg('svg', { width: whole, height: rows * high + 2, viewBox: `0 0 ${whole} ${rows * high + 2}`, role: 'img', tabindex: '0', ...listeners },
    hatching(), svg('rect', { class: 'ground', x: left, y: 0, width: columns * wide, height: rows * high }), svg('g', { class: 'cells' }, cells), svg('g', { class: 'labels', 'aria-hidden': 'true' }, labels), around);
  return { node, around, left, top: 0, wide, high, rows, columns };
}

/** Makes the pattern for values that aren't finite. */
function hatching() {
  return svg('defs', {}, svg('pattern', { id: 'hatch', width: 5, height: 5, patternUnits: 'userSpaceOnUse', patternTransform: 'rotate(45)' }, svg('line', { class: 'hatch', x1: 0, x2: 0, y1: 0, y2: 5 })));
}

function clipped(text, most) {
  const characters = Array.from(String(text));
  return characters.length <= most ? characters.join('') : `${characters.slice(0, Math.max(1, Math.floor(most) - 1)).join('')}…`;
}
