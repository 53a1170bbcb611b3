"""Programs exported as StableHLO compute the same in a process without this package, for any batch and length."""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax import export
from tokenizers import Tokenizer as Library

from jax_transformer.cli import main
from jax_transformer.config import model as model_module
from jax_transformer.config import specs
from jax_transformer.config.decoding import GenerationConfig
from jax_transformer.config.model import TransformerConfig
from jax_transformer.data.tokenizers import SpecialIds, Tokenizer, train_tokenizer
from jax_transformer.data.tokenizers.byte_tokens import ByteBackend
from jax_transformer.decoding.checks import DecodingError
from jax_transformer.decoding.generation import generate
from jax_transformer.exporting import programs
from jax_transformer.exporting.stablehlo import ExportError, batch_rules, export_stablehlo
from jax_transformer.exporting.texts import standard_files, text_rules
from jax_transformer.integrity import verify
from jax_transformer.model import functional
from jax_transformer.runtime.trees import flatten
from jax_transformer.storage.model_directory import Model, save_model

pytestmark = pytest.mark.usefixtures("quick_compilation")

WORDS = "eins zwei drei vier fünf sechs sieben acht neun zehn"
SPECIALS = SpecialIds(pad=0, unk=1, bos=2, eos=3)
SIZES = {
    "d_model": 16,
    "num_heads": 2,
    "d_ff": 24,
    "num_encoder_layers": 1,
    "num_decoder_layers": 1,
    "source_vocab_size": 14,
    "target_vocab_size": 14,
}
TIED: dict[str, Any] = {"share_embeddings": True, "tie_head": True, "max_length": 24}
DISTANCES: dict[str, Any] = {"position_kind": "relative_bias", "relative_buckets": 8, "relative_max_distance": 6}
CONFIGS = {
    "untied": TransformerConfig(**SIZES | {"num_encoder_layers": 2, "num_decoder_layers": 2}, max_length=24),
    "tied, in bfloat16": TransformerConfig(**SIZES, **TIED, compute_dtype="bfloat16"),
    "relative biases": TransformerConfig(**SIZES, **DISTANCES, norm_kind="rms_norm", norm_bias=False),
    "without a cache": TransformerConfig(**SIZES, max_length=24, decoder_padding="both"),
}
COUNTED = TransformerConfig(**SIZES, **TIED, position_index="non_pad_count")
STABLE = {"shape_assertion", "stablehlo.dynamic_reduce_window"}
"""Custom calls that JAX guarantees (`_CUSTOM_CALL_TARGETS_GUARANTEED_STABLE` in jax/_src/export/_export.py), and
replaces when shapes are known."""
MOST_TOKENS = 12
GATES = {"float32": 2e-5, "bfloat16": 6e-2}
"""Differences, relative and absolute, between programs that sum in another order or are fused in another way: some
roundings of logits of up to 10, and of the layers before them."""

WITHOUT_THE_PACKAGE = f"""
import sys
sys.path[:0] = {[path for path in sys.path if path.endswith("site-packages")]!r}
sys.modules["jax_transformer"] = sys.modules["flax"] = None
try:
    import jax_transformer
except ImportError:
    pass
else:
    sys.exit("the package could be imported")
"""
CALL = """
import json
import jax
import jax.numpy as jnp
import numpy as np
from jax import export
from safetensors.numpy import load_file
given = dict(np.load(sys.argv[1]))


def run(folder):
    signature = json.load(open(f"{folder}/signature.json"))
    params = load_file(f"{folder}/params.safetensors")

    def load(name):
        content = open(f"{folder}/{signature['programs'][name]['file']}", "rb").read()
        return jax.jit(export.deserialize(bytearray(content)).call)

    names = ("logits", "greedy", "encode", "prepare", "start", "decode_step")
    logits, greedy, encode, prepare, start, step = map(load, names)
    found = {}
    for i in range(len(given) // 2):
        source_ids, decoder_input_ids = given[f"source{i}"], given[f"target{i}"]
        found[f"logits{i}"] = logits(params, source_ids, decoder_input_ids)["logits"]
        found |= {f"{name}{i}": value for name, value in greedy(params, source_ids).items()}
    source_ids, tokens = given["source0"], np.asarray(found["tokens0"])
    encoded, layers = encode(params, source_ids), prepare(params)["layers"]
    state = start(params, layers, encoded["encoder_output"], source_ids)["state"]
    first = np.full((len(source_ids), 1), signature["ids"]["decoder_start"], np.int32)
    steps, inputs = [], np.concatenate([first, tokens[:, :-1]], axis=1)
    for column in range(inputs.shape[1]):
        result = step(params, layers, state, inputs[:, column])
        steps.append(np.asarray(result["logits"]))
        state = result["state"]
    found |= {"steps": np.stack(steps, axis=1), "mask": encoded["source_mask"]}
    found["forced"] = logits(params, source_ids, inputs)["logits"]
    wide = {name: np.asarray(value, np.float32) for name, value in found.items() if value.dtype == jnp.bfloat16}
    np.savez(f"{folder}.npz", **found | wide)


for folder in sys.argv[2:]:
    run(folder)
"""


def tiny(config: TransformerConfig, params: dict[str, Any], **generation: Any) -> Model:
    """Returns a model without tokenizers, whose sentences differ and end: it says no token twice."""
    settings = {"decoder_start_id": 2, "eos_id": 3, "max_decode_length": MOST_TOKENS, "no_repeat_ngram": 1}
    return Model(config, params, None, None, GenerationConfig(**settings | generation))


@pytest.fixture
def make(random_params: Callable[..., dict[str, Any]]) -> Callable[..., Model]:
    """(config, **generation settings) → a tiny model."""
    return lambda config, **generation: tiny(config, random_params(config, "float32", seed=8), **generation)


def isolated(code: str, *arguments: str, stdin: bytes = b"") -> bytes:
    """Runs code in a process that has the installed libraries, but neither this package nor Flax."""
    command = [sys.executable, "-I", "-S", "-c", WITHOUT_THE_PACKAGE + code, *arguments]
    done = subprocess.run(command, input=stdin, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


def translated_by_script(folder: Path, text: bytes) -> bytes:
    code = "import runpy\nsys.argv = ['run.py']\nrunpy.run_path(sys.path.pop(), run_name='__main__')"
    return isolated("sys.path.append(sys.argv[1])\n" + code, str(folder / "run.py"), stdin=text)


def cases() -> dict[str, np.ndarray]:
    """Returns sources and decoder inputs of different batches and lengths, with padding; the last source is longer than
    relative_max_distance, and so long that some distances share a bucket."""
    rng = np.random.default_rng(0)
    arrays = {}
    for i, (batch, source, target) in enumerate([(4, 7, 5), (1, 16, 9)]):
        for name, length in (("source", source), ("target", target)):
            arrays[f"{name}{i}"] = rng.integers(4, 14, (batch, length)).astype(np.int32)
    arrays["source0"][1, 4:] = arrays["source0"][3, 1:] = arrays["target0"][2, 3:] = SPECIALS.pad
    return arrays


@pytest.fixture(scope="module")
def computed(
    tmp_path_factory: pytest.TempPathFactory, random_params: Callable[..., dict[str, Any]]
) -> dict[str, tuple[Model, dict[str, np.ndarray]]]:
    """Name → the model, and what its programs computed for the cases in a process without the package."""
    folder = tmp_path_factory.mktemp("computed")
    np.savez(folder / "cases.npz", **cases())
    models = {name: tiny(config, random_params(config, "float32", seed=8)) for name, config in CONFIGS.items()}
    for name, model in models.items():
        export_stablehlo(model, folder / name)
    isolated(CALL, str(folder / "cases.npz"), *(str(folder / name) for name in CONFIGS))
    found = {}
    for name, model in models.items():
        with np.load(folder / f"{name}.npz") as arrays:
            found[name] = model, dict(arrays)
    return found


@pytest.mark.parametrize("name", CONFIGS)
def test_programs_compute_the_same_without_the_package(
    name: str, computed: dict[str, tuple[Model, dict[str, np.ndarray]]]
) -> None:
    (model, found), given = computed[name], cases()
    gate = GATES[model.config.compute_dtype or "float32"]
    for i in range(2):
        source_ids = given[f"source{i}"]
        own = functional.apply(model.config, model.params, source_ids, given[f"target{i}"])
        np.testing.assert_array_equal(found[f"logits{i}"], np.asarray(own, np.float32))
        expected = generate(model, source_ids, beam_size=1)
        np.testing.assert_array_equal(found[f"tokens{i}"], expected.sequences[:, 0])
        np.testing.assert_allclose(found[f"scores{i}"], expected.scores[:, 0], rtol=gate)
        ends = [[*row, 3].index(3) + 1 for row in expected.sequences[:, 0].tolist()]
        assert found[f"lengths{i}"].tolist() == [min(end, MOST_TOKENS) for end in ends]
    assert len({*map(tuple, found["tokens0"].tolist())}) > 1, "no sentence matters"
    np.testing.assert_array_equal(found["mask"], given["source0"] != SPECIALS.pad)
    for steps, forced, tokens, length in zip(
        *(found[key] for key in ("steps", "forced", "tokens0", "lengths0")), strict=True
    ):
        if model.config.is_causal:  # a fully masked row sees the future
            np.testing.assert_allclose(steps[:length], forced[:length], rtol=gate, atol=gate)
        for column in range(length):
            steps[column, [2, *tokens[:column]]] = -np.inf  # nothing is said twice
            assert steps[column].argmax() == tokens[column]


def loaded(folder: Path) -> dict[str, export.Exported]:
    return {file.stem: export.deserialize(bytearray(file.read_bytes())) for file in folder.glob("*.jax_export")}


def custom_calls(exported: export.Exported) -> set[str]:
    return {*re.findall(r"custom_call @([\w.]+)", exported.mlir_module())}


@pytest.fixture(scope="module")
def exported(
    tmp_path_factory: pytest.TempPathFactory, random_params: Callable[..., dict[str, Any]]
) -> tuple[Model, Path]:
    """A model, and its export with a beam search."""
    config = CONFIGS["untied"]
    model, path = tiny(config, random_params(config, "float32", seed=8)), tmp_path_factory.mktemp("exported") / "out"
    jax.config.update("jax_traceback_in_locations_limit", 10)  # as it is without the tests' settings
    export_stablehlo(model, path, beam_size=3)
    assert jax.config.values["jax_traceback_in_locations_limit"] == 10
    jax.config.update("jax_traceback_in_locations_limit", 0)
    return model, path


def test_programs_are_for_all_platforms_and_hold_nothing_of_one_machine(exported: tuple[Model, Path]) -> None:
    _, folder = exported
    found = loaded(folder)
    assert {*found} == {"encode", "prepare", "start", "decode_step", "logits", "greedy", "beam_search"}
    for name, program in found.items():
        assert program.platforms == ("cpu", "cuda", "tpu")
        assert custom_calls(program) <= STABLE, name
        assert program.disabled_safety_checks == ()
        assert name in program.fun_name
        assert not re.search(rb"\.py|jax_transformer", (folder / f"{name}.jax_export").read_bytes()), "paths of files"
        assert max(map(len, re.findall(r'dense<"0x(\w+)"', program.mlir_module())), default=0) < 1000, "weights"
        assert (folder / f"{name}.stablehlo").read_bytes() == program.mlir_module_serialized


@pytest.mark.parametrize("platform", ["cuda", "tpu"])
def test_programs_lower_for_other_platforms(exported: tuple[Model, Path], platform: str) -> None:
    for name, program in loaded(exported[1]).items():
        inputs = jax.tree.map(
            lambda aval: jax.ShapeDtypeStruct(
                [size if isinstance(size, int) else 6 for size in aval.shape], aval.dtype
            ),
            jax.tree.unflatten(program.in_tree, program.in_avals),
        )[0]
        lowered = jax.jit(program.call).trace(*inputs).lower(lowering_platforms=(platform,))
        assert "stablehlo" in lowered.as_text(), name


def test_the_signature_tells_every_argument(exported: tuple[Model, Path]) -> None:
    _, folder = exported
    signature, found = json.loads((folder / "signature.json").read_text()), loaded(folder)
    assert signature["run"] == "beam_search"
    assert signature["ids"] == {"source_pad": 0, "target_pad": 0, "decoder_start": 2, "eos": 3}
    greedy = signature["programs"]["greedy"]
    assert greedy["inputs"] == {
        "params": "params.safetensors",
        "source_ids": {"shape": ["batch", "source_length"], "dtype": "int32"},
    }
    assert greedy["outputs"]["tokens"] == {"shape": ["batch", MOST_TOKENS], "dtype": "int32"}
    step = signature["programs"]["decode_step"]
    assert step["outputs"]["state"] == step["inputs"]["state"]
    for name, program in found.items():
        described, text = signature["programs"][name], program.mlir_module()
        (main_function,) = re.findall(r"func.func public @main\((.*?)\) ->", text, re.DOTALL)
        assert len(described["module_inputs"]) == main_function.count("%arg"), name
        assert described["module_inputs"][0] == "platform_index"
        assert described["calling_convention"] == program.calling_convention_version
    assert "params/encoder/layers/feed_forward/hidden/kernel" in greedy["module_inputs"]


def test_a_beam_search_finds_the_same(exported: tuple[Model, Path]) -> None:
    model, folder = exported
    source_ids = np.concatenate([cases()["source0"], np.full((1, 7), SPECIALS.pad, np.int32)])
    found = loaded(folder)["beam_search"].call(programs.flatten(model.params), source_ids)
    expected = generate(model, source_ids, beam_size=3)
    np.testing.assert_array_equal(found["tokens"], expected.sequences[:, 0])
    assert found["lengths"][-1] == 0, "an empty row that fills the batch"
    np.testing.assert_allclose(found["scores"], expected.scores[:, 0], rtol=1e-5)


def test_fixed_sizes_on_one_platform_leave_a_plain_module(make: Callable[..., Model], tmp_path: Path) -> None:
    model = make(COUNTED)
    export_stablehlo(model, tmp_path / "out", platforms=["tpu"], batch=2, source_length=8, max_new_tokens=5)
    found = loaded(tmp_path / "out")
    for name, program in found.items():
        assert program.platforms == ("tpu",)
        assert custom_calls(program) <= (STABLE if name == "logits" else set()), name
    assert found["greedy"].in_avals[-1].shape == (2, 8)
    assert found["greedy"].out_avals[-1].shape == (2, 5)
    signature = json.loads((tmp_path / "out" / "signature.json").read_text())
    assert signature["batch"] == {"sentences": 2, "rows": [2], "lengths": [8], "most_tokens": 8}
    assert "platform_index" not in signature["programs"]["greedy"]["module_inputs"]


def test_a_longer_source_than_the_model_has_positions_for_is_refused(exported: tuple[Model, Path]) -> None:
    model, folder = exported
    with pytest.raises(ValueError, match="refining shapes") as refusal:
        loaded(folder)["encode"].call(programs.flatten(model.params), np.ones((1, 25), np.int32))
    assert "constraint source_length <= 24" in str(refusal.value.__cause__)


def test_room_grows_in_few_steps() -> None:
    assert [programs.rooms(most) for most in (1, 64, 65, 300, 1024)] == [
        [1],
        [64],
        [64, 65],
        [64, 256, 300],
        [64, 256, 1024],
    ]


def test_rooms_change_no_token(make: Callable[..., Model], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(programs, "FIRST_ROOM", 2)
    model, source_ids = make(CONFIGS["untied"]), cases()["source0"]
    export_stablehlo(model, tmp_path / "out", platforms=["cpu"])
    found = loaded(tmp_path / "out")["greedy"].call(programs.flatten(model.params), source_ids)
    np.testing.assert_array_equal(found["tokens"], generate(model, source_ids, beam_size=1).sequences[:, 0])


# --- the script


def tokenizers(tags: tuple[str, ...] = ()) -> tuple[Tokenizer, Tokenizer]:
    source = train_tokenizer([WORDS], kind="whitespace", specials=SPECIALS, add_eos=True, tags=tags)
    return source, train_tokenizer([WORDS.upper()], kind="whitespace", specials=SPECIALS)


@pytest.fixture
def worded(make: Callable[..., Model]) -> Model:
    """A model that knows words and the tags <2de> and <2en>, whose target embedding has two unused rows."""
    source, target = tokenizers(("<2de>", "<2en>"))
    sizes = {"source_vocab_size": source.vocab_size, "target_vocab_size": target.vocab_size + 2}
    model = make(dataclasses.replace(CONFIGS["untied"], **sizes))
    model.params["head"]["bias"][SPECIALS.eos] -= 5.0
    return dataclasses.replace(model, source_tokenizer=source, target_tokenizer=target.filled(target.vocab_size + 2))


def test_the_script_translates_like_the_command(
    worded: Model, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = ["eins zwei", "", "zehn neun acht sieben <eos> drei", "elf zwei", "  ", "vier fünf sechs sieben " * 4]
    lines += ["fünf"] * 8
    text = tmp_path / "text"
    text.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    save_model(worded, tmp_path / "model")
    assert main(["translate", str(tmp_path / "model"), "--input", str(text), "--source-tag", "<2de>"]) == 0
    expected = capsys.readouterr().out
    out = tmp_path / "out"
    assert main(["export", str(tmp_path / "model"), str(out), "--to", "stablehlo", "--source-tag", "<2de>"]) == 0
    output = capsys.readouterr().out
    assert re.search(r"^greedy: +[\d,]+ bytes in [\d.]+ s$", output, re.MULTILINE)
    assert translated_by_script(out, text.read_bytes()).decode() == expected
    assert "<unk>" in expected, "an unused id, or an unknown word"
    assert [str(finding) for finding in verify(out)] == [f"✓ {out} (export)"]
    (out / "greedy.jax_export").write_bytes(b"another program")
    assert main(["verify", str(out)]) == 1
    assert f"✗ {out} (export): greedy.jax_export: altered" in capsys.readouterr().out


@pytest.mark.parametrize("kind", ["words", "whitespace", "characters", "bpe", "unigram"])
def test_ids_read_as_the_tokenizer_reads_them(kind: Any, make: Callable[..., Model], tmp_path: Path) -> None:
    text = [WORDS, "Wer geht , wenn es <unk> regnet ? " * 3]
    target = train_tokenizer(text, kind=kind, specials=SPECIALS, tags=["<2de>"], vocab_size=48)
    target = target.filled(target.vocab_size + 2)
    model = dataclasses.replace(make(CONFIGS["untied"]), source_tokenizer=target, target_tokenizer=target)
    files = standard_files(model)
    assert [*files] == ["source_tokenizer.json", "target_tokenizer.json"]
    rules = text_rules(model, files, "<2de>")
    assert (rules["before"], rules["after"]) == ([target.tag_ids["<2de>"]], [])
    library = Library.from_str(files["target_tokenizer.json"])
    for ids in np.random.default_rng(0).integers(0, target.vocab_size, (20, 12)).tolist():
        visible = [token for token in (rules["read_as"].get(str(i), i) for i in ids) if token is not None]
        read = library.decode(visible, skip_special_tokens=False).replace(*rules["unknown"])
        assert read == target.decode([ids])[0]


def test_other_tokenizers_are_left_out(worded: Model) -> None:
    own = ByteBackend({" <pad>": 0, " <unk>": 1, " <eos>": 2}, 3)
    model = dataclasses.replace(worded, target_tokenizer=Tokenizer(own, add_bos=False, add_eos=True))
    assert standard_files(model) == {}
    assert text_rules(model, {}, "<2de>")["tokenizers"] == []


def test_the_script_reads_ids_without_tokenizers(exported: tuple[Model, Path]) -> None:
    model, folder = exported
    sources = [[5, 6, 3], [], [4, 9, 9, 9, 8, 3]]
    text = "".join(" ".join(map(str, ids)) + "\n" for ids in sources).encode()
    found = [[int(token) for token in line.split()] for line in translated_by_script(folder, text).decode().split("\n")]
    for ids, tokens in zip(sources, found[:-1], strict=True):
        expected = generate(model, [ids], beam_size=3).sequences[0, 0].tolist() if ids else []
        assert tokens == expected[: len(tokens)]
        assert len(tokens) in (0, MOST_TOKENS) or tokens[-1] == SPECIALS.eos


def test_a_model_that_sees_padding_gets_one_sentence_at_a_time(make: Callable[..., Model]) -> None:
    sizes = programs.Sizes(None, None, 5)
    independent = {"sentences": 64, "rows": [2, 8, 64], "lengths": [16, 24], "most_tokens": 24}
    assert batch_rules(make(CONFIGS["untied"]), sizes) == independent
    alone = {"sentences": 1, "rows": [1], "lengths": [], "most_tokens": 24}
    unmasked = dataclasses.replace(CONFIGS["untied"], encoder_padding="none", cross_padding="none")
    assert batch_rules(make(unmasked), sizes) == alone
    assert batch_rules(make(unmasked, source_length=9), sizes) == alone | {"lengths": [9]}
    by_row = dataclasses.replace(CONFIGS["untied"], position_index="batch_row")
    assert batch_rules(make(by_row), sizes)["sentences"] == 1


def test_stacks_may_differ_in_every_option(
    make: Callable[..., Model], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The programs are the model's own, so there is nothing that they can't compute."""
    monkeypatch.setattr(model_module, "model_problems", lambda config: [])
    config = CONFIGS["untied"]
    norm, cross = specs.RmsNorm(eps=0.1), specs.Attention(num_heads=2, bias=False, scale=0.3)
    decoder = dataclasses.replace(config.decoder, norm=norm, cross_attention=cross, feed_forward=None)
    model = make(dataclasses.replace(config, decoder=decoder))
    export_stablehlo(model, tmp_path / "out", platforms=["cpu"], max_new_tokens=3)
    called = export.deserialize(bytearray((tmp_path / "out" / "logits.jax_export").read_bytes())).call
    given = [np.array([[5, 6, 7, 0]], np.int32), np.array([[2, 9, 4]], np.int32)]
    found = called(flatten(model.params), *given)["logits"]
    np.testing.assert_allclose(found, functional.apply(model.config, model.params, *given), rtol=2e-5, atol=2e-5)


# --- mistakes


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"platforms": ["gpu"]}, "platforms: expected some of cpu, cuda, rocm, tpu, each once; received gpu"),
        ({"platforms": []}, "received none"),
        ({"platforms": ["cpu", "cpu"]}, "received cpu, cpu"),
        ({"batch": 0}, "batch must be at least 1; received 0"),
        ({"source_length": 25}, "length must be at least 1, and at most 24, .*; received 25"),
        ({"max_new_tokens": 0}, "max_new_tokens must be at least 1; received 0"),
        ({"beam_size": 15}, "beam_size must be at most the target vocabulary's 14 tokens; received 15"),
        ({"beam_size": 0}, "beam_size must be at least 1; received 0"),
        ({"source_tag": "<2de>"}, "--source-tag: expected a model with tokenizers"),
        ({"target_tag": "<2de>"}, "--target-tag: expected a model with tokenizers"),
    ],
)
def test_options_that_fit_no_model_are_refused(
    options: dict[str, Any], message: str, make: Callable[..., Model], tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=message):
        export_stablehlo(make(CONFIGS["untied"]), tmp_path / "out", **options)
    assert list(tmp_path.iterdir()) == []


def test_models_that_no_program_could_run_are_refused(
    make: Callable[..., Model], random_params: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    config = CONFIGS["untied"]
    with pytest.raises(ExportError, match=r"parameter .*: expected float32 or narrower.*received float64"):
        export_stablehlo(tiny(config, random_params(config)), tmp_path / "out")
    with pytest.raises(DecodingError, match="expected decoder_start_id and eos_id"):
        export_stablehlo(make(config, eos_id=None), tmp_path / "out")
    unmasked = dataclasses.replace(config, encoder_padding="none", cross_padding="none")
    with pytest.raises(ExportError, match=r"length: expected none, for this model attends to padding, .*received 9"):
        export_stablehlo(make(unmasked), tmp_path / "out", source_length=9)
    assert list(tmp_path.iterdir()) == []


def test_a_batch_has_as_many_rows_as_the_shorter_table(make: Callable[..., Model], tmp_path: Path) -> None:
    """Where positions are numbers of rows, both tables have to have them."""
    by_row = dataclasses.replace(CONFIGS["untied"], position_index="batch_row", decoder_max_length=6)
    with pytest.raises(ExportError, match=r"batch must be at least 1, and at most 6, .*; received 7"):
        export_stablehlo(make(by_row), tmp_path / "out", batch=7)


def test_a_nonempty_directory_is_unchanged(
    make: Callable[..., Model], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "notes").write_text("mine")
    assert main(["export", "nothing", str(tmp_path / "out"), "--to", "stablehlo"]) == 2
    assert "out: expected a name that is free, or an empty directory" in capsys.readouterr().err
    assert main(["export", "nothing", str(tmp_path / "no" / "out"), "--to", "stablehlo"]) == 2
    assert "there is no directory" in capsys.readouterr().err
    assert [entry.name for entry in (tmp_path / "out").iterdir()] == ["notes"]


def test_without_flatbuffers_the_extra_is_named(
    make: Callable[..., Model], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "flatbuffers", None)
    with pytest.raises(ImportError, match=r"flatbuffers, .*pip install 'jax-transformer\[stablehlo\]'"):
        export_stablehlo(make(CONFIGS["untied"]), tmp_path / "out")
