// Tables: plain ones, ones that sort by any column, and the search over them.

const MOST_ROWS = 250;
const collator = new Intl.Collator('en', { numeric: true });

/** columns: [{title, number}], numbers aligned right; rows: lists of texts or elements, the first of which names the row. */
function table(columns, rows, attributes = {}) {
  const head = columns.map((column) => element('th', { scope: 'col', class: column.number ? 'number' : null }, column.title));
  const body = rows.map((cells) => element('tr', {}, cells.map((cell, i) => (i === 0
    ? element('th', { scope: 'row' }, cell)
    : element('td', { class: columns[i].number ? 'number' : null }, cell)))));
  return element('div', { class: 'scroll' }, element('table', attributes, element('thead', {}, element('tr', {}, head)), element('tbody', {}, body)));
}

/** Makes a search field; each change calls `onInput(text)`. */
function searchField(label, onInput) {
  return element('input', { type: 'search', placeholder: label, 'aria-label': label, spellcheck: 'false', input: (event) => onInput(event.target.value) });
}

/** Returns whether the text contains each word of the query, in any case. */
function fits(text, query) {
  const lower = text.toLowerCase();
  return query.toLowerCase().split(/\s+/).every((word) => lower.includes(word));
}

/**
 * Makes a table that sorts by any column, and draws only its first rows until the reader wants all.
 * columns: {title, key(row), cell(row), number, class}: key returns the number or text to sort by, or null, which always comes last; cell the content.
 * classOf: the class of a row's line. Returns {node, show(rows)}.
 */
function sortableTable(label, columns, rows, classOf = (row) => row.verdict) {
  const state = { rows, by: 0, descending: false, showsAll: false, rest: null };
  const drawn = new Map(); // each row's element is made once
  const body = element('tbody');
  const buttons = columns.map((column, i) => element('button', { type: 'button', click: () => sortBy(i) }, column.title));
  const headers = columns.map((column, i) => element('th', { scope: 'col', class: column.number ? 'number' : null, 'aria-sort': 'none' }, buttons[i]));
  const more = element('button', { type: 'button', class: 'small more', click: () => { state.showsAll = true; draw(); } });
  const node = element('div', {}, element('div', { class: 'scroll tall', tabindex: '0', role: 'region', 'aria-label': label },
    element('table', { class: 'sortable' }, element('thead', {}, element('tr', {}, headers)), body)), more);

  function sortBy(by) {
    state.descending = state.by === by ? !state.descending : Boolean(columns[by].number) && by > 0;
    state.by = by;
    draw();
    announce(`Sorted by ${columns[by].title}, ${state.descending ? 'descending' : 'ascending'}`);
  }

  function draw() {
    const { key } = columns[state.by];
    const keyed = state.rows.map((row, i) => ({ row, i, key: key(row) }));
    keyed.sort((a, b) => order(a.key, b.key, state.descending ? -1 : 1) || a.i - b.i);
    const shown = state.showsAll ? keyed : keyed.slice(0, MOST_ROWS);
    body.replaceChildren(...(shown.length ? [] : [element('tr', {}, element('td', { class: 'none', colspan: columns.length }, 'No row matches.'))]));
    body.append(...shown.slice(0, MOST_ROWS).map(({ row }) => lineFor(row)));
    clearTimeout(state.rest); // the first rows appear at once, the rest after the page has shown them
    if (shown.length > MOST_ROWS) state.rest = setTimeout(() => body.append(...shown.slice(MOST_ROWS).map(({ row }) => lineFor(row))), 30);
    headers.forEach((header, i) => header.setAttribute('aria-sort', i !== state.by ? 'none' : state.descending ? 'descending' : 'ascending'));
    more.hidden = shown.length === keyed.length;
    more.textContent = `Show all ${formatCount(keyed.length)} (${formatCount(keyed.length - shown.length)} more)`;
  }

  function lineFor(row) {
    if (!drawn.has(row)) {
      drawn.set(row, element('tr', { class: classOf(row) || null }, columns.map((column) => element('td', { class: column.number ? 'number' : column.class }, column.cell(row)))));
    }
    return drawn.get(row);
  }

  function show(shown) {
    state.rows = shown;
    draw();
  }

  draw();
  return { node, show };
}

function order(a, b, direction) {
  if (a === null || b === null) return a === b ? 0 : a === null ? 1 : -1;
  if (typeof a === 'string') return direction * collator.compare(a, b);
  return a === b ? 0 : direction * (a < b ? -1 : 1);
}
