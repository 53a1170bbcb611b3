// The page from top to bottom.

const data = pageData();
const rows = allRows(data.stages);

const arrays = arraysSection(data.stages, rows, (stage) => funnel.select(stage));
const funnel = funnelSection(data.stages, (stage) => {
  arrays.showStage(stage);
  document.getElementById('arrays').scrollIntoView();
});

fillPage(masthead(data, rows), [
  data.discovery ? discoverySection(data.discovery) : null,
  funnel.node,
  depthSection(data, rows),
  treeSection(data, rows),
  heatSection(data.heat_map),
  arrays.node,
  faultsSection(data.faults),
  data.proof ? proofSection(data.proof) : null,
  environmentSection(data),
], `Written by jax-transformer ${data.discovery ? 'discover' : 'parity'}; schema ${data.schema}, exit code ${data.exit_code}.`);
