"""Constants that a module rounds to float32: it is compared with exact ones, and only in float64."""

from __future__ import annotations

import contextlib
import importlib
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from jax_transformer.discover import discover
from jax_transformer.discover.api import Discovery
from jax_transformer.discover.comparison import prove
from jax_transformer.programs.calling import adapter_text
from jax_transformer.programs.exact import exact, exact_constants
from tests.discover import programs


def turned(x: Tensor, turn: Tensor) -> Tensor:
    pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
    return torch.view_as_real(pairs * turn[: x.shape[2]]).flatten(-2)


class Rounded(programs.Functional):
    """Keeps its scale and angles in float32, and computes its encoder's positions in it for every length anew."""

    def __init__(self, scale: str = "attribute", *, tables: bool = False) -> None:
        super().__init__()
        number = torch.sqrt(torch.FloatTensor([programs.H]))
        if scale == "saved":
            number = torch.FloatTensor([math.sqrt(programs.H)])
        if scale == "attribute":
            self.scale = number
        else:
            self.register_buffer("scale", number, persistent=scale == "saved")
        angles = torch.outer(torch.arange(400.0), 10000 ** (torch.arange(0, 6, 2) / -6.0))
        self.turn = torch.polar(torch.ones_like(angles), angles)
        self.table = programs.sinusoids(40, programs.D).float() if tables else None
        self.drawn = torch.randn(3)
        self.seven = torch.tensor(7.0)

    def positions(self, name: str, ids: Tensor) -> Tensor:
        if name == "pos_d":
            return torch.zeros(1)
        if self.table is not None:
            return self.table[: ids.shape[1]].to(self.p["emb"].dtype)
        row = torch.arange(ids.shape[1]).float()[:, None]
        angle = row * torch.exp(torch.arange(0, programs.D, 2) * (-torch.log(torch.tensor(1e4)) / programs.D))
        return torch.stack([angle.sin(), angle.cos()], -1).flatten(1).to(self.p["emb"].dtype)

    def mix(self, q: Tensor, k: Tensor, v: Tensor, hidden: Tensor) -> Tensor:
        if hidden.shape[2] > 1:  # the decoder's own: its mask differs by the query
            q, k = turned(q, self.turn), turned(k, self.turn)
        scores = q @ k.transpose(-2, -1) / self.scale
        return scores.masked_fill(hidden, -1e9).softmax(-1) @ v


def build(scale: str = "attribute", *, tables: bool = False) -> nn.Module:
    torch.manual_seed(0)
    return Rounded(scale, tables=tables).eval()


@pytest.fixture(scope="module")
def found() -> Discovery:
    return discover(build(), rebuild=build)


def test_rounded_constants_are_recovered_exactly(found: Discovery) -> None:
    config = found.model.config
    assert (config.position_kind, config.decoder_position_kind) == ("sinusoidal", "rotary")
    assert config.attention_scale is None
    assert found.worst <= 1e-12
    assert [check.weights for check in found.checks[:5]] == ["its own"] * 3 + ["larger", "its own"]
    note = "compared in float64, with exact values of scale, turn"
    assert any(line.endswith(note) for line in found.notes)
    assert not any("are rounded" in line for line in found.notes)


def test_a_rounded_module_is_proven_in_every_precision(found: Discovery) -> None:
    report = prove(found, build(), "rounded:build", ["weights", "forward", "gradients"])
    assert report.exit_code == 0, report


def test_constants_that_differ_only_by_rounding_are_recognized() -> None:
    for scale in ("attribute", "unsaved", "saved"):
        constants = exact_constants(partial(build, scale))
        assert list(constants) == (["scale", "turn"] if scale == "attribute" else ["turn", "scale"])
        torch.testing.assert_close(
            constants["scale"] ** 2, torch.tensor([6.0], dtype=torch.float64), rtol=0, atol=1e-15
        )
        assert constants["turn"].dtype == torch.complex128
    assert list(exact_constants(build, ["turn"])) == ["scale"]
    assert torch.get_default_dtype() == torch.float32
    assert torch.FloatTensor([1.0]).dtype == torch.float32


def test_without_the_factory_only_forwards_are_exact() -> None:
    """The scale's rounding stays, and is reported."""
    found = discover(build())
    assert 1e-12 < found.worst < 1e-7
    assert any("are rounded to lower precision than float64" in line for line in found.notes)


def test_tables_of_positions_stay_the_modules_own() -> None:
    """A model holds them, so that it computes the same in float32 bit for bit."""
    build_it: Callable[[], nn.Module] = partial(build, tables=True)
    found = discover(build_it(), rebuild=build_it)
    assert found.worst <= 1e-12
    assert found.call.rounded == ("table",)
    held = torch.from_numpy(found.model.params["constants"]["encoder_positions"])
    assert torch.equal(held[:40].float(), build_it().table)
    assert "exact_constants(build_module, ('table',))" in adapter_text(found.call, "rounded:build")


def test_the_written_adapter_runs_the_same_lines(
    found: Discovery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "rounded_model.py").write_text("from tests.discover.test_exact import build\n")
    (tmp_path / "rounded_adapter.py").write_text(adapter_text(found.call, "rounded_model:build"))
    monkeypatch.syspath_prepend(tmp_path)
    written = importlib.import_module("rounded_adapter").build()
    own, ids = found.call.wrap(build()), (torch.randint(3, 29, (2, 7)), torch.randint(3, 29, (2, 5)))
    plain = build()
    with torch.no_grad():
        assert torch.equal(written(*ids), plain(*ids)["logits"])
        assert torch.equal(written.double()(*ids), own.double()(*ids))
        assert not torch.equal(written(*ids), plain.double()(*ids)["logits"])


def test_the_module_is_as_before_when_its_call_fails() -> None:
    module = build().double()
    dtypes = []
    with contextlib.suppress(RuntimeError), exact(module, exact_constants(build)):
        dtypes += [module.scale.dtype, torch.ones(1).dtype]
        raise RuntimeError
    assert dtypes == [torch.float64] * 2
    assert module.scale.dtype == torch.float32
    assert torch.ones(1).dtype == torch.float32


class FloatMask(programs.Functional):
    """Adds a mask that is float32 in every precision, which PyTorch's attention refuses in float64."""

    def mix(self, q: Tensor, k: Tensor, v: Tensor, hidden: Tensor) -> Tensor:
        mask = torch.zeros(hidden.shape).masked_fill(hidden, -math.inf)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def test_a_module_that_fails_in_float64_for_its_constants_is_read_all_the_same() -> None:
    torch.manual_seed(0)
    assert discover(FloatMask().eval()).worst <= 1e-12


def test_a_module_that_computes_in_float64_inside_is_compared_in_float32_too() -> None:
    module = programs.built("Modern")  # turns its heads in float64, and casts them back to the dtype that it runs in
    found = discover(module)
    assert "with wide(self.module):" in found.call.lines
    report = prove(found, module, "modern:build", ["forward"])
    assert report.exit_code == 0, report
