// The causes: each once, with its nodes.

const MOST_NODES = 3;
const MOST_CAUSES = 3;

function diagnosis(faults) {
  const causes = faultGroups(faults).map(cause);
  const more = causes.slice(MOST_CAUSES);
  const rest = more.length ? element('details', {}, element('summary', {}, `${counted(more.length, 'cause')} more`), element('div', { class: 'diagnosis' }, more)) : null;
  return element('div', { class: 'diagnosis' }, causes.slice(0, MOST_CAUSES), rest);
}

/** Describes the faults of one cause. Of several faults, the numbers are those of the least certain. */
function cause(group) {
  const [first] = group;
  const isNamed = first.matches.length > 0;
  const surest = group.map((fault) => ({ fault, ...certainty(fault) }));
  const residual = isNamed ? Math.max(...surest.map((one) => one.residual)) : null;
  const closest = surest.filter(({ fault }) => fault.runner_up).sort((a, b) => (a.margin ?? 0) - (b.margin ?? 0) || rival(a) - rival(b))[0];
  const [atMost, atLeast] = group.length > 1 ? ['≤\u00a0', '≥\u00a0'] : ['', ''];
  return element('article', { class: 'cause' },
    element('p', { class: 'over' }, first.side === 'unknown' ? `The sides differ at ${counted(group.length, 'node')}; nothing shows which is wrong` : `The ${first.side} computes something else at ${counted(group.length, 'node')}`),
    element('h2', {}, isNamed ? first.cause : first.cause.replace('unexplained', 'Unexplained')),
    element('p', { class: 'nodes' }, listed(group.map((fault) => fault.node))),
    factList('numbers', [
      ['Local error', formatError(first.local_error), group.length > 1 ? element('small', {}, ' at the first') : null],
      ['Propagated error', formatError(first.propagated_error), group.length > 1 ? element('small', {}, ' at the first') : null],
      ['Residual', residual === null ? null : `${atMost}${formatError(residual)}`],
      ['Margin', closest && closest.margin !== null ? `${atLeast}${formatTimes(closest.margin)}\u00a0×` : null],
      [isNamed ? 'Runner-up' : 'Nearest variant', closest ? `${closest.fault.runner_up.variant}` : null, closest ? element('small', {}, ` leaves ${formatError(closest.fault.runner_up.residual)}`) : null],
      ['Proof', first.nature || null],
      ['Told apart by', first.told_apart_by],
      ['Changes', first.changes === 'fully masked rows' ? 'only fully masked rows, where a query sees no key; --allow fully-masked accepts that' : null],
    ]),
    first.command ? [element('p', { class: 'over' }, group.length > 1 ? 'Replay the first of these nodes alone' : 'Replay this node alone'), commandLine(first.command)] : null);
}

function rival({ fault }) {
  return fault.runner_up.residual ?? Infinity;
}

/** Lists the first names, and counts the others. */
function listed(names) {
  const shown = names.slice(0, MOST_NODES).flatMap((name, i) => (i ? [', ', nameOf(name)] : [nameOf(name)]));
  const more = names.length - MOST_NODES;
  return more > 0 ? [...shown, ' and ', element('a', { href: '#faults' }, `${formatCount(more)} more`)] : shown;
}
