// The page from top to bottom.

const CHARTS = [
  { title: 'Loss', unit: 'nats per target token', log: 'possible', series: [{ key: 'loss', label: 'training' }, { key: 'valid_loss', label: 'validation', dots: true }] },
  { title: 'Translation scores', unit: 'validation, %', log: 'never', format: formatScore, series: [
    { key: 'valid_bleu', label: 'BLEU', dots: true }, { key: 'valid_chrf', label: 'chrF', dots: true }, { key: 'valid_exact_match', label: 'exact match', dots: true }] },
  { title: 'Perplexity', log: 'first', series: [{ key: 'perplexity', label: 'training, label smoothing included' }, { key: 'plain_perplexity', label: 'training, without it', slot: 2 }, { key: 'valid_perplexity', label: 'validation', dots: true, slot: 1 }] },
  { title: 'Gradient norm', unit: 'before clipping', log: 'possible', series: [{ key: 'gradient_norm', label: 'mean' }] },
  { title: 'Learning rate', log: 'possible', series: [{ key: 'learning_rate', label: 'rate' }] },
  { title: 'Speed', unit: 'target tokens per second', log: 'never', series: [{ key: 'tokens_per_second', label: 'training' }] },
  { title: 'Utilization', unit: '%', log: 'never', factor: 100, series: [{ key: 'mfu', label: 'MFU' }, { key: 'goodput', label: 'goodput so far' }] },
];

const SECTIONS = [['curves', 'Curves'], ['samples', 'Samples'], ['analysis', 'Translations'], ['attention', 'Attention'], ['data', 'Data'], ['parameters', 'Parameters'], ['config', 'Config'], ['environment', 'Environment']];

const STATES = { finished: 'finished', running: 'running', interrupted: 'interrupted', silent: 'no news' };

function masthead(data) {
  const moment = formatMoment(data.changed);
  return [
    topBar(SECTIONS.filter(([id]) => (id !== 'analysis' || Object.keys(data.analyses).length) && (id !== 'attention' || data.attention))),
    element('p', { class: 'over' }, 'Training report'),
    element('h1', {}, data.name, ' ', element('span', { class: `state ${data.state}` }, STATES[data.state]), renewal(data)),
    element('p', { class: 'lead' }, [
      `Step ${formatCount(data.step)}${data.last_step > data.step ? ` of ${formatCount(data.last_step)}, ${formatShare(data.step, data.last_step)}` : ''}`,
      data.message, data.environment.device ? `on ${data.environment.device}` : ''].filter(Boolean).join(' · '),
      moment ? element('span', { class: 'moment' }, ` · as of ${moment}`) : null),
  ];
}

function headline(data) {
  const { best, scores, speed } = data;
  const [split, score] = Object.entries(scores)[0] || ['validation', best && Number.isFinite(best.valid_bleu)
    ? { bleu: best.valid_bleu, chrf: best.valid_chrf, exact_match: best.valid_exact_match, sentences: best.valid_sentences } : null];
  const time = speed.training + speed.compiling + speed.evaluating;
  const count = sizeOf(data.parameters);
  const sentences = score ? `${split}, ${formatCount(score.sentences)} sentences` : 'not translated yet';
  return figures([
    ['Best validation loss', best ? formatNumber(best.valid_loss) : '–', best ? `perplexity ${formatNumber(best.valid_perplexity)}, step ${formatCount(best.step)}` : 'no evaluation yet'],
    ['BLEU', score ? formatScore(score.bleu) : '–', sentences],
    ['chrF', score ? formatScore(score.chrf) : '–', score && Number.isFinite(score.exact_match) ? `exact match ${score.exact_match.toFixed(1)}\u202f%` : sentences],
    ['Target tokens per second', formatCount(speed.tokens_per_second), `${formatShort(speed.target_tokens)} seen`],
    ['Goodput', Number.isFinite(speed.goodput) ? formatShare(speed.goodput, 1) : '–', Number.isFinite(speed.mfu) ? `MFU ${formatShare(speed.mfu, 1)}` : 'share of the time that went into steps'],
    ['Time', formatDuration(time), `${formatDuration(speed.training)} training, ${formatDuration(speed.evaluating)} evaluating`],
    ['Compilation', formatDuration(speed.compiling), speed.programs === null ? '' : counted(speed.programs, 'training program')],
    ['Parameters', formatShort(count), counted(data.parameters.length, 'array')],
  ]);
}

function curvesSection(data) {
  const cursor = makeCursor(data.step, data.best ? data.best.step : null);
  const all = Object.values(data.curves);
  const averaged = all.filter((curve) => curve.means);
  const lead = `By step. Each name has its value at the cursor, or the last one.${averaged.length ? ` A curve has up to ${formatCount(Math.max(...averaged.map((curve) => curve.count)))} values: lines show means over intervals, pale lines the extremes.` : ''}`;
  return section('curves', 'Curves', lead, element('div', { class: 'multiples' }, CHARTS.map((spec) => chart(spec, data.curves, cursor))));
}

const DONE = { stop: 'the run stopped', skip: 'skipped', rollback: 'the run went back to its last checkpoint' };

/** found: the steps whose loss or gradient wasn't finite, each with what came of it and the pairs of its batch. */
function divergencesSection(found) {
  if (!found.length) return null;
  const columns = ['Step', 'Loss', 'Gradient norm', 'Then', 'Pairs of its batch'].map((title) => ({ title, number: false }));
  const rows = found.map((one) => [formatCount(one.step), one.loss, one.gradient_norm, DONE[one.action] || one.action, sentencesOf(one)]);
  return section('divergences', 'Steps that were not finite', 'Where losses, gradients or weights stopped being finite numbers.', table(columns, rows));
}

function sentencesOf({ sentences }) {
  if (!sentences.length) return '–';
  const list = element('ul', {}, sentences.map(({ source, target }) => element('li', {}, `${source} → ${target}`)));
  return element('details', {}, element('summary', {}, `${formatCount(sentences.length)} pairs`), list);
}

function environmentSection({ environment, memory }) {
  const entries = [...Object.entries(environment).map(([name, value]) => [name, String(value)]), ['most memory', memoryText(memory)]];
  return section('environment', 'Environment', Object.keys(environment).length ? null : 'No parameters.json in this run.', factList('environment', entries));
}

function colophon(data) {
  const unread = data.unread_lines ? ` ${counted(data.unread_lines, 'unreadable line')} ${data.unread_lines === 1 ? 'was' : 'were'} skipped.` : '';
  return ['Written by jax-transformer from the files of the run; rebuild it with ', element('code', {}, 'jax-transformer report RUN'), `.${unread}`];
}

// --- now

const data = pageData();
fillPage(masthead(data), [
  nowPanel(data),
  headline(data),
  scoresTable(data),
  divergencesSection(data.divergences),
  curvesSection(data),
  samplesSection(data.samples, data.best ? data.best.step : null),
  analysisSection(data.analyses),
  attentionSection(data.attention),
  dataSection(data.data, data.stream),
  parametersSection(data.parameters),
  configSection(data.config),
  environmentSection(data),
], colophon(data));
restoreView();
