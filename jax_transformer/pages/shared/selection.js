// Selects points of a chart with the keyboard, and cells of a map with pointer and keyboard.

function clamped(value, count) {
  return Math.max(0, Math.min(count - 1, value));
}

/** Returns the point of `count` that a key leads to from `now`, or undefined for any other key. */
function pointAfter(key, now, count) {
  const to = { ArrowLeft: now - 1, ArrowRight: now + 1, PageUp: now - 10, PageDown: now + 10, Home: 0, End: count - 1 }[key];
  return to === undefined ? undefined : clamped(to, count);
}

/**
 * Draws a map into `canvas` at each of its widths, and selects the cell under the pointer, a finger or the arrow keys.
 * draw(width, listeners) returns {node, left, top, wide, high, rows, columns}: the drawing, where its cells begin, their size and number.
 * mark(plot, [row, column]) marks the selected cell and describes it in `readout`; without a cell, nothing is selected.
 */
function cellMap(canvas, readout, draw, mark) {
  const state = { plot: null, at: null };

  function redraw() {
    const width = Math.floor(canvas.getBoundingClientRect().width);
    if (!width) return;
    const hadFocus = canvas.contains(document.activeElement);
    state.plot = draw(width, { pointermove: follow, pointerdown: follow, pointerleave: leave, keydown: step });
    canvas.replaceChildren(state.plot.node);
    if (hadFocus) state.plot.node.focus();
    choose(state.at);
  }

  function follow(event) {
    const { node, left, top, wide, high, rows, columns } = state.plot;
    const box = node.getBoundingClientRect();
    const [row, column] = [Math.floor((event.clientY - box.top - top) / high), Math.floor((event.clientX - box.left - left) / wide)];
    choose(row >= 0 && column >= 0 && row < rows && column < columns ? [row, column] : null);
  }

  function leave(event) {
    if (event.pointerType === 'mouse') choose(null); // a finger leaves its cell selected
  }

  function step(event) {
    const { rows, columns } = state.plot;
    const [row, column] = state.at || [0, 0];
    const to = {
      ArrowUp: [row - 1, column], ArrowDown: [row + 1, column], ArrowLeft: [row, column - 1], ArrowRight: [row, column + 1],
      Home: [row, 0], End: [row, columns - 1], PageUp: [0, column], PageDown: [rows - 1, column],
    }[event.key];
    if (event.key !== 'Escape' && !to) return;
    event.preventDefault();
    choose(to ? (state.at ? [clamped(to[0], rows), clamped(to[1], columns)] : [0, 0]) : null);
    if (to) announce(readout.textContent);
  }

  function choose(at) {
    state.at = at;
    mark(state.plot, at);
  }

  atEachWidth(canvas, redraw);
  return { redraw, forget: () => { state.at = null; } };
}
