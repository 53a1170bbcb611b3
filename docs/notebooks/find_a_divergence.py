# %% [markdown]
# # Find a divergence
#
# Two models give slightly different logits. Is that rounding, or a mistake? This notebook puts a small mistake into a
# PyTorch model and lets `compare` find it.
#
# The model is The Annotated Transformer with an ε of 10⁻⁵ instead of 10⁻⁶ in one of its norms.

# %%
import jax_transformer as jt
import torch
from torch_reference.harvard import HarvardTransformer

torch.manual_seed(0)
sizes = {"d_model": 32, "num_heads": 4, "d_ff": 64, "num_encoder_layers": 2, "num_decoder_layers": 2, "max_length": 64}
right = HarvardTransformer(source_vocab_size=100, target_vocab_size=110, **sizes).eval()
wrong = HarvardTransformer(source_vocab_size=100, target_vocab_size=110, **sizes).eval()
wrong.load_state_dict(right.state_dict())
wrong.decoder.layers[1].sublayer[1].norm.eps = 1e-5

# %% [markdown]
# ## A float32 test passes
#
# The usual test compares logits with `allclose`. It sees nothing:

# %%
source_ids, decoder_input_ids = torch.randint(3, 100, (4, 9)), torch.randint(3, 110, (4, 7))
with torch.no_grad():
    first, second = right(source_ids, decoder_input_ids), wrong(source_ids, decoder_input_ids)
print(f"{(first - second).abs().max():.1e}", torch.allclose(first, second, atol=1e-5))

# %% [markdown]
# ## Compare
#
# `import_checkpoint` takes the weights to JAX. The state_dict doesn't hold the number of heads or the ids, so they are
# given. `compare` then runs the JAX model and the PyTorch module side by side.

# %%
ids = {"source_pad_id": 2, "target_pad_id": 2, "decoder_start_id": 0, "eos_id": 1}
model = jt.import_checkpoint(wrong.state_dict(), dialect="harvard", num_heads=4, **ids)
report = jt.compare(model, wrong, stages=["weights", "inputs", "masks", "forward"])
print(report.verdict)

# %% [markdown]
# It diverges, and every cause has a name:

# %%
for fault in report.faults:
    print(f"{fault.side}: {fault.finding.node}")
    for match in fault.finding.matches:
        print(f"  {match.variant}")

# %% [markdown]
# The report has the rest: where the sides first part, by how much, how well the cause explains it, and what it does to
# the logits.

# %%
print(report)

# %% [markdown]
# `to_html` writes the same as a page, with the error against depth and a heat map. `to_json` is for programs.

# %%
report.to_html("report.html")
print(f"{len(report.to_json('report.json')):,} characters of JSON")

# %% [markdown]
# ## A mistake the catalogue doesn't know
#
# This model scales one residual branch by 0.99. No entry of the catalogue does that. The fault is located, and gets no
# name.

# %%
wrong.decoder.layers[1].sublayer[1].norm.eps = 1e-6
wrong.encoder.layers[0].feed_forward.w_2.register_forward_hook(lambda module, inputs, output: output * 0.99)
report = jt.compare(model, wrong, stages=["forward"], dtypes=["float64"])
for fault in report.faults:
    print(fault.side, fault.finding.node, [match.variant for match in fault.finding.matches] or "unexplained")

# %% [markdown]
# ## In a test
#
# `raise_for_divergence` fails with the report as its message:

# %%
from jax_transformer.parity import Divergence

try:
    report.raise_for_divergence()
except Divergence as error:
    print(str(error).splitlines()[0])
