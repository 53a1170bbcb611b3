// Choices among few values.

/** Makes radio buttons in a row; entries: [value, label]. A change calls `choose(value)`. */
function choices(title, name, entries, choose) {
  const inputs = entries.map(([value, label]) => [value, element('input', { type: 'radio', name, value: label, change: () => choose(value) }), label]);
  const node = element('fieldset', { class: 'choices' }, element('legend', {}, title),
    element('div', {}, inputs.map(([, input, label]) => element('label', {}, input, element('span', {}, label)))));
  return { node, select: (chosen) => inputs.forEach(([value, input]) => { input.checked = value === chosen; }) };
}
