// What follows from a report: which array diverged first, how bad each is, which faults have one cause.

const BY_SEVERITY = ['passed', 'inconclusive', 'diverged'];

/** Every row of every stage in execution order, with its number and its stage's name. */
function allRows(stages) {
  let number = 0;
  return stages.flatMap((stage) => stage.rows.map((row) => {
    number += 1;
    return { ...row, number, stage: stage.name };
  }));
}

/** The first array of the first stage in which one diverged, or undefined. */
function firstDivergence(rows) {
  return rows.find((row) => row.verdict === 'diverged');
}

/** The rows of activations: of masks and forward passes, or of all stages where there are none of these. */
function activationRows(rows) {
  const found = rows.filter((row) => /^(masks|forward)\b/.test(row.stage));
  return found.length ? found : rows;
}

/** An error as a number: infinite where JSON couldn't say it, null where the arrays couldn't be compared. */
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

/** Whether a is worse than b: by verdict, then by how many times the error is what is allowed. */
function isWorse(a, b) {
  const [one, other] = [a, b].map((row) => BY_SEVERITY.indexOf(row.verdict));
  return one !== other ? one > other : (timesAllowed(a) ?? Infinity) > (timesAllowed(b) ?? Infinity);
}

/** Faults of one side with the same cause, together, in execution order. */
function faultGroups(faults) {
  const groups = new Map();
  for (const fault of faults) {
    const key = JSON.stringify([fault.side, fault.cause]);
    groups.set(key, [...(groups.get(key) || []), fault]);
  }
  return [...groups.values()];
}

/** How far from what was received the cause is, and how many times that the runner-up is: {residual, margin}, null where there is none. */
function certainty(fault) {
  const residual = fault.matches.length ? Math.max(...fault.matches.map((match) => match.residual ?? Infinity)) : null;
  const margin = residual === null || !fault.runner_up ? null : residual === 0 ? Infinity : (fault.runner_up.residual ?? Infinity) / residual;
  return { residual, margin };
}
