"""Find what attention computes between projections and products: vectors by distance, norms of queries and keys."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from jax_transformer.discover import DiscoverError, Discovery, discover
from jax_transformer.porting import export_checkpoint
from tests.discover.distance_programs import Clipped, Gathered
from tests.discover.programs import H, Modern, built


def goes_back(found: Discovery, module: nn.Module, path: Path) -> bool:
    """Returns whether exported weights are the module's, bit for bit."""
    export_checkpoint(found.model, path)
    back, stored = torch.load(path), module.state_dict()
    return back.keys() == stored.keys() and all(torch.equal(back[name], stored[name]) for name in stored)


def clipped(**options: Any) -> nn.Module:
    torch.manual_seed(0)
    return Clipped(**options).eval()


@pytest.mark.parametrize(
    "options",
    [
        {"shared": True, "values": True},
        {"shared": False, "values": True, "odd": "one layer"},
        {"shared": True, "values": False, "limit": 70},
        {"shared": False, "values": False, "style": Gathered},
    ],
    ids=str,
)
def test_vectors_by_distance_are_found(options: dict[str, Any], tmp_path: Path) -> None:
    module = clipped(**options)
    found = discover(module)
    config = found.model.config
    assert found.worst <= 1e-12
    assert (config.position_kind, config.relative_max_distance) == ("relative_vectors", options.get("limit", 3))
    assert config.relative_value_vectors == options["values"]
    assert config.relative_bias_per_layer != options["shared"]
    assert goes_back(found, module, tmp_path / "back.pt")


def test_relative_vectors_are_concluded_with_a_runner_up() -> None:
    lines = discover(clipped(shared=True, values=True)).conclusion_lines(every_layer=False)
    start = "encoder_self attention by distance (×2): relative_vectors, values True, "
    assert any(line.startswith(f"{start}max_distance 3 (") and "next no vectors: " in line for line in lines)


@pytest.mark.parametrize(
    ("odd", "line"),
    [
        ("values", r"7 vectors by distance of values, and none of keys: add\["),
        ("limits", r"9 vectors by distance of values, and 7 of keys: add\["),
        ("cross", r"vectors by position in cross-attention: add\["),
        ("tied", r"^encoder/.*/keys and encoder/.*/values of 2 layers are one tensor \(\S*encoder\.0.*which no config"),
        ("reversed", r"keys.table \[7, 6\] is encoder/relative_vectors/keys in an order that no axes express"),
    ],
)
def test_vectors_that_no_config_expresses_are_refused_by_name(odd: str, line: str) -> None:
    with pytest.raises(DiscoverError, match=line):
        discover(clipped(shared=odd == "reversed", values=odd != "reversed", odd=odd))


class NormedHeads(Modern):
    """Norms queries and keys of each head, written out, before they are rotated."""

    def __init__(self, norms: tuple[str, ...] = ("q_norm", "k_norm"), eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps
        for stack in self.stacks.values():
            for layer in stack:
                for prefix in ("", "c") if "cq" in layer else ("",):
                    layer.update({f"{prefix}{name}": nn.RMSNorm(H) for name in norms})

    def normed(self, layer: Any, name: str, x: Tensor) -> Tensor:
        if name not in layer:
            return x
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * layer[name].weight


def test_norms_of_queries_and_keys_are_found(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = NormedHeads().eval()
    found = discover(module)
    assert found.worst <= 1e-12
    assert found.model.config.query_key_norm
    assert found.model.config.position_kind == "rotary"
    assert goes_back(found, module, tmp_path / "back.pt")
    assert not discover(built("Modern")).model.config.query_key_norm


def test_norms_of_queries_only_or_of_differing_kinds_are_refused_by_name() -> None:
    with pytest.raises(DiscoverError, match="a norm of each query alone, not of queries and keys: "):
        discover(NormedHeads(("q_norm",)).eval())
    unlike = r"encoder\.norm\.eps 0\.01 here and 1e-06 at programs\.py:\d+ in module\S*: "
    with pytest.raises(DiscoverError, match=unlike):
        discover(NormedHeads(eps=0.01).eval())
