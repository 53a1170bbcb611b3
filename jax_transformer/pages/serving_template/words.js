// A line of words that can be pointed at, tapped, and walked through with the arrow keys.

/**
 * Draws a text with its units as words: {node, spans}; the spans have the order of the units.
 * groups: a list of units for each part of the text. Calls, with the word's number or null for none: hover for the word under
 * the pointer, keep for the word that the keyboard reaches, press for a word that is clicked or tapped.
 */
function wordLine(text, groups, label, { hover, keep, press }) {
  const spans = [];
  const node = element('p', { class: 'line', dir: 'auto', role: 'group', 'aria-label': `${label}: ${text}`, keydown: step });
  let at = 0;
  for (const unit of groups.flat()) {
    const index = spans.length;
    const found = unit.isWord ? text.indexOf(unit.text, at) : -1;
    if (found >= 0) {
      node.append(text.slice(at, found));
      at = found + unit.text.length;
    }
    const span = element('span', {
      class: `word${unit.isWord ? '' : ' special'}${unit.isUnknown ? ' unknown' : ''}`,
      role: 'button', tabindex: index ? '-1' : '0', 'aria-pressed': 'false', title: unit.isUnknown ? 'unknown to the model' : null,
      pointerenter: (event) => { if (event.pointerType === 'mouse') hover(index); },
      pointerleave: () => hover(null),
      focus: () => { if (span.matches(':focus-visible')) keep(index); },
      click: () => press(index),
    }, element('bdi', {}, unit.text));
    spans.push(span);
    node.append(span);
  }
  node.append(text.slice(at));

  function step(event) {
    const now = spans.indexOf(event.target);
    const to = pointAfter(event.key, now, spans.length);
    if (event.key === 'Escape') keep(null);
    else if (event.key === 'Enter' || event.key === ' ') press(now);
    else if (to !== undefined) {
      spans[now].tabIndex = -1;
      spans[to].tabIndex = 0;
      spans[to].focus();
    } else return;
    event.preventDefault();
  }

  return { node, spans };
}

/**
 * Draws a line of the source above its translation. A word that is pointed at or chosen shades the words of the other line by their weights.
 * Returns {node, show(layer, head)}.
 */
function attentionPair(source, translation, parts, name) {
  const [sources, targets] = ['source', 'target'].map((side) => parts.map((part) => unitsOf(part[side])));
  const state = { hovered: null, kept: null, layer: 0, head: null };
  const readout = element('p', { class: 'readout' });
  const lines = [
    wordLine(source, sources, `Source${name}`, listeners(0)),
    wordLine(translation, targets, `Translation${name}`, listeners(1)),
  ];

  function listeners(side) {
    const isKept = (index) => state.kept && state.kept.side === side && state.kept.index === index;
    const keep = (index) => {
      Object.assign(state, { kept: index === null ? null : { side, index }, hovered: null });
      draw();
      if (state.kept) announce(readout.textContent);
    };
    return {
      hover: (index) => { state.hovered = index === null ? null : { side, index }; draw(); },
      keep,
      press: (index) => keep(isKept(index) ? null : index),
    };
  }

  function draw() {
    lines.forEach(({ spans }) => spans.forEach((span) => {
      span.classList.remove('at', 'read');
      span.style.removeProperty('--share');
      span.removeAttribute('data-share');
      span.setAttribute('aria-pressed', 'false');
    }));
    const at = state.hovered || state.kept;
    if (!at) {
      readout.replaceChildren();
      return;
    }
    const { side, index } = at;
    const chosen = lines[side].spans[index];
    chosen.classList.add('at');
    chosen.setAttribute('aria-pressed', 'true');
    const [part, within] = placeOf([sources, targets][side], index);
    const weights = unitWeights(weightsOf(parts[part], state.layer, state.head), targets[part], sources[part]);
    const others = side ? sources : targets;
    const first = others.slice(0, part).reduce((sum, units) => sum + units.length, 0);
    const shares = others[part].map((unit, i) => ({ unit, share: side ? weights[within][i] : weights[i][within], span: lines[1 - side].spans[first + i] }));
    for (const { share, span } of shares) {
      span.classList.add('read');
      span.style.setProperty('--share', share.toFixed(4));
      if (share >= 0.05) span.dataset.share = formatShare(share);
    }
    const most = [...shares].sort((a, b) => b.share - a.share).slice(0, 4).filter(({ share }) => share > 0);
    readout.replaceChildren(element('bdi', {}, [sources, targets][side][part][within].text), element('span', { class: 'arrow' }, side ? ' attends to ' : ' is attended to by '),
      ...most.flatMap(({ unit, share }, i) => [i ? ', ' : '', element('bdi', {}, unit.text), ' ', element('span', { class: 'weight' }, formatShare(share))]));
  }

  function show(layer, head) {
    Object.assign(state, { layer, head });
    draw();
  }

  const node = element('div', { class: 'attention' }, lines.map((line) => line.node), readout);
  return { node, show };
}

/** Returns the part and the place within it of the unit with this number. */
function placeOf(groups, index) {
  let within = index;
  const part = groups.findIndex((units) => {
    if (within < units.length) return true;
    within -= units.length;
    return false;
  });
  return [part, within];
}
