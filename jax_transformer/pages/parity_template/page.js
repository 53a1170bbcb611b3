// The page from top to bottom.

const data = JSON.parse(document.getElementById('data').textContent);
const rows = allRows(data.stages);

const arrays = arraysSection(data.stages, rows, (stage) => funnel.select(stage));
const funnel = funnelSection(data.stages, (stage) => {
  arrays.showStage(stage);
  document.getElementById('arrays').scrollIntoView();
});

document.getElementById('masthead').replaceChildren(...masthead(data, rows));
document.getElementById('content').replaceChildren(...(data.discovery ? [discoverySection(data.discovery)] : []), funnel.node, depthSection(data, rows), treeSection(data, rows), heatSection(data.heat_map),
  arrays.node, faultsSection(data.faults), ...(data.proof ? [proofSection(data.proof)] : []), environmentSection(data));
document.getElementById('colophon').replaceChildren(element('p', {}, `Written by jax-transformer ${data.discovery ? 'discover' : 'parity'}; schema ${data.schema}, exit code ${data.exit_code}.`));
document.documentElement.dataset.ready = 'true';
