// Tables of scores, data, config and parameters.

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
    return name === 'exact_match' && Number.isFinite(value) ? `${value.toFixed(1)}\u202f%` : formatScore(value);
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

const CONFIG_COLUMNS = [
  { title: 'Field', key: (field) => field.number, cell: (field) => field.path },
  { title: 'Value', key: (field) => field.value, cell: (field) => (field.value === '' ? element('i', {}, 'empty') : field.value) },
];

function configSection(fields) {
  const config = fields.map((field, i) => ({ ...field, number: i })); // in the order of the file
  const state = { query: '', onlyChanged: false };
  const sorted = sortableTable('Config', CONFIG_COLUMNS, config, (field) => (field.changed ? 'changed' : null));
  const count = element('span', { class: 'unit', role: 'status' });
  function show() {
    const shown = config.filter((field) => fits(`${field.path} ${field.value}`, state.query) && (field.changed || !state.onlyChanged));
    sorted.show(shown);
    count.textContent = `${shown.length} of ${counted(config.length, 'field')}`;
  }
  const checkbox = element('input', { type: 'checkbox', change: () => { state.onlyChanged = checkbox.checked; show(); } });
  show();
  const changed = config.filter((field) => field.changed).length;
  return section('config', 'Config', null, element('details', {},
    element('summary', {}, `${counted(config.length, 'field')}, ${changed} of them changed from the defaults`),
    element('div', { class: 'tools' }, searchField('Search the config', (query) => { state.query = query; show(); }),
      element('label', {}, checkbox, ' only fields changed from the defaults'), count),
    sorted.node));
}

// --- parameters

const PARAMETER_COLUMNS = [
  { title: 'Path', key: (row) => row.path, cell: (row) => row.path },
  { title: 'Shape', class: 'shape', key: (row) => row.count, cell: shapeText },
  { title: 'Type', key: (row) => row.dtype, cell: (row) => row.dtype },
  { title: 'Parameters', number: true, key: (row) => row.count, cell: (row) => formatCount(row.count) },
];

function parametersSection(parameters) {
  if (!parameters.length) return section('parameters', 'Parameters', 'No parameters.json in this run.');
  const sorted = sortableTable('Parameters', PARAMETER_COLUMNS, parameters);
  const count = element('span', { class: 'unit', role: 'status' });
  const field = searchField('Filter by path, shape or type', show);

  function show(query) {
    const shown = parameters.filter((row) => fits(`${row.path} ${shapeText(row)} ${row.dtype}`, query));
    sorted.show(shown);
    count.textContent = `${shown.length} of ${counted(parameters.length, 'array')}, ${formatCount(sizeOf(shown))} parameters`;
  }

  show('');
  const pick = (path) => { field.value = path; show(path); details.open = true; };
  const details = element('details', {}, element('summary', {}, counted(parameters.length, 'array')), element('div', { class: 'tools' }, field, count), sorted.node);
  const all = sizeOf(parameters);
  return section('parameters', 'Parameters', `${formatCount(all)} in total, fixed tables included; a leading axis counts layers.`, subtrees(parameters, all, pick), details);
}

function sizeOf(parameters) {
  return parameters.reduce((sum, row) => sum + row.count, 0);
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
