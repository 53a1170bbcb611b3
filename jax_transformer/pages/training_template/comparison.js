// Several runs on one page.

const CHARTS = [
  { title: 'Validation loss', unit: 'nats per target token', log: 'possible', key: 'valid_loss', dots: true },
  { title: 'Training loss', unit: 'nats per target token, label smoothing included', log: 'possible', key: 'loss' },
  { title: 'BLEU', unit: 'validation, %', log: 'never', format: formatScore, key: 'valid_bleu', dots: true },
  { title: 'chrF', unit: 'validation, %', log: 'never', format: formatScore, key: 'valid_chrf', dots: true },
  { title: 'Learning rate', log: 'possible', key: 'learning_rate' },
  { title: 'Gradient norm', unit: 'before clipping', log: 'possible', key: 'gradient_norm' },
  { title: 'Speed', unit: 'target tokens per second', log: 'never', key: 'tokens_per_second' },
];

const SECTIONS = [['runs', 'Runs'], ['config', 'Config'], ['curves', 'Curves'], ['scores', 'Scores'], ['translations', 'Translations']];
const STATES = { finished: 'finished', running: 'running', interrupted: 'interrupted', silent: 'no news' };

/** Shows a run's name with the line that stands for it in every chart. */
function runName(run, slot) {
  return element('span', { class: 'run' }, swatch({ slot }), run.name);
}

function masthead({ runs }) {
  return [topBar(SECTIONS), element('p', { class: 'over' }, 'Comparison of training runs'), element('h1', {}, runs.map((run) => run.name).join(', '))];
}

function runsSection({ runs, notes }) {
  const columns = ['Run', 'State', 'Step', 'Best validation loss', 'BLEU there', 'Training', 'Target tokens per second', 'Parameters', 'Device'].map((title, i) => ({ title, number: i > 1 && i < 8 }));
  const rows = runs.map((run, i) => [
    runName(run, i), STATES[run.state], `${formatCount(run.step)}${run.last_step > run.step ? ` of ${formatCount(run.last_step)}` : ''}`,
    run.best ? `${formatNumber(run.best.valid_loss)}, step ${formatCount(run.best.step)}` : '–',
    run.best ? formatScore(run.best.valid_bleu) : '–',
    formatDuration(run.speed.training), formatCount(run.speed.tokens_per_second), formatShort(run.parameters), run.environment.device || '–']);
  return section('runs', 'Runs', null, notes.length ? element('ul', { class: 'notes' }, notes.map((note) => element('li', {}, note))) : null, table(columns, rows));
}

function curvesSection({ runs }) {
  const cursor = makeCursor(Math.max(...runs.map((run) => run.step)), null);
  const shown = CHARTS.filter(({ key }) => runs.some((run) => run.curves[key].count));
  const figures = shown.map(({ key, dots, ...spec }) => chart(
    { ...spec, series: runs.map((run, i) => ({ key: `${key} ${i}`, label: run.name, dots })) },
    Object.fromEntries(runs.map((run, i) => [`${key} ${i}`, run.curves[key]])), cursor));
  return section('curves', 'Curves', 'By step. Each name has its value at the cursor, or the last one.',
    figures.length ? element('div', { class: 'multiples' }, figures) : element('p', { class: 'empty' }, 'No values yet.'));
}

// --- scores

function scoresSection({ runs, tests }) {
  if (!tests.length) return section('scores', 'Scores', 'No run is finished: see the curves of BLEU and chrF on validation.');
  const lead = '± is half the 95\u202f% interval by bootstrap resampling; p compares with the first run of a table, by paired resampling: the probability of so large a difference if both were equally good.';
  return section('scores', 'Scores', lead, ...tests.flatMap((test) => [testHeading(test, runs), test.metrics ? metricsTable(test, runs) : plainTable(test, runs)]));
}

function testHeading(test) {
  const other = test.is_one_of > 1 ? ', one of several test sets of this name: don\u2019t compare their scores' : '';
  const text = test.metrics ? `${counted(test.sentences, 'sentence')}${other}` : 'without translations.json, as in runs of earlier versions: no intervals, and whether the sentences are the same is unknown';
  return element('h3', {}, test.split, ' ', element('span', { class: 'unit' }, text));
}

function metricsTable(test, runs) {
  const columns = ['Run', ...test.metrics.map(({ metric }) => (metric === 'TER' ? 'TER, lower is better' : metric))].map((title, i) => ({ title, number: i > 0 }));
  const rows = test.runs.map((run, i) => [runName(runs[run], run), ...test.metrics.map(({ systems }) => scoreText(systems[i]))]);
  const signatures = test.metrics.filter(({ signature }) => signature).map(({ metric, signature }) => element('li', {}, element('span', {}, `${metric} `), signature));
  return element('div', {}, table(columns, rows), element('ul', { class: 'signatures' }, signatures));
}

function scoreText({ score, interval, p_value: p }) {
  const chance = p === null ? null : element('span', { class: 'unit' }, ` p ${p < 0.001 ? '<\u202f0.001' : p.toFixed(3)}`);
  return element('span', {}, formatScore(score), interval === null ? '' : ` ± ${formatScore(interval)}`, chance);
}

function plainTable(test, runs) {
  const columns = ['Run', 'BLEU', 'chrF', 'Sentences'].map((title, i) => ({ title, number: i > 0 }));
  return table(columns, test.runs.map((run, i) => [runName(runs[run], run), formatScore(test.scores[i].bleu), formatScore(test.scores[i].chrf), formatCount(test.scores[i].sentences)]));
}

// --- translations

function translationsSection({ runs, tests, samples }) {
  const together = tests.filter((test) => test.metrics && test.runs.length > 1);
  const children = together.flatMap((test) => [
    element('h3', {}, test.split, ' ', element('span', { class: 'unit' }, `${formatCount(test.differ)} of ${formatCount(test.examined)} translations differ${test.differ > test.shown.length ? `; the ${test.shown.length} whose chrF differs most` : ''}`)),
    sentenceList(test.shown, test.runs, runs)]);
  if (!children.length && samples.length) children.push(element('h3', {}, 'validation ', element('span', { class: 'unit' }, 'the latest translations of the same sentences')), sentenceList(samples, runs.map((_, i) => i), runs));
  if (!children.length) return section('translations', 'Translations', 'No two runs have translated the same sentences.');
  return section('translations', 'Translations', [element('mark', {}, 'Marked'), ' words differ from the reference; ', element('span', { class: 'missing' }), ' marks missing words.'], ...children);
}

/** sentences: {source, reference, translations, chrf}, with a translation and its chrF for each of the runs `numbers`. */
function sentenceList(sentences, numbers, runs) {
  return element('ol', { class: 'sentences' }, sentences.map(({ source, reference, translations, chrf }) => element('li', {},
    element('p', { dir: 'auto', class: 'unit' }, source),
    element('p', { dir: 'auto' }, reference),
    element('dl', {}, translations.flatMap((translation, i) => [
      element('dt', {}, runName(runs[numbers[i]], numbers[i]), chrf ? element('span', { class: 'unit' }, ` chrF ${chrf[i].toFixed(1)}`) : null),
      element('dd', { dir: 'auto' }, translation ? compared(translation, reference).nodes : element('i', {}, 'empty'))])))));
}

// --- config

function configSection({ runs, config }) {
  if (!config.length) return section('config', 'Config', 'No differences.');
  const columns = ['Field', ...runs.map((run, i) => runName(run, i))].map((title) => ({ title }));
  return section('config', 'Config', `${counted(config.length, 'field')} differ${config.length === 1 ? 's' : ''}; – marks a field that a run doesn\u2019t have.`,
    table(columns, config.map(({ path, values }) => [path, ...values.map((value) => value ?? '–')]), { class: 'fields' }));
}

// --- now

const data = pageData();
fillPage(masthead(data), [
  runsSection(data), configSection(data), curvesSection(data), scoresSection(data), translationsSection(data),
], 'Written by jax-transformer from the files of the runs.');
