// The page from top to bottom.

function masthead(data) {
  const pair = [['Source', data.source.text], ['Target', data.target.text]]
    .flatMap(([name, text]) => [element('dt', {}, name), element('dd', { dir: 'auto' }, text || element('i', {}, 'empty'))]);
  return [
    topBar([['map', 'Weights'], ['words', 'Words']]),
    element('p', { class: 'over' }, data.model),
    element('h1', {}, 'Attention'),
    element('dl', { class: 'pair' }, pair),
  ];
}

function mapSection(data) {
  const state = { kind: data.kinds.find((kind) => kind.name === data.shown.kind), layer: data.shown.layer, head: data.shown.head };
  const readout = element('p', { class: 'readout' });
  const canvas = element('div', { class: 'scroll canvas' });
  const map = heatMap(canvas, readout);
  const tools = element('div', { class: 'selectors' });
  const aside = element('div', { class: 'all' });
  const caption = element('figcaption', {});
  const figure = element('figure', { class: 'large' }, caption, readout, canvas);
  let parts = null;

  function showKind(kind) {
    state.kind = kind;
    const [layers, heads] = kind.shape;
    state.layer = Math.min(state.layer, layers - 1);
    state.head = state.head === null ? null : Math.min(state.head, heads - 1);
    const numbers = (count) => Array.from({ length: count }, (_, number) => [number, String(number)]);
    parts = {
      layer: choices('Layer', 'layer', numbers(layers), (layer) => showMap(layer, state.head)),
      head: choices('Head', 'head', [[null, 'mean'], ...numbers(heads)], (head) => showMap(state.layer, head)),
      all: overview(kind, showMap),
    };
    figure.style.flexBasis = `${140 + 32 * kind.keys.length}px`; // if the small maps don't fit beside it, they move below
    tools.replaceChildren(parts.layer.node, parts.head.node);
    aside.replaceChildren(element('h3', {}, 'All layers and heads'), parts.all.node);
    showMap(state.layer, state.head);
  }

  function showMap(layer, head) {
    Object.assign(state, { layer, head });
    parts.layer.select(layer);
    parts.head.select(head);
    parts.all.select(layer, head);
    const chosen = mapOf(state.kind, layer, head);
    caption.replaceChildren(element('span', { class: 'title' }, `${state.kind.title}, ${nameOf(layer, head)}`), scale(chosen.largest));
    map.show(state.kind, chosen, `${state.kind.title}, ${nameOf(layer, head)}: a row for each ${state.kind.query_title}, a column for each ${state.kind.key_title}. The arrow keys read each weight.`);
    rows.textContent = `A row is a ${state.kind.query_title}, a column a ${state.kind.key_title}.`;
  }

  const rows = element('p', { class: 'lead' });
  const kinds = choices('Attention', 'kind', data.kinds.map((kind) => [kind, kind.title]), showKind);
  kinds.select(state.kind);
  const node = section('map', 'Weights', null, rows, element('div', { class: 'controls' }, kinds.node, tools),
    element('div', { class: 'panels' }, figure, aside));
  return { node, start: () => showKind(state.kind) };
}

/** Makes the legend of the colours. */
function scale(largest) {
  return element('span', { class: 'scale' }, '0', element('span', { class: 'ramp', 'aria-hidden': 'true' }), formatWeight(largest));
}

function wordsSection({ source, target, alignment }) {
  const lead = `Each target word with the source word that it attends to most, by the mean over the heads of cross-attention in layer ${alignment.layer}.`;
  if (!alignment.pairs.length) return section('words', 'Words', 'There are no words to align.');
  const items = alignment.pairs.map(([from, to]) => element('li', {},
    element('bdi', { class: 'to' }, target.words[to]), element('span', { class: 'unseen' }, ' from '), element('bdi', { class: 'from' }, source.words[from])));
  const written = alignment.pairs.map(([from, to]) => `${from}-${to}`).join(' ');
  return section('words', 'Words', lead, element('ol', { class: 'pairs' }, items),
    element('p', { class: 'pharaoh' }, 'Source-target, from 0: ', element('code', {}, written)));
}

// --- now

const data = pageData();
for (const kind of data.kinds) kind.weights = unpacked(kind.weights);
const weights = mapSection(data);
fillPage(masthead(data), [weights.node, wordsSection(data)], 'Written by jax-transformer; the weights are those that the model computes.');
weights.start();
