"""Importing and exporting through the `pytorch` table, without PyTorch: state_dicts are made of NumPy arrays."""

import dataclasses

import jax
import ml_dtypes
import numpy as np
import pytest

from jax_transformer.config.decoding import GenerationConfig
from jax_transformer.config.model import TransformerConfig
from jax_transformer.mapping.rules import Rule
from jax_transformer.model.functional import abstract_params
from jax_transformer.porting import dialects, export_checkpoint, import_checkpoint
from jax_transformer.porting.dialects import detect, get_dialect, pytorch
from jax_transformer.porting.state_dicts import params_from_state_dict, state_dict_from_params
from jax_transformer.runtime.trees import flatten
from jax_transformer.storage.model_directory import Model, load_model, save_model
from jax_transformer.storage.tensor_files import read_tensors
from jax_transformer.storage.tensors import PortingError

CONFIG = TransformerConfig(
    source_vocab_size=13,
    target_vocab_size=11,
    d_model=12,
    num_heads=3,
    d_ff=7,
    num_encoder_layers=2,
    num_decoder_layers=3,
    max_length=9,
    source_pad_id=1,
    target_pad_id=2,
    norm_placement="pre",
    activation="gelu",
    final_norm=True,
)
HINTS = {
    "num_heads": 3,
    "norm_placement": "pre",
    "activation": "gelu",
    "source_pad_id": 1,
    "target_pad_id": 2,
    "decoder_start_id": 3,
    "eos_id": 4,
}


def make_params(config=CONFIG, dtype="float32"):
    rng = np.random.default_rng(0)
    params = jax.tree.map(lambda leaf: rng.standard_normal(leaf.shape).astype(dtype), abstract_params(config))
    params["constants"]["decoder_positions"] = params["constants"]["encoder_positions"].copy()
    return params


def make_state_dict(config=CONFIG):
    return state_dict_from_params(config, make_params(config), "pytorch")


def assert_same_params(received, expected):
    received, expected = flatten(received), flatten(expected)
    assert list(received) == list(expected)
    for path, leaf in expected.items():
        assert received[path].dtype == leaf.dtype
        assert received[path].tobytes() == leaf.tobytes(), path


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
@pytest.mark.parametrize("dtype", ["float32", "float64", ml_dtypes.bfloat16])
def test_export_then_import(suffix, dtype, tmp_path):
    if suffix == ".pt":
        pytest.importorskip("torch")
    model = Model(CONFIG, make_params(dtype=dtype), None, None, GenerationConfig(decoder_start_id=3, eos_id=4))
    export_checkpoint(model, tmp_path / f"model{suffix}", "pytorch")
    received = import_checkpoint(tmp_path / f"model{suffix}", **HINTS)
    assert received.config == CONFIG
    assert received.generation == model.generation
    assert_same_params(received.params, model.params)
    assert set(received.origin["tensors"].values()) == {np.dtype(dtype).name}


def test_origin_keeps_dialect_and_order_through_a_model_directory(tmp_path):
    state_dict = make_state_dict()
    shuffled = {name: state_dict[name] for name in np.random.default_rng(0).permutation(list(state_dict))}
    save_model(import_checkpoint(shuffled, **HINTS), tmp_path / "model")
    export_checkpoint(load_model(tmp_path / "model"), tmp_path / "back.safetensors")  # needs no dialect
    back = state_dict_from_params(CONFIG, load_model(tmp_path / "model").params, "pytorch", list(shuffled))
    assert list(back) == list(shuffled)
    received = read_tensors(tmp_path / "back.safetensors")
    assert all(received[name].tobytes() == shuffled[name].tobytes() for name in shuffled)


def test_what_a_state_dict_does_not_tell_is_asked_for_together():
    with pytest.raises(PortingError) as error:
        import_checkpoint(make_state_dict())
    assert [problem.split(":")[0] for problem in error.value.problems] == [
        "num_heads",
        "norm_placement",
        "activation",
        "source_pad_id",
        "target_pad_id",
    ]


@pytest.mark.parametrize("share", [False, True])
@pytest.mark.parametrize("tie", [False, True])
def test_ties(share, tie):
    """Equal tensors may be one parameter: it is asked for. Unequal ones can't be."""
    config = dataclasses.replace(CONFIG, source_vocab_size=11, share_embeddings=share, tie_head=tie)
    state_dict = make_state_dict(config)
    sharing = {"share_embeddings": share, "tie_head": tie}
    model = import_checkpoint(state_dict, **HINTS, **sharing)
    assert model.config == config
    assert_same_params(model.params, make_params(config))
    if share or tie:
        with pytest.raises(PortingError) as error:
            import_checkpoint(state_dict, **HINTS)
        assert [problem.split(":")[0] for problem in error.value.problems] == [
            name for name, value in sharing.items() if value
        ]
    else:
        assert import_checkpoint(state_dict, **HINTS).config == config
    with pytest.raises(PortingError, match="tied tensors") if not (share and tie) else pytest.raises(PortingError):
        import_checkpoint(
            state_dict | {"head.weight": np.ones((11, 12), "float32")}, **HINTS, share_embeddings=True, tie_head=True
        )


def test_norm_first_is_the_same_as_norm_placement():
    hints = {name: value for name, value in HINTS.items() if name != "norm_placement"}
    assert import_checkpoint(make_state_dict(), norm_first=True, **hints).config == CONFIG
    assert import_checkpoint(make_state_dict(), norm_first=False, **hints).config.norm_placement == "post"


@pytest.mark.parametrize(
    ("hints", "expected"),
    [
        (
            {"feed_forward_layers": 3},
            "feed_forward_layers isn't supported: a feed-forward has two linear maps, or none with feed_forward: false",
        ),
        ({"num_head": 3}, "num_head: no such hint (nearest: num_heads)"),
        ({"norm_first": False}, "norm_first=False contradicts norm_placement='pre'"),
        ({"norm_first": "yes"}, "norm_first must be True or False; received 'yes'"),
        ({"d_model": 16}, "d_model: the checkpoint says 12; received 16"),
        ({"final_norm": False}, "final_norm: the dialect says True; received False"),
        ({"num_heads": 5}, "num_heads must be a divisor of d_model=12 unless head_dim is set; received 5"),
        ({"activation": "silu"}, "activation must be 'relu' or 'gelu'; received 'silu'"),
        ({"activation": "swish"}, "activation must be one of relu, gelu"),
        ({"source_pad_id": 13}, "source_pad_id must be below source_vocab_size=13; received 13"),
        ({"eos_id": -1}, "eos_id must be at least 0; received -1"),
    ],
)
def test_hints_that_are_wrong(hints, expected):
    with pytest.raises(PortingError) as error:
        import_checkpoint(make_state_dict(), **{**HINTS, **hints})
    assert expected in str(error.value)


def test_other_hints_reach_the_config():
    config = import_checkpoint(
        make_state_dict(), **HINTS, norm_eps=1e-6, dropout_rate=0.3, compute_dtype="bfloat16"
    ).config
    assert (config.norm_eps, config.dropout_rate, config.compute_dtype) == (1e-6, 0.3, "bfloat16")


def test_a_broken_checkpoint_is_refused_with_everything_that_is_wrong():
    state_dict = make_state_dict()
    name = "transformer.decoder.layers.1.multihead_attn.in_proj_weight"
    state_dict["transformer.decoder.layers.1.multihead_attn.q_proj_weight"] = state_dict.pop(name)[:12]
    state_dict["head.bias"][3] = np.nan
    with pytest.raises(PortingError) as error:
        import_checkpoint(state_dict, **HINTS)
    assert len(error.value.problems) == 3
    assert f"missing tensor {name}: expected shape (36, 12)" in str(error.value)


def test_heads_that_do_not_divide_the_width_are_told_with_all_else():
    state_dict = make_state_dict()
    del state_dict["transformer.encoder.norm.bias"]
    with pytest.raises(PortingError, match=r"num_heads must be a divisor of d_model=12 .*; received 5") as error:
        import_checkpoint(state_dict, **HINTS | {"num_heads": 5})
    assert error.value.problems == ["missing tensor transformer.encoder.norm.bias: expected shape (12,)"]
    with pytest.raises(PortingError, match=r"num_heads must be a divisor of d_model=12 .*; received 5$"):
        import_checkpoint(make_state_dict(), **HINTS | {"num_heads": 5})


def test_what_else_is_wrong_is_told_where_sizes_cannot_be_told():
    state_dict = make_state_dict()
    del state_dict["transformer.encoder.layers.0.linear1.weight"]
    state_dict["head.bias"][3] = np.nan
    with pytest.raises(PortingError, match="this is no checkpoint of dialect pytorch") as error:
        import_checkpoint(state_dict, num_heads=3, source_pad_id=1)
    problems = [problem.split(",")[0].split(" (")[0] for problem in error.value.problems]
    assert problems == [
        "missing tensor transformer.encoder.layers.0.linear1.weight",
        "tensor head.bias",
        "target_pad_id: the id that pads target sentences",
    ]


def test_numbers_that_a_checkpoint_does_not_hold_are_its_programs(tmp_path):
    model = Model(dataclasses.replace(CONFIG, norm_eps=1e-6), make_params(), None, None, GenerationConfig())
    with pytest.raises(PortingError, match=r"norm_eps must be 1e-05, as in its programs; received 1e-06"):
        export_checkpoint(model, tmp_path / "model.safetensors", "pytorch")
    imported = import_checkpoint(make_state_dict(), **HINTS, norm_eps=1e-6)
    export_checkpoint(imported, tmp_path / "model.safetensors")
    other = dataclasses.replace(imported, config=dataclasses.replace(imported.config, norm_eps=1e-5))
    with pytest.raises(
        PortingError, match=r"norm_eps must be 1e-06, as in the checkpoint that was imported; received 1e-05"
    ):
        export_checkpoint(other, tmp_path / "model.safetensors")


def test_a_model_can_be_taken_apart_on_the_way(tmp_path):
    model = import_checkpoint(make_state_dict(), **HINTS)
    export_checkpoint(model, tmp_path / "kept.safetensors")
    assert_same_params(model.params, make_params())
    export_checkpoint(model, tmp_path / "taken.safetensors", consume=True)
    assert model.params == {}
    assert (tmp_path / "taken.safetensors").read_bytes() == (tmp_path / "kept.safetensors").read_bytes()


def test_ids_beyond_the_vocabulary_are_refused():
    with pytest.raises(PortingError) as error:
        import_checkpoint(make_state_dict(), **HINTS | {"decoder_start_id": 11, "eos_id": 12})
    assert error.value.problems == [
        "decoder_start_id must be below target_vocab_size=11; received 11",
        "eos_id must be below target_vocab_size=11; received 12",
    ]


def test_a_layer_after_a_gap_is_unexpected():
    """However large its number."""
    state_dict = make_state_dict() | {"transformer.encoder.layers.999999999.norm1.bias": np.zeros(12, np.float32)}
    with pytest.raises(PortingError) as error:
        import_checkpoint(state_dict, **HINTS)
    assert len(error.value.problems) == 1
    assert error.value.problems[0].startswith("unexpected tensor transformer.encoder.layers.999999999.norm1.bias (12,)")


def test_a_missing_layer_is_found():
    state_dict = {name: tensor for name, tensor in make_state_dict().items() if "encoder.layers.0." not in name}
    with pytest.raises(
        PortingError, match=r"transformer\.encoder\.layers\.0\.linear1\.weight, which gives the model's size"
    ) as error:
        import_checkpoint(state_dict, dialect="pytorch", **HINTS)
    assert "no tensor starts with transformer.encoder.layers.0." in str(error.value)


def test_sizes_that_cannot_be_told_are_named_together():
    with pytest.raises(PortingError) as error:
        import_checkpoint({"positions": np.zeros(3), "head.weight": np.zeros((2, 2))}, dialect="pytorch", **HINTS)
    message = str(error.value)
    assert message.count("source_embedding.weight") == 1
    assert "tensor positions: expected 2 axes; received shape (3,)" in message
    assert "no tensor starts with transformer.decoder.layers.0." in message


# --- recognising


def test_detection_never_guesses(monkeypatch):
    assert detect(make_state_dict()).name == "pytorch"
    with pytest.raises(PortingError, match="no known dialect has tensors of these names"):
        import_checkpoint({"encoder.weight": np.ones(2)}, **HINTS)
    with pytest.raises(
        PortingError, match=r"dialect must be one of pytorch, floydhub, .*; received 'torch' \(nearest: pytorch\)"
    ):
        get_dialect("torch")

    twin = dataclasses.replace(pytorch.DIALECT, name="twin", title="the same keys, other numbers")
    monkeypatch.setattr(dialects, "all_dialects", lambda: {"pytorch": pytorch.DIALECT, "twin": twin})
    with pytest.raises(PortingError, match="say which") as error:
        detect(make_state_dict())
    assert [problem.split(":")[0] for problem in error.value.problems] == ["dialect='pytorch'", "dialect='twin'"]


def test_every_dialect_is_found_by_its_name():
    assert len(dialects.all_dialects()) == 35
    for name, dialect in dialects.all_dialects().items():
        assert get_dialect(name) is dialect
        assert dialect.name == name


# --- what the dialect has no place for


REFUSED = [
    ("scale_embedding", False),
    ("trains_pad_embedding", False),
    ("final_norm", False),
    ("activation", "silu"),
    ("head_bias", "buffer"),
    ("position_layout", "halves"),
    ("norm_eps_outside", True),
    ("decoder_padding", "both"),
    ("decoder_num_heads", 4),
    ("decoder_d_ff", 8),
    ("decoder_max_length", 10),
    ("head_dim", 5),
    ("decoder_padding_id", 7),
    ("masked_value", -1e9),
    ("attention_scale", 1.0),
    ("feed_forward_gated", True),
    ("decoding_cross_padding", "none"),
]


@pytest.mark.parametrize(("field", "value"), REFUSED)
def test_a_config_that_it_cannot_express_is_refused_by_field(field, value):
    config = dataclasses.replace(CONFIG, **{field: value})
    with pytest.raises(PortingError) as error:
        state_dict_from_params(config, {}, "pytorch")
    assert any(
        problem.startswith(f"{field} must be") and f"received {value!r}" in problem for problem in error.value.problems
    )


def test_tied_names_have_the_same_array():
    """So that a torch file has it once, and what is loaded is tied."""
    config = dataclasses.replace(CONFIG, source_vocab_size=11, share_embeddings=True, tie_head=True)
    arrays = list(state_dict_from_params(config, make_params(config), "pytorch").values())
    ids = [id(array) for array in arrays]
    assert len(ids) - len(set(ids)) == 2  # the two embeddings and the head
    assert not any(np.shares_memory(one, other) for one in arrays for other in arrays if one is not other)


@pytest.mark.parametrize(
    ("field", "value"), [("decoder_num_heads", 3), ("decoder_d_ff", 7), ("head_dim", 4), ("decoder_padding_id", 2)]
)
def test_the_same_said_otherwise_is_expressed(field, value):
    config = dataclasses.replace(CONFIG, **{field: value})
    assert list(state_dict_from_params(config, make_params(config), "pytorch")) == list(make_state_dict())


def test_unequal_position_tables_are_refused():
    params = make_params()
    params["constants"]["decoder_positions"][2, 3] += 1
    with pytest.raises(PortingError, match="leaves that positions holds once"):
        state_dict_from_params(CONFIG, params, "pytorch")


def test_export_needs_a_dialect_for_a_model_that_was_not_imported(tmp_path):
    model = Model(CONFIG, make_params(), None, None, GenerationConfig(decoder_start_id=3, eos_id=4))
    with pytest.raises(PortingError, match="a dialect must be given: one of pytorch, floydhub"):
        export_checkpoint(model, tmp_path / "a.safetensors")


def test_a_dialect_may_compute_what_its_checkpoints_do_not_hold():
    """Another program's table, whose positions are no part of its state_dict."""
    table = dataclasses.replace(
        pytorch.DIALECT,
        name="toy",
        rules=lambda config: [rule for rule in pytorch.rules(config) if rule.names != ("positions",)],
        computed=lambda config: {
            f"constants/{stack}_positions": np.ones((9, 12), "float32") for stack in ("encoder", "decoder")
        },
    )
    state_dict = make_state_dict()
    del state_dict["positions"]
    params = params_from_state_dict(CONFIG, state_dict, table)
    assert (params["constants"]["encoder_positions"] == 1).all()
    assert list(state_dict_from_params(CONFIG, params, table)) == list(state_dict)
    assert isinstance(table.rules(CONFIG)[0], Rule)
