"""Files of openai-whisper: their tensors, heads and special tokens, against the same weights in transformers."""

from __future__ import annotations

import dataclasses
from functools import cache
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import torch
import transformers
from whispers import drawn

import jax_transformer as jt
from jax_transformer.cli import main
from jax_transformer.porting.formats.openai_whisper import LANGUAGES, special_tokens
from jax_transformer.storage.tensors import PortingError

pytestmark = pytest.mark.usefixtures("quick_compilation")

PARTS = {
    "self_attn_layer_norm": "attn_ln", "encoder_attn_layer_norm": "cross_attn_ln", "final_layer_norm": "mlp_ln",
    "self_attn": "attn", "encoder_attn": "cross_attn", "q_proj": "query", "k_proj": "key", "v_proj": "value",
    "out_proj": "out", "fc1": "mlp.0", "fc2": "mlp.2", "layers": "blocks", "embed_tokens": "token_embedding",
}  # fmt: skip


@cache
def theirs(vocabulary: int = 51_865) -> transformers.WhisperForConditionalGeneration:
    end = 50_256 if vocabulary == 51_864 else 50_257
    config = transformers.WhisperConfig(
        vocab_size=vocabulary, num_mel_bins=6, d_model=12, encoder_layers=2, decoder_layers=1,
        encoder_attention_heads=2, decoder_attention_heads=3, encoder_ffn_dim=48, decoder_ffn_dim=48,
        max_source_positions=10, max_target_positions=14, pad_token_id=end, bos_token_id=end, eos_token_id=end,
        decoder_start_token_id=end + 1, suppress_tokens=None, begin_suppress_tokens=None,
    )  # fmt: skip
    return drawn(config, np.random.default_rng(0), embedding=0.3, matrix=1.2)


def in_their_layout(module: Any) -> dict[str, Any]:
    """Returns the content of a file that openai-whisper reads."""
    tensors = {}
    for name, tensor in module.model.state_dict().items():
        if "embed_positions" in name:
            tensors[f"{name.split('.')[0]}.positional_embedding"] = tensor
        elif name.startswith(("encoder.layer_norm", "decoder.layer_norm")):
            side, _, kind = name.split(".")
            tensors[f"{side}.{'ln_post' if side == 'encoder' else 'ln'}.{kind}"] = tensor
        else:
            tensors[".".join(PARTS.get(part, part) for part in name.split("."))] = tensor
    config = module.config
    dims = {
        "n_mels": 6, "n_audio_ctx": 10, "n_audio_state": 12, "n_audio_head": 2, "n_audio_layer": 2,
        "n_vocab": config.vocab_size, "n_text_ctx": 14, "n_text_state": 12, "n_text_head": 3, "n_text_layer": 1,
    }  # fmt: skip
    return {"dims": dims, "model_state_dict": tensors}


def test_a_file_has_the_logits_of_the_same_weights_in_transformers(tmp_path: Path) -> None:
    module = theirs()
    torch.save(in_their_layout(module), tmp_path / "tiny.pt")
    assert main(["port", str(tmp_path / "tiny.pt"), str(tmp_path / "model")]) == 0
    model = jt.load_model(tmp_path / "model")
    rng = np.random.default_rng(1)
    features, ids = rng.standard_normal((2, 20, 6)).astype(np.float32), rng.integers(0, 51_865, (2, 9))
    with torch.no_grad():
        expected = module(torch.from_numpy(features.transpose(0, 2, 1).copy()), decoder_input_ids=torch.from_numpy(ids))
    received = jt.apply(model.config, model.params, jt.Features(features), ids)
    np.testing.assert_allclose(received, expected.logits, atol=1e-6 * float(expected.logits.abs().max()))
    module.save_pretrained(tmp_path / "transformers")
    same = jt.import_checkpoint(tmp_path / "transformers")
    for one, other in zip(jax.tree.leaves(model.params), jax.tree.leaves(same.params), strict=True):
        np.testing.assert_array_equal(one, other)
    assert dataclasses.replace(model.config, encoder=same.config.encoder, decoder=same.config.decoder) == same.config
    assert main(["port", str(tmp_path / "model"), str(tmp_path / "back")]) == 0
    back = transformers.WhisperForConditionalGeneration.from_pretrained(tmp_path / "back")
    for name, tensor in back.state_dict().items():
        assert torch.equal(tensor, module.state_dict()[name]), name


def test_a_model_of_a_file_transcribes(tmp_path: Path) -> None:
    torch.save(in_their_layout(theirs()), tmp_path / "tiny.pt")
    model = jt.import_checkpoint(tmp_path / "tiny.pt")
    found = jt.transcribe(model, np.zeros(3_000, np.float32), language="yo", temperatures=0.0, max_new_tokens=4)
    assert (found.language, found.text) == ("yo", "")


@pytest.mark.parametrize(("vocabulary", "languages"), [(51_864, 0), (51_865, 99), (51_866, 100)])
def test_special_tokens_are_those_of_published_models(vocabulary: int, languages: int) -> None:
    """Ids of generation_config.json of whisper-tiny.en, whisper-tiny and whisper-large-v3."""
    there = transformers.models.whisper.tokenization_whisper.LANGUAGES
    assert list(there) == LANGUAGES
    fields = special_tokens(vocabulary)
    speech, end = fields["speech"], 50_256 if vocabulary == 51_864 else 50_257
    assert (fields["eos_id"], fields["decoder_start_id"], fields["target_pad_id"]) == (end, end + 1, end)
    assert len(speech.languages or {}) == languages
    first = {51_864: 50_363, 51_865: 50_364, 51_866: 50_365}[vocabulary]
    assert speech.first_timestamp_id == first
    assert vocabulary == first + 1_501
    assert speech.previous_id == first - 3
    if languages:
        assert (speech.languages["en"], speech.languages["zh"]) == (50_259, 50_260)
        assert (speech.translate_id, speech.transcribe_id) == (first - 6, first - 5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n_mels": 80}, "n_mels must be 6, the size of encoder.conv1.weight; received 80"),
        ({"n_text_head": None}, "n_text_head must be a number of heads; received None"),
        ({"more": torch.zeros(2)}, "decoder.more: expected a tensor of openai-whisper"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    content = in_their_layout(theirs())
    more = {f"decoder.{name}": value for name, value in changes.items() if isinstance(value, torch.Tensor)}
    content["model_state_dict"] |= more
    content["dims"] |= {name: value for name, value in changes.items() if f"decoder.{name}" not in more}
    torch.save(content, tmp_path / "tiny.pt")
    with pytest.raises(PortingError, match=message.replace(".", r"\.")):
        jt.import_checkpoint(tmp_path / "tiny.pt")
