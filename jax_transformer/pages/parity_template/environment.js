// The environment of the comparison, and the files compared.

function environmentSection({ environment, sha256 }) {
  const entries = Object.entries(environment);
  const files = Object.entries(sha256);
  if (!entries.length && !files.length) return section('environment', 'Environment', 'The report has no environment.');
  return section('environment', 'Environment', null,
    entries.length ? factList('environment', entries.map(([name, value]) => [name.replaceAll('_', ' '), written(value)])) : null,
    files.length ? [element('h3', {}, 'sha256'), element('dl', { class: 'hashes' }, files.flatMap(([path, hash]) => [element('dt', {}, path), element('dd', {}, element('code', {}, hash))]))] : null);
}

function written(value) {
  return typeof value === 'string' ? value || '–' : JSON.stringify(value);
}
