// Formats numbers for readers.

const MINUS = '\u2212';
const grouped = new Intl.NumberFormat('en', { maximumFractionDigits: 0 });

/** Formats 12345 as 12,345, and a missing number as an en dash. */
function formatCount(value) {
  return Number.isFinite(value) ? grouped.format(value).replace('-', MINUS) : '–';
}

/** Counts a noun: "3 arrays", "1 array". */
function counted(count, noun) {
  return `${formatCount(count)} ${noun}${count === 1 ? '' : 's'}`;
}

/** Formats -12 as 10⁻¹². */
function powerOfTen(exponent) {
  return `10${String(exponent).replace(/[-\d]/g, (character) => '⁻⁰¹²³⁴⁵⁶⁷⁸⁹'['-0123456789'.indexOf(character)])}`;
}
