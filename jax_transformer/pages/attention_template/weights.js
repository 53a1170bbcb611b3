// Decodes the weights in the page's data, and formats weights and tokens.

/** Decodes a kind's weights from little-endian 16-bit integers; 65535 is 1. */
function unpacked(text) {
  const bytes = atob(text);
  return Float32Array.from({ length: bytes.length / 2 }, (_, i) => (bytes.charCodeAt(2 * i) + 256 * bytes.charCodeAt(2 * i + 1)) / 65535);
}

/** Returns the map of a layer and a head, null for the mean over heads: {values, rows, columns, largest}. */
function mapOf(kind, layer, head) {
  const [, heads, rows, columns] = kind.shape;
  const size = rows * columns;
  const of = (number) => kind.weights.subarray((layer * heads + number) * size, (layer * heads + number + 1) * size);
  const all = head === null ? Array.from({ length: heads }, (_, number) => of(number)) : [of(head)];
  const values = all.length === 1 ? all[0] : all[0].map((_, i) => all.reduce((sum, each) => sum + each[i], 0) / all.length);
  return { values, rows, columns, largest: values.reduce((most, value) => Math.max(most, value), 0) };
}

/** Formats 0.8725 as 0.873. A weight close to 0 or 1 isn't rounded to it. */
function formatWeight(value) {
  if (value > 0 && value < 0.0005) return '< 0.001';
  if (value < 1 && value >= 0.9995) return '> 0.999';
  return value.toFixed(3);
}

const ruler = document.createElement('canvas').getContext('2d');
ruler.font = `700 13px ${getComputedStyle(document.body).fontFamily}`;

/** Returns the width in pixels of a text as a bold label of the map. */
function widthOf(text) {
  return ruler.measureText(text).width;
}

/** Returns the text, or as much of its beginning as fits, with an ellipsis. */
function fitted(text, room) {
  if (widthOf(text) <= room) return text;
  const characters = Array.from(new Intl.Segmenter().segment(text.slice(0, 200)), (part) => part.segment);
  while (characters.length > 1 && widthOf(`${characters.join('')}…`) > room) characters.pop();
  return `${characters.join('')}…`;
}
