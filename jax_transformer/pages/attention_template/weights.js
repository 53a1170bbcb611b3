// The weights of the page's data, and how they and their tokens are written.

/** The kind's weights as they were packed: 16-bit integers, the low byte first, of which 65535 is 1. */
function unpacked(text) {
  const bytes = atob(text);
  return Float32Array.from({ length: bytes.length / 2 }, (_, i) => (bytes.charCodeAt(2 * i) + 256 * bytes.charCodeAt(2 * i + 1)) / 65535);
}

/** The map of a layer and a head; null is the mean of all heads: {values, rows, columns, largest}. */
function mapOf(kind, layer, head) {
  const [, heads, rows, columns] = kind.shape;
  const size = rows * columns;
  const of = (number) => kind.weights.subarray((layer * heads + number) * size, (layer * heads + number + 1) * size);
  const all = head === null ? Array.from({ length: heads }, (_, number) => of(number)) : [of(head)];
  const values = all.length === 1 ? all[0] : all[0].map((_, i) => all.reduce((sum, each) => sum + each[i], 0) / all.length);
  return { values, rows, columns, largest: values.reduce((most, value) => Math.max(most, value), 0) };
}

/** 0.8725 → 0.873; what isn't quite 0 or 1 isn't written so. */
function formatWeight(value) {
  if (value > 0 && value < 0.0005) return '< 0.001';
  if (value < 1 && value >= 0.9995) return '> 0.999';
  return value.toFixed(3);
}

const ruler = document.createElement('canvas').getContext('2d');
ruler.font = `700 13px ${getComputedStyle(document.body).fontFamily}`;

/** How wide a text is as a label of the map, in pixels, at its boldest. */
function widthOf(text) {
  return ruler.measureText(text).width;
}

/** The text, or as much of its beginning as has room, and an ellipsis. */
function fitted(text, room) {
  if (widthOf(text) <= room) return text;
  const characters = Array.from(new Intl.Segmenter().segment(text.slice(0, 200)), (part) => part.segment);
  while (characters.length > 1 && widthOf(`${characters.join('')}…`) > room) characters.pop();
  return `${characters.join('')}…`;
}
