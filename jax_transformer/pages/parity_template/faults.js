// A table of all faults.

function faultsSection(faults) {
  if (!faults.length) return section('faults', 'Faults', 'No node was found at fault.');
  const numbered = faults.map((fault, i) => ({ ...fault, number: i + 1, ...certainty(fault) }));
  const table = sortableTable('Faults', faultColumns(numbered), numbered);
  const lead = 'Every node whose result for its own inputs differs from the config, in execution order.';
  return section('faults', 'Faults', lead, element('p', { class: 'count unit' }, `${counted(faults.length, 'fault')} with ${counted(faultGroups(faults).length, 'cause')}`), table.node);
}

function faultColumns(faults) {
  const error = (title, value) => ({ title, number: true, key: value, cell: (fault) => formatError(value(fault)) });
  const columns = [
    { title: '#', number: true, key: (fault) => fault.number, cell: (fault) => formatCount(fault.number) },
    { title: 'Side', key: (fault) => fault.side, cell: (fault) => fault.side },
    { title: 'Node', class: 'names', key: (fault) => fault.node, cell: (fault) => nameOf(fault.node) },
    { title: 'Cause', class: 'text', key: (fault) => fault.cause, cell: causeCell },
    error('Local error', (fault) => fault.local_error ?? Infinity),
    error('Propagated', (fault) => fault.propagated_error),
    error('Residual', (fault) => fault.residual),
    { title: 'Runner-up', class: 'text', key: (fault) => fault.runner_up && fault.runner_up.variant, cell: (fault) => (fault.runner_up ? `${fault.runner_up.variant}: ${formatError(fault.runner_up.residual)}` : '–') },
    { title: 'Margin', number: true, key: (fault) => fault.margin, cell: (fault) => formatTimes(fault.margin) },
    { title: 'Stage', class: 'short', key: (fault) => fault.stage, cell: (fault) => (fault.case ? `${fault.stage}, ${fault.case}` : fault.stage) },
    { title: 'Replay', key: (fault) => fault.command || null, cell: (fault) => (fault.command ? copyButton(fault.command) : '') },
  ];
  return faults.some((fault) => fault.command) ? columns : columns.slice(0, -1);
}

function causeCell(fault) {
  return [fault.matches.length ? null : mark('inconclusive'), ` ${fault.cause}`, fault.told_apart_by ? element('small', {}, ` told apart by ${fault.told_apart_by}`) : null];
}
