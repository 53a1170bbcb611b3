// Parts that the whole page uses: verdicts, which never rely on colour alone, names, and commands to copy.

const MARKS = { passed: '✓', diverged: '✗', inconclusive: '?' };

function mark(verdict) {
  return element('span', { class: `mark ${verdict}`, 'aria-hidden': 'true' }, MARKS[verdict]);
}

/** Returns the mark with its word. */
function verdictTag(verdict) {
  return element('span', { class: 'verdict' }, mark(verdict), ' ', verdict);
}

/** Shows the name of a node or an array, which may break after dots and slashes. */
function nameOf(name) {
  const parts = String(name).split(/(?<=[./])/);
  return element('code', { class: 'name' }, parts.flatMap((part, i) => (i ? [element('wbr'), part] : [part])));
}

/** Shows a command with a button that copies it, or selects it if copying isn't allowed. */
function commandLine(command) {
  const code = element('code', { tabindex: '0' }, command);
  return element('div', { class: 'command' }, element('div', { class: 'scroll' }, code), copyButton(command, code));
}

function copyButton(command, code) {
  const button = element('button', { type: 'button', class: 'small copy', click: async () => {
    try {
      await navigator.clipboard.writeText(command);
      report('Copied');
    } catch {
      if (!code) return report('Not allowed');
      getSelection().selectAllChildren(code);
      report('Selected');
    }
    return undefined;
  } }, 'Copy', element('span', { class: 'unseen' }, ' the command'));

  function report(text) {
    button.firstChild.data = text;
    announce(text);
    setTimeout(() => { button.firstChild.data = 'Copy'; }, 2000);
  }

  return button;
}
