// Sends requests to the server, and says why there is no answer.

/**
 * Sends a request; body: a text in JSON, a form, or null for GET. onPart(text so far): called while the answer arrives.
 * Returns {status, statusText, type, retryAfter, text, seconds}; throws a NoAnswer, or an AbortError if `signal` ends it.
 */
async function send(method, path, body, { signal, onPart } = {}) {
  const start = performance.now();
  const headers = typeof body === 'string' ? { 'content-type': 'application/json' } : {};
  try {
    const response = await fetch(path, body === null ? { method, signal } : { method, signal, body, headers });
    const text = await textOf(response, onPart || (() => {}));
    const header = (name) => response.headers.get(name) || '';
    return { status: response.status, statusText: response.statusText, type: header('content-type'), retryAfter: header('retry-after'), text, seconds: (performance.now() - start) / 1000 };
  } catch (error) {
    if (error.name === 'AbortError') throw error;
    throw new NoAnswer();
  }
}

class NoAnswer extends Error {
  constructor() {
    super('No answer: the server has stopped, can’t be reached, or closed the connection. Send it again once the server runs.');
  }
}

async function textOf(response, onPart) {
  const reader = response.body.getReader();
  const decoder = new TextDecoder();
  let text = '';
  for (;;) {
    const { done, value } = await reader.read();
    text += decoder.decode(value, { stream: !done });
    if (done) return text;
    onPart(text);
  }
}

/** Returns the value of an answer in JSON, or null. */
function valueOf(answer) {
  try { return JSON.parse(answer.text); } catch { return null; }
}

/** Returns the server's own message of an answer that isn't a success. */
function messageOf(answer) {
  const value = valueOf(answer);
  const said = value && value.error ? value.error : `The server answers ${answer.status} ${answer.statusText}`.trim();
  return answer.retryAfter ? `${said} (try again in ${answer.retryAfter} s)` : said;
}

/**
 * The request whose answer the page shows in `found`: its Stop button, what is said of it, and how it is sent and ends.
 */
class ShownRequest {
  constructor(found) {
    this.found = found;
    this.waiting = null;
    this.stop = element('button', { type: 'button', class: 'second', hidden: '', click: () => this.abort() }, 'Stop');
    this.status = element('p', { class: 'status', role: 'status' });
    this.problem = element('p', { class: 'problem', role: 'alert' });
  }

  abort() {
    if (this.waiting) this.waiting.abort();
  }

  /** Says what goes on, and waits for ask(signal), which finishes it. */
  async run(said, ask) {
    const waiting = new AbortController();
    this.waiting = waiting;
    this.stop.hidden = false;
    this.found.setAttribute('aria-busy', 'true');
    this.problem.replaceChildren();
    this.status.textContent = said;
    try {
      await ask(waiting.signal);
    } catch (error) {
      if (error.name === 'AbortError') {
        if (this.waiting === waiting) this.finish('Stopped.');
      } else if (error instanceof NoAnswer) this.finish('', error.message);
      else throw error;
    }
  }

  /** Shows how it has ended; wrong: nodes or texts. */
  finish(said, ...wrong) {
    this.waiting = null;
    this.stop.hidden = true;
    this.found.setAttribute('aria-busy', 'false');
    this.status.textContent = said;
    this.problem.replaceChildren(...wrong.filter(Boolean));
  }
}

/** Formats 0.1234 as 0.12 s, and 12.34 as 12.3 s. */
function formatSeconds(seconds) {
  return `${seconds.toFixed(seconds < 10 ? 2 : 1)} s`;
}

const READY_SECONDS = 1;

/** Says in `status` why the server can't answer yet, until it can. */
async function watchReadiness(status) {
  const answer = await send('GET', 'readyz', null).catch(() => null);
  if (answer && answer.status === 503) {
    status.textContent = `${valueOf(answer) ? valueOf(answer).error : messageOf(answer)} …`;
    setTimeout(watchReadiness, 1000 * READY_SECONDS, status);
  } else if (status.textContent.endsWith(' …')) status.textContent = answer ? 'The server is ready.' : '';
}

/** Puts a title before a field, if there is one. */
function labelled(title, field) {
  return field && element('label', {}, element('span', {}, title), field);
}
