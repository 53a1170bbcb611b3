"""What openai-whisper's files hold: sizes and numbers of heads in `dims`, and in `model_state_dict` the tensors under
that program's names. A vocabulary's size tells the special tokens; the words lie with the program."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from jax_transformer.config.speech import SpeechTokens
from jax_transformer.porting.dialects import whisper
from jax_transformer.porting.formats.foreign import Foreign
from jax_transformer.storage.tensor_files import Relocated, as_arrays, is_state_dict
from jax_transformer.storage.tensors import PortingError

DIMS, TENSORS = "dims", "model_state_dict"
SIZES = {
    "n_mels": ("encoder.conv1.weight", 1),
    "n_audio_ctx": ("encoder.positional_embedding", 0),
    "n_audio_state": ("encoder.positional_embedding", 1),
    "n_vocab": ("decoder.token_embedding.weight", 0),
    "n_text_ctx": ("decoder.positional_embedding", 0),
    "n_text_state": ("decoder.token_embedding.weight", 1),
}
"""Size in dims → a tensor that has it, and the axis."""
HEADS = {"n_audio_head": "num_heads", "n_text_head": "decoder_num_heads"}
NAMES = (
    (r"(encoder|decoder)\.blocks\.(\d+)\.attn\.(\w+)\.(\w+)", r"model.\1.layers.\2.self_attn.\3.\4"),
    (r"(decoder)\.blocks\.(\d+)\.cross_attn\.(\w+)\.(\w+)", r"model.\1.layers.\2.encoder_attn.\3.\4"),
    (r"(encoder|decoder)\.blocks\.(\d+)\.attn_ln\.(\w+)", r"model.\1.layers.\2.self_attn_layer_norm.\3"),
    (r"(decoder)\.blocks\.(\d+)\.cross_attn_ln\.(\w+)", r"model.\1.layers.\2.encoder_attn_layer_norm.\3"),
    (r"(encoder|decoder)\.blocks\.(\d+)\.mlp\.0\.(\w+)", r"model.\1.layers.\2.fc1.\3"),
    (r"(encoder|decoder)\.blocks\.(\d+)\.mlp\.2\.(\w+)", r"model.\1.layers.\2.fc2.\3"),
    (r"(encoder|decoder)\.blocks\.(\d+)\.mlp_ln\.(\w+)", r"model.\1.layers.\2.final_layer_norm.\3"),
    (r"(encoder)\.(conv[12])\.(\w+)", r"model.\1.\2.\3"),
    (r"encoder\.ln_post\.(\w+)", r"model.encoder.layer_norm.\1"),
    (r"decoder\.ln\.(\w+)", r"model.decoder.layer_norm.\1"),
    (r"(encoder|decoder)\.positional_embedding", r"model.\1.embed_positions.weight"),
    (r"decoder\.token_embedding\.weight", whisper.EMBEDDING),
)
"""Pattern of the program's names → the name in the dialect."""
PROJECTIONS = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "out": "out_proj"}
MASK = "decoder.mask"
"""A buffer of early versions, which their program computes."""
ENGLISH_VOCABULARY, FIRST_LANGUAGES = 51_864, 99
"""Size of a vocabulary without languages; the number of languages of the first one that has them."""
MAX_INITIAL_TIMESTAMP = 50
"""Steps of 20 ms: the program's default, one second."""
_CODES = """
en zh de es ru ko fr ja pt tr pl ca nl ar sv it id hi fi vi he uk el ms cs ro da hu ta no th ur hr bg lt la mi ml cy sk
te fa lv bn sr az sl kn et mk br eu is hy ne mn bs kk sq sw gl mr pa si km sn yo so af oc ka be tg sd gu am yi lo uz fo
ht ps tk nn mt sa lb my bo tl mg as tt haw ln ha ba jw su yue
"""
LANGUAGES = _CODES.split()
"""Codes in the order of their ids."""


def stated(path: str, content: Mapping[str, Any]) -> Foreign | None:
    """Reads a file's tensors and sizes; None for a file that isn't openai-whisper's.

    Raises:
      PortingError: sizes that the tensors don't have; tensors of another program.
    """
    dims, given = content.get(DIMS), content.get(TENSORS)
    if not isinstance(dims, Mapping) or not isinstance(given, Mapping) or not is_state_dict(given):
        return None
    tensors = as_arrays(given)
    problems = [
        f"{name} must be {tensors[of].shape[axis]}, the size of {of}; received {dims.get(name)!r}"
        for name, (of, axis) in SIZES.items()
        if of in tensors and dims.get(name) != tensors[of].shape[axis]
    ]
    problems += [
        f"{name} must be a number of heads; received {dims.get(name)!r}"
        for name in HEADS
        if not isinstance(dims.get(name), int) or dims[name] < 1
    ]
    names = {name: renamed(name) for name in tensors if name != MASK}
    problems += [f"{name}: expected a tensor of openai-whisper" for name, ours in names.items() if ours is None]
    if problems:
        raise PortingError(f"{path}: no model of openai-whisper, by its {DIMS} and {TENSORS}", problems)
    heads = {field: dims[name] for name, field in HEADS.items()}
    if heads["decoder_num_heads"] == heads["num_heads"]:
        del heads["decoder_num_heads"]
    return Foreign(
        title="openai-whisper's file",
        where=DIMS,
        dialect=whisper.DIALECT.name,
        fields=heads | {"activation": "gelu"} | special_tokens(dims["n_vocab"]),
        tensors=Relocated({ours: (tensors, name) for name, ours in names.items() if ours is not None}),
    )


def renamed(name: str) -> str | None:
    """Returns a tensor's name in the dialect; None for a name that the program doesn't have.

    Example:
      >>> from jax_transformer.porting.formats.openai_whisper import renamed
      >>> renamed("decoder.blocks.3.cross_attn.query.weight")
      'model.decoder.layers.3.encoder_attn.q_proj.weight'
    """
    for pattern, ours in NAMES:
        if match := re.fullmatch(pattern, name):
            found = match.expand(ours)
            parts = [PROJECTIONS.get(part, part) for part in found.split(".")]
            return ".".join(parts)
    return None


def special_tokens(vocabulary: int) -> dict[str, Any]:
    """Returns the fields of GenerationConfig, and the pad's id, of one of the program's vocabularies; none of another
    size."""
    count = vocabulary - ENGLISH_VOCABULARY - 1 + FIRST_LANGUAGES
    is_english = vocabulary == ENGLISH_VOCABULARY
    if not is_english and not FIRST_LANGUAGES <= count <= len(LANGUAGES):
        return {}
    end = 50_256 if is_english else 50_257
    count = FIRST_LANGUAGES if is_english else count  # an English vocabulary has their ids, too
    after = end + 2 + count  # <|translate|>, <|transcribe|>, <|startoflm|>, <|startofprev|>, <|nospeech|>, …
    codes = {code: end + 2 + number for number, code in enumerate(LANGUAGES[:count])}
    speech = SpeechTokens(
        no_timestamps_id=after + 5,
        languages=None if is_english else codes,
        transcribe_id=None if is_english else after + 1,
        translate_id=None if is_english else after,
        previous_id=after + 3,
        max_initial_timestamp=MAX_INITIAL_TIMESTAMP,
    )
    return {"target_pad_id": end, "decoder_start_id": end + 1, "eos_id": end, "speech": speech}
