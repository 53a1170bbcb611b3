// Formats errors and ratios.

/** Formats an error: 0.0000321 as 3.21×10⁻⁵, 0.0321 as 0.0321, a missing one as an en dash. */
function formatError(value) {
  if (value === null || value === undefined) return '–';
  if (value === Infinity) return '∞';
  if (value === 0) return '0';
  if (value >= 0.01 && value < 100) return String(Number(value.toPrecision(3)));
  const [factor, exponent] = value.toExponential(2).split('e');
  return `${factor}×${powerOfTen(Number(exponent))}`;
}

/** Formats a ratio: 3.2, 1,204, 3.21×10⁹. */
function formatTimes(value) {
  if (!Number.isFinite(value) || value >= 1e6 || (value > 0 && value < 0.01)) return formatError(value);
  if (value >= 1000) return formatCount(value);
  return String(Number(value.toPrecision(3)));
}

/** Formats a power of ten, such as 1e-12, as 10⁻¹², and other values as errors. */
function formatGate(value) {
  const exponent = Math.round(Math.log10(value));
  return Math.abs(value / 10 ** exponent - 1) < 1e-9 ? powerOfTen(exponent) : formatError(value);
}
