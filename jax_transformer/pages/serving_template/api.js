// The page from top to bottom: each endpoint with its fields, its answers, and requests to send.

const MOST_CHARACTERS = 20000;
const LINE = 96;
const METHODS = ['get', 'post', 'put', 'patch', 'delete'];
const schema = pageData();

/** Describes a type as in "list of text", "integer or null", "true or false". */
function typeName(type) {
  if (!type || !Object.keys(type).length) return 'any';
  if (type.enum) return type.enum.map((value) => JSON.stringify(value)).join(' or ');
  if (type.anyOf) return type.anyOf.map(typeName).join(' or ');
  if (Array.isArray(type.type)) return type.type.map((name) => typeName({ type: name })).join(' or ');
  if (type.type === 'array') return `list of ${typeName(type.items)}`;
  return { string: 'text', boolean: 'true or false' }[type.type] || type.type || 'any';
}

/** Lists the fields of a type, those of objects inside under their path, such as translations[].text. */
function fieldsOf(type, path = '') {
  if (type && type.type === 'array') return fieldsOf(type.items, `${path}[]`);
  return Object.entries((type && type.properties) || {}).flatMap(([name, inner]) => {
    const at = path ? `${path}.${name}` : name;
    return [{ path: at, type: inner, isRequired: (type.required || []).includes(name) }, ...fieldsOf(inner, at)];
  });
}

function fieldTable(fields, hasRequired) {
  return table([{ title: 'Field' }, { title: 'Type' }, { title: 'Meaning' }], fields.map(({ path, type, isRequired }) => [
    element('code', {}, path), typeName(type), [hasRequired && isRequired ? element('b', {}, 'Required. ') : null, type.description || ''].filter(Boolean),
  ].map((cell) => (Array.isArray(cell) ? element('span', {}, ...cell) : cell))), { class: 'fields' });
}

function endpoint(path, method, described, id) {
  const [type, content] = Object.entries(((described.requestBody || {}).content) || {})[0] || [];
  const fields = content ? fieldsOf(content.schema) : [];
  return section(id, `${method.toUpperCase()} ${path}`, described.description || described.summary,
    trial(path, method, type, examplesOf(content), id),
    fields.length ? element('details', {}, element('summary', {}, `The body: ${counted(fields.length, 'field')}`), fieldTable(fields, true)) : null,
    answerDetails(described.responses || {}));
}

function answerDetails(responses) {
  const rows = Object.entries(responses).map(([status, { description, content }]) => [element('code', {}, status), description, Object.keys(content || {}).join(', ')]);
  const success = Object.values(((responses[200] || {}).content) || {})[0];
  const fields = success ? fieldsOf(success.schema) : [];
  return element('details', {}, element('summary', {}, 'Answers'),
    table([{ title: 'Status' }, { title: 'When' }, { title: 'Type' }], rows), fields.length ? fieldTable(fields, false) : null);
}

/** Lists the examples of a body: [name, text]. */
function examplesOf(content) {
  if (!content) return [];
  const named = Object.entries(content.examples || {}).map(([name, { value }]) => [name, value]);
  return (named.length ? named : [['example', content.example || {}]]).map(([name, value]) => [name, inOneLine(value)]);
}

function inOneLine(value) {
  if (Array.isArray(value)) return `[${value.map(inOneLine).join(', ')}]`;
  if (value && typeof value === 'object') return `{${Object.entries(value).map(([name, inner]) => `${JSON.stringify(name)}: ${inOneLine(inner)}`).join(', ')}}`;
  return JSON.stringify(value);
}

/** Writes a value in as few lines as fit. */
function inLines(value, indent = '') {
  const line = inOneLine(value);
  if (indent.length + line.length <= LINE || !value || typeof value !== 'object') return line;
  const inner = `${indent}  `;
  const items = Array.isArray(value) ? value.map((each) => inLines(each, inner)) : Object.entries(value).map(([name, each]) => `${JSON.stringify(name)}: ${inLines(each, inner)}`);
  const [open, close] = Array.isArray(value) ? '[]' : '{}';
  return `${open}\n${inner}${items.join(`,\n${inner}`)}\n${indent}${close}`;
}

/** Quotes a text for a shell. */
function quoted(text) {
  return `'${text.replace(/'/g, '\'\\\'\'')}'`;
}

/** Makes a request that the reader can change and send, and shows the answer and the command that sends the same. */
function trial(path, method, type, examples, id) {
  const address = path.replace(/^\//, '');
  const body = examples.length ? element('textarea', { rows: '3', spellcheck: 'false', 'aria-label': `Body of ${method.toUpperCase()} ${path}`, input: redraw, keydown: (event) => {
    if (event.key === 'Enter' && (event.ctrlKey || event.metaKey)) ask(event);
  } }) : null;
  const file = type === 'multipart/form-data' ? element('input', { type: 'file', 'aria-label': `File of ${method.toUpperCase()} ${path}`, change: redraw }) : null;
  const command = element('code', {});
  const said = element('p', { class: 'status', role: 'status' });
  const output = element('pre', { class: 'output', hidden: '', tabindex: '0', 'aria-busy': 'false', 'aria-label': `Answer of ${method.toUpperCase()} ${path}` });
  const picker = examples.length > 1 ? choices('Example', `example-${id}`, examples.map(([name, text]) => [text, name]), pick) : null;
  let waiting = null;

  function pick(text) {
    body.value = text;
    if (picker) picker.select(text);
    redraw();
  }

  function redraw() {
    const where = new URL(address, document.baseURI).href;
    command.textContent = file ? formCommand(where) : body ? `curl --json ${quoted(body.value)} ${where}` : `curl ${where}`;
  }

  /** Returns the fields in the text, [name, value], with the file; none if the text is no object of JSON. */
  function formFields() {
    const chosen = file.files[0];
    let value = {};
    try { value = JSON.parse(body.value); } catch { /* while it is typed */ }
    const fields = Object.entries(value || {}).flatMap(([name, each]) => [each].flat().map((one) => [name, String(one)]));
    return chosen ? [...fields, ['file', chosen]] : fields;
  }

  function formCommand(where) {
    const fields = formFields().map(([name, value]) => `-F ${quoted(`${name}=${value instanceof File ? `@${value.name}` : value}`)}`);
    return ['curl', ...fields, where].join(' ');
  }

  function sent() {
    if (!file) return body ? body.value : null;
    const form = new FormData();
    formFields().forEach(([name, value]) => form.append(name, value));
    return form;
  }

  async function ask(event) {
    event.preventDefault();
    if (waiting) waiting.abort();
    const own = new AbortController();
    waiting = own;
    said.textContent = 'Waiting for the answer…';
    output.setAttribute('aria-busy', 'true');
    try {
      const answer = await send(method.toUpperCase(), address, sent(), { signal: own.signal, onPart: (text) => show(text) });
      said.textContent = `${answer.status} ${answer.statusText}`.trim() + `, ${answer.type || 'no type'}, in ${formatSeconds(answer.seconds)}`;
      const value = answer.type.startsWith('application/json') ? valueOf(answer) : null;
      show(value === null ? answer.text : inLines(value));
    } catch (error) {
      if (error.name === 'AbortError') return; // another request took its place
      if (!(error instanceof NoAnswer)) throw error;
      said.textContent = error.message;
      show('');
    }
    output.setAttribute('aria-busy', 'false');
  }

  function show(text) {
    output.hidden = !text;
    output.textContent = text.length > MOST_CHARACTERS ? `${text.slice(0, MOST_CHARACTERS)}\n… ${formatCount(text.length - MOST_CHARACTERS)} characters more` : text;
  }

  const node = element('form', { class: 'trial', submit: ask }, picker && picker.node, body, file,
    element('pre', { class: 'command', tabindex: '0', 'aria-label': 'The same as a command' }, command),
    element('div', { class: 'actions' }, element('button', { type: 'submit', class: 'first' }, 'Send', element('span', { class: 'unseen' }, ` ${method.toUpperCase()} ${path}`)), said), output);
  if (body) pick(examples[0][1]);
  else redraw();
  return node;
}

// --- now

const endpoints = Object.entries(schema.paths).flatMap(([path, methods]) => METHODS.filter((method) => methods[method])
  .map((method) => ({ path, method, described: methods[method], id: `${method}-${path.replace(/\W+/g, '')}` })));
fillPage([
  topBar(endpoints.map(({ path, id }) => [id, path]), [['./', schema.paths['/translate'] ? 'Translate' : 'Transcribe']]),
  element('p', { class: 'over' }, `${schema.info.title} ${schema.info.version}`),
  element('h1', {}, 'API'),
  element('p', { class: 'lead' }, `${schema.info.description} `, element('a', { href: 'openapi.json' }, 'openapi.json'), ' describes it for generators of clients.'),
], endpoints.map(({ path, method, described, id }) => endpoint(path, method, described, id)), 'Sent by jax-transformer, from its own OpenAPI schema. Requests go to the server that sent this page.');
