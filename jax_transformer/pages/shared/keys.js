// Moves through the points of a chart and the cells of a map with the keyboard.

function clamped(value, count) {
  return Math.max(0, Math.min(count - 1, value));
}

/** Returns the point of `count` that a key leads to from `now`, or undefined for any other key. */
function pointAfter(key, now, count) {
  const to = { ArrowLeft: now - 1, ArrowRight: now + 1, PageUp: now - 10, PageDown: now + 10, Home: 0, End: count - 1 }[key];
  return to === undefined ? undefined : clamped(to, count);
}

/** Returns the cell [row, column] that a key leads to from `at`, or undefined for any other key; the first cell if none is selected. */
function cellAfter(key, at, rows, columns) {
  const [row, column] = at || [0, 0];
  const to = {
    ArrowUp: [row - 1, column], ArrowDown: [row + 1, column], ArrowLeft: [row, column - 1], ArrowRight: [row, column + 1],
    Home: [row, 0], End: [row, columns - 1], PageUp: [0, column], PageDown: [rows - 1, column],
  }[key];
  if (!to || !at) return to && [0, 0];
  return [clamped(to[0], rows), clamped(to[1], columns)];
}

/** Handles a key on a map: moves the selection, reads it to a screen reader, or clears it. */
function handleCellKey(event, at, [rows, columns], choose, readout) {
  const to = event.key === 'Escape' ? null : cellAfter(event.key, at, rows, columns);
  if (to === undefined) return;
  choose(to);
  if (to) announce(readout.textContent);
  event.preventDefault();
}
