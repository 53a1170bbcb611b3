// Error against depth: a point per activation, in execution order.

const SERIES = [
  { key: 'propagated', label: 'propagated', shape: 'circle', slot: 1, isLine: true },
  { key: 'local_candidate', label: 'local, candidate', shape: 'triangle', slot: 0 },
  { key: 'local_reference', label: 'local, reference', shape: 'triangle', slot: 0, hollow: true },
  { key: 'float32_candidate', label: 'float32 candidate from truth', shape: 'diamond', slot: 2, isLine: true },
  { key: 'float32_reference', label: 'float32 reference from truth', shape: 'diamond', slot: 2, hollow: true, isLine: true },
];
const DEPTH = { height: 380, top: 30, right: 12, bottom: 52, left: 52 };

function depthSection(data, rows) {
  const lead = 'Relative RMS error of each activation, in execution order. Propagated: candidate against reference, both computing from the ids. Local: each side against the correct result for its own inputs.';
  if (!data.depth.length) return section('depth', 'Error against depth', 'Errors by depth were not measured.');
  return section('depth', 'Error against depth', lead, depthChart(data.depth, gatesOf(rows), rows, new Set(data.faults.map((fault) => fault.node))));
}

/** Returns the errors that the float64 and the float32 stage allow, by activation. */
function gatesOf(rows) {
  const of = (stage) => new Map(rows.filter((row) => row.stage === stage && row.allowed > 0).map((row) => [row.name, row.allowed]));
  return { float64: of('forward'), float32: of('forward float32') };
}

function depthChart(depth, gates, rows, faulty) {
  const names = depth.map((one) => one.name);
  const series = SERIES.filter((one) => depth.some((entry) => entry[one.key] !== null)).map((one) => ({ ...one, values: depth.map((entry) => entry[one.key]), isShown: true }));
  const diverged = firstDivergence(activationRows(rows));
  const first = diverged ? names.indexOf(diverged.name) : -1;
  const state = { at: null, width: 0, plot: null };
  const canvas = element('div', { class: 'canvas' });
  const where = element('p', { class: 'where' });
  const values = series.map(() => element('b'));
  const legend = element('ul', { class: 'legend' }, series.map((one, i) => element('li', {}, element('label', {},
    element('input', { type: 'checkbox', checked: '', change: (event) => { one.isShown = event.target.checked; draw(state.width); } }), swatch(one), element('span', { class: 'label' }, one.label), values[i]))));
  const figure = element('figure', { class: 'depth' }, legend, where, canvas);

  function draw(width) {
    const hadFocus = canvas.contains(document.activeElement);
    state.width = width;
    state.plot = plot(width);
    canvas.replaceChildren(state.plot.node);
    if (hadFocus) state.plot.node.focus();
    choose(state.at);
  }

  function plot(width) {
    const shown = series.filter((one) => one.isShown);
    const lines = gateLines(shown);
    const all = [...shown.flatMap((one) => one.values.filter((value) => value !== null)), ...lines.flatMap((line) => line.values.filter(Number.isFinite))];
    const bottom = DEPTH.height - DEPTH.bottom;
    const axis = errorAxis(all, DEPTH.top, bottom);
    const step = (width - DEPTH.left - DEPTH.right) / names.length;
    const x = (i) => DEPTH.left + (i + 0.5) * step;
    const size = Math.max(2, Math.min(4, step * 0.6));
    const pointer = svg('line', { class: 'pointer', visibility: 'hidden', y1: DEPTH.top, y2: bottom });
    const node = svg('svg', {
      width, height: DEPTH.height, viewBox: `0 0 ${width} ${DEPTH.height}`, role: 'img', tabindex: '0', 'aria-label': description(), pointermove: follow, pointerdown: follow,
      pointerleave: (event) => { if (event.pointerType === 'mouse') choose(null); }, keydown: move,
    }, grid(axis, width, bottom), depthAxis(x, step, bottom), lines.map((line) => gatePath(line, x, axis.y, step, width)), firstMark(x, width, bottom),
    shown.filter((one) => one.isLine).map((one) => svg('path', { class: `line slot-${one.slot}${one.hollow ? ' hollow' : ''}`, d: polyline(one.values, x, axis.y) })),
    shown.toReversed().map((one) => svg('path', { class: `points slot-${one.slot}${one.hollow ? ' hollow' : ''}`, 'data-series': one.key, d: points(one, x, axis.y, size) })),
    faultMarks(x, bottom), pointer);
    legend.querySelectorAll('.allowed').forEach((entry) => entry.remove());
    legend.append(...lines.map(gateEntry));
    return { node, x, step, pointer };
  }

  function gateLines(shown) {
    const keys = shown.map((one) => one.key);
    const wanted = [['float64', keys.some((key) => !key.startsWith('float32')), 'allowed'], ['float32', keys.some((key) => key.startsWith('float32')), 'allowed in float32']];
    return wanted.filter(([name, isWanted]) => isWanted && gates[name].size).map(([name, , label]) => ({ name, label, values: names.map((one) => gates[name].get(one)) }));
  }

  function firstMark(x, width, bottom) {
    if (first < 0) return null;
    const isRight = x(first) > width / 2;
    return svg('g', { class: 'first' }, svg('line', { x1: x(first), x2: x(first), y1: 14, y2: bottom }),
      svg('text', { x: x(first) + (isRight ? -6 : 6), y: 20, 'text-anchor': isRight ? 'end' : 'start' }, '✗ first divergence'));
  }

  /** Draws a tick below each node at fault. */
  function faultMarks(x, bottom) {
    return svg('g', { class: 'at-fault' }, names.flatMap((name, i) => (faulty.has(name) ? [svg('path', { d: `M${x(i) - 4},${bottom + 10}l4,-7l4,7z` })] : [])));
  }

  function depthAxis(x, step, bottom) {
    const group = svg('g', { class: 'axes', 'aria-hidden': 'true' });
    for (const run of runs(names, layerOf)) {
      const [left, right] = [x(run.from) - step / 2, x(run.to) + step / 2];
      if (run.from) group.append(svg('line', { class: 'grid', x1: left, x2: left, y1: DEPTH.top, y2: bottom + 16 }));
      if (run.label && right - left > 14) group.append(svg('text', { x: (left + right) / 2, y: bottom + 25, 'text-anchor': 'middle' }, right - left > 66 ? `layer ${run.label}` : run.label));
    }
    for (const run of runs(names, stackOf)) {
      const middle = x((run.from + run.to) / 2);
      if (run.label && (x(run.to) - x(run.from)) > run.label.length * 6) group.append(svg('text', { class: 'stack', x: middle, y: bottom + 43, 'text-anchor': 'middle' }, run.label));
    }
    return group;
  }

  function follow(event) {
    const at = Math.floor((event.clientX - state.plot.node.getBoundingClientRect().left - DEPTH.left) / state.plot.step);
    choose(clamped(at, names.length));
  }

  function move(event) {
    if (event.key === 'Escape') choose(null);
    const to = pointAfter(event.key, state.at ?? Math.max(first, 0) - (event.key === 'ArrowRight' ? 1 : 0), names.length);
    if (to === undefined) return;
    event.preventDefault();
    choose(to);
    announce(`${where.textContent}: ${series.map((one, i) => `${one.label} ${values[i].textContent}`).join(', ')}`);
  }

  /** Describes the activation under the pointer, or else the first divergence, or else the last activation. */
  function choose(at) {
    state.at = at;
    const shown = at ?? (first < 0 ? names.length - 1 : first);
    series.forEach((one, i) => { values[i].textContent = formatError(one.values[shown]); });
    const notes = [shown === first ? 'first divergence' : null, faulty.has(names[shown]) ? 'at fault' : null].filter(Boolean).join(', ');
    where.replaceChildren(nameOf(names[shown]), ...(notes ? [element('span', { class: 'note' }, ` ${notes}`)] : []));
    const { pointer, x } = state.plot;
    pointer.setAttribute('visibility', at === null ? 'hidden' : 'visible');
    pointer.setAttribute('x1', x(shown));
    pointer.setAttribute('x2', x(shown));
  }

  function description() {
    const marked = first < 0 ? 'None of them diverged.' : `The first divergence is at ${names[first]}.`;
    return `Error of ${counted(names.length, 'activation')} on a logarithmic scale. ${marked} The arrow keys read each.`;
  }

  atEachWidth(canvas, draw);
  return figure;
}

function grid({ y, ticks, hasZero, floor }, width, bottom) {
  const group = svg('g', { class: 'axes', 'aria-hidden': 'true' });
  for (const [tick, label] of [...ticks, ...(hasZero ? [[0, '0']] : [])]) {
    group.append(svg('line', { class: 'grid', x1: DEPTH.left, x2: width - DEPTH.right, y1: y(tick), y2: y(tick) }),
      svg('text', { x: DEPTH.left - 8, y: y(tick), dy: '0.32em', 'text-anchor': 'end' }, label));
  }
  group.append(svg('line', { class: 'base', x1: DEPTH.left, x2: width - DEPTH.right, y1: hasZero ? bottom : floor, y2: hasZero ? bottom : floor }));
  return group;
}

/** Draws the allowed errors, which may vary between activations. */
function gatePath(line, x, y, step, width) {
  const pieces = line.values.flatMap((value, i) => (value === undefined ? [] : [`M${(x(i) - step / 2).toFixed(1)},${y(value).toFixed(1)}h${step.toFixed(2)}`]));
  const { last, isSame } = sameness(line);
  return svg('path', { class: `gate ${line.name}`, d: isSame ? `M${DEPTH.left},${y(last)}H${width - DEPTH.right}` : pieces.join('') });
}

/** Its entry in the legend. */
function gateEntry(line) {
  const { last, isSame } = sameness(line);
  const stroke = svg('svg', { class: 'swatch', width: 26, height: 14, viewBox: '0 0 26 14', 'aria-hidden': 'true' }, svg('path', { class: `gate ${line.name}`, d: 'M0,7H26' }));
  return element('li', { class: 'allowed' }, stroke, element('span', { class: 'label' }, line.label), element('b', {}, isSame ? formatGate(last) : 'differs'));
}

/** The last gate, and whether all are it. */
function sameness({ values }) {
  const last = values.findLast((value) => value !== undefined);
  return { last, isSame: values.every((value) => value === undefined || value === last) };
}

/** A line through what was measured, broken where nothing was. */
function polyline(values, x, y) {
  return values.map((value, i) => (value === null ? '' : `${i && values[i - 1] !== null ? 'L' : 'M'}${x(i).toFixed(1)},${y(value).toFixed(1)}`)).join('');
}

/** All points of a series as one path. */
function points({ values, shape }, x, y, size) {
  const s = (factor) => (factor * size).toFixed(2);
  const outline = {
    circle: `m${s(-1)},0a${s(1)},${s(1)} 0 1,0 ${s(2)},0a${s(1)},${s(1)} 0 1,0 ${s(-2)},0z`,
    triangle: `m0,${s(-1.15)}l${s(1.1)},${s(2)}h${s(-2.2)}z`,
    diamond: `m0,${s(-1.3)}l${s(1.3)},${s(1.3)}l${s(-1.3)},${s(1.3)}l${s(-1.3)},${s(-1.3)}z`,
  }[shape];
  return values.map((value, i) => (value === null ? '' : `M${x(i).toFixed(1)},${y(value).toFixed(1)}${outline}`)).join('');
}

function swatch(one) {
  return svg('svg', { class: 'swatch', width: 14, height: 14, viewBox: '0 0 14 14', 'aria-hidden': 'true' },
    svg('path', { class: `points slot-${one.slot}${one.hollow ? ' hollow' : ''}`, d: points({ values: [0], shape: one.shape }, () => 7, () => 7, 4.2) }));
}
