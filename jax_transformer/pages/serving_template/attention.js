// Attention between words: the weights of tokens, summed and averaged over the tokens of words.

/**
 * Lists a side's words, and its tokens that belong to none (the end token, a tag), in the order of the tokens:
 * {text, tokens, isWord, isUnknown}; tokens are numbers.
 */
function unitsOf(side) {
  const words = side.words.map((text) => ({ text, tokens: [], isWord: true, isUnknown: false }));
  const unknown = new Set(side.unknown);
  const units = [];
  let next = 0;
  side.token_words.forEach((word, token) => {
    if (word === null) {
      units.push({ text: side.tokens[token], tokens: [token], isWord: false, isUnknown: false });
      return;
    }
    for (; next <= word; next += 1) units.push(words[next]);
    words[word].tokens.push(token);
    if (unknown.has(token)) words[word].isUnknown = true;
  });
  units.push(...words.slice(next));
  return units;
}

/** Returns the weights of tokens [T][S] in a layer, of a head or averaged over all heads (null). */
function weightsOf(part, layer, head) {
  const heads = part.weights[layer];
  if (head !== null) return heads[head];
  return heads[0].map((row, t) => row.map((_, s) => heads.reduce((sum, each) => sum + each[t][s], 0) / heads.length));
}

/** Returns the weight from each target unit to each source unit: summed over the source's tokens, averaged over the target's. */
function unitWeights(weights, targets, sources) {
  return targets.map((target) => sources.map((source) => {
    const sum = target.tokens.reduce((total, t) => total + source.tokens.reduce((inner, s) => inner + weights[t][s], 0), 0);
    return target.tokens.length ? sum / target.tokens.length : 0;
  }));
}

/** Returns the layer with the least entropy, averaged over the target tokens of all parts, and all entropies. */
function sharpest(parts) {
  const count = parts.reduce((sum, part) => sum + part.target.tokens.length, 0);
  const entropies = parts[0].entropies.map((_, layer) => parts.reduce((sum, part) => sum + part.entropies[layer] * part.target.tokens.length, 0) / count);
  return { layer: entropies.indexOf(Math.min(...entropies)), entropies };
}

/** Formats 0.8725 as 0.87; a weight close to 0 or 1 isn't rounded to it. */
function formatShare(value) {
  if (value > 0 && value < 0.005) return '<0.01';
  if (value < 1 && value >= 0.995) return '>0.99';
  return value.toFixed(2);
}
