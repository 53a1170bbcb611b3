"""Modules in many styles: what is found, that it computes the same, and what is refused, and how."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from jax_transformer.cli import main
from jax_transformer.config.model import TransformerConfig
from jax_transformer.config.short_names import flat
from jax_transformer.discover import DiscoverError, Discovery, discover
from jax_transformer.discover.checking import check_return
from jax_transformer.model import functional
from jax_transformer.porting import export_checkpoint
from tests.discover import programs
from tests.discover.programs import built

DEFAULTS = flat(TransformerConfig())


def unusual(found: Discovery) -> dict[str, Any]:
    """Returns the config's fields that aren't sizes and differ from their defaults."""
    sizes = re.compile(r"num_.*|d_.*|(decoder_)?max_.*|.*_size|.*_id")
    fields = {name: getattr(found.model.config, name) for name in DEFAULTS if not sizes.fullmatch(name)}
    return {name: value for name, value in fields.items() if value != DEFAULTS[name] and name != "dropout_rate"}


FOUND: dict[str, dict[str, Any]] = {
    "SequenceFirst": {"norm_placement": "pre", "final_norm": True},
    "Functional": {
        "share_embeddings": True, "tie_head": True, "scale_embedding": False, "head_bias": "none",
        "position_kind": "learned", "norm_kind": "rms_norm", "norm_eps": 1e-6, "norm_bias": False,
        "attention_bias": False, "attention_output_bias": False, "activation": "silu", "feed_forward_bias": False,
    },
    "SingleHeads": {
        "head_bias": "none", "norm_placement": "pre", "norm_eps": 1e-6, "norm_eps_outside": True, "norm_unbiased": True,
        "final_norm": True, "activation": "gelu", "trains_pad_embedding": False, "value_dim": 5,
        "context_norm": "attention",
    },
    "Modern": {
        "share_embeddings": True, "tie_head": True, "scale_embedding": False, "scale_head": True, "head_bias": "none",
        "position_kind": "rotary", "rotary_base": 500000.0, "norm_kind": "rms_norm", "norm_placement": "pre",
        "norm_eps": 1e-6, "norm_bias": False, "final_norm": True, "attention_bias": False,
        "attention_output_bias": False, "activation": "silu", "feed_forward_gated": True, "feed_forward_bias": False,
    },
    "Distances": {
        "share_layers": True, "position_kind": "relative_bias", "relative_max_distance": 20, "relative_buckets": 8,
        "residual_factor": 1.5, "decoder_residual_factor": 2.0, "embedding_factor": 3.0, "scale_embedding": False,
        "head_bias": "none", "activation": "leaky_relu", "activation_slope": 0.2, "attention_bias": False,
        "attention_output_bias": False, "attention_scale": 1.0, "trains_pad_embedding": False,
    },
    "SideBySide": {
        "parallel_residual": True, "share_norms": True, "norm_placement": "pre", "position_kind": "alibi",
        "scale_embedding": False, "final_norm": True, "learned_sublayer_scale": "channel", "attention_bias": False,
        "attention_output_bias": False, "feed_forward_bias": False, "activation": "relu_squared", "norm_bias": False,
    },
    "Mixed": {
        "scale_embedding": False, "decoder_position_kind": "learned", "activation": "gelu",
        "decoder_activation": "relu", "feed_forward_output_bias": False, "norm_scale_offset": 1.0,
        "logits_factor": 0.5,
    },
}  # fmt: skip


@pytest.mark.parametrize("name", FOUND)
def test_a_style_is_found(name: str, tmp_path: Path) -> None:
    module = built(name)
    before = {key: tensor.clone() for key, tensor in module.state_dict().items()}
    found = discover(module)
    assert found.worst <= 1e-12
    assert [check.weights for check in found.checks[:5]] == ["its own"] * 3 + ["larger", "its own"]
    assert unusual(found) == FOUND[name]
    assert all(torch.equal(tensor, before[key]) for key, tensor in module.state_dict().items())
    export_checkpoint(found.model, tmp_path / "back.pt")
    back = torch.load(tmp_path / "back.pt")
    assert {key: tensor.shape for key, tensor in back.items()} == {key: t.shape for key, t in before.items()}
    assert all(torch.equal(tensor, before[key]) for key, tensor in back.items())


def test_each_conclusion_has_a_residual_and_a_runner_up() -> None:
    lines = discover(built("SingleHeads")).conclusion_lines(every_layer=False)
    assert any(
        line.startswith("encoder/layers/feed_forward (×2): gelu (") and "; next gelu_tanh: " in line for line in lines
    )
    assert any("layer_norm, eps 1e-06, outside, unbiased" in line for line in lines)


class Trained(programs.Functional):
    """Returns the loss of each target token but the first, from logits of them all."""

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        logits = super().forward(source, target)["logits"][:, :-1]
        return torch.nn.functional.cross_entropy(logits.transpose(1, 2), target[:, 1:])


def test_a_module_that_returns_its_loss_is_discovered_like_one_that_returns_logits() -> None:
    torch.manual_seed(0)
    found = discover(Trained().eval())
    assert found.worst <= 1e-12
    assert unusual(found) == FOUND["Functional"]


class OneLength(programs.Functional):
    """Takes sentences of one length alone, as programs do that pad all to it."""

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> dict[str, torch.Tensor]:
        assert source.shape[1] == target.shape[1] == 36
        return super().forward(source, target)


def test_a_module_of_one_length_is_called_with_shorter_sentences_too() -> None:
    torch.manual_seed(0)
    module = OneLength().eval()
    found = discover(module)
    assert found.worst <= 1e-12
    assert found.notes[-1] == "sentences are padded to the only length that it takes: 36 and 36 tokens"
    source, target = torch.tensor([[5, 6, 7, 1, 1], [4, 9, 1, 8, 3]]), torch.tensor([[3, 4, 8], [9, 2, 2]])
    with torch.no_grad():
        theirs = found.call.wrap(module)(source, target).numpy()
    ours = np.asarray(functional.apply(found.model.config, found.model.params, source.numpy(), target.numpy()))
    np.testing.assert_allclose(ours, theirs, atol=2e-5 * np.abs(theirs).max())
    with pytest.raises(RuntimeError, match="negative dimension"):
        found.call.wrap(module)(source.repeat(1, 9), target)


class EqualLengths(programs.Functional):
    """Takes sources and targets of equal lengths alone."""

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> dict[str, torch.Tensor]:
        assert source.shape[1] == target.shape[1]
        return super().forward(source, target)


@pytest.mark.parametrize("size", [4, 13])
def test_a_module_of_equal_lengths_is_also_called_with_unequal_ones(size: int) -> None:
    torch.manual_seed(0)
    module = EqualLengths().eval()
    found = discover(module)
    assert found.worst <= 1e-12
    assert (found.call.max_source_length, found.call.max_target_length) == (36, 36)
    assert "source and target are padded to one length: it takes equal lengths alone" in found.notes
    source, target = torch.randint(2, 29, (2, 9)), torch.randint(2, 29, (2, size))
    with torch.no_grad():
        theirs = found.call.wrap(module)(source, target).numpy()
    ours = np.asarray(functional.apply(found.model.config, found.model.params, source.numpy(), target.numpy()))
    np.testing.assert_allclose(ours, theirs, atol=2e-5 * np.abs(theirs).max())


class Detached(programs.Functional):
    """Masks the data of its attention logits, so that no gradient reaches queries and keys."""

    def mix(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        scores = torch.einsum("bnqh,bnkh->bnqk", q, k) * programs.H**-0.5
        return torch.einsum("bnqk,bnkh->bnqh", scores.data.masked_fill(hidden, -1e9).softmax(-1), v)


def test_parameters_without_gradient_are_reported() -> None:
    torch.manual_seed(0)
    found = discover(Detached().eval())
    assert found.worst <= 1e-12
    note = "no gradient reaches p.d0_cq and 1 more; the model trains them"  # others are fused with values
    assert note in found.notes
    assert not any("no gradient" in note for note in discover(built("Functional")).notes)


class SineFirst(programs.Modern):
    """Rotates pairs by sums of products that both have the first of the pair first, stacked."""

    @staticmethod
    def rotate(x: torch.Tensor) -> torch.Tensor:
        steps = 5e5 ** -(torch.arange(0, programs.H, 2).double() / programs.H)
        angles = torch.arange(x.shape[2], dtype=torch.float64)[:, None] * steps
        cosine, sine, first, second = angles.cos(), angles.sin(), x[..., 0::2], x[..., 1::2]
        turned = torch.stack([first * cosine - second * sine, first * sine + second * cosine], dim=-1)
        return turned.flatten(-2).type_as(x)


def test_rotations_are_read_with_sums_in_any_order() -> None:
    torch.manual_seed(0)
    found = discover(SineFirst().eval())
    assert (found.model.config.position_kind, found.model.config.position_layout) == ("rotary", "interleaved")
    assert found.worst <= 1e-12


class Counted(programs.Functional):
    """Looks up the positions of all sentences in one row of numbers, padding's in the table's first row."""

    def positions(self, name: str, ids: torch.Tensor) -> torch.Tensor:
        is_real = (ids != self.pad_id).long()
        numbers = is_real.cumsum(dim=1) * is_real
        return self.p[name].index_select(0, numbers.view(-1)).view(*ids.shape, -1)


def test_positions_are_looked_up_in_one_row() -> None:
    torch.manual_seed(0)
    found = discover(Counted().eval())
    assert (found.model.config.position_kind, found.model.config.position_index) == ("learned", "non_pad_count")
    assert found.worst <= 1e-12


class FixedBias(programs.Functional):
    """Norms with a buffer for their bias, and positions whose first row gets no gradient."""

    def __init__(self, bias: float) -> None:
        super().__init__()
        self.register_buffer("beta", torch.full((programs.D,), bias))

    def norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return torch.nn.functional.layer_norm(x, (programs.D,), self.p[name], self.beta)

    def positions(self, name: str, ids: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.embedding(torch.arange(ids.shape[1]), self.p[name], padding_idx=0)


def test_zeros_that_no_one_trains_are_no_bias() -> None:
    torch.manual_seed(0)
    found = discover(FixedBias(0.0).eval())
    assert (found.model.config.norm_kind, found.model.config.norm_bias) == ("layer_norm", False)
    assert found.worst <= 1e-12
    for stack, name in (("encoder", "pos_e"), ("decoder", "pos_d")):
        note = f"{stack}: row 0 of module.p.{name} gets no gradient (padding_idx); the model trains it"
        assert note in found.notes


def test_a_buffer_that_a_model_would_train_is_refused() -> None:
    torch.manual_seed(0)
    with pytest.raises(
        DiscoverError, match=r"norm/bias\S* is a buffer \(module\.beta\), which the module doesn't train"
    ):
        discover(FixedBias(0.1).eval())


def test_the_command_writes_every_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(
        "import torch\nfrom tests.discover.programs import SingleHeads\n\n\n"
        "def build():\n    torch.manual_seed(0)\n    return SingleHeads()\n",
        encoding="utf-8",
    )
    stages = "weights,masks,forward,loss,gradients"
    assert main(["discover", "mine:build", "-o", "found", "--stages", stages]) == 0
    output = capsys.readouterr().out
    assert "parity: model of mine:build against mine:build" in output
    names = {path.name for path in (tmp_path / "found").iterdir()}
    assert names == {"model", "config.yaml", "map.yaml", "adapter.py", "report.html"}
    monkeypatch.syspath_prepend(tmp_path / "found")
    monkeypatch.delitem(sys.modules, "adapter", raising=False)
    parity = ["parity", "found/model", "--reference", "adapter:build", "--allow", "fully-masked"]
    assert main([*parity, "--stages", "weights,forward"]) == 0
    torch.save(programs.SingleHeads().state_dict(), "other.pt")
    ported = main(["port", "other.pt", "ported", "--map", "found/map.yaml", "--config", "found/config.yaml"])
    assert ported == 0
    assert main(["discover", "mine:build", "-o", "found"]) == 2
    assert "expected a new directory" in capsys.readouterr().err


def test_an_extended_table_is_read_up_to_its_stored_rows() -> None:
    found = discover(built("Mixed"))
    assert (found.model.config.max_length, found.model.config.decoder_max_length) == (40, 50)
    assert max(check.lengths for check in found.checks) == (40, 50)
    (note,) = (note for note in found.notes if "position table" in note)
    assert note == "its position table has 40 rows: longer sources are unknown"


def test_the_command_explains_what_a_factory_must_return(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "three.py").write_text("def build():\n    return 3\n", encoding="utf-8")
    assert main(["discover", "three:build", "-o", "found"]) == 2
    expected = "three:build: expected a torch.nn.Module, or a dict or tuple of such modules; received int"
    assert expected in capsys.readouterr().err


def test_positions_are_copied_from_the_module() -> None:
    module = built("SequenceFirst")
    constants = discover(module).model.params["constants"]
    held = module.state_dict()["pe"][:, 0].numpy()
    assert all(np.array_equal(constants[f"{stack}_positions"], held) for stack in ("encoder", "decoder"))


IN_PARTS = """
import torch
from torch import nn


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.places = nn.Embedding(29, 24, padding_idx=0), nn.Embedding(40, 24)
        self.layers = nn.TransformerEncoder(nn.TransformerEncoderLayer(24, 4, 40, batch_first=True), 1)

    def forward(self, src):
        x = self.embed(src) + self.places(torch.arange(src.shape[1]))
        return self.layers(x, src_key_padding_mask=src == 0)


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.places = nn.Embedding(31, 24, padding_idx=0), nn.Embedding(40, 24)
        self.layers = nn.TransformerDecoder(nn.TransformerDecoderLayer(24, 4, 40, batch_first=True), 1)
        self.head = nn.Linear(24, 31)

    def forward(self, tgt, memory, src):
        y = self.embed(tgt) + self.places(torch.arange(tgt.shape[1]))
        later = torch.ones(tgt.shape[1], tgt.shape[1], dtype=torch.bool).triu(1)
        return self.head(self.layers(y, memory, later, None, tgt == 0, src == 0))


def build():
    torch.manual_seed(0)
    return {"encoder": Encoder(), "decoder": Decoder()}
"""


@pytest.mark.filterwarnings("ignore:.*nested tensors:UserWarning")
def test_the_adapter_of_several_modules_holds_them_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in_parts.py").write_text(IN_PARTS, encoding="utf-8")
    assert main(["discover", "in_parts:build", "-o", "found", "--stages", "weights,forward"]) == 0
    monkeypatch.syspath_prepend(tmp_path / "found")
    monkeypatch.delitem(sys.modules, "adapter", raising=False)
    parity = ["parity", "found/model", "--reference", "adapter:build", "--allow", "fully-masked"]
    assert main([*parity, "--stages", "weights,forward"]) == 0, capsys.readouterr()


def test_a_map_that_doesnt_lead_back_is_refused() -> None:
    module = built("Functional")
    found = discover(module)
    with torch.no_grad():
        module.p["e1_o"].view(-1)[7] += 1
    with pytest.raises(DiscoverError, match=r"^export by the map doesn't restore the module's tensors: p\.e1_o$"):
        check_return(module, found.model)
