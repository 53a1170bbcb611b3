// All arrays of all stages, with filters by text, stage and verdict.

/** Calls `chosen(stage)` when another stage is shown; showStage(stage) shows one stage, or all for null. */
function arraysSection(stages, rows, chosen) {
  const state = { query: '', stage: null, verdict: null };
  const first = firstDivergence(rows);
  const table = sortableTable('Arrays', arrayColumns(rows, first), rows);
  const count = element('span', { class: 'unit count', role: 'status' });
  const search = searchField('Filter by name, case or reason', (query) => { state.query = query; show(); });
  const select = element('select', { 'aria-label': 'Stage', change: () => showStage(select.selectedIndex ? stages[select.selectedIndex - 1].name : null) },
    element('option', {}, 'All stages'), stages.map((stage) => element('option', {}, stage.name)));
  const verdicts = [null, 'diverged', 'inconclusive', 'passed'];
  const buttons = verdicts.map((verdict) => element('button', { type: 'button', class: 'small', 'aria-pressed': 'false', click: () => { state.verdict = verdict; show(); } }));

  function show() {
    const fitting = rows.filter((row) => (!state.stage || row.stage === state.stage) && fits(`${row.name} ${row.case} ${row.gate} ${row.reason}`, state.query));
    const shown = state.verdict ? fitting.filter((row) => row.verdict === state.verdict) : fitting;
    verdicts.forEach((verdict, i) => {
      const number = verdict ? fitting.filter((row) => row.verdict === verdict).length : fitting.length;
      buttons[i].replaceChildren(...(verdict ? [`${MARKS[verdict]} ${verdict} ${formatCount(number)}`] : [`all ${formatCount(number)}`]));
      buttons[i].setAttribute('aria-pressed', state.verdict === verdict);
    });
    count.textContent = `${formatCount(shown.length)} of ${counted(rows.length, 'array')}`;
    table.show(shown);
  }

  function showStage(stage) {
    state.stage = stage;
    select.selectedIndex = 1 + stages.findIndex((one) => one.name === stage);
    chosen(stage);
    show();
  }

  const tools = element('div', { class: 'tools' }, search, select, element('span', { class: 'verdicts', role: 'group', 'aria-label': 'Verdict' }, buttons), count);
  show();
  const lead = 'In execution order. Each array appears with the problem on which it was worst.';
  return { node: rows.length ? section('arrays', 'Arrays', lead, tools, table.node) : section('arrays', 'Arrays', 'No array was compared.'), showStage };
}

function arrayColumns(rows, first) {
  const columns = [
    { title: '#', number: true, key: (row) => row.number, cell: (row) => formatCount(row.number) },
    { title: 'Verdict', key: (row) => BY_SEVERITY.indexOf(row.verdict), cell: (row) => verdictTag(row.verdict) },
    { title: 'Stage', class: 'short', key: (row) => row.stage, cell: (row) => row.stage },
    { title: 'Array', class: 'names', key: (row) => row.name, cell: (row) => [nameOf(row.name), row === first ? element('span', { class: 'tag' }, 'first divergence') : null] },
    { title: 'Case', class: 'short', key: (row) => row.case || null, cell: (row) => row.case },
    { title: 'Relative RMS', number: true, key: relativeRms, cell: (row) => errorText(row, relativeRms(row)) },
    { title: 'Local', number: true, key: (row) => row.local_error, cell: (row) => (row.local_error === null ? '' : formatError(row.local_error)) },
    { title: 'Largest', number: true, key: largestError, cell: (row) => errorText(row, largestError(row)) },
    { title: '× allowed', number: true, key: timesAllowed, cell: timesText },
    { title: 'Most at', key: (row) => (row.error && !row.error.exact ? row.error.worst_index.join(', ') : null), cell: (row) => (row.error && !row.error.exact ? element('span', { class: 'index' }, `[${row.error.worst_index.join(', ')}]`) : '') },
    { title: 'Gate', class: 'text', key: (row) => `${row.gate} ${row.reason}`.trim() || null, cell: (row) => [row.gate, row.gate && row.reason ? element('br') : null, row.reason ? element('em', {}, row.reason) : null] },
  ];
  return rows.some((row) => row.case) ? columns : columns.filter((column) => column.title !== 'Case');
}
