"""A random model to draw the attention of, with tokens that would be harmful as markup."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest

from jax_transformer.config.decoding import GenerationConfig
from jax_transformer.config.model import TransformerConfig
from jax_transformer.data.tokenizers import SpecialIds, train_tokenizer
from jax_transformer.model import functional
from jax_transformer.storage.model_directory import Model, save_model

SPECIALS = SpecialIds(pad=0, unk=1, bos=2, eos=3)
HOSTILE = [
    "</script><script>window.broken=1</script>",
    "<img",
    "src=x",
    "onerror='window.broken=2'>",
    '<b>&"',
    "{{data}}",
    "&lt;",
    "$\\frac{1}$",
    "👩‍👩‍👧",
    "שלום",
    "مرحبا",
    "x" * 90,
    "a\u202eb",
]


class Drawn(NamedTuple):
    """Holds a model and its attention weights."""

    path: Path
    model: Model
    weights: dict[str, np.ndarray]
    """Returns the weights [L, N, Q, K] of each kind, from the trace of one forward pass."""
    text: str = "ein Haus ist alt"
    target: str = "EIN HAUS IST ALT ALT"
    hostile: str = " ".join(HOSTILE)
    """Has tokens that would be harmful as markup."""


def weights_of(model: Model, source: str, target: str) -> dict[str, np.ndarray]:
    assert model.source_tokenizer is not None
    assert model.target_tokenizer is not None
    source_ids, inputs = model.source_tokenizer.encode([source]), [[2, *model.target_tokenizer.encode([target])[0]]]
    _, trace = functional.apply(model.config, model.params, np.array(source_ids), np.array(inputs), return_trace=True)
    layers = {
        "cross": "decoder.layers.{}.cross",
        "encoder": "encoder.layers.{}.self",
        "decoder": "decoder.layers.{}.self",
    }
    counts = {"cross": 2, "encoder": 1, "decoder": 2}
    return {
        kind: np.stack([trace[f"{name.format(i)}_attention.weights"][0] for i in range(counts[kind])])
        for kind, name in layers.items()
    }


@pytest.fixture(scope="session")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Drawn:
    """Has one encoder layer of 3 heads and two decoder layers of 2; its translations are short."""
    text, target_text, hostile = (Drawn._field_defaults[name] for name in ("text", "target", "hostile"))
    source = train_tokenizer([text, hostile], kind="whitespace", specials=SPECIALS, add_eos=True)
    target = train_tokenizer([target_text, hostile], kind="whitespace", specials=SPECIALS)
    config = TransformerConfig(
        source_vocab_size=source.vocab_size,
        target_vocab_size=target.vocab_size,
        d_model=24,
        num_heads=3,
        decoder_num_heads=2,
        d_ff=16,
        num_encoder_layers=1,
        num_decoder_layers=2,
        max_length=128,
    )
    params: dict[str, Any] = functional.init_params(config, jax.random.key(1))
    for attention in ("self_attention", "cross_attention"):
        kernel = params["decoder"]["layers"][attention]["query"]["kernel"]
        params["decoder"]["layers"][attention]["query"]["kernel"] = 3.0 * kernel  # so that weights differ
    params["head"]["kernel"] = params["head"]["kernel"] * 4.0
    params["head"]["bias"] = params["head"]["bias"].at[SPECIALS.eos].add(6.0)
    generation = GenerationConfig(decoder_start_id=2, eos_id=3, max_decode_length=126)
    model = Model(config, params, source, target, generation)
    path = tmp_path_factory.mktemp("models") / "model"
    save_model(model, path)
    return Drawn(path, model, weights_of(model, text, target_text))
