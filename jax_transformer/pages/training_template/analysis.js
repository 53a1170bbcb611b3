// The model's translations of its test sets: by source length, by word frequency, and the worst.

const percent = (value) => (Number.isFinite(value) ? `${value.toFixed(1)}\u202f%` : '–');

/** Shows a number as a bar of its share of 100, with the number. */
function percentBar(value) {
  const bar = element('span', { class: 'share', 'aria-hidden': 'true' }, element('span'));
  bar.firstChild.style.width = `${Math.max(0, Math.min(100, value))}%`;
  return bar;
}

/** analyses: what `training.analysis` returns, by split. */
function analysisSection(analyses) {
  const splits = Object.entries(analyses);
  if (!splits.length) return null;
  return section('analysis', 'Translations', 'Where the finished model is good, and where it is not. chrF here is the mean of the sentences\u2019.',
    ...splits.flatMap(([name, found]) => [element('h3', {}, name, ' ', element('span', { class: 'unit' }, sizeText(found))), ...analysisOf(found)]));
}

function sizeText({ sentences, analyzed }) {
  return analyzed < sentences ? `${formatCount(analyzed)} of ${formatCount(sentences)} sentences, spread evenly` : counted(sentences, 'sentence');
}

function analysisOf(found) {
  const lengths = table(
    ['Source words', '', 'chrF', 'Exact match', 'Sentences'].map((title, i) => ({ title, number: i > 1 })),
    found.lengths.map((row) => [row.words, percentBar(row.chrf), row.chrf.toFixed(1) + (row.interval === null ? '' : ` ± ${row.interval.toFixed(1)}`), percent(row.exact_match), formatCount(row.sentences)]));
  const frequencies = found.frequencies.length ? table(
    ['Times in the training targets', '', 'Found', 'Words'].map((title, i) => ({ title, number: i > 1 })),
    found.frequencies.map((row) => [row.count, percentBar(row.found), percent(row.found), formatCount(row.words)])) : null;
  const seen = found.counted && found.counted.pairs < found.counted.of ? ` Counted in ${formatCount(found.counted.pairs)} of ${formatCount(found.counted.of)} training pairs.` : '';
  return [
    element('div', { class: 'multiples' },
      figureOf('By source length', '± is half the 95\u202f% interval, by the normal approximation.', lengths),
      frequencies ? figureOf('Words of the references, by frequency', `Found: anywhere in the sentence\u2019s translation.${seen}`, frequencies) : null),
    worstOf(found.worst)];
}

function figureOf(title, note, ...children) {
  return element('figure', { class: 'chart bars' }, element('figcaption', {}, element('span', { class: 'title' }, title)), ...children, element('p', { class: 'unit' }, note));
}

/** Lists the sentences of the lowest chrF. */
function worstOf(worst) {
  if (!worst.length) return element('p', { class: 'unit' }, 'Every translation equals its reference.');
  const rows = worst.map(({ source, reference, translation, chrf }) => element('li', {},
    element('p', { dir: 'auto', class: 'unit' }, source),
    element('p', { dir: 'auto' }, reference),
    element('p', { dir: 'auto' }, translation ? compared(translation, reference).nodes : element('i', {}, 'empty')),
    element('p', { class: 'unit' }, `chrF ${chrf.toFixed(1)}`)));
  return element('details', { class: 'worst' }, element('summary', {}, `The ${counted(worst.length, 'worst sentence')}: source, reference, translation`), element('ol', {}, rows));
}

// --- attention

/** attention: {split, layer, maps}, each map with its queries (target tokens), keys (source tokens) and packed weights. */
function attentionSection(attention) {
  if (!attention || !attention.maps.length) return null;
  const canvas = element('div', { class: 'canvas map' });
  const readout = element('p', { class: 'readout', 'aria-live': 'polite' });
  const map = heatMap(canvas, readout);
  function choose(index) {
    const { queries, keys, weights, source, translation } = attention.maps[index];
    const values = unpacked(weights);
    const drawn = { values, rows: queries.length, columns: keys.length, largest: values.reduce((most, value) => Math.max(most, value), 0) };
    map.show({ queries, keys }, drawn, `Attention weights from the tokens of “${translation}” to those of “${source}”`);
  }
  requestAnimationFrame(() => choose(0)); // once the page has fonts, by which labels are measured
  return section('attention', 'Attention', `Where the model looks (columns) to write each token (rows): decoder layer ${attention.layer + 1}, the mean over its heads. Sentences of ${attention.split}.`,
    element('div', { class: 'samples' }, sentenceChoices('map', attention.maps, choose), element('div', { class: 'scroll' }, readout, canvas)));
}
