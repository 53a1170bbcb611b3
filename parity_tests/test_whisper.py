"""Whisper of the installed transformers, with random weights, and the model imported from its directory."""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch
import transformers
from safetensors.numpy import load_file
from transformers.generation import GenerationMixin
from whispers import drawn

import jax_transformer as jt
from jax_transformer.cli import main
from jax_transformer.comparison.gates.compare import compare
from jax_transformer.comparison.gates.tolerances import FLOAT64_RELATIVE_RMS
from jax_transformer.mapping.rules import Rule
from jax_transformer.porting.dialects import get_dialect
from jax_transformer.porting.state_dicts import state_dict_from_params
from jax_transformer.runtime.trees import flatten
from jax_transformer.storage.tensors import PortingError

pytestmark = pytest.mark.usefixtures("quick_compilation")
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

NAMES = (
    "d_model", "encoder_layers", "decoder_layers", "encoder_attention_heads", "decoder_attention_heads",
    "encoder_ffn_dim", "decoder_ffn_dim", "vocab_size", "max_source_positions", "max_target_positions", "num_mel_bins",
)  # fmt: skip
SIZES = {
    "whisper": (16, 2, 3, 2, 4, 20, 28, 61, 14, 33, 7),
    "distilled": (24, 4, 2, 3, 3, 33, 33, 71, 19, 27, 9),  # as distil-large-v3: few layers in the decoder
    "wide": (32, 1, 1, 4, 4, 18, 40, 67, 11, 30, 16),
}
START, END, PAD = 55, 57, 57


@dataclass(frozen=True)
class Case:
    """Holds one model in both libraries, and a batch for both."""

    theirs: Any
    directory: Path
    model: jt.Model
    vectors: np.ndarray  # [B, S, F]
    decoder_input_ids: np.ndarray  # [B, T]

    @property
    def inputs(self) -> dict[str, torch.Tensor]:
        return {
            "input_features": torch.from_numpy(self.vectors).transpose(1, 2),
            "decoder_input_ids": torch.from_numpy(self.decoder_input_ids),
        }

    @property
    def params(self) -> Any:
        return jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), self.model.params)


@cache
def make_case(name: str, folder: Path) -> Case:
    rng = np.random.default_rng([*name.encode()])
    sizes = dict(zip(NAMES, SIZES[name], strict=True))
    special = {"pad_token_id": PAD, "bos_token_id": END, "eos_token_id": END, "decoder_start_token_id": START}
    config = transformers.WhisperConfig(**sizes, **special, suppress_tokens=None, begin_suppress_tokens=None)
    config._attn_implementation = "eager"
    theirs = drawn(config, rng, embedding=0.2, matrix=1.3)
    theirs.save_pretrained(folder / name)
    vectors = rng.standard_normal((3, 2 * config.max_source_positions, config.num_mel_bins))
    ids = rng.integers(0, 50, (3, 13))
    ids[0, 9:] = ids[1, 3] = PAD
    return Case(theirs.double(), folder / name, jt.import_checkpoint(folder / name), vectors, ids)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("whisper")


@pytest.fixture(params=SIZES)
def case(request: Any, folder: Path) -> Case:
    return make_case(request.param, folder)


def error_of(received: Any, expected: torch.Tensor) -> float:
    return compare(np.asarray(received), expected.detach().numpy()).relative_rms


def test_every_tensor_is_used_once_and_comes_back_bit_for_bit(case: Case, tmp_path: Path) -> None:
    tensors = load_file(case.directory / "model.safetensors")
    written = state_dict_from_params(case.model.config, case.model.params, "whisper")
    assert {*written} == {*tensors}
    used = [name for rule in get_dialect("whisper").rules(case.model.config) for name in names_of(rule, case)]
    assert sorted(name for name in used if name in tensors) == sorted(tensors)
    jt.export_checkpoint(case.model, tmp_path / "back")
    back = load_file(tmp_path / "back" / "model.safetensors")
    assert all(back[name].tobytes() == tensors[name].tobytes() for name in tensors)
    for file in ("config.json", "generation_config.json"):
        assert json.loads((tmp_path / "back" / file).read_text()) == json.loads((case.directory / file).read_text())
    _, found = type(case.theirs).from_pretrained(tmp_path / "back", output_loading_info=True)
    assert not any(found[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))


def names_of(rule: Rule, case: Case) -> list[str]:
    shapes = {path: leaf.shape for path, leaf in flatten(case.model.params).items()}
    return [name for place in rule.places(shapes) for name in place.names]


def test_the_command_ports_both_ways(folder: Path, tmp_path: Path) -> None:
    case = make_case("distilled", folder)
    assert main(["port", str(case.directory), str(tmp_path / "model")]) == 0
    assert jt.load_model(tmp_path / "model").config == case.model.config
    assert main(["port", str(tmp_path / "model"), str(tmp_path / "back")]) == 0
    received, expected = (load_file(path / "model.safetensors") for path in (tmp_path / "back", case.directory))
    assert received.keys() == expected.keys()
    assert all(received[name].tobytes() == expected[name].tobytes() for name in expected)


def test_a_model_of_our_own_goes_to_transformers(folder: Path, tmp_path: Path) -> None:
    """Its positions are the formula's, as transformers computes them in float32."""
    config = make_case("whisper", folder).model.config
    generation = jt.GenerationConfig(decoder_start_id=START, eos_id=END)
    model = jt.Model(config, jt.init_params(config, jax.random.key(0)), None, None, generation)
    jt.export_checkpoint(model, tmp_path / "there", "whisper")
    theirs = transformers.WhisperForConditionalGeneration.from_pretrained(tmp_path / "there").eval()
    vectors, ids = (
        np.random.default_rng(0).standard_normal((2, 28, 7)).astype(np.float32),
        np.array([[START, 3, 4]] * 2),
    )
    with torch.no_grad():
        expected = theirs(torch.from_numpy(vectors).transpose(1, 2), decoder_input_ids=torch.from_numpy(ids)).logits
    assert error_of(jt.apply(config, model.params, jt.Features(vectors), ids), expected) < 1e-6
    fresh = transformers.WhisperForConditionalGeneration(theirs.config).model.encoder.embed_positions.weight
    np.testing.assert_allclose(model.params["constants"]["encoder_positions"], fresh.detach().numpy(), atol=1e-5)


def test_activations_and_logits_are_equal(case: Case) -> None:
    with torch.no_grad():
        expected = case.theirs(**case.inputs, output_hidden_states=True, output_attentions=True)
    features = jt.Features(case.vectors)
    logits, trace = jt.apply(case.model.config, case.params, features, case.decoder_input_ids, return_trace=True)
    assert error_of(logits, expected.logits) < FLOAT64_RELATIVE_RMS
    assert error_of(trace["encoder.output"], expected.encoder_last_hidden_state) < FLOAT64_RELATIVE_RMS
    assert error_of(trace["encoder.embedding"], expected.encoder_hidden_states[0]) < FLOAT64_RELATIVE_RMS
    for stack, weights in (
        ("encoder.layers.{}.self_attention", expected.encoder_attentions),
        ("decoder.layers.{}.self_attention", expected.decoder_attentions),
        ("decoder.layers.{}.cross_attention", expected.cross_attentions),
    ):
        for i, theirs in enumerate(weights):
            assert error_of(trace[f"{stack.format(i)}.weights"], theirs) < FLOAT64_RELATIVE_RMS


def test_gradients_are_equal(case: Case) -> None:
    labels = np.random.default_rng(5).integers(0, 50, case.decoder_input_ids.shape)
    case.theirs.zero_grad()
    inputs = case.inputs | {"input_features": case.inputs["input_features"].requires_grad_()}
    theirs = case.theirs(**inputs).logits
    torch.nn.functional.cross_entropy(theirs.flatten(0, 1), torch.from_numpy(labels).flatten()).backward()

    def loss(params: Any, vectors: Any) -> jax.Array:
        logits = jt.apply(case.model.config, params, jt.Features(vectors), case.decoder_input_ids)
        return optax.softmax_cross_entropy_with_integer_labels(logits, jnp.asarray(labels)).mean()

    of_params, of_vectors = jax.grad(loss, argnums=(0, 1))(case.params, case.vectors)
    received = state_dict_from_params(case.model.config, jax.tree.map(np.asarray, of_params), "whisper")
    compared = {name: tensor.grad for name, tensor in case.theirs.named_parameters() if tensor.requires_grad}
    assert len(compared) == len(received) - 1  # all but the encoder's fixed positions
    for name, expected in compared.items():
        assert error_of(received[name], expected) < FLOAT64_RELATIVE_RMS, name
    assert error_of(np.swapaxes(of_vectors, 1, 2), inputs["input_features"].grad) < FLOAT64_RELATIVE_RMS


def test_cached_decoding_is_teacher_forcing(case: Case) -> None:
    config, features = case.model.config, jt.Features(case.vectors)
    forced = jt.apply(config, case.params, features, case.decoder_input_ids)
    encoder_output = jt.encode(config, case.params, features)
    state = jt.start_decoding(config, case.params, encoder_output, features, case.decoder_input_ids.shape[1])
    for column, ids in enumerate(case.decoder_input_ids.T):
        logits, state = jt.decode_step(config, case.params, state, ids)
        assert compare(np.asarray(logits), np.asarray(forced[:, column])).relative_rms < FLOAT64_RELATIVE_RMS


OPTIONS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "greedy": ({}, {}),
    "beams": ({"num_beams": 3}, {"beam_size": 3}),
    "beams that stop early": (
        {"num_beams": 4, "early_stopping": True, "length_penalty": 0.4},
        {"beam_size": 4, "early_stopping": True, "length_penalty": 0.4},
    ),
    "suppressed": (
        {"suppress_tokens": [3, 7, 11, 20], "begin_suppress_tokens": [1, 2, 5, END]},
        {"suppress_tokens": (3, 7, 11, 20), "begin_suppress_tokens": (1, 2, 5, END)},
    ),
    "suppressed beams": (
        {"num_beams": 3, "suppress_tokens": [3, 7, 11, 20], "begin_suppress_tokens": [1, 2, 5, END]},
        {"beam_size": 3, "suppress_tokens": (3, 7, 11, 20), "begin_suppress_tokens": (1, 2, 5, END)},
    ),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_generate_gives_the_same_tokens(case: Case, name: str) -> None:
    """After a prompt, as Whisper's tags are."""
    theirs, ours = OPTIONS[name]
    prompt = torch.tensor([[START, 50, 51]] * len(case.vectors))
    with torch.no_grad():
        expected = GenerationMixin.generate(
            case.theirs, case.inputs["input_features"], decoder_input_ids=prompt, max_new_tokens=15,
            generation_config=transformers.GenerationConfig(
                eos_token_id=END, pad_token_id=PAD, decoder_start_token_id=START, **theirs
            ),
        )[:, 1:].numpy()  # fmt: skip
    model = jt.Model(case.model.config, case.params, None, None, case.model.generation)
    received = jt.generate(
        model, jt.Features(case.vectors), prefix_ids=[[50, 51]] * len(case.vectors), max_new_tokens=15, **ours
    ).sequences[:, 0]
    np.testing.assert_array_equal(received[:, : expected.shape[1]], expected)
    assert (received[:, expected.shape[1] :] == PAD).all()


# --- comparisons and proofs


class Causal(torch.nn.Conv1d):
    """Sees no later vector."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        self.padding = (0,)
        return super().forward(torch.nn.functional.pad(input, (2, 0)))


class Reversed(torch.nn.Conv1d):
    """Reads the bands from the highest down."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return super().forward(input.flip(1))


class Repeating(torch.nn.Conv1d):
    """Repeats the vectors at the ends."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        padded = torch.nn.functional.pad(input, (1, 1), mode="replicate")
        return torch.nn.functional.conv1d(padded, self.weight, self.bias, self.stride)


FAULTS = {
    "encoder.stem.first": (Reversed, "order of the bands reversed"),
    "encoder.stem.second": (Causal, "reads no later vector: all zeros before the source"),
}


def faulty(case: Case, name: str, kind: type[torch.nn.Conv1d]) -> Any:
    module = copy.deepcopy(case.theirs).float()
    conv = {"first": module.model.encoder.conv1, "second": module.model.encoder.conv2}[name.split(".")[-1]]
    conv.__class__ = kind
    return module


def test_compare_sees_no_difference(folder: Path) -> None:
    case = make_case("wide", folder)
    stages = ("weights", "forward", "loss", "gradients", "decode")
    report = jt.compare(case.model, case.theirs, stages=stages, dtypes=("float64",))
    assert report.exit_code == 0, str(report)
    names = {row.name for stage in report.stages for row in stage.rows}
    assert {"encoder.stem.first", "encoder.stem.second", "encoder.token_embedding", "stem/first/kernel"} <= names


@pytest.mark.parametrize("name", FAULTS)
def test_compare_names_a_fault_of_the_stem(folder: Path, name: str) -> None:
    case, (kind, cause) = make_case("wide", folder), FAULTS[name]
    report = jt.compare(case.model, faulty(case, name, kind), stages=("forward",), dtypes=("float64",))
    assert report.exit_code == 1
    assert [(fault.finding.node, fault.finding.cause) for fault in report.faults] == [(name, cause)]


@pytest.mark.nightly
def test_the_forward_pass_is_proven_and_a_fault_refuted(folder: Path) -> None:
    case = make_case("wide", folder)
    proof = jt.prove(case.model, case.theirs, stages=("forward",))
    assert proof.verdict == "proven"
    assert "for all weights and all source_vectors" in str(proof)
    wrong = jt.prove(case.model, faulty(case, "encoder.stem.first", Repeating), stages=("forward",))
    assert wrong.verdict == "refuted"
    assert wrong.difference is not None
    assert wrong.difference["name"] == "encoder.stem.first"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scale_embedding": True}, "scale_embedding must be False; received True"),
        ({"architectures": ["WhisperForAudioClassification"]}, "architectures must be WhisperForConditionalGeneration"),
        ({"num_mel_bins": 8}, "stem: config.json says Stem\\(features=8"),
        ({"max_target_positions": 99}, "decoder_max_length: config.json says 99; the tensors say 33"),
    ],
)
def test_other_models_are_refused(folder: Path, tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    case = make_case("whisper", folder)
    for file in case.directory.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | changes))
    with pytest.raises(PortingError, match=message):
        jt.import_checkpoint(tmp_path)


def test_what_reads_tokens_alone_refuses_it(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = str(make_case("whisper", folder).directory)
    assert main(["port", directory, str(tmp_path / "model")]) == 0
    capsys.readouterr()
    for arguments in (
        ["export", str(tmp_path / "model"), str(tmp_path / "out"), "--to", "stablehlo"],
        ["export", str(tmp_path / "model"), str(tmp_path / "out"), "--to", "ctranslate2"],
        ["translate", str(tmp_path / "model")],
    ):
        assert main(arguments) == 2, arguments
        assert "error: " in capsys.readouterr().err
