// A drawing of an encoder-decoder: both stacks side by side, from the ids to the logits, one layer standing for all.

/** stacks: what `architecture` of jax_transformer.discover returns. */
function architectureFigure(stacks) {
  return element('figure', { class: 'architecture', 'aria-label': 'Architecture' }, stacks.map(stackColumn));
}

function stackColumn({ name, start, count, layer, notes, after }) {
  const repeated = element('div', { class: 'layer' },
    element('p', { class: 'count' }, `${counted(count, 'layer')}`, notes.length ? element('small', {}, ` ${notes.join('; ')}`) : null),
    layer.flatMap(residualConnection));
  const ids = name === 'encoder' ? 'source ids' : 'decoder input ids';
  return element('div', { class: 'column' }, element('h3', {}, name), element('p', { class: 'end' }, ids), start.map(block), repeated, after.map(block),
    element('p', { class: 'end' }, name === 'encoder' ? 'encoder output, read by cross-attention' : 'logits'));
}

/** Draws a sublayer inside the line that leads around it to the sum, and the norm after the sum. */
function residualConnection({ inside, residual, after }) {
  return [
    element('div', { class: 'around' }, inside.map(part), element('p', { class: 'sum' }, element('span', { 'aria-label': 'plus the stream' }, '+'), residual.length ? element('small', {}, `stream ${residual.join(' ')}`) : null)),
    ...after.map(block),
  ];
}

/** Draws a block, or branches that read the same, beside one another. */
function part(one) {
  return one.beside ? element('div', { class: 'beside' }, one.beside.map((branch) => element('div', {}, branch.map(block)))) : block(one);
}

function block({ title, facts }) {
  return element('div', { class: title === 'norm' ? 'block thin' : 'block' }, element('b', {}, title), ' ', element('span', {}, facts.join(' · ')));
}
