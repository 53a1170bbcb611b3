"""Formats whose options have one level: an option that they don't mention has its default, or the config is refused."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hugging_face_directories import FAMILIES, make_config, make_model
from mapped_program import CONFIG as MAPPED
from mapped_program import MAP, make_tensors

from jax_transformer.config import model as model_module
from jax_transformer.config.decoding import GenerationConfig
from jax_transformer.config.model import TransformerConfig
from jax_transformer.config.specs import Attention, RmsNorm, Stem
from jax_transformer.config.stored import config_from_plain
from jax_transformer.mapping.maps import NameMap
from jax_transformer.porting import export_checkpoint, import_checkpoint, one_level
from jax_transformer.porting.checkpoint import parse_settings, settings_text
from jax_transformer.porting.dialects import all_dialects, get_dialect
from jax_transformer.porting.names_of_dialects import dialect_of_map
from jax_transformer.storage.model_directory import Model
from jax_transformer.storage.tensors import PortingError

SIZES: dict[str, Any] = {
    "source_vocab_size": 13, "target_vocab_size": 13, "d_model": 12, "num_heads": 3, "d_ff": 8,
    "num_encoder_layers": 2, "num_decoder_layers": 2, "max_length": 9,
}  # fmt: skip
UNTOLD_VALUES: dict[str, Any] = {
    "share_layers": True,
    "embedding_factor": 3.0,
    "decoder_embedding_factor": 2.0,
    "position_factor": 0.5,
    "learned_position_scale": True,
    "num_kv_heads": 1,
    "value_dim": 5,
    "query_key_norm": True,
    "head_scale": True,
    "attention_key_bias": False,
    "context_norm": "attention",
    "feed_forward_output_bias": False,
    "norm_scale": False,
    "norm_scale_offset": 1.0,
    "logits_factor": 2.0,
    "output_norm": "all",
    "share_norms": True,
    "feed_forward_hidden_norm": True,
    "residual_factor": 2.0,
    "decoder_sublayer_factor": 0.5,
    "learned_residual_scale": "all",
    "learned_sublayer_scale": "channel",
    "decoder_activation": "tanh",
    "head_transform": "gelu",
    "token_types": 2,
}
"""Options that no dialect mentions."""
PAPER = ("pytorch", "harvard", "floydhub", "hyunwoongko", "stepwise", "marian", "bart", "m2m_100")


@pytest.fixture
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets stacks differ in every option."""
    monkeypatch.setattr(model_module, "model_problems", lambda config: [])


def config_of(name: str, **options: Any) -> TransformerConfig:
    """A config that a dialect has, but for these options."""
    table = get_dialect(name)
    first = {field: values[0] for field, values in table.choices.items()}
    fields = {**table.defaults, **first, **SIZES, **table.fixed}
    if "stem" in table.mentions:
        fields |= {"stem": Stem(), "source_vocab_size": 0}
    if "token_types" in table.mentions:
        fields |= {"token_types": 2}
    return TransformerConfig.from_flat({**table.follows({"source_pad_id": 0, **first}), **fields, **options})


def with_part(config: TransformerConfig, path: str, **options: Any) -> TransformerConfig:
    """The config with other options in the part at this path."""
    stack, _, name = path.partition(".")
    own = getattr(config, stack)
    changed = replace(own, **({name: replace(getattr(own, name), **options)} if name else options))
    return dataclasses.replace(config, **{stack: changed})


@pytest.mark.parametrize("name", all_dialects())
def test_every_dialect_has_the_models_that_its_table_describes(name: str) -> None:
    assert get_dialect(name).refusals(config_of(name)) == []


@pytest.mark.parametrize("name", PAPER)
@pytest.mark.parametrize("option", UNTOLD_VALUES)
def test_an_option_that_no_table_mentions_must_have_its_default(option: str, name: str) -> None:
    value = UNTOLD_VALUES[option]
    assert option not in get_dialect(name).mentions
    default = getattr(TransformerConfig(), option)
    expected = f"{option} must be {default!r}; received {value!r}"
    assert expected in get_dialect(name).refusals(config_of(name, **{option: value}))


def test_an_option_that_is_new_in_a_part_is_refused_until_a_format_has_it(unchecked: None) -> None:
    @dataclass(frozen=True, kw_only=True)
    class Capped(Attention):
        cap: float | None = None
        """Bounds the logits."""

    plain = config_of("marian")
    for cap, expected in (
        (None, []),
        (30.0, ["decoder.self_attention.cap must be None; received 30.0"]),
    ):
        own = Capped(cap=cap, **vars(plain.decoder.self_attention))
        config = plain.replace(decoder=replace(plain.decoder, self_attention=own))
        assert [str(one) for one in one_level.obstacles(config, {}, get_dialect("marian").mentions)] == expected
        assert get_dialect("marian").refusals(config) == expected


@pytest.mark.parametrize("name", ["pytorch", "marian", "t5"])
def test_options_that_are_no_part_of_the_function_are_never_refused(name: str, unchecked: None) -> None:
    config = config_of(name).replace(
        dropout_rate=0.5, attention_dropout_rate=0.3, embedding_dropout_rate=0.2, initializer="torch",
        compute_dtype="bfloat16", attention_path="flash", layer_loop="unrolled", remat="all",
    )  # fmt: skip
    assert get_dialect(name).refusals(config) == []
    assert get_dialect(name).refusals(with_part(config, "decoder.dropout", rate=0.1)) == []


# --- stacks that differ


@pytest.mark.parametrize(
    ("path", "options", "expected"),
    [
        (
            "decoder.norm",
            {"eps": 1e-3},
            "decoder.norm.eps must be 1e-05, as encoder.norm.eps is: one norm_eps applies to all; received 0.001",
        ),
        ("decoder.norm", {"bias": False}, "decoder.norm.bias must be True; received False"),
        ("encoder.norm", {"scale": False}, "encoder.norm.scale must be True; received False"),
        ("decoder.cross_attention", {"scale": 2.0}, "decoder.cross_attention.scale must be None; received 2.0"),
        (
            "decoder.cross_attention",
            {"num_heads": 4},
            "decoder.cross_attention.num_heads must be 3, as decoder.self_attention.num_heads is: one "
            "decoder_num_heads applies to all; received 4",
        ),
        ("decoder.self_attention", {"bias": False}, "decoder.self_attention.bias must be True; received False"),
        ("decoder.feed_forward", {"gated": True}, "decoder.feed_forward.gated must be False; received True"),
        ("decoder.positions", {"offset": 3}, "decoder.positions.offset must be 0; received 3"),
        ("decoder.residual", {"parallel": True}, "decoder.residual.parallel must be False; received True"),
        (
            "encoder.self_attention",
            {"padding_id": 3},
            "encoder.self_attention.padding_id must be None; received 3",
        ),
        ("decoder", {"share_layers": True}, "decoder.share_layers must be False; received True"),
    ],
)
@pytest.mark.parametrize("name", ["pytorch", "marian"])
def test_an_option_in_which_stacks_differ_is_refused_by_its_path(
    name: str, path: str, options: dict[str, Any], expected: str, unchecked: None
) -> None:
    config = with_part(config_of(name), path, **options)
    assert get_dialect(name).refusals(config) == [expected]
    with pytest.raises(PortingError, match=f"dialect {name} has no models of this config"):
        get_dialect(name).check_config(config)


def test_parts_of_another_kind_are_refused(unchecked: None) -> None:
    config = config_of("marian")
    other = config.replace(decoder=replace(config.decoder, norm=RmsNorm()))
    (problem,) = get_dialect("marian").refusals(other)
    assert problem == "decoder.norm.kind must be 'layer_norm'; received 'rms_norm'"
    none = config.replace(decoder=replace(config.decoder, feed_forward=None))
    assert "decoder.feed_forward must be True; received False" in get_dialect("marian").refusals(none)
    normed = with_part(config, "decoder.self_attention", output_norm=True)
    assert get_dialect("marian").refusals(normed) == ["decoder.self_attention.output_norm must be False; received True"]


@pytest.mark.parametrize("name", [name for name in FAMILIES if not get_dialect(name).may_differ])
def test_no_directory_holds_two_eps_or_two_rates_of_dropout(name: str, unchecked: None, tmp_path: Path) -> None:
    config = make_config(name)
    for path, options, expected in (
        ("decoder.norm", {"eps": 1e-3}, "decoder.norm.eps must be"),
        ("decoder.dropout", {"rate": 0.7}, "dropout_rate must be one value in all places; received encoder.dropout="),
    ):
        model = make_model(with_part(config, path, **options))
        with pytest.raises(PortingError) as error:
            export_checkpoint(model, tmp_path / "there", name)
        assert any(problem.startswith(expected) for problem in error.value.problems)
        assert not (tmp_path / "there").exists()


def test_a_directory_and_a_file_keep_what_may_differ_between_the_stacks(tmp_path: Path) -> None:
    """Here BERT's encoder and RoBERTa's decoder; another norm than both have is refused by its place."""
    config = with_part(make_config("encoder_decoder"), "encoder.norm", eps=1e-3)
    config = with_part(config, "encoder.positions", index="column", offset=0, trains_pad=True)
    config = with_part(config, "encoder", token_types=4)
    rates = {"rate": 0.1, "attention": 0.2, "feed_forward": 0.0}
    config = with_part(with_part(config, "encoder.dropout", **rates), "decoder.dropout", **rates | {"rate": 0.3})
    for path in (tmp_path / "directory", tmp_path / "model.safetensors"):
        export_checkpoint(make_model(config), path, "encoder_decoder")
        assert import_checkpoint(path).config == config
    problems = get_dialect("encoder_decoder").refusals(with_part(config, "decoder.norm", unbiased=True))
    assert problems == ["decoder.norm.unbiased must be False; received True"]


def test_a_file_keeps_rates_of_dropout_that_differ(unchecked: None, tmp_path: Path) -> None:
    config = with_part(make_config("bart"), "decoder.dropout", rate=0.7, embedding=0.2)
    export_checkpoint(make_model(config), tmp_path / "model.safetensors", "bart")
    assert import_checkpoint(tmp_path / "model.safetensors").config == config
    again = import_checkpoint(tmp_path / "model.safetensors", dropout_rate=0.3).config
    assert (again.encoder.dropout.rate, again.decoder.dropout.rate, again.decoder.dropout.embedding) == (0.3, 0.3, 0.2)


# --- settings in files


def test_settings_leave_out_what_all_models_of_a_dialect_have() -> None:
    model = make_model(make_config("bart", dropout_rate=0.4))
    settings = json.loads(settings_text(model, get_dialect("bart")))
    assert settings["version"] == 1  # which earlier versions read
    assert settings["config"]["dropout_rate"] == 0.4
    assert settings["config"]["num_heads"] == 3
    assert not {"share_layers", "head_scale", "final_norm", "rotary_base"} & settings["config"].keys()


def test_a_map_of_names_has_models_whose_stacks_differ(unchecked: None, tmp_path: Path) -> None:
    """Its files hold the whole config, in its parts, so that the way back needs no config."""
    config = with_part(with_part(MAPPED, "decoder.norm", eps=1e-3), "decoder.cross_attention", scale=0.5)
    model = import_checkpoint(make_tensors(), names=NameMap.parse(MAP, "map"), config=config, eos_id=3)
    assert model.config == config
    export_checkpoint(model, tmp_path / "model.safetensors")
    again = import_checkpoint(tmp_path / "model.safetensors", names=NameMap.parse(MAP, "map"), config=None)
    assert again.config == config
    other = dataclasses.replace(again, config=with_part(config, "decoder.norm", eps=1e-2))
    with pytest.raises(PortingError, match=r"must be encoder.norm.eps=1e-06, decoder.norm.eps=0.001, as in"):
        export_checkpoint(other, tmp_path / "other.safetensors")


def test_settings_of_parts_have_a_version_of_their_own(unchecked: None) -> None:
    """An earlier version refuses them, and says that a newer one wrote them."""
    config = with_part(MAPPED, "decoder.norm", eps=1e-3)
    names = NameMap.parse(MAP, "map")
    table = dialect_of_map(names, names.rules(), lambda config: {})
    text = settings_text(Model(config, {}, None, None, GenerationConfig()), table, MAP)
    assert json.loads(text)["version"] == 2
    settings = parse_settings(text, "the file")
    assert settings.parts is not None
    assert config_from_plain(settings.parts) == config
    with pytest.raises(PortingError, match="expected in its metadata the settings that export_checkpoint writes"):
        parse_settings(text.replace('"parts": {', '"parts": 1, "others": {'), "the file")
