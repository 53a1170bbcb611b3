// One heat map: a row per query token, a column per key token.

const CELL = { least: 14, most: 44 };
const LONGEST_LABEL = 132;

/**
 * Draws a kind's map into `canvas`, at its width, and shows the cell under the pointer, a finger or the arrow keys in `readout`.
 * The selected cell stays selected when another map of the same size is drawn.
 */
function heatMap(canvas, readout) {
  const shown = { kind: null, map: null, description: '' };
  const selection = cellMap(canvas, readout, (width, listeners) => plot(shown.kind, shown.map, width, shown.description, listeners), markCell);

  function show(kind, map, description) {
    if (shown.kind !== kind) selection.forget();
    Object.assign(shown, { kind, map, description });
    selection.redraw();
  }

  /** Marks the selected cell, and describes it in the readout. */
  function markCell({ node, left, top, wide, high }, at) {
    const { kind, map } = shown;
    node.querySelectorAll('.at').forEach((label) => label.classList.remove('at'));
    const pointer = node.querySelector('.pointer');
    pointer.setAttribute('visibility', at ? 'visible' : 'hidden');
    if (!at) {
      readout.replaceChildren(element('span', { class: 'hint' }, 'Point at a cell, tap it, or move with the arrow keys.'));
      return;
    }
    const [row, column] = at;
    node.querySelector(`[data-row="${row}"]`).classList.add('at');
    node.querySelector(`[data-column="${column}"]`).classList.add('at');
    const [across, down, around] = pointer.children;
    across.setAttribute('y', top + row * high);
    down.setAttribute('x', left + column * wide);
    around.setAttribute('x', left + column * wide);
    around.setAttribute('y', top + row * high);
    readout.replaceChildren(
      element('b', { class: 'weight' }, formatWeight(map.values[row * map.columns + column])), ' ',
      element('bdi', {}, kind.queries[row]), element('span', { class: 'arrow' }, ' attends to '), element('bdi', {}, kind.keys[column]));
  }

  return { show };
}

/** Returns the drawing, and where its cells begin. */
function plot(kind, map, width, description, listeners) {
  const isNarrow = width < 560;
  const labels = kind.queries.map((token) => fitted(token, Math.min(LONGEST_LABEL, 0.28 * width)));
  const heads = kind.keys.map((token) => fitted(token, isNarrow ? 0.28 * width : LONGEST_LABEL));
  const left = Math.ceil(Math.max(...labels.map(widthOf))) + 12;
  const angle = isNarrow ? 90 : 50;
  const [rise, run] = [Math.sin((angle * Math.PI) / 180), Math.cos((angle * Math.PI) / 180)];
  const widths = heads.map(widthOf);
  const top = Math.ceil(Math.max(...widths) * rise) + 20;
  const cell = cellSize(width - left - 2, widths.map((one) => one * run));
  const beyond = Math.max(0, ...widths.map((one, column) => (column + 0.5) * cell + one * run + 8 - map.columns * cell));
  const [whole, high] = [left + map.columns * cell + Math.ceil(beyond) + 2, top + map.rows * cell + 2];
  const node = svg('svg', { width: whole, height: high, viewBox: `0 0 ${whole} ${high}`, role: 'img', tabindex: '0', 'aria-label': description, ...listeners });
  node.append(
    svg('rect', { class: 'ground', x: left, y: top, width: map.columns * cell, height: map.rows * cell }),
    cells(map, left, top, cell),
    svg('g', { class: 'labels', 'aria-hidden': 'true' },
      labels.map((label, row) => svg('text', { 'data-row': row, x: left - 8, y: top + (row + 0.5) * cell, dy: '0.34em', 'text-anchor': 'end' }, label)),
      heads.map((label, column) => {
        const [x, y] = [left + (column + 0.5) * cell + (isNarrow ? 4 : 2), top - 8];
        return svg('text', { 'data-column': column, x, y, transform: `rotate(${-angle} ${x} ${y})` }, label);
      })),
    svg('g', { class: 'pointer', visibility: 'hidden' },
      svg('rect', { class: 'band', x: left, width: map.columns * cell, height: cell }),
      svg('rect', { class: 'band', y: top, width: cell, height: map.rows * cell }),
      svg('rect', { class: 'around', width: cell, height: cell })),
  );
  return { node, left, top, wide: cell, high: cell, rows: map.rows, columns: map.columns };
}

/** Returns the largest cell size at which the columns and their slanted labels fit, or else the smallest. */
function cellSize(room, overhangs) {
  const count = overhangs.length;
  const largest = Math.min(room / count, ...overhangs.map((overhang, column) => (room - 8 - overhang) / (column + 0.5)));
  return Math.max(CELL.least, Math.min(CELL.most, Math.floor(largest)));
}

/** Returns a rectangle for each visible weight: the larger, the darker; `largest` is the darkest. */
function cells(map, left, top, cell) {
  const group = svg('g', { class: 'cells' });
  map.values.forEach((value, i) => {
    const share = map.largest ? value / map.largest : 0;
    if (share < 0.004) return;
    const [row, column] = [Math.floor(i / map.columns), i % map.columns];
    group.append(svg('rect', { x: left + column * cell, y: top + row * cell, width: cell, height: cell, 'fill-opacity': share.toFixed(3) }));
  });
  return group;
}
