// Tables with search and sorting: scores, data, config, parameters.

/** columns: [{title, number}], numbers aligned right; rows: lists of texts or elements, the first of which names the row. */
function table(columns, rows, attributes = {}) {
  const head = columns.map((column) => element('th', { scope: 'col', class: column.number ? 'number' : null }, column.title));
  const body = rows.map((cells) => element('tr', {}, cells.map((cell, i) => (i === 0
    ? element('th', { scope: 'row' }, cell)
    : element('td', { class: columns[i].number ? 'number' : null }, cell)))));
  return element('div', { class: 'scroll' }, element('table', attributes, element('thead', {}, element('tr', {}, head)), element('tbody', {}, body)));
}

function searchField(label, onInput) {
  const input = element('input', { type: 'search', placeholder: label, 'aria-label': label, spellcheck: 'false', input: () => onInput(input.value) });
  return input;
}

/** Returns whether the text contains each word of the query, in any case. */
function fits(text, query) {
  const lower = text.toLowerCase();
  return query.toLowerCase().split(/\s+/).every((word) => lower.includes(word));
}

// --- scores

function scoresTable({ best, model, scores }) {
  const rows = [];
  if (best) {
    rows.push([`validation, step ${formatCount(best.step)}`, formatNumber(best.valid_loss), formatNumber(best.valid_perplexity), ...percentages(best, 'valid_'), formatCount(best.valid_sentences)]);
  }
  if (model && model.steps.length > 1) {
    rows.push([`validation, mean of steps ${model.steps.map(formatCount).join(', ')}`, formatNumber(model.valid_loss), formatNumber(Math.exp(model.valid_loss)), '', '', '', '']);
  }
  for (const [split, score] of Object.entries(scores)) rows.push([split, '', '', ...percentages(score, ''), formatCount(score.sentences)]);
  if (!rows.length) return null;
  const columns = ['', 'Loss', 'Perplexity', 'BLEU', 'chrF', 'Exact match', 'Sentences'].map((title, i) => ({ title, number: i > 0 }));
  const all = [best ? { bleu_signature: best.valid_bleu_signature, chrf_signature: best.valid_chrf_signature } : {}, ...Object.values(scores)];
  const signatures = ['bleu', 'chrf'].flatMap((name) => [...new Set(all.map((score) => score[`${name}_signature`]).filter(Boolean))]
    .map((signature) => element('li', {}, element('span', {}, name === 'bleu' ? 'BLEU ' : 'chrF '), signature)));
  return element('div', {}, table(columns, rows, { class: 'scores' }), element('ul', { class: 'signatures' }, signatures));
}

function percentages(record, prefix) {
  return ['bleu', 'chrf', 'exact_match'].map((name) => {
    const value = record[prefix + name];
    return Number.isFinite(value) ? value.toFixed(name === 'exact_match' ? 1 : 2) + (name === 'exact_match' ? '\u202f%' : '') : '–';
  });
}

// --- data

const DATA_FACTS = [
  ['read', 'Pairs read'], ['empty', 'With an empty side'], ['too_long', 'Too long'], ['unequal', 'Very unequal lengths'],
  ['duplicated', 'Duplicates'], ['overlapping', 'Also in valid or test'], ['kept', 'Pairs kept'],
  ['source_tokens', 'Source tokens'], ['target_tokens', 'Target tokens'],
];

/** stream: the counts of a streamed corpus so far, or null; its first shard is the "train" split of data. */
function dataSection(data, stream) {
  if (!data || !data.splits) return section('data', 'Data', 'No data.json in this run.');
  const splits = Object.entries(data.splits).flatMap(([name, split]) => (stream && name === 'train'
    ? [['train, first shard', split], ['train, all passes so far', stream]] : [[name, split]]));
  const columns = ['', ...splits.map(([name]) => name)].map((title, i) => ({ title, number: i > 0 }));
  const rows = DATA_FACTS.filter(([key]) => splits.some(([, split]) => Number.isFinite(split[key])))
    .map(([key, name]) => [name, ...splits.map(([, split]) => formatCount(split[key]))]);
  for (const side of ['source', 'target']) {
    if (splits.some(([, split]) => Number.isFinite(split[`${side}_unknown`]))) {
      rows.push([`Unknown in the ${side}`, ...splits.map(([, split]) => formatShare(split[`${side}_unknown`], split[`${side}_tokens`]))]);
    }
  }
  const lead = `${formatCount(data.source_vocab_size)} source and ${formatCount(data.target_vocab_size)} target tokens in the vocabulary; at most ${formatCount(data.max_length)} tokens per sentence.`;
  const lengths = lengthHistograms(data);
  const heading = lengths ? element('h3', {}, 'Sentence lengths ', element('span', { class: 'unit' }, 'pairs read, by number of tokens')) : null;
  return section('data', 'Data', lead, table(columns, rows, { class: 'facts' }), heading, lengths);
}

// --- config

function configSection(config) {
  const state = { query: '', onlyChanged: false };
  const body = element('tbody');
  const count = element('span', { class: 'unit', role: 'status' });
  function show() {
    const shown = config.filter((field) => fits(`${field.path} ${field.value}`, state.query) && (field.changed || !state.onlyChanged));
    body.replaceChildren(...shown.map((field) => element('tr', { class: field.changed ? 'changed' : null },
      element('th', { scope: 'row' }, field.path),
      element('td', {}, field.value === '' ? element('i', {}, 'empty') : field.value))));
    count.textContent = `${shown.length} of ${config.length} fields`;
  }
  const checkbox = element('input', { type: 'checkbox', change: () => { state.onlyChanged = checkbox.checked; show(); } });
  show();
  const changed = config.filter((field) => field.changed).length;
  return section('config', 'Config', null, element('details', {},
    element('summary', {}, `${config.length} fields, ${changed} of them changed from the defaults`),
    element('div', { class: 'tools' }, searchField('Search the config', (query) => { state.query = query; show(); }),
      element('label', {}, checkbox, ' only fields changed from the defaults'), count),
    element('div', { class: 'scroll tall', tabindex: '0', role: 'region', 'aria-label': 'Config' },
      element('table', { class: 'config' }, element('thead', { class: 'unseen' }, element('tr', {}, element('th', { scope: 'col' }, 'Field'), element('th', { scope: 'col' }, 'Value'))), body))));
}

// --- parameters

const PARAMETER_COLUMNS = [
  { key: 'path', title: 'Path' }, { key: 'shape', title: 'Shape' }, { key: 'dtype', title: 'Type' }, { key: 'count', title: 'Parameters', number: true },
];

function parametersSection(parameters) {
  if (!parameters.length) return section('parameters', 'Parameters', 'No parameters.json in this run.');
  const state = { query: '', key: 'path', descending: false };
  const body = element('tbody');
  const sum = element('td', { class: 'number' });
  const number = element('th', { scope: 'row', colspan: '3' });
  const headers = PARAMETER_COLUMNS.map((column) => element('th', { scope: 'col', class: column.number ? 'number' : null, 'aria-sort': 'none' },
    element('button', { type: 'button', click: () => sortBy(column) }, column.title)));
  const field = searchField('Filter by path, shape or type', (query) => { state.query = query; show(); });

  function sortBy(column) {
    state.descending = state.key === column.key ? !state.descending : Boolean(column.number);
    state.key = column.key;
    show();
  }

  function show() {
    const shown = parameters.filter((row) => fits(`${row.path} ${shapeText(row)} ${row.dtype}`, state.query));
    const direction = state.descending ? -1 : 1;
    shown.sort((a, b) => direction * (state.key === 'path' || state.key === 'dtype' ? a[state.key].localeCompare(b[state.key]) : a.count - b.count) || a.path.localeCompare(b.path));
    body.replaceChildren(...shown.map((row) => element('tr', {},
      element('th', { scope: 'row' }, row.path), element('td', {}, shapeText(row)), element('td', {}, row.dtype), element('td', { class: 'number' }, formatCount(row.count)))));
    sum.textContent = formatCount(shown.reduce((so, row) => so + row.count, 0));
    number.textContent = `${shown.length} of ${parameters.length}`;
    headers.forEach((header, i) => header.setAttribute('aria-sort', PARAMETER_COLUMNS[i].key !== state.key ? 'none' : state.descending ? 'descending' : 'ascending'));
  }

  show();
  const all = parameters.reduce((so, row) => so + row.count, 0);
  const pick = (path) => { field.value = path; state.query = path; show(); details.open = true; };
  const details = element('details', {}, element('summary', {}, `${parameters.length} arrays`),
    element('div', { class: 'tools' }, field),
    element('div', { class: 'scroll tall', tabindex: '0', role: 'region', 'aria-label': 'Parameters' },
      element('table', { class: 'parameters' }, element('thead', {}, element('tr', {}, headers)), body, element('tfoot', {}, element('tr', {}, number, sum)))));
  return section('parameters', 'Parameters', `${formatCount(all)} in total, fixed tables included; a leading axis counts layers.`, subtrees(parameters, all, pick), details);
}

function shapeText(row) {
  return row.shape.length ? row.shape.map(String).join(' × ') : 'scalar';
}

/** Lists the totals of the first three levels of paths, each a button that filters the table. */
function subtrees(parameters, all, pick) {
  const totals = new Map();
  for (const { path, count } of parameters) {
    const names = path.split('/');
    for (let depth = 1; depth <= Math.min(3, names.length - 1); depth += 1) {
      const prefix = `${names.slice(0, depth).join('/')}/`;
      totals.set(prefix, (totals.get(prefix) || 0) + count);
    }
  }
  const rows = [...totals].map(([prefix, count]) => {
    const depth = prefix.split('/').length - 2;
    const bar = element('span', { class: 'share', 'aria-hidden': 'true' }, element('span'));
    bar.firstChild.style.width = `${(100 * count) / all}%`;
    return element('tr', { class: depth ? `inner depth-${depth}` : null },
      element('th', { scope: 'row' }, element('button', { type: 'button', class: 'plain', click: () => pick(prefix) }, prefix.split('/')[depth])),
      element('td', { class: 'bars' }, bar), element('td', { class: 'number' }, formatCount(count)), element('td', { class: 'number' }, formatShare(count, all)));
  });
  const head = element('thead', { class: 'unseen' }, element('tr', {}, ['Subtree', 'Share', 'Parameters', 'Percent'].map((title) => element('th', { scope: 'col' }, title))));
  return element('table', { class: 'subtrees' }, head, element('tbody', {}, rows));
}
