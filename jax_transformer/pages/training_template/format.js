// Formats numbers, durations and times for readers.

/** Formats four significant digits, and very large and very small numbers with a power of ten. */
function formatNumber(value, digits = 4) {
  if (!Number.isFinite(value)) return '–';
  if (value === 0) return '0';
  const size = Math.abs(value);
  if (size >= 1e6 || size < 1e-3) return formatPower(value, digits - 1);
  if (size >= 1000) return formatCount(Math.round(value));
  return String(Number(value.toPrecision(digits))).replace('-', MINUS);
}

/** Formats a score in percent with two decimals. */
function formatScore(value) {
  return Number.isFinite(value) ? value.toFixed(2) : '–';
}

/** Formats 0.00133 as 1.33×10⁻³, and 1000 as 10³. */
function formatPower(value, digits) {
  let exponent = Math.floor(Math.log10(Math.abs(value)) + 1e-9);
  let factor = Number((value / 10 ** exponent).toPrecision(Math.max(1, digits)));
  if (Math.abs(factor) >= 10) { factor /= 10; exponent += 1; }
  const power = powerOfTen(exponent);
  if (factor === 1) return power;
  return `${String(factor).replace('-', MINUS)}×${power}`;
}

/** Formats an axis tick with as many decimals as the distance between ticks needs. */
function formatTick(value, distance) {
  if (value === 0) return '0';
  const size = Math.max(Math.abs(value), distance);
  if (size >= 1e7 || distance < 0.9e-3) return formatPower(value, 3);
  const decimals = Math.max(0, -Math.floor(Math.log10(distance) + 1e-9));
  return value.toLocaleString('en', { minimumFractionDigits: decimals, maximumFractionDigits: decimals }).replace('-', MINUS);
}

/** Formats 2094592 as 2.09 M. */
function formatShort(value) {
  if (!Number.isFinite(value)) return '–';
  for (const [size, unit] of [[1e12, 'T'], [1e9, 'G'], [1e6, 'M']]) {
    if (value >= size) return `${Number((value / size).toPrecision(3))}\u202f${unit}`;
  }
  return formatCount(value);
}

/** Seconds → 42 s, 3 min 20 s, 5 h 12 min, 2 d 3 h. */
function formatDuration(seconds) {
  if (!Number.isFinite(seconds)) return '–';
  if (seconds < 10) return `${Number(seconds.toFixed(1))}\u202fs`;
  const whole = Math.round(seconds);
  const units = [[86400, 'd'], [3600, 'h'], [60, 'min'], [1, 's']];
  const first = units.findIndex(([size]) => whole >= size);
  const [size, unit] = units[first];
  const text = `${Math.floor(whole / size)}\u202f${unit}`;
  if (first === 3) return text;
  const [smaller, name] = units[first + 1];
  const rest = Math.floor((whole % size) / smaller);
  return rest ? `${text} ${rest}\u202f${name}` : text;
}

/** Formats seconds since 1970 as 2026-03-01 14:05 in the reader's time zone. */
function formatMoment(time) {
  if (!Number.isFinite(time)) return '';
  const date = new Date(time * 1000);
  const two = (number) => String(number).padStart(2, '0');
  return `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())} ${two(date.getHours())}:${two(date.getMinutes())}`;
}

function formatShare(part, whole) {
  if (!whole) return '–';
  const percent = (100 * part) / whole;
  if (percent > 0 && percent < 0.01) return '<\u202f0.01\u202f%';
  return `${percent.toFixed(percent === 0 ? 0 : percent < 1 ? 2 : 1)}\u202f%`;
}
