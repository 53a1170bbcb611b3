"""Tests of models for CTranslate2: scores and tokens against ours, refusals, vocabularies and files."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from jax_transformer.cli import main
from jax_transformer.config import model as model_module
from jax_transformer.config.decoding import DecodingConfig, GenerationConfig
from jax_transformer.config.model import TransformerConfig
from jax_transformer.config.positions import Learned, RelativeBias, Rotary, Sinusoidal
from jax_transformer.config.short_names import option_names
from jax_transformer.config.specs import Attention, LayerNorm, RmsNorm
from jax_transformer.data.tokenizers import SpecialIds, Tokenizer, train_tokenizer
from jax_transformer.decoding.generation import generate
from jax_transformer.exporting.ctranslate2 import decoding_options, export_ctranslate2
from jax_transformer.exporting.ctranslate2_limits import COMPUTED, ONE_PER_STACK, ONLY, WHY, problems_of
from jax_transformer.exporting.vocabularies import token_list
from jax_transformer.integrity.verify import verify
from jax_transformer.model.functional import apply
from jax_transformer.storage.model_directory import Model, save_model

ctranslate2 = pytest.importorskip("ctranslate2")
pytestmark = pytest.mark.usefixtures("quick_compilation")

SMALL = TransformerConfig(
    source_vocab_size=23,
    target_vocab_size=29,
    d_model=16,
    num_heads=4,
    d_ff=24,
    num_encoder_layers=2,
    num_decoder_layers=2,
    max_length=24,
)
GENERATION = GenerationConfig(decoder_start_id=2, eos_id=3)
FORMS: dict[str, dict[str, Any]] = {
    "as the paper": {},
    "post-norm, learned positions": {
        "position_kind": "learned",
        "position_offset": 2,
        "position_factor": 0.5,
        "learned_position_scale": True,
        "encoder_embedding_norm": "after_positions",
        "decoder_embedding_norm": "after_positions",
        "final_norm": True,
        "norm_unbiased": True,
        "norm_eps": 0.1,
        "norm_scale_offset": 1.0,
        "head_scale": True,
        "sublayer_factor": 0.7,
        "logits_factor": 1.5,
        "scale_head": True,
        "activation": "quick_gelu",
    },
    "pre-norm, gates, shared keys": {
        "norm_placement": "pre",
        "final_norm": True,
        "position_index": "non_pad_count",
        "position_frequency": "inclusive",
        "position_offset": 1,
        "source_vocab_size": 29,
        "share_embeddings": True,
        "tie_head": True,
        "head_bias": "buffer",
        "feed_forward_gated": True,
        "activation": "gelu_tanh",
        "num_kv_heads": 2,
        "head_dim": 6,
        "learned_sublayer_scale": "channel",
        "embedding_factor": 3.0,
        "decoder_embedding_factor": 1.0,
    },
    "biases by distance, RMSNorm": {
        "position_kind": "relative_bias",
        "relative_buckets": 8,
        "relative_max_distance": 12,
        "relative_bias_factor": 2.0,
        "norm_kind": "rms_norm",
        "norm_bias": False,
        "norm_placement": "pre",
        "final_norm": True,
        "attention_scale": 1.0,
        "attention_bias": False,
        "attention_output_bias": False,
        "feed_forward_bias": False,
        "head_bias": "none",
        "share_layers": True,
        "activation": "gelu",
    },
    "rotary, stacks that differ": {
        "position_kind": "rotary",
        "position_layout": "halves",
        "rotary_dim": 2,
        "rotary_base": 100.0,
        "decoder_num_heads": 2,
        "decoder_d_ff": 20,
        "norm_placement": "pre",
        "decoder_norm_placement": "post",
        "share_norms": True,
        "norm_scale": False,
        "activation": "silu",
        "decoder_activation": "tanh",
    },
    "vectors by distance, no projections": {
        "position_kind": "relative_vectors",
        "relative_max_distance": 3,
        "relative_bias_per_layer": True,
        "relative_value_vectors": False,
        "attention_output": False,
        "head_scale": True,
        "learned_sublayer_scale": "scalar",
        "sublayer_scale_init": 0.5,
        "masked_value": -1e9,
        "activation": "sigmoid",
    },
}
"""Between them, every option that CTranslate2 computes or that folds into weights."""


def make_model(random_params: Callable[..., dict[str, Any]], form: dict[str, Any], **generation: Any) -> Model:
    config = dataclasses.replace(SMALL, **form)
    settings = dataclasses.replace(GENERATION, **generation)
    return Model(config, random_params(config, "float32"), None, None, settings)


def exported(model: Model, path: Path, **options: Any) -> Any:
    export_ctranslate2(model, path, **options)
    return ctranslate2.Translator(str(path), compute_type="float32" if not options else "default", intra_threads=1)


def our_log_probs(model: Model, sources: list[list[int]], targets: list[list[int]]) -> list[np.ndarray]:
    """The log-probabilities of each target and its end, of a padded batch."""
    inputs = [[model.generation.decoder_start_id or 0, *ids] for ids in targets]
    pads = model.config.source_pad_id, model.config.target_pad_id
    arrays = [
        np.array([[*row, *[pad] * (max(map(len, rows)) - len(row))] for row in rows])
        for pad, rows in zip(pads, (sources, inputs), strict=True)
    ]
    logits = jax.jit(apply, static_argnums=0)(model.config, model.params, *arrays)
    log_probs = np.asarray(jax.nn.log_softmax(logits.astype(np.float32), axis=-1))
    return [log_probs[row, np.arange(len(ids) + 1), [*ids, model.generation.eos_id]] for row, ids in enumerate(targets)]


def as_text(sentences: list[list[int]]) -> list[list[str]]:
    return [[str(index) for index in ids] for ids in sentences]


def sentences(size: int, *lengths: int) -> list[list[int]]:
    rng = np.random.default_rng(len(lengths))
    return [rng.integers(4, size, length).tolist() for length in lengths]


@pytest.mark.parametrize("name", FORMS)
def test_scores_equal_ctranslate2(name: str, random_params: Any, tmp_path: Path) -> None:
    model = make_model(random_params, FORMS[name])
    assert problems_of(model) == []
    translator = exported(model, tmp_path / "model")
    sources = sentences(model.config.source_vocab_size, 3, 9, 14)
    targets = sentences(model.config.target_vocab_size, 11, 2, 5)
    for ours, theirs in zip(
        our_log_probs(model, sources, targets),
        translator.score_batch(as_text(sources), as_text(targets)),
        strict=True,
    ):
        np.testing.assert_allclose(theirs.log_probs, ours, rtol=2e-5, atol=2e-5)


@pytest.fixture
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets stacks differ in every option."""
    monkeypatch.setattr(model_module, "model_problems", lambda config: [])


def with_part(config: TransformerConfig, path: str, **options: Any) -> TransformerConfig:
    """The config with other options in the part at this path."""
    stack, _, name = path.partition(".")
    own = getattr(config, stack)
    changed = replace(own, **({name: replace(getattr(own, name), **options)} if name else options))
    return dataclasses.replace(config, **{stack: changed})


DIFFERING: dict[str, Callable[[], TransformerConfig]] = {
    "norms, biases and scales": lambda: apart(
        ("encoder.norm", {"scale": False, "bias": False}),
        ("decoder.norm", {"scale_offset": 1.0}),
        ("encoder.self_attention", {"bias": False, "scale": 0.3, "head_scale": True}),
        ("decoder.self_attention", {"masked_value": -1e9, "output_bias": False}),
        ("decoder.cross_attention", {"bias": False, "scale": 0.7, "output": False}),
        ("decoder", {"share_norms": True, "share_layers": True, "norm_placement": "pre", "final_norm": True}),
    ),
    "gates, kinds of norms, positions": lambda: apart(
        ("encoder", {"norm": RmsNorm(eps=1e-5), "positions": Learned(offset=2, factor=0.5)}),
        ("decoder", {"positions": Sinusoidal(layout="halves", frequency="inclusive", learned_scale=True)}),
        ("encoder.feed_forward", {"gated": True, "activation": "gelu"}),
        ("decoder.feed_forward", {"bias": False, "activation": "silu"}),
        ("encoder.residual", {"output_scale": "channel"}),
        ("decoder.residual", {"output_scale": "scalar", "output_factor": 0.8}),
    ),
    "distances, eps of one variance": lambda: apart(
        ("encoder", {"positions": RelativeBias(buckets=8, max_distance=6), "norm": LayerNorm(eps=0.1 * 15 / 16)}),
        ("decoder", {"positions": RelativeBias(buckets=4, max_distance=12, factor=2.0)}),
        ("decoder", {"norm": LayerNorm(eps=0.1, unbiased=True)}),
    ),
    "angles": lambda: apart(
        ("encoder", {"positions": Rotary(base=100.0, layout="halves")}),
        ("decoder", {"positions": Rotary(dim=2)}),
    ),
}
"""Stacks that differ in what each has for itself in CTranslate2."""


def apart(*changes: tuple[str, dict[str, Any]]) -> TransformerConfig:
    config = SMALL
    for path, options in changes:
        config = with_part(config, path, **options)
    return config


@pytest.mark.parametrize("name", DIFFERING)
def test_scores_of_different_stacks_equal_ctranslate2(
    name: str, random_params: Any, unchecked: None, tmp_path: Path
) -> None:
    config = DIFFERING[name]()
    model = Model(config, random_params(config, "float32"), None, None, GENERATION)
    assert problems_of(model) == []
    translator = exported(model, tmp_path / "model")
    sources, targets = sentences(23, 3, 9, 14), sentences(29, 11, 2, 5)
    for ours, theirs in zip(
        our_log_probs(model, sources, targets),
        translator.score_batch(as_text(sources), as_text(targets)),
        strict=True,
    ):
        np.testing.assert_allclose(theirs.log_probs, ours, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize(
    ("path", "options", "message"),
    [
        (
            "decoder.norm",
            {"eps": 0.1},
            "decoder.norm.eps=0.1 (it adds one eps to the variances of all norms: give the decoder "
            "encoder.norm.eps=1e-05)",
        ),
        ("decoder.norm", {"unbiased": True}, "decoder.norm.unbiased=True (it adds one eps to the variances of all"),
        ("encoder.norm", {"eps_outside": True}, "encoder.norm.eps_outside=True (it adds eps to the variance)"),
        (
            "decoder.cross_attention",
            {"num_heads": 2},
            "decoder.cross_attention.num_heads=2 (it has 4, as decoder.self_attention.num_heads is: one "
            "decoder_num_heads applies to all)",
        ),
        ("decoder.cross_attention", {"query_key_norm": True}, "decoder.cross_attention.query_key_norm=True (it norms"),
        ("decoder.cross_attention", {"masked_value": -5.0}, "decoder.cross_attention.masked_value=-5.0 (it gives"),
        ("encoder.self_attention", {"context_norm": True}, "encoder.self_attention.context_norm=True (it norms no"),
        ("decoder.feed_forward", {"output_norm": True}, "decoder.feed_forward.output_norm=True (it has no norm"),
        ("decoder.feed_forward", {"hidden_norm": True}, "decoder.feed_forward.hidden_norm=True (it norms no"),
        ("decoder", {"feed_forward": None}, "decoder.feed_forward=False (it has a feed-forward in every layer)"),
        ("decoder", {"norm": None}, "decoder.norm.kind='none' (it norms with layer_norm or rms_norm)"),
        ("encoder.positions", {"index": "batch_row"}, "encoder.positions.index='batch_row' (it counts"),
        ("encoder.residual", {"stream_scale": "all"}, "encoder.residual.stream_scale='all' (it adds residuals"),
        ("encoder.self_attention", {"padding_id": 4}, "encoder.self_attention.padding_id=4 (it has None)"),
    ],
)
def test_unsupported_options_of_one_stack_are_refused_by_path(
    path: str, options: dict[str, Any], message: str, unchecked: None
) -> None:
    problems = problems_of(Model(with_part(SMALL, path, **options), {}, None, None, GENERATION))
    assert len(problems) == 1
    assert problems[0].startswith(message)


def test_unlisted_options_must_have_their_defaults(unchecked: None) -> None:
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Capped(Attention):
        cap: float | None = None

    for cap, expected in ((None, []), (30.0, ["decoder.self_attention.cap=30.0 (it has None)"])):
        own = Capped(cap=cap, **vars(SMALL.decoder.self_attention))
        model = Model(with_part(SMALL, "decoder", self_attention=own), {}, None, None, GENERATION)
        assert problems_of(model) == expected


def test_listed_options_exist() -> None:
    assert {*COMPUTED, *ONLY, *WHY, *ONE_PER_STACK} <= {*option_names()}


def test_options_of_execution_are_never_refused(unchecked: None) -> None:
    config = SMALL.replace(
        dropout_rate=0.5, attention_dropout_rate=0.2, output_dropout_rate=0.1, initializer="torch", remat="all",
        compute_dtype="bfloat16", layer_loop="unrolled", trains_pad_embedding=False,
    )  # fmt: skip
    model = Model(with_part(config, "decoder.dropout", rate=0.3), {}, None, None, GENERATION)
    assert problems_of(model) == []


def test_positions_that_do_not_count_a_pad(random_params: Any, tmp_path: Path) -> None:
    """The decoder starts with the padding, which has a row of its own; the next token has the first row."""
    form = {"position_index": "non_pad_count", "position_offset": 1, "decoder_padding": "none"}
    model = make_model(random_params, form, decoder_start_id=0)
    translator = exported(model, tmp_path / "model")
    (ours,), (theirs,) = (
        our_log_probs(model, [[5, 6]], [[7, 8, 9]]),
        translator.score_batch(as_text([[5, 6]]), as_text([[7, 8, 9]])),
    )
    np.testing.assert_allclose(theirs.log_probs, ours, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("beams", [1, 4])
def test_tokens_equal_ctranslate2(beams: int, random_params: Any, tmp_path: Path) -> None:
    """With forbidden words, and settings of the model's own that its files carry."""
    settings = {"bad_words": ((9,), (5, 6)), "max_new_tokens": 12, "length_penalty": 0.7, "renormalize": True}
    model = make_model(random_params, {}, **settings, forced_bos_id=7, beam_size=beams, early_stopping=beams > 1)
    translator = exported(model, tmp_path / "model")
    content = json.loads((tmp_path / "model" / "decoding.json").read_text())
    assert content["translate_batch"]["beam_size"] == beams
    assert content["target_prefix"] == ["7"]
    sources = sentences(23, *range(3, 15))
    theirs = translator.translate_batch(
        as_text(sources), [content["target_prefix"]] * len(sources), return_scores=True, **content["translate_batch"]
    )
    found = generate(model, sources, DecodingConfig())
    for row, result in enumerate(theirs):
        ids = [index for index in found.sequences[row, 0].tolist() if index not in (0, 3)]
        assert as_text([ids])[0] == result.hypotheses[0]
        if beams > 1:
            np.testing.assert_allclose(result.scores[0], found.scores[row, 0], rtol=1e-4)


@pytest.mark.parametrize(
    ("form", "settings", "expected"),
    [
        ({"max_length": 600}, {"max_new_tokens": 500}, 500),
        ({"max_length": 600}, {}, 600),
        ({"max_length": 600}, {"max_decode_length": 400}, 400),
        ({}, {"max_new_tokens": 500}, 24),
        ({"position_kind": "rotary"}, {}, 512),
    ],
)
def test_exported_targets_may_have_the_same_length(form: Any, settings: Any, expected: int, random_params: Any) -> None:
    model = make_model(random_params, form, **settings)
    options = decoding_options(model, [str(index) for index in range(29)])
    assert options["translate_batch"]["max_decoding_length"] == expected


def test_an_endless_target_is_cut_at_the_models_limit(random_params: Any, tmp_path: Path) -> None:
    """More than the 256 at which CTranslate2 stops by itself."""
    model = make_model(random_params, {"max_length": 600}, max_new_tokens=300)
    model.params["head"]["bias"][3] = -1e4  # the end
    translator = exported(model, tmp_path / "model")
    options = json.loads((tmp_path / "model" / "decoding.json").read_text())["translate_batch"]
    (theirs,) = translator.translate_batch([["5", "6", "7"]], **options)
    assert len(theirs.hypotheses[0]) == 300


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "eps": ({"norm_eps_outside": True}, "norm_eps_outside=True (it adds eps to the variance)"),
    "activation": ({"activation": "elu"}, "activation='elu' (it has relu, gelu"),
    "decoder": ({"decoder_activation": "mish"}, "decoder_activation='mish'"),
    "rows": ({"position_index": "batch_row"}, "position_index='batch_row'"),
    "none": ({"position_kind": "none"}, "position_kind='none' (it has sinusoidal"),
    "alibi": ({"decoder_position_kind": "alibi"}, "decoder_position_kind='alibi'"),
    "umt5": (
        {"position_kind": "relative_bias", "relative_bias_per_layer": True},
        "relative_bias_per_layer=True (it adds the first layer's biases in all layers)",
    ),
    "no norms": ({"norm_kind": "none"}, "norm_kind='none'"),
    "no placement": ({"norm_placement": "none"}, "norm_placement='none'"),
    "sandwich": ({"output_norm": "all"}, "output_norm='all'"),
    "parallel": ({"norm_placement": "pre", "parallel_residual": True}, "parallel_residual=True"),
    "deepnorm": ({"decoder_residual_factor": 2.0}, "decoder_residual_factor=2.0 (it adds residuals unscaled)"),
    "queries": ({"query_key_norm": True}, "query_key_norm=True"),
    "values": ({"value_dim": 3}, "value_dim=3 (it has head_dim=4)"),
    "embedding": ({"encoder_embedding_norm": "before_positions"}, "encoder_embedding_norm='before_positions'"),
    "pads": ({"encoder_padding": "none"}, "encoder_padding='none'"),
    "masks": ({"masked_value": -5.0}, "masked_value=-5.0"),
    "causal": ({"decoder_causal": False}, "decoder_causal=False"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_unsupported_options_are_refused(name: str, random_params: Any, tmp_path: Path) -> None:
    form, message = REFUSED[name]
    model = make_model(random_params, form)
    with pytest.raises(ValueError, match="ctranslate2 can't compute") as error:
        export_ctranslate2(model, tmp_path / "model")
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("form", "generation", "message"),
    [
        ({}, {"decoder_start_id": 0}, "decoder_padding='keys' (it attends to the first token"),
        ({}, {"eos_id": None}, "eos_id=None (it needs the id that ends a sentence"),
        ({}, {"source_length": 9}, "source_length=9"),
    ],
)
def test_refuses_special_ids(form: Any, generation: Any, message: str, random_params: Any) -> None:
    (problem,) = problems_of(make_model(random_params, form, **generation))
    assert message in problem


# --- vocabularies and files


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    texts = ["who sleeps", "the dog sleeps", "who sees the dog", "<eos> is a word"]
    return train_tokenizer(texts, kind="whitespace", specials=SpecialIds(0, 1, 2, 3), add_eos=True)


def test_tokens_match_the_tokenizer_files(tokenizer: Tokenizer, random_params: Any, tmp_path: Path) -> None:
    """As the library tokenizers gives them: also where a sentence has a special token's name in it."""
    from tokenizers import Tokenizer as Pipeline

    size = tokenizer.vocab_size
    model = make_model(random_params, {"source_vocab_size": size, "target_vocab_size": size + 2})
    model = dataclasses.replace(
        model, source_tokenizer=tokenizer, target_tokenizer=tokenizer.adding(bos=False, eos=False)
    )
    export_ctranslate2(model, tmp_path / "model")
    vocabulary = json.loads((tmp_path / "model" / "source_vocabulary.json").read_text())
    pipeline = Pipeline.from_file(str(tmp_path / "model" / "source_tokenizer.json"))
    pipeline.encode_special_tokens = True
    for text in ("who sees the dog", "<eos> is nothing"):
        tokens = pipeline.encode(text).tokens
        assert [vocabulary.index(token) for token in tokens] == tokenizer.encode([text])[0]
    target = json.loads((tmp_path / "model" / "target_vocabulary.json").read_text())
    assert target == [*vocabulary, f"<unused_{size}>", f"<unused_{size + 1}>"]
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    assert [target.index(config[f"{name}_token"]) for name in ("unk", "bos", "decoder_start", "eos")] == [1, 2, 2, 3]
    assert not config["add_source_eos"]


def test_every_id_has_a_token_of_its_own() -> None:
    """Also where a tokenizer has one token for two ids, and beyond its vocabulary."""
    assert token_list(None, 3, as_shown=True) == ["0", "1", "2"]
    specials = {"<pad>": 0, "<eos>": 1, "<unk>": 2, "A": 259}
    content = {"format": "jax-transformer bytes 1", "add_bos": False, "add_eos": True, "first": 3, "specials": specials}
    tokenizer = Tokenizer.from_json(json.dumps(content))
    assert tokenizer.tokens([68, 259]) == ["A", "A"]
    tokens = token_list(tokenizer, 261, as_shown=True)
    assert (tokens[68], tokens[259:]) == ("A", ["<unused_259>", "<unused_260>"])
    assert len(set(tokens)) == 261


@pytest.mark.parametrize("quantization", ["int8", "int8_float32", "bfloat16", "float16", "int16"])
def test_quantizations(quantization: Any, random_params: Any, tmp_path: Path) -> None:
    """Scores stay near those of float32, and the file is smaller."""
    if quantization == "bfloat16":
        pytest.importorskip("torch")
    model = make_model(random_params, {"source_vocab_size": 400, "target_vocab_size": 400})
    sources, targets = sentences(400, 5, 7), sentences(400, 6, 3)
    whole = exported(model, tmp_path / "float32").score_batch(as_text(sources), as_text(targets))
    found = exported(model, tmp_path / "model", quantization=quantization).score_batch(
        as_text(sources), as_text(targets)
    )
    sizes = [(tmp_path / name / "model.bin").stat().st_size for name in ("float32", "model")]
    assert sizes[1] < 0.75 * sizes[0]
    gap = max(
        np.abs(np.subtract(one.log_probs, other.log_probs)).max() for one, other in zip(whole, found, strict=True)
    )
    assert 0.0 < gap < 1.0


def test_the_command(random_params: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_model(make_model(random_params, {}), tmp_path / "model")
    arguments = ["export", str(tmp_path / "model"), str(tmp_path / "there"), "--to"]
    assert main([*arguments, "ctranslate2", "--quantization", "int8"]) == 0
    assert "weights:  int8, " in capsys.readouterr().out
    assert all(finding.is_whole for finding in verify(tmp_path / "there"))
    for wrong, message in (
        (["ctranslate2"], "expected a name that is free, or an empty directory"),
        (["transformers", "--quantization", "int8"], "--quantization is an option of --to ctranslate2"),
        (["ctranslate3"], "--to: expected one of ctranslate2, transformers, stablehlo; received ctranslate3"),
    ):
        assert main([*arguments, *wrong]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert message in line
