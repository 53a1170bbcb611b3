// Scales and ticks.

/** Returns a function from values to pixels, with its inverse. */
function makeScale(domain, range, log) {
  const forward = log ? Math.log10 : (value) => value;
  const backward = log ? (value) => 10 ** value : (value) => value;
  const [low, high] = domain.map(forward);
  const slope = (range[1] - range[0]) / (high - low);
  const scale = (value) => range[0] + (forward(value) - low) * slope;
  scale.invert = (pixel) => backward(low + (pixel - range[0]) / slope);
  return scale;
}

/** Returns about `count` ticks at multiples of 1, 2 or 5 times a power of ten, and the distance between them. */
function linearTicks(low, high, count) {
  const rough = (high - low) / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const distance = [1, 2, 5, 10].map((factor) => factor * power).find((one) => one * 1.42 >= rough); // 1.42: to the nearer by ratio
  const ticks = [];
  for (let i = Math.ceil(low / distance - 1e-9); i * distance <= high + distance * 1e-9; i += 1) ticks.push(i * distance + 0); // + 0: no negative zero
  return { ticks, distance };
}

/** Returns ticks at powers of ten; over few decades, also at multiples of them. */
function logTicks(low, high) {
  const decades = Math.log10(high / low);
  const factors = decades > 3.2 ? [1] : decades > 1.5 ? [1, 3] : [1, 2, 5];
  const every = Math.max(1, Math.ceil(decades / 6));
  const ticks = [];
  for (let exponent = Math.floor(Math.log10(low) - 1e-9); exponent <= Math.ceil(Math.log10(high)); exponent += 1) {
    if (exponent % every) continue;
    for (const factor of factors) {
      const tick = Number(`${factor}e${exponent}`);
      if (tick >= low * 0.999 && tick <= high * 1.001) ticks.push(tick);
    }
  }
  return ticks;
}

/** Returns the domain and labelled ticks of a vertical axis that shows all `values`; it starts at 0 unless logarithmic. */
function valueAxis(values, log, count) {
  let low = Math.min(...values);
  let high = Math.max(...values);
  if (log) {
    const slack = Math.max((high / low) ** 0.04, 1.05);
    low /= slack;
    high *= slack;
    let ticks = logTicks(low, high);
    if (ticks.length < 2) {
      const linear = linearTicks(low, high, count);
      return { domain: [low, high], ticks: linear.ticks.map((tick) => [tick, formatTick(tick, linear.distance)]) };
    }
    return { domain: [low, high], ticks: ticks.map((tick) => [tick, formatNumber(tick, 2)]) };
  }
  low = Math.min(0, low);
  if (high <= low) high = low + 1;
  const { ticks, distance } = linearTicks(low, high, count);
  const top = Math.max(high + (high - low) * 0.04, ticks[ticks.length - 1]);
  return { domain: [low, top], ticks: ticks.map((tick) => [tick, formatTick(tick, distance)]) };
}

/** Returns the index of the element of the ascending `sorted` nearest to `value`. */
function nearest(sorted, value) {
  let low = 0;
  let high = sorted.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (sorted[middle] < value) low = middle + 1;
    else high = middle;
  }
  return low > 0 && value - sorted[low - 1] <= sorted[low] - value ? low - 1 : low;
}
