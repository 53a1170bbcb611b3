"""PEGASUS in Hugging Face's transformers: Marian's fixed positions, pre-norm, one embedding."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from jax_transformer.porting.dialects import ConfigFile, Dialect, fairseq, marian
from jax_transformer.storage.tensors import Tensors

FIXED = marian.FIXED | {"norm_placement": "pre", "final_norm": True}


def recognises(names: Collection[str]) -> bool:
    """Returns whether the names are the family's. Files of M2M-100 have neither tables nor a bias of the logits."""
    has_more = "final_logits_bias" in names or fairseq.POSITIONS["encoder"] in names
    return has_more and fairseq.recognises(names, embedding_norm=False, final_norm=True)


def read(tensors: Tensors) -> dict[str, Any]:
    """Reads the sizes from the tensors, with the length of the position tables if they are there."""
    return marian.read(tensors, "pegasus")


DIALECT = Dialect(
    name="pegasus",
    title="PEGASUS in transformers",
    recognises=recognises,
    fixed=FIXED,
    choices=fairseq.CHOICES,
    defaults=fairseq.DEFAULTS,
    read=read,
    asks=fairseq.ASKS | marian.LENGTH,
    rules=marian.rules,
    refuses=fairseq.refuses_two_vocabularies,
    ignores=fairseq.ignores,
    computed=marian.computed,
    base_prefix=fairseq.PREFIX,
    config_file=ConfigFile(
        model_type="pegasus",
        architectures=("PegasusForConditionalGeneration", "PegasusModel"),
        defaults={"vocab_size": 50265}
        | fairseq.DEFAULT_JSON
        | {"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0, "tie_word_embeddings": True},
        allowed=fairseq.allowed(FIXED),
        read=fairseq.read_config,
        aliases=fairseq.ALIASES,
        always_there=(fairseq.SHARED,),
        write=fairseq.write_config,
    ),
)

DIALECTS = (DIALECT,)
