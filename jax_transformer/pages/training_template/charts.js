// Curves against steps, as small multiples with one step axis and one cursor.

const MARGIN = { top: 16, right: 14, bottom: 26, left: 58 };
const CHART_HEIGHT = 218;
const MOST_DOTS = 60;

/** Holds what the charts share: the last step, the best step, and the step under the cursor. */
function makeCursor(lastStep, bestStep) {
  const listeners = [];
  return {
    lastStep,
    bestStep,
    listen: (listener) => listeners.push(listener),
    move: (step) => listeners.forEach((listener) => listener(step)),
  };
}

/**
 * Makes a figure of one or more curves.
 * spec: {title, unit, log: "never" | "possible" | "first", factor, format, series: [{key, label, dots, slot}]}; curves: key → {steps, values, count}.
 */
function chart(spec, curves, cursor) {
  const series = spec.series
    .map((item, index) => ({ slot: index, ...item, ...lines(curves[item.key], spec.factor) }))
    .filter((item) => item.values && item.values.length);
  const state = { log: spec.log === 'first', width: 0, plot: null };
  const canvas = element('div', { class: 'canvas' });
  const readout = legend(spec, series);
  const figure = element('figure', { class: 'chart', 'data-chart': spec.series[0].key }, caption(), readout.node, canvas);

  function caption() {
    const title = element('span', { class: 'title' }, spec.title, spec.unit ? element('span', { class: 'unit' }, ` ${spec.unit}`) : null);
    const isPositive = series.some((item) => item.values.some((value) => value > 0));
    if (spec.log === 'never' || !isPositive) return element('figcaption', {}, title);
    const toggle = logButton(spec.title, state.log, (isLog) => {
      state.log = isLog;
      draw(state.width);
    });
    return element('figcaption', {}, title, toggle);
  }

  function draw(width) {
    state.width = width;
    if (!series.length) return canvas.replaceChildren(element('p', { class: 'empty' }, 'No values yet.'));
    state.plot = drawPlot(width);
    canvas.replaceChildren(state.plot.node);
    return undefined;
  }

  function drawPlot(width) {
    const shown = state.log ? series.map(positive).filter((item) => item.values.length) : series;
    const axis = valueAxis(shown.flatMap((item) => [...item.values, ...item.points.values]), state.log, 4);
    const x = makeScale([0, Math.max(1, cursor.lastStep)], [MARGIN.left, width - MARGIN.right], false);
    const y = makeScale(axis.domain, [CHART_HEIGHT - MARGIN.bottom, MARGIN.top], state.log);
    const node = svg('svg', {
      viewBox: `0 0 ${width} ${CHART_HEIGHT}`, role: 'img', tabindex: '0', 'aria-label': description(spec, series, cursor),
      pointermove: follow, pointerdown: follow, pointerleave: () => cursor.move(null), keydown: step, blur: () => cursor.move(null),
    }, axes(x, y, axis.ticks, width), bestMark(x, shown, y), shown.map((item) => curvePath(item, x, y)));
    const pointer = svg('g', { class: 'pointer', visibility: 'hidden' });
    node.append(pointer);
    return { node, pointer, x, y, shown };
  }

  function axes(x, y, ticks, width) {
    const group = svg('g', { class: 'axes', 'aria-hidden': 'true' });
    const bottom = CHART_HEIGHT - MARGIN.bottom;
    for (const [tick, label] of ticks) {
      group.append(
        svg('line', { class: 'grid', x1: MARGIN.left, x2: width - MARGIN.right, y1: y(tick), y2: y(tick) }),
        svg('text', { x: MARGIN.left - 8, y: y(tick), dy: '0.32em', 'text-anchor': 'end' }, label),
      );
    }
    const { ticks: steps } = linearTicks(0, Math.max(1, cursor.lastStep), width < 420 ? 3 : 5);
    for (const tick of steps.filter(Number.isInteger)) {
      const isLast = x(tick) > width - MARGIN.right - 24;
      group.append(
        svg('line', { class: 'tick', x1: x(tick), x2: x(tick), y1: bottom, y2: bottom + 4 }),
        svg('text', { x: isLast ? width - MARGIN.right : x(tick), y: bottom + 17, 'text-anchor': isLast ? 'end' : 'middle' }, formatCount(tick)),
      );
    }
    group.append(svg('line', { class: 'base', x1: MARGIN.left, x2: width - MARGIN.right, y1: bottom, y2: bottom }));
    return group;
  }

  function bestMark(x, shown, y) {
    const step = cursor.bestStep;
    if (step === null) return null;
    const at = x(step);
    const hasDots = shown.some((item) => item.dots);
    const isRight = at > (x(0) + x(cursor.lastStep)) / 2;
    const group = svg('g', { class: 'best' },
      svg('line', { x1: at, x2: at, y1: MARGIN.top - 2, y2: CHART_HEIGHT - MARGIN.bottom }),
      hasDots ? svg('text', { x: at + (isRight ? -5 : 5), y: MARGIN.top - 5, 'text-anchor': isRight ? 'end' : 'start' }, 'best checkpoint') : null);
    for (const item of shown.filter((one) => one.dots)) {
      const index = item.steps.indexOf(step);
      if (index >= 0) group.append(svg('circle', { class: `slot-${item.slot}`, cx: at, cy: y(item.values[index]), r: 7 }));
    }
    return group;
  }

  function curvePath(item, x, y) {
    const pixels = (line) => line.steps.map((at, i) => [x(at).toFixed(1), y(line.values[i]).toFixed(1)]);
    const path = (all, faint) => svg('path', { class: `curve slot-${item.slot}${faint}`, d: `M${all.map((point) => point.join(',')).join('L')}` });
    const points = pixels(item);
    const pale = item.points.steps.length ? path(pixels(item.points), ' faint') : null;
    const isDotted = points.length === 1 || (item.dots && points.length <= MOST_DOTS);
    const dots = isDotted ? points.map(([cx, cy]) => svg('circle', { class: `dot slot-${item.slot}`, cx, cy, r: 3 })) : [];
    return svg('g', {}, pale, path(points, ''), dots);
  }

  function follow(event) {
    const box = state.plot.node.getBoundingClientRect();
    const step = state.plot.x.invert(((event.clientX - box.left) / box.width) * state.width);
    cursor.move(snapped(stepsOf(series), step));
  }

  function step(event) {
    const steps = stepsOf(series);
    const now = state.step === null || state.step === undefined ? steps.length - 1 : nearest(steps, state.step);
    const to = pointAfter(event.key, now, steps.length);
    if (event.key === 'Escape') cursor.move(null);
    if (to === undefined) return;
    event.preventDefault();
    cursor.move(steps[to]);
    announce(readout.node.textContent);
  }

  cursor.listen((at) => {
    state.step = at;
    readout.show(at);
    if (!state.plot) return;
    const { pointer, x, y, shown } = state.plot;
    if (at === null) return pointer.setAttribute('visibility', 'hidden');
    const dots = shown.map((item) => {
      const i = nearest(item.steps, at);
      return svg('circle', { class: `dot slot-${item.slot}`, cx: x(item.steps[i]), cy: y(item.values[i]), r: 4 });
    });
    pointer.replaceChildren(svg('line', { x1: x(at), x2: x(at), y1: MARGIN.top, y2: CHART_HEIGHT - MARGIN.bottom }), ...dots);
    pointer.setAttribute('visibility', 'visible');
    return undefined;
  });
  readout.show(null);
  atEachWidth(canvas, draw);
  return figure;
}

/** Returns the steps at which a chart can be read: those of its longest curve. */
function stepsOf(series) {
  return series.reduce((most, item) => (item.steps.length > most.length ? item.steps : most), []);
}

function snapped(steps, step) {
  return steps[nearest(steps, step)];
}

/** Lists the curves' names with their values at the cursor, or their last values. */
function legend(spec, series) {
  const step = element('span', { class: 'step' });
  const values = series.map(() => element('b'));
  const format = spec.format || formatNumber;
  const entries = series.map((item, i) => element('li', {}, swatch(item), element('span', { class: 'label' }, `${item.label} `), values[i]));
  const node = element('ul', { class: 'legend' }, entries, element('li', { class: 'at' }, step));
  const steps = stepsOf(series);
  function show(cursorStep) {
    if (!series.length) return;
    const at = cursorStep === null ? steps[steps.length - 1] : snapped(steps, cursorStep);
    series.forEach((item, i) => {
      const index = nearest(item.steps, at);
      const isElsewhere = item.steps[index] !== at;
      values[i].textContent = format(item.values[index]) + (isElsewhere ? ` (at ${formatCount(item.steps[index])})` : '');
    });
    step.textContent = ` step ${formatCount(at)}`;
  }
  return { node, show };
}

function swatch(item) {
  const mark = svg('svg', { class: 'swatch', viewBox: '0 0 22 10', 'aria-hidden': 'true' }, svg('path', { class: `curve slot-${item.slot}`, d: 'M1,5L21,5' }));
  if (item.dots) mark.append(svg('circle', { class: `dot slot-${item.slot}`, cx: 11, cy: 5, r: 3 }));
  return mark;
}

/** Returns the line to draw and the points to draw pale beneath it: the means, if there are any, and all points. */
function lines({ steps, values, means }, factor = 1) {
  const scaled = (line) => ({ steps: line.steps, values: factor === 1 ? line.values : line.values.map((value) => factor * value) });
  return means ? { ...scaled(means), points: scaled({ steps, values }) } : { ...scaled({ steps, values }), points: { steps: [], values: [] } };
}

function positive(item) {
  const kept = (line) => {
    const pairs = line.values.map((value, i) => [line.steps[i], value]).filter(([, value]) => value > 0);
    return { steps: pairs.map(([step]) => step), values: pairs.map(([, value]) => value) };
  };
  return { ...item, ...kept(item), points: kept(item.points) };
}

function description(spec, series, cursor) {
  const format = spec.format || formatNumber;
  const parts = series.map((item) => {
    const last = item.values.length - 1;
    return `${item.label} from ${format(item.values[0])} at step ${item.steps[0]} to ${format(item.values[last])} at step ${item.steps[last]}`;
  });
  const best = cursor.bestStep === null ? '' : `; best checkpoint at step ${cursor.bestStep}`;
  return `${spec.title} against steps: ${parts.join('; ')}${best}. Arrow keys move along the steps.`;
}
