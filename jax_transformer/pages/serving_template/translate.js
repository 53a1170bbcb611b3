// The page from top to bottom: a text, its translations, and the attention between their words.

const MOST_ASKED = [1, 3, 5, 8];
const facts = pageData();

const text = element('textarea', { id: 'text', rows: '4', dir: 'auto', spellcheck: 'false', 'aria-describedby': 'hint', keydown: (event) => {
  if (event.key === 'Enter' && (event.ctrlKey || event.metaKey)) translate(event);
} });
const fields = { count: countField(), source_tag: tagField('Source tag', facts.source_tags, facts.source_tag), target_tag: tagField('Target tag', facts.target_tags, facts.target_tag) };
const found = element('div', { 'aria-busy': 'false' });
const request = new ShownRequest(found);

function countField() {
  return element('select', {}, MOST_ASKED.filter((count) => count <= facts.max_beam_size).map((count) => element('option', { value: count }, count)));
}

function tagField(title, tags, chosen) {
  if (!tags.length) return null;
  return element('select', {}, element('option', { value: '' }, 'none'), tags.map((tag) => element('option', { value: tag, selected: tag === chosen ? '' : null }, tag)));
}

function form() {
  return element('form', { submit: translate },
    element('label', { for: 'text' }, 'Text'), text,
    element('p', { id: 'hint', class: 'hint' }, 'Each line is a sentence. ', element('kbd', {}, 'Ctrl'), ' ', element('kbd', {}, 'Enter'), ' translates.'),
    element('div', { class: 'actions' },
      element('button', { type: 'submit', class: 'first' }, 'Translate'), request.stop,
      labelled('Translations of each line', fields.count), labelled('Source tag', fields.source_tag), labelled('Target tag', fields.target_tag), request.status),
    request.problem);
}

/** Returns the body of a request for the lines; the server's own options hold for the rest. */
function bodyFor(lines, attention) {
  const count = Number(fields.count.value);
  const beams = facts.sampling ? {} : { beam_size: Math.max(count, facts.beam_size) };
  const tags = Object.fromEntries(['source_tag', 'target_tag'].filter((name) => fields[name]).map((name) => [name, fields[name].value]));
  return JSON.stringify({ texts: lines, attention, ...(count > 1 ? { num_return: count, ...beams } : {}), ...tags });
}

async function translate(event) {
  event.preventDefault();
  const lines = text.value.trimEnd().split(/\r\n|\r|\n/);
  request.abort();
  if (!text.value.trim()) {
    request.finish('', `Type a text to translate${text.value ? ': these are only spaces' : ''}.`);
    text.focus();
    return;
  }
  await request.run('Translating…', (signal) => answerTo(lines, signal));
}

async function answerTo(lines, signal) {
  let answer = await send('POST', 'translate', bodyFor(lines, true), { signal });
  let note = '';
  if (answer.status === 422 && messageOf(answer).startsWith('attention: ')) { // the translations are worth more than the weights
    note = `No attention is shown. ${messageOf(answer)}`;
    answer = await send('POST', 'translate', bodyFor(lines, false), { signal });
  }
  const value = valueOf(answer);
  if (answer.status !== 200 || !value) {
    request.finish('', messageOf(answer), lineOf(messageOf(answer), lines));
    return;
  }
  const drawn = results(lines, value.translations);
  found.replaceChildren(...resultSection(drawn, note));
  request.finish(`${counted(lines.filter((line) => line.trim()).length, 'line')} in ${formatSeconds(answer.seconds)}`);
}

/** Returns the line that a message such as "texts[3]: …" speaks of, or null. */
function lineOf(message, lines) {
  const place = message.match(/^texts\[(\d+)\]/);
  if (!place || lines.length < 2) return null;
  const line = lines[Number(place[1])];
  return element('span', { class: 'where' }, `Line ${Number(place[1]) + 1}: `, element('bdi', {}, line.length > 80 ? `${line.slice(0, 80)}…` : line));
}

/** Draws the translations under the choice of a layer and a head, which begins with the sharpest layer and the mean over heads. */
function resultSection(drawn, note) {
  const tools = element('div', { class: 'selectors' });
  const lead = [note && element('p', { class: 'note' }, note)];
  if (drawn.parts.length) {
    const { layer: first, entropies } = sharpest(drawn.parts);
    const chosen = { layer: first, head: null };
    const counts = [drawn.parts[0].weights.length, drawn.parts[0].weights[0].length];
    const numbers = (count) => Array.from({ length: count }, (_, number) => [number, String(number)]);
    const layers = choices('Layer', 'layer', numbers(counts[0]), (layer) => show({ ...chosen, layer }));
    const heads = choices('Head', 'head', [[null, 'mean'], ...numbers(counts[1])], (head) => show({ ...chosen, head }));
    const show = (now) => {
      Object.assign(chosen, now);
      layers.select(chosen.layer);
      heads.select(chosen.head);
      drawn.show(chosen.layer, chosen.head);
    };
    tools.append(layers.node, heads.node);
    lead.push(element('p', { class: 'lead' }, 'Point at a word, tap it, or walk with Tab and the arrow keys to see which words it attends to.'));
    if (counts[0] > 1) lead.push(element('p', { class: 'lead' }, `Layer ${first} is shown first. Its attention is the sharpest: the mean entropy of its weights is ${entropies[first].toFixed(2)} (${others(entropies, first)}).`));
    show(chosen);
  }
  return [section('translations', 'Translations', null, lead.filter(Boolean), tools, drawn.node)];
}

/** Lists the entropies of the other layers, or their range if there are many. */
function others(entropies, first) {
  const rest = entropies.map((entropy, layer) => [entropy.toFixed(2), layer]).filter(([, layer]) => layer !== first);
  if (rest.length < 4) return rest.map(([entropy, layer]) => `layer ${layer}: ${entropy}`).join(', ');
  const values = rest.map(([entropy]) => Number(entropy));
  return `other layers: ${Math.min(...values).toFixed(2)} to ${Math.max(...values).toFixed(2)}`;
}

// --- now

fillPage([
  topBar([], [['docs', 'API']]),
  element('p', { class: 'over' }, facts.model),
  element('h1', {}, 'Translate'),
], [element('section', { id: 'translate', 'aria-label': 'Text' }, form()), found], 'Sent by jax-transformer; the weights are those that the model computes.');
text.focus();
watchReadiness(request.status);
