// What a module was found to compute: how it is called, its architecture, and every choice with its residual.

function discoverySection({ call, notes, checks, conclusions, architecture }) {
  const lead = 'Each choice is the one whose result equals the module’s own tensors in float64; the runner-up is the nearest other choice.';
  const table = sortableTable('Conclusions', conclusionColumns(), conclusions.map((one, i) => ({ ...one, number: i + 1 })));
  return section('discovery', 'What it computes', lead,
    architectureFigure(architecture),
    element('h3', {}, 'How it is called'), element('div', { class: 'command' }, element('div', { class: 'scroll' }, element('code', {}, call.join('\n')))),
    notes.length ? element('ul', { class: 'notes' }, notes.map((note) => element('li', {}, note))) : null,
    element('h3', {}, 'Checked on other sentences'), element('ul', { class: 'notes' }, checks.map(checkLine)),
    element('h3', {}, 'Conclusions'), table.node);
}

function checkLine({ source, target, residual }) {
  return element('li', {}, `${source} and ${counted(target, 'token')}: logits differ by ${formatError(residual)} of their RMS`);
}

function conclusionColumns() {
  return [
    { title: '#', number: true, key: (one) => one.number, cell: (one) => formatCount(one.number) },
    { title: 'Where', class: 'names', key: (one) => one.what, cell: (one) => nameOf(one.what) },
    { title: 'Found', class: 'text', key: (one) => one.value, cell: (one) => one.value },
    { title: 'Residual', number: true, key: (one) => one.residual, cell: (one) => formatError(one.residual) },
    { title: 'Runner-up', class: 'text', key: (one) => one.runner_up || null, cell: (one) => one.runner_up || '–' },
    { title: 'Its residual', number: true, key: (one) => one.runner_up_residual, cell: (one) => (one.runner_up ? formatError(one.runner_up_residual) : '–') },
  ];
}
