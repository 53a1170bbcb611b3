// A run under way: what it does now, and how the page renews itself.

const PATIENCE = 4; // a run that isn't running may go on, and is looked at so many times less often
const NEWS_SECONDS = 30; // later, the page says how old its news are

/** Shows what the run does now, and how far it is; null unless it is under way. */
function nowPanel({ now, memory, state }) {
  if (!now) return null;
  const doing = element('span');
  const age = element('p', { class: 'unit' });
  const host = now.host ? ` on ${now.host}` : '';
  function tell() {
    const elapsed = (since) => formatDuration(Math.max(0, Math.round(Date.now() / 1000 - since)));
    doing.textContent = now.activity ? `${now.activity}, for ${elapsed(now.since)}` : 'training';
    const isOld = Date.now() / 1000 - now.time > NEWS_SECONDS;
    if (state === 'silent') age.textContent = `Nothing was written for ${elapsed(now.time)}. The run${host} may have been killed.`;
    else age.textContent = isOld ? `The latest news is ${elapsed(now.time)} old.` : '';
  }
  tell();
  setInterval(tell, 1000);
  const facts = factList('environment', [
    ['Now', doing],
    ['Time left', Number.isFinite(now.seconds_left) ? `about ${formatDuration(Math.round(now.seconds_left))}` : ''],
    ['Target tokens per second', Number.isFinite(now.tokens_per_second) ? formatCount(now.tokens_per_second) : ''],
    ['Memory', memoryText(memory)],
  ]);
  return element('section', { id: 'now', class: 'now', 'aria-label': 'Now' }, progressBar(now), facts, age);
}

function progressBar({ step, last_step: last }) {
  if (!Number.isFinite(step) || !(last > 0)) return null;
  const bar = element('div', { class: 'share', role: 'progressbar', 'aria-label': 'Steps', 'aria-valuemin': 0, 'aria-valuemax': last, 'aria-valuenow': step }, element('span'));
  bar.firstChild.style.width = `${Math.min(100, (100 * step) / last)}%`;
  return bar;
}

/** memory: the most bytes that the process and its fullest device have had. */
function memoryText(memory) {
  const size = (bytes) => (bytes >= 2 ** 30 ? `${(bytes / 2 ** 30).toFixed(1)}\u202fGiB` : `${formatCount(bytes / 2 ** 20)}\u202fMiB`);
  const parts = [['host_bytes', 'in the process'], ['device_bytes', 'on the device']].filter(([name]) => Number.isFinite(memory[name]));
  return parts.map(([name, where]) => `${size(memory[name])} ${where}`).join(', ');
}

// --- renewal

/** Makes the button that stops a live page from reloading, and reloads it every `live` seconds; null for any other page. */
function renewal({ live, state }) {
  if (!live) return null;
  let isPaused = false;
  const button = element('button', { type: 'button', class: 'small', id: 'pause', 'aria-pressed': 'false', click: () => {
    if (isPaused) reload();
    isPaused = true;
    button.setAttribute('aria-pressed', 'true');
    button.textContent = 'Paused';
  } }, 'Pause');
  const wait = () => setTimeout(() => (isPaused || isInUse() ? wait() : reload()), 1000 * live * (state === 'running' ? 1 : PATIENCE));
  wait();
  return button;
}

function reload() {
  keepView();
  location.reload();
}

/** Returns whether a reload would disturb the reader: text is selected, a chart is being read, or the page isn't seen. */
function isInUse() {
  return document.hidden || !getSelection().isCollapsed || document.querySelector('.pointer[visibility=visible]') !== null
    || [...document.querySelectorAll('input[type=search]')].some((field) => field.value !== '');
}

const viewKey = `view ${location.pathname}`;
const radios = () => [...document.querySelectorAll('input[type=radio]')];
const folds = () => [...document.querySelectorAll('details')];
const logButtons = () => [...document.querySelectorAll('figcaption button')];
const isPressed = (button) => button.getAttribute('aria-pressed') === 'true';

function keepView() {
  const view = { top: scrollY, choice: radios().findIndex((one) => one.checked), open: folds().map((one) => one.open), log: logButtons().map(isPressed) };
  try { sessionStorage.setItem(viewKey, JSON.stringify(view)); } catch { /* the page begins at its top */ }
}

/** Shows the page as it was before it reloaded itself. */
function restoreView() {
  let view = null;
  try {
    view = JSON.parse(sessionStorage.getItem(viewKey));
    sessionStorage.removeItem(viewKey);
  } catch { /* there is none */ }
  if (!view) return;
  history.scrollRestoration = 'manual';
  radios()[view.choice]?.click();
  folds().forEach((one, i) => { one.open = Boolean(view.open[i]); });
  logButtons().forEach((one, i) => { if (i < view.log.length && isPressed(one) !== view.log[i]) one.click(); });
  const scroll = () => scrollTo({ top: view.top, behavior: 'instant' });
  requestAnimationFrame(() => requestAnimationFrame(scroll)); // the charts have their height by then
}
