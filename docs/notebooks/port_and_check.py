# %% [markdown]
# # Port a checkpoint and check it
#
# This notebook takes a Marian model of Hugging Face's transformers to JAX, compares the two implementations, and
# exports the model again. A small model with random weights stands in for a download; a name on the Hub such as
# `Helsinki-NLP/opus-mt-en-de` works alike.

# %%
import jax
import jax_transformer as jt
import transformers

transformers.set_seed(0)
transformers.utils.logging.disable_progress_bar()
sizes = {
    f"{side}_{what}": number
    for side in ("encoder", "decoder")
    for what, number in [("layers", 2), ("attention_heads", 4), ("ffn_dim", 128)]
}
marian = transformers.MarianMTModel(
    transformers.MarianConfig(vocab_size=1000, pad_token_id=999, decoder_start_token_id=999, d_model=32, **sizes)
).eval()
marian.save_pretrained("opus")

# %% [markdown]
# ## Import
#
# A directory of transformers needs no options. The result is a config, which holds the model's numerics as data, and a
# nested dict of arrays.

# %%
opus = jt.import_checkpoint("opus")
config = opus.config
print(f"norms: {config.norm_placement}, positions: {config.position_kind}, tied head: {config.tie_head}")

# %%
print(
    f"{sum(leaf.size for leaf in jax.tree.leaves(opus.params)):,} values in {len(jax.tree.leaves(opus.params))} arrays"
)

# %% [markdown]
# ## Compare
#
# `compare` runs both implementations on the same weights and inputs: weights, masks, every activation, loss, gradients,
# optimizer steps and decoded tokens. float64 decides, because there a difference of arithmetic can't hide in rounding.

# %%
report = jt.compare(opus, stages=["weights", "inputs", "masks", "forward", "loss", "gradients"])
print(report.verdict, report.faults)

# %% [markdown]
# In a notebook, the report itself is a page. In a test, `raise_for_divergence` fails with the report as its message.

# %%
report.raise_for_divergence()
print(report)

# %% [markdown]
# ## Decode
#
# Beam search returns the tokens and scores of transformers' `generate`:

# %%
import torch

source_ids = torch.tensor([[5, 17, 212, 9, 0], [88, 3, 0, 999, 999]])
ours = jt.generate(opus, source_ids.numpy(), beam_size=4, max_new_tokens=8)
theirs = marian.generate(
    input_ids=source_ids,
    attention_mask=(source_ids != 999).long(),
    num_beams=4,
    max_new_tokens=8,
    return_dict_in_generate=True,
    output_scores=True,
)
print(ours.sequences[:, 0].tolist(), ours.scores[:, 0])
print(theirs.sequences[:, 1:].tolist(), theirs.sequences_scores.numpy())

# %% [markdown]
# ## Export
#
# The way back needs no dialect: the model remembers where it came from. Every bit of every tensor returns.

# %%
jt.export_checkpoint(opus, "back")
back = transformers.MarianMTModel.from_pretrained("back")
originals = marian.state_dict()
same = [torch.equal(tensor, originals[name]) for name, tensor in back.state_dict().items()]
print(f"{sum(same)} of {len(originals)} tensors are equal in every bit")
