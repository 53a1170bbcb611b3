# %% [markdown]
# # Train and translate
#
# This notebook trains a small English→German Transformer on the embedded phrasebook, translates with it, and then
# writes the training loop by hand with an Optax optimizer. It needs no download.

# %%
from dataclasses import replace

import jax
import jax_transformer as jt
import numpy as np
import optax
from jax_transformer.config.presets import demo

# %% [markdown]
# ## A run
#
# A `RunConfig` holds everything that a run depends on: model, data and training. `demo` is a preset; change its fields
# with `dataclasses.replace`. Here the data, the model and the number of steps are cut down, so that the notebook runs
# in about a minute.

# %%
config = demo()
config = replace(
    config,
    run_dir="run",
    data=replace(config.data, phrasebook_pairs=20_000, num_shapes=1),
    model=replace(config.model, d_model=64, d_ff=256),
    train=replace(config.train, max_steps=200, warmup_steps=50, learning_rate=4e-3, log_every=50, evaluate_every=100),
)
result = jt.train(config)

# %% [markdown]
# ## Translate
#
# A run directory holds its model. `translate` maps sentences to sentences; its options are the fields of
# `DecodingConfig`.

# %%
model = jt.load_model("run")
sentences = ["The old man sees a dog.", "Who sleeps?", "The woman buys a big house."]
for sentence, translation in zip(sentences, jt.translate(model, sentences, beam_size=4), strict=True):
    print(f"{sentence:30} {translation}")

# %% [markdown]
# `generate` works on ids and returns several hypotheses with their scores:

# %%
source_ids = model.source_tokenizer.encode(sentences)
output = jt.generate(model, source_ids, beam_size=4, num_return=2)
for i, sentence in enumerate(sentences):
    print(sentence)
    for ids, score in zip(output.sequences[i].tolist(), output.scores[i], strict=True):
        print(f"  {score:8.4f}  {model.target_tokenizer.decode([ids])[0]}")

# %% [markdown]
# ## Your own loop
#
# A training step is a pure function `(state, batch) → (state, metrics)`. Any Optax optimizer goes in. The example
# memorises 16 random sequences.

# %%
from jax_transformer.data import make_batch

small = jt.TransformerConfig(
    source_vocab_size=50,
    target_vocab_size=50,
    d_model=64,
    num_heads=4,
    d_ff=128,
    num_encoder_layers=1,
    num_decoder_layers=1,
    dropout_rate=0.0,
)
rng = np.random.default_rng(0)
sources = rng.integers(4, 50, (16, 8)).tolist()
targets = rng.integers(4, 50, (16, 8)).tolist()
batch = make_batch(sources, targets)
print(batch.source_ids.shape, batch.decoder_input_ids.shape, batch.labels.shape)

# %%
optimizer = optax.adamw(3e-3)
state = jt.init_state(small, optimizer=optimizer)
step = jt.make_train_step(small, optimizer=optimizer)
for i in range(1, 101):
    state, metrics = step(state, batch)
    if i % 20 == 0:
        print(f"step {i:3}  loss {float(metrics['loss']):.4f}")


# %% [markdown]
# `loss=` replaces the loss: a function of logits [B, T, V] and labels [B, T] that returns losses [B, T].


# %%
def focal_loss(logits, labels):
    log_probs = jax.nn.log_softmax(logits)
    log_prob = jax.numpy.take_along_axis(log_probs, labels[..., None], axis=-1)[..., 0]
    return -((1 - jax.numpy.exp(log_prob)) ** 2) * log_prob


state = jt.init_state(small, optimizer=optimizer)
step = jt.make_train_step(small, optimizer=optimizer, loss=focal_loss)
for _ in range(20):
    state, metrics = step(state, batch)
print(f"focal loss {float(metrics['loss']):.4f}")
