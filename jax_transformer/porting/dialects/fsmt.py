"""FSMT in Hugging Face's transformers, fairseq's models of WMT19: fixed positions of the real tokens, post-norm, two
vocabularies, and a head of its own."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from jax_transformer.config.model import TransformerConfig
from jax_transformer.mapping.rules import Rule
from jax_transformer.porting.dialects import ConfigFile, Dialect, Json, Reader, fairseq, m2m_100, marian
from jax_transformer.porting.dialects.tables import layers
from jax_transformer.storage.tensors import Tensors

HEAD = fairseq.OWN_HEAD

FIXED = m2m_100.FIXED | {
    "norm_placement": "post",
    "final_norm": False,
    "decoder_padding": "keys",
}


def rules(config: TransformerConfig) -> list[Rule]:
    """Returns the correspondence. Files of transformers 5 hold the position tables, too."""
    source, target = fairseq.EMBEDDINGS.values()
    if config.share_embeddings:
        head = (f"{HEAD}?",) if config.tie_head else ()
        table = [Rule((f"{target}?", f"{source}?", *head), "shared_embedding/embedding")]
    else:
        table = [Rule(source, "source_embedding/embedding"), Rule(target, "target_embedding/embedding")]
    if not config.tie_head:
        table.append(Rule(HEAD, "head/kernel", "V D -> D V"))
    for stack, parts in (("encoder", fairseq.LAYER), ("decoder", fairseq.DECODER_LAYER)):
        table += layers(f"model.{stack}.layers", stack, parts)
        table.append(Rule(f"{fairseq.POSITIONS[stack]}?", f"constants/{stack}_positions"))
    return table


def recognises(names: Collection[str]) -> bool:
    """Returns whether the names are the family's. A tied file may lack the head; Marian's has a bias of the logits."""
    has_head = HEAD in names or "final_logits_bias" not in names
    return has_head and fairseq.recognises(names, embedding_norm=False, final_norm=False)


def read(tensors: Tensors) -> dict[str, Any]:
    """Reads the sizes from the tensors."""
    reader = Reader(tensors)
    source, target = fairseq.EMBEDDINGS.values()
    source_table, target_table = (
        next((name for name in names if name in tensors), names[0])
        for names in ((source, target, HEAD), (target, HEAD, source))
    )
    fields = reader.finished(
        "fsmt",
        source_vocab_size=reader.size(source_table, 0, 2),
        target_vocab_size=reader.size(target_table, 0, 2),
        d_model=reader.size(source_table, 1, 2),
        d_ff=reader.size("model.encoder.layers.0.fc1.weight", 0, 2),
        decoder_d_ff=reader.size("model.decoder.layers.0.fc1.weight", 0, 2),
        num_encoder_layers=reader.layers("model.encoder.layers.{i}."),
        num_decoder_layers=reader.layers("model.decoder.layers.{i}."),
    )
    ties = {"share_embeddings": (source, target), "tie_head": (target_table, HEAD)}
    return fields | {name: False for name, (first, second) in ties.items() if reader.differ(first, second)}


# --- config.json


def read_config(json: Json) -> dict[str, Any]:
    """Returns the config fields of a config.json."""
    sizes = {"source_vocab_size": json["src_vocab_size"], "target_vocab_size": json["tgt_vocab_size"]}
    return fairseq.read_config({**json, "vocab_size": json["src_vocab_size"]}) | sizes


def write_config(config: TransformerConfig) -> dict[str, Any]:
    """Returns the config.json of a config: the inverse of `read_config`."""
    json = fairseq.write_config(config)
    return json | {"src_vocab_size": json.pop("vocab_size"), "tgt_vocab_size": config.target_vocab_size}


def refuses(config: TransformerConfig) -> list[str]:
    """Checks that pads take row pad_id of the table, and that all three embeddings are one, or none are."""
    problems = fairseq.refuses(config) + m2m_100.refuses_other_offset(config)
    if config.share_embeddings != config.tie_head:
        problems.append(f"tie_head must be share_embeddings={config.share_embeddings}; received {config.tie_head}")
    return problems


def ignores(tensors: Tensors) -> list[str]:
    return [name for name in fairseq.NUMBERS if name in tensors]


DIALECT = Dialect(
    name="fsmt",
    title="FSMT in transformers, fairseq's models of WMT19",
    recognises=recognises,
    fixed=FIXED,
    choices=fairseq.CHOICES,
    defaults=fairseq.DEFAULTS,
    read=read,
    asks=fairseq.ASKS | marian.LENGTH,
    rules=rules,
    determines=("position_offset",),
    refuses=refuses,
    follows=m2m_100.follows,
    computed=m2m_100.computed,
    ignores=ignores,
    base_prefix=fairseq.PREFIX,
    config_file=ConfigFile(
        model_type="fsmt",
        architectures=("FSMTForConditionalGeneration", "FSMTModel"),
        defaults={"src_vocab_size": 42024, "tgt_vocab_size": 42024}
        | fairseq.DEFAULT_JSON
        | {"scale_embedding": True, "activation_function": "relu"}
        | {"pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2, "tie_word_embeddings": False},
        allowed=fairseq.allowed(FIXED),
        read=read_config,
        aliases=fairseq.ALIASES | {"vocab_size": "tgt_vocab_size"},
        write=write_config,
    ),
)

DIALECTS = (DIALECT,)
