// The axes of the chart: errors on a logarithmic scale with a place for 0, against activations in execution order.

/** Returns {y, ticks, …} for the errors in `values`: 0, which has no logarithm, is at `bottom`, and infinity at `top`. */
function errorAxis(values, top, bottom) {
  const sizes = values.filter((value) => value > 0 && Number.isFinite(value));
  const exponents = sizes.map(Math.log10);
  let [low, high] = sizes.length ? [Math.floor(Math.min(...exponents)), Math.ceil(Math.max(...exponents))] : [-13, -11];
  if (high - low < 2) [low, high] = [low - 1, high + 1];
  const floor = bottom - 24;
  const y = (value) => {
    if (value === 0) return bottom;
    return value === Infinity ? top : floor - ((Math.log10(value) - low) / (high - low)) * (floor - top);
  };
  const every = Math.max(1, Math.ceil((high - low) / 8));
  const ticks = [];
  for (let exponent = high; exponent >= low; exponent -= every) ticks.push([10 ** exponent, powerOfTen(exponent)]);
  return { y, ticks, hasZero: values.includes(0), floor };
}

/** Groups consecutive names with equal keys as [{key, label, from, to}]: "encoder.layers.0.…" is in the encoder and its layer 0. */
function runs(names, keyOf) {
  const found = [];
  names.forEach((name, i) => {
    const { key, label } = keyOf(name);
    const last = found[found.length - 1];
    if (last && last.key === key) last.to = i;
    else found.push({ key, label, from: i, to: i });
  });
  return found;
}

function stackOf(name) {
  const [stack, ...rest] = name.split('.');
  return { key: stack, label: rest.length ? stack : '' };
}

function layerOf(name) {
  const [, layer] = /^(\w+\.layers\.\d+)\./.exec(name) || [null, ''];
  return { key: layer || stackOf(name).key, label: layer.split('.')[2] || '' };
}
