// The certificate: whether both sides are one function for all weights, stage by stage, and where they part.

const PROOF_MARKS = { proven: 'passed', refuted: 'diverged', unknown: 'inconclusive' };
const PROOF_LEADS = {
  proven: 'Both sides are one function of the weights at these shapes, ids and masks, for all weights.',
  refuted: 'The sides are two functions of the weights.',
  unknown: 'Whether the sides are one function isn\u2019t known.',
};

function proofSection(proof) {
  const stages = proof.stages.map((stage, i) => ({ ...stage, number: i + 1 }));
  const columns = [
    { title: '#', number: true, key: (stage) => stage.number, cell: (stage) => formatCount(stage.number) },
    { title: 'Stage', key: (stage) => stage.name, class: 'verdict', cell: (stage) => [mark(PROOF_MARKS[stage.verdict]), ` ${stage.name}`] },
    { title: 'Verdict', key: (stage) => stage.verdict, cell: (stage) => stage.verdict },
    { title: 'The same', number: true, key: (stage) => stage.equal.length, cell: (stage) => formatCount(stage.equal.length) },
    { title: 'Different', number: true, key: (stage) => stage.different.length, cell: (stage) => formatCount(stage.different.length) },
    { title: 'On one side', number: true, key: (stage) => stage.alone.length, cell: (stage) => formatCount(stage.alone.length) },
    { title: 'Reason', class: 'text', key: (stage) => stage.reason, cell: (stage) => stage.reason || stage.different.slice(0, 3).join(', ') || '–' },
  ];
  return section('proof', 'Proof', PROOF_LEADS[proof.verdict],
    proof.difference ? factList('places', differenceFacts(proof.difference)) : null,
    sortableTable('Proof', columns, stages).node,
    element('h3', {}, 'Bound and axioms'),
    factList('places', [...boundFacts(proof), ...axiomFacts(proof.tasks)]));
}

function differenceFacts(difference) {
  const place = (side) => side && `${side.line || side.operation}${side.constants.length ? ` with ${side.constants.join(', ')}` : ''}`;
  return [
    ['First at', nameOf(difference.name)],
    ['Candidate', place(difference.candidate)],
    ['Reference', place(difference.reference)],
    ['In float64', difference.float64 === null ? null : `a relative RMS of ${formatError(difference.float64)} on the model\u2019s own weights`],
    ['Witness', difference.witness && witnessText(difference.witness)],
    ['In 60 digits', difference.digits === null ? null : `${formatError(difference.digits)} at random weights`],
  ].filter(([, value]) => value);
}

function witnessText({ found, output, weights, difference, kinds }) {
  if (found) return `${weights} show it in float64: ${output}, by a relative RMS of ${formatError(difference)}`;
  const largest = difference === null ? '' : `: the largest relative RMS is ${formatError(difference)}`;
  return `none of ${counted(kinds, 'kind')} of weights shows it in float64${largest}`;
}

function boundFacts({ verdict, tasks }) {
  const error = Math.log2(tasks.reduce((sum, task) => sum + 2 ** task.log2_error, 0));
  const points = tasks.reduce((sum, task) => sum + task.points.length, 0);
  const casts = [...new Set(tasks.flatMap((task) => [...task.candidate.narrowing, ...task.reference.narrowing]))];
  return [
    ['Wrong with a probability below', verdict === 'proven' && tasks.length ? `2^${Math.ceil(error)}, at ${counted(points, 'point')}` : null],
    ['Without the casts', casts.length ? casts.join(', ') : null],
  ].filter(([, value]) => value);
}

function axiomFacts(tasks) {
  const found = new Map();
  for (const task of tasks) for (const [name, where] of Object.entries(task.axioms)) found.set(name, new Set([...(found.get(name) || []), ...where]));
  return [...found].map(([name, where]) => [name, [...where].filter(Boolean).join('; ') || 'used']);
}
