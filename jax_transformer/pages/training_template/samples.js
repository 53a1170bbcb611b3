// How the translations of a few sentences changed during training.

/** Splits text into words, or into characters for scripts without spaces. Drops the spaces. */
function words(text) {
  return text.match(/[\p{sc=Han}\p{sc=Hiragana}\p{sc=Katakana}\p{sc=Thai}]|[\p{L}\p{M}\p{N}]+|[^\s]/gu) || [];
}

/** Returns the pairs of positions of a longest common subsequence of the words of `text` and `reference`. */
function matched(text, reference) {
  const rows = text.length;
  const columns = reference.length;
  const longest = Array.from({ length: rows + 1 }, () => new Uint16Array(columns + 1));
  for (let i = rows - 1; i >= 0; i -= 1) {
    for (let j = columns - 1; j >= 0; j -= 1) {
      longest[i][j] = text[i] === reference[j] ? longest[i + 1][j + 1] + 1 : Math.max(longest[i + 1][j], longest[i][j + 1]);
    }
  }
  const pairs = [];
  for (let i = 0, j = 0; i < rows && j < columns;) {
    if (text[i] === reference[j]) { pairs.push([i, j]); i += 1; j += 1; }
    else if (longest[i + 1][j] >= longest[i][j + 1]) i += 1;
    else j += 1;
  }
  return pairs;
}

/** Returns the translation with marked differences from the reference, and the number of reference words that it has in order. */
function compared(translation, reference) {
  const said = words(translation);
  const wanted = words(reference);
  const pairs = matched(said, wanted);
  const nodes = [];
  let from = 0;
  let at = 0;
  let wantedFrom = 0;
  for (const [i, j] of [...pairs, [said.length, wanted.length]]) {
    const missing = wanted.slice(wantedFrom, j);
    const startOf = (index) => (index < said.length ? translation.indexOf(said[index], at) : translation.length);
    const start = startOf(from);
    const gap = translation.slice(at, start);
    let end = start;
    for (let k = from; k < i; k += 1) end = translation.indexOf(said[k], end) + said[k].length;
    nodes.push(gap);
    if (end > start) nodes.push(element('mark', { title: missing.length ? `instead of: ${missing.join(' ')}` : 'not in the reference' }, translation.slice(start, end)));
    else if (missing.length) nodes.push(element('span', { class: 'missing', title: `missing: ${missing.join(' ')}` }, element('span', { class: 'unseen' }, ` (missing: ${missing.join(' ')}) `)));
    at = end;
    if (i < said.length) {
      const here = translation.indexOf(said[i], at);
      nodes.push(translation.slice(at, here + said[i].length));
      at = here + said[i].length;
    }
    from = i + 1;
    wantedFrom = j + 1;
  }
  nodes.push(translation.slice(at));
  return { nodes, matches: pairs.length, wanted: wanted.length };
}

/** Shows one sentence: source, reference, and its translations by step, with equal consecutive ones merged. */
function history(samples, index, bestStep) {
  const { source, reference } = samples.sentences[index];
  const rows = [];
  for (const { step, translations } of samples.evaluations) {
    const translation = translations[index] ?? '';
    const last = rows[rows.length - 1];
    if (last && last.translation === translation) last.steps.push(step);
    else rows.push({ steps: [step], translation });
  }
  const body = rows.map(({ steps, translation }) => {
    const { nodes, matches, wanted } = compared(translation, reference);
    const range = steps.length > 1 ? `${formatCount(steps[0])}–${formatCount(steps[steps.length - 1])}` : formatCount(steps[0]);
    const isBest = steps.includes(bestStep);
    return element('tr', {},
      element('th', { scope: 'row', class: 'number' }, range, isBest ? element('span', { class: 'tag' }, 'best') : null),
      element('td', { dir: 'auto', class: 'text' }, translation ? nodes : element('i', {}, 'empty')),
      element('td', { class: `number${matches === wanted && translation === reference ? ' whole' : ''}` }, `${matches}\u202f/\u202f${wanted}`));
  });
  return element('div', {},
    element('dl', { class: 'pair' }, element('dt', {}, 'Source'), element('dd', { dir: 'auto' }, source), element('dt', {}, 'Reference'), element('dd', { dir: 'auto' }, reference)),
    element('table', { class: 'history' }, element('thead', {}, element('tr', {},
      element('th', { scope: 'col', class: 'number' }, 'Step'), element('th', { scope: 'col' }, 'Translation'),
      element('th', { scope: 'col', class: 'number' }, 'Words'))), element('tbody', {}, body)));
}

/** A list of sentences, of which the first is chosen; sentences: [{source}]. A change calls `choose(index)`. */
function sentenceChoices(name, sentences, choose) {
  const rows = sentences.map(({ source }, index) => element('label', {},
    element('input', { type: 'radio', name, checked: index === 0 ? '' : null, change: () => choose(index) }),
    element('span', { dir: 'auto' }, source || 'empty')));
  return element('fieldset', {}, element('legend', { class: 'unseen' }, 'Sentence'), rows);
}

function samplesSection(samples, bestStep) {
  if (!samples.sentences.length) return section('samples', 'Samples', 'No evaluation has translated sentences yet.');
  const panel = element('div', { class: 'panel', 'aria-live': 'polite' });
  const choose = (index) => panel.replaceChildren(history(samples, index, bestStep));
  choose(0);
  const shown = samples.evaluations.length < samples.count ? ` ${samples.evaluations.length} of ${formatCount(samples.count)} evaluations are shown.` : '';
  const lead = `The same sentences at each evaluation.${shown} `;
  const key = [element('mark', {}, 'Marked'), ' words differ from the reference; ', element('span', { class: 'missing' }), ' marks missing words.'];
  return section('samples', 'Samples', [lead, ...key],
    element('div', { class: 'samples' }, sentenceChoices('sentence', samples.sentences, choose), panel));
}
