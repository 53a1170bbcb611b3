// Facts derived from a report: the first array that diverged, how bad each array is, which faults share a cause.

const BY_SEVERITY = ['passed', 'inconclusive', 'diverged'];

/** Returns the rows of all stages in execution order, with their numbers and their stages' names. */
function allRows(stages) {
  let number = 0;
  return stages.flatMap((stage) => stage.rows.map((row) => {
    number += 1;
    return { ...row, number, stage: stage.name };
  }));
}

/** Returns the first row that diverged, or undefined. */
function firstDivergence(rows) {
  return rows.find((row) => row.verdict === 'diverged');
}

/** Returns the rows of masks and forward passes, or of all stages if there are none of these. */
function activationRows(rows) {
  const found = rows.filter((row) => /^(masks|forward)\b/.test(row.stage));
  return found.length ? found : rows;
}

/** Returns an error as a number: Infinity where JSON has null, and null if the arrays couldn't be compared. */
function relativeRms(row) {
  if (!row.error) return null;
  return row.error.relative_rms === null ? Infinity : row.error.relative_rms;
}

function largestError(row) {
  if (!row.error) return null;
  return row.error.max_error === null ? Infinity : row.error.max_error;
}

function timesAllowed(row) {
  if (!row.error) return null;
  return row.times_allowed === null ? Infinity : row.times_allowed;
}

function hasNonFinite(row) {
  return Boolean(row.error && (row.error.non_finite_candidate || row.error.non_finite_reference));
}

/** Returns whether a is worse than b: by verdict, then by error relative to the allowed one. */
function isWorse(a, b) {
  const [one, other] = [a, b].map((row) => BY_SEVERITY.indexOf(row.verdict));
  return one !== other ? one > other : (timesAllowed(a) ?? Infinity) > (timesAllowed(b) ?? Infinity);
}

/** Groups faults by side and cause, in execution order. */
function faultGroups(faults) {
  const groups = new Map();
  for (const fault of faults) {
    const key = JSON.stringify([fault.side, fault.cause, fault.changes]);
    groups.set(key, [...(groups.get(key) || []), fault]);
  }
  return [...groups.values()];
}

/** Returns {residual, margin}: the error that the cause leaves, and the runner-up's relative to it; null where there is none. */
function certainty(fault) {
  const residual = fault.matches.length ? Math.max(...fault.matches.map((match) => match.residual ?? Infinity)) : null;
  const margin = residual === null || !fault.runner_up ? null : residual === 0 ? Infinity : (fault.runner_up.residual ?? Infinity) / residual;
  return { residual, margin };
}
