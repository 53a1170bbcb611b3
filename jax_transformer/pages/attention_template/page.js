// The page from top to bottom.

/** Makes the head, whose title is the sentence. */
function masthead(data, example) {
  return [
    topBar([['map', 'Weights'], ['words', 'Words']]),
    element('p', { class: 'over' }, `Attention · ${data.model}`),
    element('h1', { dir: 'auto', class: example.source.text.length > LONG ? 'long' : null }, example.source.text),
    element('p', { class: 'translation', dir: 'auto' }, element('span', { class: 'unseen' }, 'Translation: '), example.target.text || element('i', {}, 'empty')),
  ];
}

/** Lists the sentences to choose from; a choice calls `choose(index)`. */
function sentenceList(examples, choose) {
  if (examples.length < 2) return null;
  const items = examples.map(({ source }, index) => element('li', {}, element('label', {},
    element('input', { type: 'radio', name: 'sentence', value: index, checked: index ? null : '', change: () => choose(index) }), element('bdi', {}, source.text))));
  return element('fieldset', { class: 'sentences' }, element('legend', {}, `${formatCount(examples.length)} sentences`), element('ol', {}, items));
}

/** Says which layer is shown first, and why. */
function chosenLayer({ shown, examples }) {
  if (!shown.entropies || shown.entropies.length < 2) return null;
  const kind = examples[0].kinds.find(({ name }) => name === shown.kind);
  const others = shown.entropies.map((entropy, layer) => `${entropy.toFixed(2)} in layer ${layer}`).filter((_, layer) => layer !== shown.layer);
  return `The page opens on layer ${shown.layer}, the sharpest: its weights of ${kind.title[0].toLowerCase()}${kind.title.slice(1)} have the least entropy, averaged over heads, rows${examples.length > 1 ? ' and sentences' : ''}: ${shown.entropies[shown.layer].toFixed(2)} nats; ${others.join(', ')}.`;
}

function mapSection(data) {
  const state = { example: data.examples[0], name: data.shown.kind, layer: data.shown.layer, head: data.shown.head };
  const readout = element('p', { class: 'readout' });
  const canvas = element('div', { class: 'scroll canvas' });
  const map = heatMap(canvas, readout);
  const tools = element('div', { class: 'selectors' });
  const aside = element('div', { class: 'all' });
  const caption = element('figcaption', {});
  const figure = element('figure', { class: 'large' }, caption, readout, canvas);
  let parts = null;

  const kindNow = () => state.example.kinds.find(({ name }) => name === state.name);

  function showExample(example) {
    state.example = example;
    showKind(state.name);
  }

  function showKind(name) {
    state.name = name;
    const kind = kindNow();
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
    const kind = kindNow();
    parts.layer.select(layer);
    parts.head.select(head);
    parts.all.select(layer, head);
    const chosen = mapOf(kind, layer, head);
    caption.replaceChildren(element('span', { class: 'title' }, `${kind.title}, ${nameOf(layer, head)}`), scale(chosen.largest));
    map.show(kind, chosen, `${kind.title}, ${nameOf(layer, head)}: a row for each ${kind.query_title}, a column for each ${kind.key_title}. The arrow keys read each weight.`);
    rows.textContent = `A row is a ${kind.query_title}, a column a ${kind.key_title}.`;
  }

  const rows = element('p', { class: 'lead' });
  const kinds = choices('Attention', 'kind', state.example.kinds.map(({ name, title }) => [name, title]), showKind);
  kinds.select(state.name);
  const node = section('map', 'Weights', chosenLayer(data), rows, element('div', { class: 'controls' }, kinds.node, tools),
    element('div', { class: 'panels' }, figure, aside));
  return { node, showExample };
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

const LONG = 90;
const data = pageData();
const weights = mapSection(data);
const list = sentenceList(data.examples, show);

function show(index) {
  const example = data.examples[index];
  for (const kind of example.kinds) if (typeof kind.weights === 'string') kind.weights = unpacked(kind.weights);
  document.title = example.source.text;
  const hadFocus = list && list.contains(document.activeElement);
  fillPage(masthead(data, example), [list, weights.node, wordsSection(example)], 'Written by jax-transformer; the weights are those that the model computes.');
  if (hadFocus) list.querySelector(':checked').focus();
  weights.showExample(example);
}

show(0);
