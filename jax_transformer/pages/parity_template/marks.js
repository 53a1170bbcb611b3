// Small things that stand everywhere: verdicts, which never are a colour alone, names, and commands to copy.

const MARKS = { passed: '✓', diverged: '✗', inconclusive: '?' };

function mark(verdict) {
  return element('span', { class: `mark ${verdict}`, 'aria-hidden': 'true' }, MARKS[verdict]);
}

/** The mark with its word. */
function verdictTag(verdict) {
  return element('span', { class: 'verdict' }, mark(verdict), ' ', verdict);
}

/** A node's or an array's name, which may break after its dots and slashes. */
function nameOf(name) {
  const parts = String(name).split(/(?<=[./])/);
  return element('code', { class: 'name' }, parts.flatMap((part, i) => (i ? [element('wbr'), part] : [part])));
}

/** A command with a button that copies it; where copying isn't allowed, it is selected. */
function commandLine(command) {
  const code = element('code', { tabindex: '0' }, command);
  return element('div', { class: 'command' }, element('div', { class: 'scroll' }, code), copyButton(command, code));
}

function copyButton(command, code) {
  const button = element('button', { type: 'button', class: 'small copy', click: async () => {
    try {
      await navigator.clipboard.writeText(command);
      told('Copied');
    } catch {
      if (!code) return told('Not allowed');
      getSelection().selectAllChildren(code);
      told('Selected');
    }
    return undefined;
  } }, 'Copy', element('span', { class: 'unseen' }, ' the command'));

  function told(text) {
    button.firstChild.data = text;
    announce(text);
    setTimeout(() => { button.firstChild.data = 'Copy'; }, 2000);
  }

  return button;
}

/** Pairs of a title and a text or elements, as a list; pairs without the latter are left out. */
function factList(className, pairs) {
  const shown = pairs.filter(([, value]) => value !== null && value !== undefined && value !== '');
  return element('dl', { class: className }, shown.map(([title, ...value]) => element('div', {}, element('dt', {}, title), element('dd', {}, ...value))));
}
