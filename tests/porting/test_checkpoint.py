"""What comes around a state_dict: dicts, prefixes, and tables that it doesn't hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jax_transformer.config.recipes import sayhello
from jax_transformer.porting import export_checkpoint, import_checkpoint
from jax_transformer.porting.checkpoint import open_checkpoint
from jax_transformer.porting.dialects import candidates, get_dialect
from jax_transformer.porting.importing import read_checkpoint
from jax_transformer.storage.tensor_files import read_tensors
from jax_transformer.storage.tensors import PortingError

torch = pytest.importorskip("torch")

HINTS: dict[str, Any] = {"num_heads": 2, "source_pad_id": 0, "target_pad_id": 0}


def state_dict(bias: bool = False) -> dict[str, Any]:
    """Of sayhello's program: 1+1 layers of width 4."""
    from torch_reference.sayhello import SayhelloTransformer

    model = SayhelloTransformer(
        source_vocab_size=7,
        target_vocab_size=6,
        d_model=4,
        num_heads=2,
        d_ff=5,
        num_encoder_layers=1,
        num_decoder_layers=1,
        attention_bias=bias,
    )
    return model.state_dict()


def known(names: Any) -> bool:
    return bool(candidates(names))


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.module.", "model."])
def test_a_prefix_of_all_names_is_taken_off_and_put_back(tmp_path: Path, prefix: str) -> None:
    tensors = {prefix + name: tensor for name, tensor in state_dict().items()}
    model = import_checkpoint(tensors, **HINTS)
    assert model.origin is not None
    assert model.origin["prefix"] == prefix
    export_checkpoint(model, tmp_path / "back.pt")
    back = read_tensors(tmp_path / "back.pt")
    assert list(back) == list(tensors)
    assert all(np.array_equal(back[name], tensor) for name, tensor in tensors.items())


def test_names_that_are_known_keep_what_they_share() -> None:
    encoder_only = {name: tensor for name, tensor in state_dict().items() if name.startswith("encoder.")}
    assert open_checkpoint(encoder_only, known).prefix == ""
    with pytest.raises(PortingError, match=r"decoder\.emb\.tok_emb\.weight"):
        import_checkpoint(encoder_only, **HINTS)


def test_a_state_dict_among_other_things_is_opened(tmp_path: Path) -> None:
    optimizer = {"state": {0: {"step": torch.ones(())}}, "param_groups": [{"lr": 0.1}]}
    path = tmp_path / "training.pt"
    torch.save({"epoch": 3, "model_state_dict": state_dict(), "optimizer": optimizer, "loss": torch.ones(())}, path)
    checkpoint = open_checkpoint(path, known)
    assert checkpoint.inside == "model_state_dict"
    assert checkpoint.described() == "the state_dict lies under 'model_state_dict'"
    assert list(checkpoint.tensors) == list(state_dict())


@pytest.mark.parametrize("prefix", ["", "module."])
def test_the_one_of_a_known_model_is_meant(prefix: str) -> None:
    tensors = {prefix + name: tensor for name, tensor in state_dict().items()}
    checkpoint = open_checkpoint({"metrics": {"loss": torch.ones(())}, "model": tensors, "epoch": 2}, known)
    assert (checkpoint.inside, checkpoint.prefix) == ("model", prefix)


def test_a_state_dict_further_inside_is_opened() -> None:
    checkpoint = open_checkpoint({"checkpoint": {"model": state_dict(), "step": 3}, "args": {"lr": 0.1}}, known)
    assert checkpoint.inside == "checkpoint.model"
    assert list(checkpoint.tensors) == list(state_dict())


def test_names_without_the_models_prefix_are_unexpected() -> None:
    """As a loss's weight beside a model in a Lightning module."""
    tensors = {f"model.{name}": tensor for name, tensor in state_dict().items()} | {"criterion.weight": torch.ones(6)}
    assert open_checkpoint(tensors, known).prefix == "model."
    with pytest.raises(PortingError) as error:
        import_checkpoint(tensors, "sayhello", **HINTS)
    assert len(error.value.problems) == 1
    assert error.value.problems[0].startswith("unexpected tensor criterion.weight (6,)")


def test_several_state_dicts_are_named_and_none_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "several.pt"
    torch.save({"model": state_dict(), "ema": state_dict(), "epoch": 3}, path)
    with pytest.raises(
        PortingError, match=r"several.pt: expected one state_dict; received several, under 'model', 'ema'"
    ):
        open_checkpoint(path, known)
    with pytest.raises(PortingError, match=r"state_dict: expected one state_dict; received several, under 'a', 'b'"):
        open_checkpoint({"a": {"x": np.ones(1)}, "b": {"x": np.ones(1)}}, known)
    torch.save({"epoch": 3, "nothing": {}}, path)
    with pytest.raises(PortingError, match=r"received also 'epoch' \(int\), 'nothing' \(dict\)"):
        open_checkpoint(path, known)


def test_parts_of_one_model_that_lie_side_by_side_are_joined() -> None:
    """As OpenNMT-py saves its head."""
    whole = state_dict()
    rest = {name: tensor for name, tensor in whole.items() if not name.startswith("decoder.linear.")}
    head = {name.removeprefix("decoder.linear."): whole[name] for name in whole.keys() - rest.keys()}
    assert head
    checkpoint = open_checkpoint({"model": rest, "generator": head, "epoch": 3}, lambda names: False)
    assert checkpoint.described() == "the state_dict lies under 'model', and its part 'generator' lies next to it"
    assert {*checkpoint.tensors} == {*rest, *(f"generator.{name}" for name in head)}
    assert all(np.array_equal(checkpoint.tensors[f"generator.{name}"], head[name]) for name in head)
    # other things beside a model that is known are no parts of it
    assert {*open_checkpoint({"model": whole, "metrics": {"loss": torch.ones(())}}, known).tensors} == {*whole}
    # and copies aren't, nor what lies elsewhere
    for several in ({"model": rest, "ema": rest}, {"model": rest, "inner": {"generator": head}}):
        with pytest.raises(
            PortingError, match=r"received several.*on its own or, if all are parts of one model, as one"
        ):
            open_checkpoint(several, lambda names: False)


# --- names that fit several


def test_relatives_are_told_apart_by_name_alone() -> None:
    with pytest.raises(PortingError, match="say which this is") as error:
        import_checkpoint(state_dict(bias=True), **HINTS)
    assert [problem.split(":")[0] for problem in error.value.problems] == [
        "dialect='sayhello'",
        "dialect='hyunwoongko'",
    ]
    ours, theirs = (
        import_checkpoint(state_dict(bias=True), name, **HINTS).config for name in ("sayhello", "hyunwoongko")
    )
    assert (ours.norm_unbiased, theirs.norm_unbiased) == (True, False)
    assert import_checkpoint(state_dict(), **HINTS).config.attention_bias is False


def test_what_follows_from_hints() -> None:
    config = import_checkpoint(state_dict(), **HINTS | {"source_pad_id": 2, "target_pad_id": 3}).config
    assert config.decoder_padding_id == 2
    assert config.dropout_rate == sayhello().model.dropout_rate
    assert import_checkpoint(state_dict(), **HINTS, dropout_rate=0.3).config.dropout_rate == 0.3


# --- position tables


def test_a_position_table_is_computed_or_given(tmp_path: Path) -> None:
    computed = import_checkpoint(state_dict(), **HINTS)
    assert computed.config.max_length == 256
    np.testing.assert_array_equal(computed.params["constants"]["encoder_positions"][0], [0.0, 1.0, 0.0, 1.0])
    table = np.random.default_rng(0).standard_normal((9, 4)).astype(np.float32)
    np.save(tmp_path / "table.npy", table)
    torch.save(torch.from_numpy(table), tmp_path / "alone.pt")
    torch.save({"positions": torch.from_numpy(table)}, tmp_path / "named.pt")
    for given in (
        table,
        torch.from_numpy(table),
        tmp_path / "table.npy",
        str(tmp_path / "alone.pt"),
        tmp_path / "named.pt",
    ):
        model = import_checkpoint(state_dict(), **HINTS, position_table=given)
        assert model.config.max_length == 9
        for stack in ("encoder", "decoder"):
            np.testing.assert_array_equal(model.params["constants"][f"{stack}_positions"], table)
    hints = {**HINTS, "position_table": table}
    read_checkpoint(state_dict(), None, hints)
    assert hints.keys() == {*HINTS, "position_table"}  # of which `port` lists those that it assumed
    export_checkpoint(model, tmp_path / "back.pt")
    assert list(read_tensors(tmp_path / "back.pt")) == list(state_dict())
    half = import_checkpoint(state_dict(), **HINTS, position_table=torch.from_numpy(table).bfloat16())
    assert half.params["constants"]["encoder_positions"].dtype.name == "bfloat16"


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (np.zeros((9, 5), np.float32), r"expected \[rows, d_model\] = \[9, 4\]; received \[9, 5\]"),
        (np.zeros(9), r"expected floating-point numbers \[rows, d_model\]; received float64 \[9\]"),
        (np.zeros((9, 4), int), r"received int64 \[9, 4\]"),
        (np.array([[0.0, np.nan, np.inf, 0.0]]), r"position_table \[1, 4\]: 2 values are not finite"),
        ("nowhere.npy", "nowhere.npy: truncated, or no .npy file"),
    ],
)
def test_other_position_tables_are_refused(table: Any, message: str) -> None:
    with pytest.raises(PortingError, match=message):
        import_checkpoint(state_dict(), **HINTS, position_table=table)


def test_a_table_beside_one_that_the_checkpoint_holds_is_refused() -> None:
    assert not get_dialect("floydhub").computes_positions
    with pytest.raises(PortingError, match="checkpoints of dialect floydhub hold their own"):
        import_checkpoint({"encoder.embed.embed.weight": np.zeros((2, 2))}, "floydhub", position_table=np.zeros((2, 2)))
