// The stages in order, each a button that filters the table of arrays.

const MOST_REASONS = 3;

/** Clicks call `choose(stage)`; select(stage) marks the stage that the table shows, or none for null. */
function funnelSection(stages, choose) {
  const buttons = stages.map((stage) => element('button', { type: 'button', 'aria-pressed': 'false', class: stage.verdict, title: 'Show its arrays', click: () => choose(stage.name) },
    element('span', { class: 'title' }, mark(stage.verdict), ' ', stage.name, element('span', { class: 'unseen' }, ` ${stage.verdict}`)),
    element('span', { class: 'count' }, countText(stage)), shares(stage)));
  const items = buttons.map((button) => element('li', {}, button));
  const reasons = stages.flatMap((stage) => reasonsOf(stage).map((reason) => element('li', {}, mark(stage.verdict), ' ', element('b', {}, stage.name), ' ', ...reason)));
  const lead = 'In execution order. Select a stage to show its arrays in the table below.';
  const node = section('stages', 'Stages', stages.length ? lead : 'No stage was run.',
    stages.length ? element('ol', { class: 'funnel' }, items) : null, reasons.length ? element('ul', { class: 'reasons' }, reasons) : null);
  const select = (name) => buttons.forEach((button, i) => button.setAttribute('aria-pressed', stages[i].name === name));
  return { node, select };
}

function countText(stage) {
  if (!stage.rows.length) return 'not compared';
  return `${formatCount(verdictsIn(stage).passed)} of ${formatCount(stage.rows.length)} pass`;
}

function verdictsIn(stage) {
  const counts = { passed: 0, inconclusive: 0, diverged: 0 };
  for (const row of stage.rows) counts[row.verdict] += 1;
  return counts;
}

/** Draws a bar of the numbers that passed, were inconclusive, and diverged. */
function shares(stage) {
  const counts = verdictsIn(stage);
  const parts = BY_SEVERITY.filter((verdict) => counts[verdict]).map((verdict) => element('span', { class: verdict, style: `flex-grow:${counts[verdict]}` }));
  return element('span', { class: 'shares', 'aria-hidden': 'true' }, parts);
}

/** Lists the stage's own reasons, then those of its arrays, each once. */
function reasonsOf(stage) {
  const names = new Map();
  for (const row of stage.rows) if (row.reason) names.set(row.reason, [...(names.get(row.reason) || []), row.name]);
  const ofRows = [...names].map(([reason, of]) => [nameOf(of[0]), of.length > 1 ? ` and ${formatCount(of.length - 1)} more: ` : ': ', reason]);
  const more = ofRows.length - MOST_REASONS;
  return [...stage.reasons.map((reason) => [reason]), ...ofRows.slice(0, MOST_REASONS), ...(more > 0 ? [[`and ${counted(more, 'more reason')}, in the table of arrays`]] : [])];
}
