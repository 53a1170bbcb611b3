// Histograms of sentence lengths: pairs by number of tokens, on one axis for all splits.

const BARS_MARGIN = { top: 10, right: 14, bottom: 24, left: 58 };
const BARS_HEIGHT = 132;
const MOST_BARS = 64;

/** Makes a row of figures for each split that has counts; null if none has. */
function lengthHistograms(data) {
  const splits = Object.entries(data.splits).filter(([, split]) => total(split.source_length_counts) + total(split.target_length_counts) > 0);
  if (!splits.length) return null;
  const sides = ['source', 'target'];
  const ends = splits.flatMap(([, split]) => sides.map((side) => lastUsed(split[`${side}_length_counts`] || [])));
  const end = Math.max(...ends);
  const wide = Math.max(1, Math.ceil((end + 1) / MOST_BARS));
  const figures = splits.flatMap(([name, split]) => {
    const bars = sides.map((side) => barsOf(split[`${side}_length_counts`] || [], end, wide));
    const highest = Math.max(1, ...bars.flat().map((bar) => bar.count)); // of both sides, so that they are comparable
    return sides.map((side, i) => histogram(name, side, split[`${side}_length_counts`] || [], bars[i], { end, highest, limit: data.max_length }));
  });
  return element('div', { class: 'multiples' }, figures);
}

/** Groups counts by length into bars of `wide` lengths each. */
function barsOf(counts, end, wide) {
  const bars = [];
  for (let start = 0; start <= end; start += wide) {
    bars.push({ start, stop: Math.min(start + wide, end + 1) - 1, count: total(counts.slice(start, start + wide)) });
  }
  return bars;
}

function histogram(split, side, counts, bars, { end, highest, limit }) {
  const all = total(counts);
  const canvas = element('div', { class: 'canvas' });
  const rest = all ? `median ${quantile(counts, 0.5)}, 99\u202f% at most ${quantile(counts, 0.99)} tokens` : 'no pairs';
  const readout = element('span', { class: 'unit' }, rest);
  const caption = element('figcaption', {}, element('span', { class: 'title' }, `${split}, ${side}`), readout);

  function draw(width) {
    const axis = valueAxis([0, highest], false, 3);
    const x = makeScale([-0.5, end + 0.5], [BARS_MARGIN.left, width - BARS_MARGIN.right], false);
    const y = makeScale(axis.domain, [BARS_HEIGHT - BARS_MARGIN.bottom, BARS_MARGIN.top], false);
    const bottom = BARS_HEIGHT - BARS_MARGIN.bottom;
    const label = `${split}, ${side}: pairs by number of tokens; ${rest}`;
    const node = svg('svg', { viewBox: `0 0 ${width} ${BARS_HEIGHT}`, role: 'img', 'aria-label': label, pointerleave: () => { readout.textContent = rest; } });
    for (const [tick, text] of axis.ticks.filter(([value]) => Number.isInteger(value))) {
      node.append(
        svg('line', { class: 'grid', x1: BARS_MARGIN.left, x2: width - BARS_MARGIN.right, y1: y(tick), y2: y(tick) }),
        svg('text', { x: BARS_MARGIN.left - 8, y: y(tick), dy: '0.32em', 'text-anchor': 'end' }, text),
      );
    }
    for (const bar of bars) {
      const left = x(bar.start - 0.5) + 0.75;
      const span = Math.max(1, x(bar.stop + 0.5) - 0.75 - left);
      const text = `${barName(bar, counts, end)}: ${formatCount(bar.count)} pairs (${formatShare(bar.count, all)})`;
      const show = () => { readout.textContent = text; };
      node.append(
        svg('rect', { class: `bar ${side}${bar.start > limit ? ' beyond' : ''}`, x: left, width: span, y: y(bar.count), height: Math.max(0, bottom - y(bar.count)) }),
        svg('rect', { class: 'catch', x: left - 0.75, width: span + 1.5, y: BARS_MARGIN.top, height: bottom - BARS_MARGIN.top, pointerenter: show, pointerdown: show }, svg('title', {}, text)),
      );
    }
    node.append(svg('line', { class: 'base', x1: BARS_MARGIN.left, x2: width - BARS_MARGIN.right, y1: bottom, y2: bottom }));
    for (const tick of linearTicks(0, Math.max(1, end), 5).ticks.filter(Number.isInteger)) {
      node.append(svg('text', { x: x(tick), y: bottom + 16, 'text-anchor': 'middle' }, formatCount(tick)));
    }
    canvas.replaceChildren(node);
  }
  atEachWidth(canvas, draw);
  return element('figure', { class: 'chart histogram' }, caption, canvas);
}

function barName(bar, counts, end) {
  const isOpen = bar.stop === end && end === counts.length - 1;
  if (isOpen) return `${bar.start} tokens or more`;
  return bar.start === bar.stop ? `${bar.start} tokens` : `${bar.start} to ${bar.stop} tokens`;
}

function total(counts) {
  return (counts || []).reduce((sum, count) => sum + count, 0);
}

function lastUsed(counts) {
  let last = counts.length - 1;
  while (last > 0 && !counts[last]) last -= 1;
  return Math.max(0, last);
}

function quantile(counts, share) {
  let left = share * total(counts);
  const found = counts.findIndex((count) => { left -= count; return left <= 0; });
  return found === counts.length - 1 ? `${found} or more` : String(found);
}
