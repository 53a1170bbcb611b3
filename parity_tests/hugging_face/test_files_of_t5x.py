"""Checkpoints in T5X's formats: read with the logits of transformers, written with the same bits, refused."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorstore
import torch
import transformers
from flax import serialization

from jax_transformer import apply, import_checkpoint
from jax_transformer.cli import main
from jax_transformer.porting import export_checkpoint

LAYERS = {"encoder": 2, "decoder": 3}
SIZES: dict[str, Any] = {"vocab_size": 37, "d_model": 8, "d_kv": 4, "num_heads": 2, "d_ff": 10, "num_layers": 2}
ATTENTIONS = {
    "encoder": {"layer.0.SelfAttention": "attention"},
    "decoder": {"layer.0.SelfAttention": "self_attention", "layer.1.EncDecAttention": "encoder_decoder_attention"},
}
NORMS = {
    "encoder": {"layer.0": "pre_attention_layer_norm", "layer.1": "pre_mlp_layer_norm"},
    "decoder": {
        "layer.0": "pre_self_attention_layer_norm",
        "layer.1": "pre_cross_attention_layer_norm",
        "layer.2": "pre_mlp_layer_norm",
    },
}
Arrays = dict[str, np.ndarray]


def made(family: str, *, is_gated: bool, is_tied: bool) -> Any:
    """Returns a model of transformers with random weights."""
    torch.manual_seed(0)
    module_class, config_class = {
        "t5": (transformers.T5ForConditionalGeneration, transformers.T5Config),
        "umt5": (transformers.UMT5ForConditionalGeneration, transformers.UMT5Config),
    }[family]
    config = config_class(
        **SIZES,
        num_decoder_layers=3,
        feed_forward_proj="gated-gelu" if is_gated else "relu",
        tie_word_embeddings=is_tied,
        decoder_start_token_id=0,
    )
    module = module_class(config).eval()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(0, 0.3)
    return module


def arrays_of(module: Any, *, with_head: bool) -> Arrays:
    """Returns a model's weights by T5X's paths, as its example t5 has them."""
    state = {name: tensor.numpy() for name, tensor in module.state_dict().items()}
    found = {"token_embedder/embedding": state["shared.weight"]}
    if with_head:
        found["decoder/logits_dense/kernel"] = state["lm_head.weight"].T
    for stack, count in LAYERS.items():
        found[f"{stack}/{stack}_norm/scale"] = state[f"{stack}.final_layer_norm.weight"]
        for i in range(count):
            block, layer = f"{stack}.block.{i}", f"{stack}/layers_{i}"
            for theirs, ours in ATTENTIONS[stack].items():
                for short, name in zip("qkvo", ("query", "key", "value", "out"), strict=True):
                    found[f"{layer}/{ours}/{name}/kernel"] = state[f"{block}.{theirs}.{short}.weight"].T
            for theirs, ours in NORMS[stack].items():
                found[f"{layer}/{ours}/scale"] = state[f"{block}.{theirs}.layer_norm.weight"]
            dense = f"{block}.layer.{len(NORMS[stack]) - 1}.DenseReluDense"
            for name in ("wi", "wi_0", "wi_1", "wo"):
                if f"{dense}.{name}.weight" in state:
                    found[f"{layer}/mlp/{name}/kernel"] = state[f"{dense}.{name}.weight"].T
            bias = f"{block}.layer.0.SelfAttention.relative_attention_bias.weight"
            if bias in state:
                place = layer if module.config.model_type == "umt5" else stack
                found[f"{place}/relpos_bias/rel_embedding"] = state[bias].T
    return {name: np.ascontiguousarray(array) for name, array in found.items()}


def scanned(arrays: Arrays) -> Arrays:
    """Returns the arrays as the example scalable_t5 scans them: layers on axis 1, and heads on an axis."""
    found = {name: array for name, array in arrays.items() if "layers_" not in name}
    for name, array in arrays.items():
        if "layers_0" not in name:
            continue
        stack, _, rest = name.split("/", 2)
        parts = [arrays[f"{stack}/layers_{i}/{rest}"] for i in range(LAYERS[stack])]
        if "attention/" in rest:
            shape = (2, 4, array.shape[1]) if rest.endswith("out/kernel") else (array.shape[0], 2, 4)
            parts = [part.reshape(shape) for part in parts]
        found[f"{stack}/{stack}/{rest}"] = np.stack(parts, axis=1)
    return found


def write(folder: Path, arrays: Arrays, *, old: bool = False, inline: bool = False) -> Path:
    """Writes a checkpoint of step 9: matrices in zarr, of chunks smaller than they are, and the rest in msgpack."""
    folder.mkdir(parents=True)
    tree: dict[str, Any] = {}
    for name, array in arrays.items():
        *parts, last = name.split("/")
        place = tree
        for part in parts:
            place = place.setdefault(part, {})
        place[last] = array if inline or array.ndim < 2 else write_zarr(folder, name, array, old=old)
    moments = {"m": np.zeros(1, np.float32), "v_row": np.ones(3, np.float32), "v_col": np.ones(3, np.float32)}
    state = {"step": np.int32(9), "param_states": {"token_embedder": {"embedding": moments}}}
    content = {"version": 3, "optimizer": {"target": tree, "state": state}}
    (folder / "checkpoint").write_bytes(serialization.msgpack_serialize(content))
    return folder


def write_zarr(folder: Path, name: str, array: np.ndarray, *, old: bool = False) -> dict[str, Any]:
    directory = f"target.{name.replace('/', '.')}"
    spec = {"driver": "zarr", "dtype": array.dtype.name}
    metadata = {
        "compressor": {"id": "gzip"},
        "shape": list(array.shape),
        "chunks": [-(-size // 2) for size in array.shape],
    }
    store = {"driver": "file", "path": f"{folder}/{directory}/"}
    tensorstore.open({**spec, "kvstore": store, "metadata": metadata}, create=True).result().write(array).result()
    if old:  # before TensorStore 0.1.14
        return {**spec, "kvstore": {"driver": "gfile"}, "path": directory, "metadata": metadata}
    return {**spec, "kvstore": {"driver": "file", "path": directory}, "metadata": metadata}


def read(folder: Path) -> Arrays:
    """Reads a checkpoint's parameters back."""
    tree = serialization.msgpack_restore((folder / "checkpoint").read_bytes())["optimizer"]["target"]

    def leaves(inner: dict[str, Any], prefix: str = "") -> Any:
        for key, value in inner.items():
            if isinstance(value, dict) and "driver" in value:
                path = value["kvstore"].get("path") or value["path"]
                store = {"driver": "zarr", "kvstore": {"driver": "file", "path": f"{folder}/{path}"}}
                yield prefix + key, tensorstore.open(store).result().read().result()
            elif isinstance(value, dict):
                yield from leaves(value, f"{prefix}{key}/")
            else:
                yield prefix + key, value

    return dict(leaves(tree))


def same(first: Arrays, second: Arrays) -> bool:
    return first.keys() == second.keys() and all(
        np.array_equal(array, second[name]) and array.dtype == second[name].dtype for name, array in first.items()
    )


KINDS = {
    "t5": ("t5", False, True, lambda arrays: arrays),
    "t5_1_1": ("t5", True, False, lambda arrays: arrays),
    "scanned": ("umt5", True, True, scanned),
}


@pytest.mark.parametrize("kind", KINDS)
def test_logits_equal_transformers_and_bits_return(kind: str, tmp_path: Path) -> None:
    family, is_gated, is_tied, layout = KINDS[kind]
    module = made(family, is_gated=is_gated, is_tied=is_tied)
    arrays = layout(arrays_of(module, with_head=not is_tied))
    write(tmp_path / "run" / "checkpoint_3", layout(arrays_of(module, with_head=not is_tied)), inline=True)
    write(tmp_path / "run" / "checkpoint_9", arrays, old=kind == "t5")
    model = import_checkpoint(tmp_path / "run")  # its last step
    assert (model.config.tie_head, model.config.scale_head) == (is_tied, is_tied)
    assert model.origin is not None
    assert model.origin["left"] == ["Adafactor's state (3 arrays)"]
    source, target = (np.random.default_rng(0).integers(1, 37, (2, length)) for length in (9, 6))
    source[1, 6:] = 0
    with torch.no_grad():
        expected = module(
            torch.tensor(source), attention_mask=torch.tensor(source > 0), decoder_input_ids=torch.tensor(target)
        ).logits.numpy()
    np.testing.assert_allclose(apply(model.config, model.params, source, target), expected, rtol=0, atol=1e-6)

    export_checkpoint(model, tmp_path / "back")
    assert same(read(tmp_path / "back"), arrays)


def test_arrays_inside_the_file_and_in_directories_of_orbax(tmp_path: Path) -> None:
    import orbax.checkpoint

    arrays = arrays_of(made("t5", is_gated=True, is_tied=False), with_head=True)
    expected = import_checkpoint(write(tmp_path / "zarr", arrays)).params["encoder"]["layers"]
    inside = import_checkpoint(write(tmp_path / "inside", arrays, inline=True)).params["encoder"]["layers"]
    assert np.array_equal(inside["self_attention"]["query"]["kernel"], expected["self_attention"]["query"]["kernel"])
    tree = serialization.msgpack_restore((tmp_path / "inside" / "checkpoint").read_bytes())["optimizer"]
    for is_ocdbt in (False, True):
        path = tmp_path / f"orbax_{is_ocdbt}"
        handler = orbax.checkpoint.PyTreeCheckpointHandler(use_ocdbt=is_ocdbt)
        with orbax.checkpoint.Checkpointer(handler) as checkpointer:
            checkpointer.save(path, tree)
        found = import_checkpoint(path).params["encoder"]["layers"]["feed_forward"]
        assert np.array_equal(found["gate"]["kernel"], expected["feed_forward"]["gate"]["kernel"])


def test_gin_decides_the_activation(tmp_path: Path) -> None:
    folder = write(tmp_path / "checkpoint_9", arrays_of(made("t5", is_gated=True, is_tied=False), with_head=True))
    text = "network.T5Config.mlp_activations = ('silu', 'linear')\nnetwork.T5Config.num_heads = %HEADS\n"
    (tmp_path / "config.gin").write_text(text + "network.T5Config.dropout_rate = 0.0\n")
    config = import_checkpoint(folder).config
    assert (config.activation, config.dropout_rate, config.output_dropout_rate) == ("silu", 0.0, 0.0)
    with pytest.raises(ValueError, match=r"config.gin says 'silu'; received 'relu'"):
        import_checkpoint(folder, activation="relu")


def without(name: str) -> Callable[[Path], None]:
    return lambda folder: next(folder.glob(name)).unlink()


def one_layer_more(folder: Path) -> None:
    content = serialization.msgpack_restore((folder / "checkpoint").read_bytes())
    scale = content["optimizer"]["target"]["decoder"]["decoder"]["pre_mlp_layer_norm"]
    scale["scale"] = np.ones((8, 4), np.float32)
    (folder / "checkpoint").write_bytes(serialization.msgpack_serialize(content))


def elsewhere(folder: Path) -> None:
    content = serialization.msgpack_restore((folder / "checkpoint").read_bytes())
    content["optimizer"]["target"]["token_embedder"]["embedding"]["kvstore"]["path"] = "../"
    (folder / "checkpoint").write_bytes(serialization.msgpack_serialize(content))


def half_written(folder: Path) -> None:
    path = folder / "checkpoint"
    path.write_bytes(path.read_bytes()[:200])


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (
            without("target.decoder.decoder.mlp.wo.kernel/.zarray"),
            "array target.decoder.decoder.mlp.wo.kernel is missing",
        ),
        (without("target.token_embedder.embedding/1.0"), "token_embedder/embedding: 1 of its chunks are missing"),
        (one_layer_more, r"one number of layers on axis 1; received 3 \(.*\), 4 \(decoder/decoder/pre_mlp_layer_norm"),
        (elsewhere, "token_embedder/embedding: expected an array in this directory; received '../'"),
        (half_written, "truncated, or no checkpoint of T5X"),
        (lambda folder: (folder / "checkpoint").write_text('model_checkpoint_path: "a"'), "Mesh TensorFlow"),
        (lambda folder: (folder / "checkpoint").write_bytes(serialization.msgpack_serialize({"a": 1})), "received a"),
    ],
    ids=["array", "chunk", "layers", "elsewhere", "half", "tensorflow", "other"],
)
def test_damaged_checkpoints_are_refused(
    damage: Callable[[Path], Any], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arrays = scanned(arrays_of(made("umt5", is_gated=True, is_tied=True), with_head=False))
    damage(write(tmp_path / "checkpoint_9", arrays))
    assert main(["port", str(tmp_path / "checkpoint_9"), str(tmp_path / "model")]) == 2
    assert re.search(message, capsys.readouterr().err)
    assert not (tmp_path / "model").exists()


def test_the_command_names_the_format(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arrays = scanned(arrays_of(made("umt5", is_gated=True, is_tied=True), with_head=False))
    write(tmp_path / "checkpoint_9", arrays)
    assert main(["port", str(tmp_path / "checkpoint_9"), "--inspect"]) == 0
    printed = capsys.readouterr().out
    assert "format: checkpoint of T5X, layers scanned" in printed
    assert "not read: Adafactor's state (3 arrays)" in printed
    assert main(["port", str(tmp_path / "checkpoint_9"), str(tmp_path / "model")]) == 0
    assert "activation=gelu_tanh" in capsys.readouterr().out
    assert main(["port", str(tmp_path / "model"), str(tmp_path / "hf"), "--dialect", "umt5"]) == 0
    assert json.loads((tmp_path / "hf" / "config.json").read_text())["model_type"] == "umt5"
    assert main(["port", str(tmp_path / "model"), str(tmp_path / "back")]) == 0
    assert same(read(tmp_path / "back"), arrays)
