// The translations of a text: one article for each of its lines.

/** Draws the answers for the lines that aren't blank: {node, show(layer, head), parts}; parts are those of the shown translations. */
function results(lines, answers) {
  const shown = lines.map((line, i) => [line, answers[i], i + 1]).filter(([line]) => line.trim());
  const articles = shown.map(([line, answer, number]) => article(line, answer, shown.length > 1 ? `line ${number}` : ''));
  return {
    node: element('div', { class: 'results' }, articles.map((each) => each.node)),
    parts: articles.flatMap((each) => each.parts),
    show: (layer, head) => articles.forEach((each) => each.show(layer, head)),
  };
}

function article(line, answer, name) {
  const hypotheses = answer.hypotheses || [answer];
  const attended = element('div', {});
  const state = { pair: null, layer: 0, head: null };

  function choose(rank) {
    const hypothesis = hypotheses[rank];
    const parts = hypothesis.attention || [];
    const label = name ? ` of ${name}` : '';
    state.pair = parts.length ? attentionPair(line, hypothesis.text, parts, label) : null;
    attended.replaceChildren(...(state.pair ? [state.pair.node] : [plainLine(line, 'Source'), plainLine(hypothesis.text, 'Translation')]), ...notes(hypothesis));
    show(state.layer, state.head);
  }

  function show(layer, head) {
    Object.assign(state, { layer, head });
    if (state.pair) state.pair.show(layer, head);
  }

  const node = element('article', { 'aria-label': name || 'Translation' },
    name ? element('h3', {}, name[0].toUpperCase() + name.slice(1)) : null,
    attended, hypotheses.length > 1 ? hypothesisList(hypotheses, name, choose) : element('p', { class: 'score' }, ...scoreOf(answer)));
  choose(0);
  return { node, show, parts: hypotheses[0].attention || [] };
}

function plainLine(text, label) {
  return element('p', { class: 'line', dir: 'auto' }, element('span', { class: 'unseen' }, `${label}: `), text);
}

function scoreOf({ score, tokens }) {
  return ['score ', element('b', {}, formatScore(score)), ` · ${counted(tokens.length, 'token')}`];
}

function formatScore(score) {
  return score === null ? '–' : score.toFixed(3).replace('-', MINUS);
}

/** Lists unknown words, a target that was cut off, and a translation without words. */
function notes({ attention = [], text, cut_off: isCutOff }) {
  const unknown = attention.flatMap((part) => unitsOf(part.source)).filter((unit) => unit.isUnknown).map((unit) => unit.text);
  const listed = [...new Set(unknown)];
  return [
    listed.length ? element('p', { class: 'note' }, 'Unknown to the model: ', listed.slice(0, 20).flatMap((word, i) => [i ? ', ' : '', element('bdi', { class: 'unknown' }, word)]), listed.length > 20 ? `, and ${listed.length - 20} more` : '', '.') : null,
    isCutOff ? element('p', { class: 'note' }, 'Cut off: the translation reached the most tokens before its end.') : null,
    text ? null : element('p', { class: 'note' }, 'The translation is empty.'),
  ].filter(Boolean);
}

/** Lists the hypotheses, best first; a press shows one of them. */
function hypothesisList(hypotheses, name, choose) {
  const group = `hypothesis ${name}`;
  const items = hypotheses.map((each, rank) => element('li', {}, element('label', {},
    element('input', { type: 'radio', name: group, checked: rank ? null : '', change: () => choose(rank) }),
    element('span', { class: 'number' }, formatScore(each.score)),
    element('bdi', { class: 'text' }, each.text || '(empty)'))));
  return element('fieldset', { class: 'hypotheses' }, element('legend', {}, 'Best translations, with their scores'), element('ol', {}, items));
}
