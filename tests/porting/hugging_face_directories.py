"""Small directories of transformers, written by hand: a config.json, weights and a tokenizer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from jax_transformer.config.decoding import GenerationConfig
from jax_transformer.config.model import TransformerConfig
from jax_transformer.config.specs import Stem
from jax_transformer.model import functional
from jax_transformer.porting.dialects import all_dialects
from jax_transformer.porting.state_dicts import state_dict_from_params
from jax_transformer.runtime.trees import flatten, unflatten
from jax_transformer.storage.model_directory import Model

FAMILIES = [
    name
    for name, table in all_dialects().items()
    if table.config_file and name not in ("m2m_100", "fsmt", "indictrans")
]  # whose tables PyTorch makes
METADATA = {"format": "pt"}
SIZES: dict[str, Any] = {
    "source_vocab_size": 13,
    "target_vocab_size": 13,
    "d_model": 12,
    "num_heads": 3,
    "d_ff": 7,
    "num_encoder_layers": 2,
    "num_decoder_layers": 1,
    "max_length": 20,
    "source_pad_id": 1,
    "target_pad_id": 1,
    "share_embeddings": True,
    "tie_head": True,
}


def make_config(name: str, **options: Any) -> TransformerConfig:
    table = all_dialects()[name]
    first = {field: values[-1] for field, values in table.choices.items()}
    fields = {**table.defaults, **first, **table.fixed, **SIZES}
    fields["share_embeddings"] = table.fixed.get("share_embeddings", True)
    fields |= table.follows(fields)
    if "token_types" in table.mentions:
        fields["token_types"] = 2
    if "stem" in table.mentions:
        fields |= {"stem": Stem(features=5), "share_embeddings": False, "source_vocab_size": 0, "source_pad_id": 0}
    return TransformerConfig.from_flat(fields | options)


def make_model(config: TransformerConfig) -> Model:
    rng = np.random.default_rng(7)
    shapes = functional.abstract_params(config)
    params = {path: rng.standard_normal(leaf.shape).astype(np.float32) for path, leaf in flatten(shapes).items()}
    return Model(config, unflatten(params), None, None, GenerationConfig(decoder_start_id=2, eos_id=3))


def write(folder: Path, name: str = "t5", **json_options: Any) -> Path:
    """Writes a directory of transformers by hand, with a small model of the family."""
    config = make_config(name)
    model = make_model(config)
    file = all_dialects()[name].config_file
    assert file is not None
    content = {
        "model_type": file.model_type,
        "architectures": [file.architectures[0]],
        "is_encoder_decoder": True,
        **file.write(config),
    }
    content |= {"decoder_start_token_id": 2, "eos_token_id": 3} | json_options
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({key: value for key, value in content.items() if value is not ...}))
    tensors = state_dict_from_params(config, model.params, name)
    save_file(
        {key: np.ascontiguousarray(value) for key, value in tensors.items()}, folder / "model.safetensors", METADATA
    )
    return folder


def write_tokenizer(path: Path, names: tuple[str, ...] = ("<unk>", "<pad>", "<s>", "</s>"), words: int = 5) -> Path:
    """Writes a tokenizer.json with these special tokens, a tag and a few words."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    vocabulary = {name: i for i, name in enumerate([*names, *(f"w{i}" for i in range(words))])}
    made = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made.add_special_tokens([*names, ">>deu<<"])
    made.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", vocabulary["</s>"])])
    made.save(str(path))
    return path
