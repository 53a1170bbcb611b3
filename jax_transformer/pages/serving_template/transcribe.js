// The page from top to bottom: a recording to choose or drop, and its text with times.

const facts = pageData();
const state = { file: null };

const file = element('input', { type: 'file', id: 'file', class: 'unseen', accept: 'audio/*,.flac,.ogg,.wav,.mp3,.aiff', change: () => choose(file.files[0]) });
const drop = element('label', { class: 'drop', for: 'file', dragover, dragleave, drop: dropped }, 'Drop a recording here, or press to choose one.');
const language = facts.languages.length ? element('select', {}, element('option', { value: '' }, 'detected'), facts.languages.map((code) => element('option', { value: code }, nameOf(code)))) : null;
const task = facts.translates ? element('select', {}, element('option', { value: 'transcriptions' }, 'as spoken'), element('option', { value: 'translations' }, 'in English')) : null;
const found = element('div', { 'aria-busy': 'false' });
const request = new ShownRequest(found);

/** Returns the English name of a language by its code, with the code. */
function nameOf(code) {
  try { return `${new Intl.DisplayNames(['en'], { type: 'language' }).of(code)} (${code})`; } catch { return code; }
}

function form() {
  return element('form', { submit: transcribe },
    drop, file,
    element('p', { class: 'hint' }, `WAV, FLAC, OGG, MP3 and more; up to ${formatTime(facts.max_audio_seconds).replace(/\.0$/, '')} and ${formatBytes(facts.max_audio_bytes)}.`),
    element('div', { class: 'actions' },
      element('button', { type: 'submit', class: 'first' }, 'Transcribe'), request.stop,
      labelled('Language', language), labelled('Text', task), request.status),
    request.problem);
}

function dragover(event) {
  event.preventDefault();
  drop.classList.add('over-it');
}

function dragleave() {
  drop.classList.remove('over-it');
}

function dropped(event) {
  event.preventDefault();
  dragleave();
  choose(event.dataTransfer.files[0]);
}

/** Keeps a file, and names it. */
function choose(chosen) {
  if (!chosen) return;
  state.file = chosen;
  drop.replaceChildren(element('bdi', {}, chosen.name), `, ${formatBytes(chosen.size)}`);
  request.problem.replaceChildren();
}

async function transcribe(event) {
  event.preventDefault();
  request.abort();
  if (!state.file) {
    request.finish('', 'Choose a recording to transcribe.');
    file.focus();
    return;
  }
  if (state.file.size > facts.max_audio_bytes) {
    request.finish('', `Choose a smaller file: the server takes ${formatBytes(facts.max_audio_bytes)}, and this one has ${formatBytes(state.file.size)}.`);
    return;
  }
  await request.run('Transcribing…', answerTo);
}

async function answerTo(signal) {
  const body = new FormData();
  const path = task ? task.value : 'transcriptions';
  body.append('response_format', 'verbose_json');
  if (language && language.value && path === 'transcriptions') body.append('language', language.value);
  body.append('file', state.file);
  const answer = await send('POST', `v1/audio/${path}`, body, { signal });
  const value = valueOf(answer);
  if (answer.status !== 200 || !value) {
    request.finish('', messageOf(answer));
    return;
  }
  found.replaceChildren(transcript(value));
  request.finish(`${formatTime(value.duration)} of audio in ${formatSeconds(answer.seconds)}`);
}

/** Draws the segments, each after its time. */
function transcript({ text, language: spoken, segments }) {
  const lead = spoken ? element('p', { class: 'lead' }, `Language: ${spoken}.`) : null;
  const rows = segments.map(({ start, end, text: said }) => element('li', {},
    element('span', { class: 'time' }, `${formatTime(start)} – ${formatTime(end)}`), element('bdi', { class: 'said' }, said.trim() || '(no text)')));
  const body = segments.length ? element('ol', { class: 'segments' }, rows) : element('p', { class: 'note' }, 'No speech was found.');
  const whole = element('textarea', { rows: '4', readonly: '', dir: 'auto', 'aria-label': 'The whole text' });
  whole.value = text;
  return section('transcript', 'Transcript', null, lead, body, text ? element('details', {}, element('summary', {}, 'The text alone'), whole) : null);
}

/** Formats 3725.5 as 1:02:05.5, and 65 as 1:05.0. */
function formatTime(seconds) {
  const tenths = Math.round(10 * seconds);
  const [hours, minutes, rest] = [Math.floor(tenths / 36000), Math.floor(tenths / 600) % 60, ((tenths % 600) / 10).toFixed(1).padStart(4, '0')];
  return hours ? `${hours}:${String(minutes).padStart(2, '0')}:${rest}` : `${minutes}:${rest}`;
}

/** Formats 26214400 as 25.0 MiB, and 1000 as 1,000 bytes. */
function formatBytes(count) {
  return count < 2 ** 20 ? `${formatCount(count)} bytes` : `${(count / 2 ** 20).toFixed(1)} MiB`;
}

// --- now

fillPage([
  topBar([], [['docs', 'API']]),
  element('p', { class: 'over' }, facts.model),
  element('h1', {}, 'Transcribe'),
], [element('section', { id: 'translate', 'aria-label': 'Recording' }, form()), found], 'Sent by jax-transformer; recordings go to the server that sent this page.');
watchReadiness(request.status);
