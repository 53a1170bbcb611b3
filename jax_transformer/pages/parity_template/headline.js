// The head of the page: the verdict and the worst divergence.

const SECTIONS = [['stages', 'Stages'], ['depth', 'Depth'], ['modules', 'Modules'], ['heat', 'Heat map'], ['arrays', 'Arrays'], ['faults', 'Faults'], ['proof', 'Proof'], ['environment', 'Environment']];

function masthead(data, rows) {
  const own = SECTIONS.filter(([id]) => id !== 'proof' || data.proof);
  const sections = data.discovery ? [['discovery', 'What it computes'], ...own] : own;
  const first = firstDivergence(rows);
  return [
    topBar(sections),
    element('p', { class: 'over' }, data.discovery ? 'Discovery and parity' : 'Parity'),
    element('h1', { id: 'verdict' }, mark(data.verdict), ' ', headlineOf(data, first)),
    element('p', { class: 'lead sides' }, element('bdi', {}, data.candidate), ' against ', element('bdi', {}, data.reference)),
    data.doubts.length ? doubts(data.doubts) : null,
    first ? divergedFigures(data, rows, first) : comparedFigures(rows),
    first && first.reason ? element('p', { class: 'lead' }, 'There: ', first.reason, '.') : null,
    data.faults.length ? diagnosis(data.faults) : first ? element('p', { class: 'lead' }, 'No node was found at fault: the divergence is unexplained.') : null,
    data.notes.length || data.remarks.length ? notes(data.notes, data.remarks) : null,
  ];
}

function headlineOf(data, first) {
  if (data.verdict === 'passed') return 'The same function';
  if (data.verdict === 'inconclusive') return 'Inconclusive';
  return first ? ['Diverged at ', nameOf(first.name)] : 'Two functions, though no float shows it';
}

/** Lists the reasons why the report is inconclusive, whatever its stages found. */
function doubts(texts) {
  return element('div', { class: 'doubts' }, element('p', {}, 'This report is inconclusive:'), element('ul', {}, texts.map((text) => element('li', {}, text))));
}

/** Lists what a side writes otherwise without computing anything else, and what holds of both. */
function notes(faults, remarks) {
  const line = ([first, ...others]) => `${first.matches[0].variant}, at ${counted(others.length + 1, 'node')} of the ${first.side}: the same function`;
  return element('ul', { class: 'notes' }, [...faultGroups(faults).map((group) => element('li', {}, line(group))), ...remarks.map((remark) => element('li', {}, remark))]);
}

function divergedFigures(data, rows, first) {
  const fault = data.faults.find((one) => one.node === first.name);
  const depth = data.depth.find((one) => one.name === first.name) || {};
  const where = first.case ? `${first.stage}, ${first.case}` : first.stage;
  const local = fault ? fault.local_error : depth.local_candidate;
  const propagated = first.stage === 'forward' ? relativeRms(first) : fault ? fault.propagated_error : depth.propagated ?? relativeRms(first);
  return figures([
    data.verdict === 'diverged' ? ['Times the allowed error', first.error ? timesText(first) : 'not comparable', `in stage ${where}`] : ['First divergence', timesText(first), 'times the allowed error, at ', nameOf(first.name)],
    ['Propagated error', errorText(first, propagated), 'relative RMS, both sides computing from the ids'],
    ['Local error', formatError(local), localNote(fault, local)],
    effectFigure(data.effect),
  ]);
}

function localNote(fault, local) {
  if (fault && fault.side === 'unknown') return 'not measured';
  if (fault) return `the ${fault.side}, for its own inputs${fault.case ? `, on ${fault.case}` : ''}`;
  return Number.isFinite(local) ? 'the candidate, for its own inputs' : 'not measured';
}

function effectFigure(effect) {
  if (!effect) return ['Effect on the logits', '–', 'not measured'];
  const size = `logits off by ${formatError(effect.relative_rms)}, the largest by ${formatError(effect.max_error)}; KL ${formatError(effect.divergence)} nats`;
  return ['Top-1 tokens changed', [formatCount(effect.changed), element('span', { class: 'unit' }, ` of ${formatCount(effect.places)}`)], effect.case ? `${size}, on ${effect.case}` : size];
}

function comparedFigures(rows) {
  const passed = rows.filter((row) => row.verdict === 'passed');
  const nearest = passed.filter((row) => row.allowed > 0 && row.error).reduce((worst, row) => (!worst || isWorse(row, worst) ? row : worst), null);
  return figures([
    ['Arrays within their gates', [formatCount(passed.length), element('span', { class: 'unit' }, ` of ${formatCount(rows.length)}`)], `in ${counted(new Set(rows.map((row) => row.stage)).size, 'stage')}`],
    nearest ? ['Nearest to its gate', [timesText(nearest), element('span', { class: 'unit' }, ' of the allowed error')], nameOf(nearest.name), ` (${nearest.stage})`] : ['Nearest to its gate', '–', 'no array has an error'],
  ]);
}

function timesText(row) {
  return formatTimes(timesAllowed(row));
}

/** Formats an error of a row, in words if it isn't a number. */
function errorText(row, value) {
  return hasNonFinite(row) ? 'not finite' : formatError(value);
}
