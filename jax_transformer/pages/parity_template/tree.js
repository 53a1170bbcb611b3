// The tree of modules: every node with the worst row in it, open down to the first divergence.

function treeSection(data, rows) {
  const found = activationRows(rows);
  const names = [...new Set([...found.map((row) => row.name), ...data.depth.map((one) => one.name)])];
  if (!names.length) return section('modules', 'Modules', 'There are no activations.');
  const first = firstDivergence(found);
  const root = grown(names, worstByName(found), faultsByName(data.faults), first ? first.name : null);
  const lead = first ? 'Each module with its worst activation. A fault makes all later activations diverge, too; tags mark the modules at fault.' : 'Each module with its worst activation.';
  const tree = element('div', { class: 'tree' }, [...root.children.values()].map((node) => branch(node, 0)));
  const setAll = (isOpen) => tree.querySelectorAll('details').forEach((details) => { details.open = isOpen; });
  const tools = element('div', { class: 'tools' },
    element('button', { type: 'button', class: 'small', click: () => setAll(true) }, 'Open all'),
    element('button', { type: 'button', class: 'small', click: () => setAll(false) }, 'Close all'));
  const head = element('div', { class: 'line head', 'aria-hidden': 'true' }, element('span', {}, 'module'), element('span', { class: 'error' }, 'relative RMS'), element('span', { class: 'times' }, '× allowed'));
  return section('modules', 'Modules', lead, tools, head, tree);
}

/** Returns each name's row with the worst verdict; of equal ones, that of the first stage, as errors of different precisions can't be compared. */
function worstByName(rows) {
  const worst = new Map();
  const rank = (row) => BY_SEVERITY.indexOf(row.verdict);
  for (const row of rows) if (!worst.has(row.name) || rank(row) > rank(worst.get(row.name))) worst.set(row.name, row);
  return worst;
}

function faultsByName(faults) {
  const found = new Map();
  for (const fault of faults) found.set(fault.node, [...(found.get(fault.node) || []), fault]);
  return found;
}

/** Builds the tree of nodes {name, children, worst, faults, isFirst, leadsToFirst, leaves, diverged, faulty} from the parts of the names. */
function grown(names, worst, faults, first) {
  const root = sprout('');
  for (const name of names) {
    const row = worst.get(name);
    const isFirst = name === first;
    let node = root;
    for (const part of name.split('.')) {
      if (!node.children.has(part)) node.children.set(part, sprout(part));
      node = node.children.get(part);
      if (row && (!node.worst || isWorse(row, node.worst))) node.worst = row;
      node.leadsToFirst ||= isFirst;
      node.leaves += 1;
      node.diverged += row && row.verdict === 'diverged' ? 1 : 0;
      node.faulty += faults.has(name) ? 1 : 0;
    }
    Object.assign(node, { isFirst, faults: faults.get(name) || [] });
  }
  return root;
}

function sprout(name) {
  return { name, children: new Map(), worst: null, faults: [], isFirst: false, leadsToFirst: false, leaves: 0, diverged: 0, faulty: 0 };
}

/** Draws a module with its inner ones, or an activation. */
function branch(node, depth) {
  if (!node.children.size) return element('div', { class: `line leaf${node.isFirst ? ' is-first' : ''}`, style: `--depth:${depth}` }, lineOf(node));
  const inner = [...node.children.values()].map((child) => branch(child, depth + 1));
  return element('details', node.leadsToFirst ? { open: '' } : {}, element('summary', { class: `line${node.isFirst ? ' is-first' : ''}`, style: `--depth:${depth}` }, lineOf(node)), inner);
}

function lineOf(node) {
  const verdict = node.worst ? node.worst.verdict : 'unseen-verdict';
  const state = node.worst ? [mark(node.worst.verdict), element('span', { class: 'unseen' }, `${node.worst.verdict} `)] : element('span', { class: 'mark', title: 'not compared' }, '·');
  const notes = node.children.size && node.diverged ? summaryOf(node) : stageNote(node.worst);
  const tags = [node.isFirst ? element('span', { class: 'tag' }, 'first divergence') : null,
    ...node.faults.map((fault) => element('span', { class: 'tag fault' }, fault.side === 'unknown' ? `differs: ${fault.cause}` : `${fault.side} at fault: ${fault.cause}`))];
  return [
    element('span', { class: `label ${verdict}` }, state, element('code', {}, node.name), notes ? element('span', { class: 'note' }, notes) : null, ...tags),
    element('span', { class: 'error' }, node.worst ? errorText(node.worst, relativeRms(node.worst)) : '–'),
    element('span', { class: 'times' }, node.worst ? timesText(node.worst) : '–'),
  ];
}

/** Names the stage of an error that isn't of the float64 stage. */
function stageNote(row) {
  return row && row.verdict !== 'passed' && /^forward ./.test(row.stage) ? `in ${row.stage}` : null;
}

function summaryOf(node) {
  const faulty = node.faulty ? `, ${formatCount(node.faulty)} at fault` : '';
  return `${formatCount(node.diverged)} of ${formatCount(node.leaves)} diverge${faulty}`;
}
