"""Names of activations that follow from rules: cases that no dialect's table has. (The tables' are in
parity_tests/test_names.py.)"""

from __future__ import annotations

import copy
import re

from jax_transformer.config.model import TransformerConfig
from jax_transformer.mapping.rules import Rule
from jax_transformer.parity.oracle.graph import nodes
from jax_transformer.porting.activations import activation_names
from jax_transformer.porting.dialects import all_dialects, harvard

SIZES = {
    "d_model": 6, "num_heads": 2, "d_ff": 8, "num_encoder_layers": 2, "num_decoder_layers": 2, "max_length": 9,
    "source_vocab_size": 11, "target_vocab_size": 12,
}  # fmt: skip


def renamed(rules: list[Rule], how: dict[str, str]) -> list[Rule]:
    """The rules with parts of their tensors' names replaced."""

    def other(name: str) -> str:
        for before, after in how.items():
            name = name.replace(before, after)
        return name

    table = [copy.copy(rule) for rule in rules]
    for rule in table:
        rule.names = tuple(other(name) for name in rule.names)
    return table


def config_of(**fields: object) -> TransformerConfig:
    return TransformerConfig(**(SIZES | harvard.DIALECT.fixed | fields))  # type: ignore[arg-type]


def test_a_list_of_modules_is_none_that_runs() -> None:
    config = config_of()
    names = activation_names(config, harvard.DIALECT.rules(config))
    assert names["decoder.layers.1.src_attn@weights"] == ("decoder.layers.1.cross_attention.weights",)
    assert names["decoder.layers.1.src_attn.linears.3@input"] == ("decoder.layers.1.cross_attention.context",)
    assert not any(name.split("@")[0].endswith("linears") for name in names)


def test_sublayers_side_by_side_read_what_the_layer_reads() -> None:
    names = activation_names(config_of(parallel_residual=True), harvard.DIALECT.rules(config_of()))
    assert names["decoder.layers.1.sublayer.0.norm@input"] == ("decoder.layers.0.output",)
    assert names["decoder.layers.1.sublayer.2.norm"] == ("decoder.layers.1.feed_forward_norm",)
    assert names["decoder.norm@input"] == ("decoder.layers.1.output",)
    found = {ours for several in names.values() for ours in several}
    assert found <= {node.name for node in nodes(config_of(parallel_residual=True))}


def test_what_reads_a_norm_that_is_no_module_reads_its_result() -> None:
    config = config_of()
    own = {".sublayer.0.norm.a_2": ".scale_0", ".sublayer.0.norm.b_2": ".bias_0"}
    functional = renamed(harvard.DIALECT.rules(config), own)
    names = activation_names(config, functional)
    assert names["encoder.layers.1.self_attn.linears.0@input"] == ("encoder.layers.1.self_attention_norm",)


def test_two_attentions_in_one_module_are_told_apart_by_their_order() -> None:
    config = config_of()
    flat = renamed(harvard.DIALECT.rules(config), {".self_attn.linears.": ".own_", ".src_attn.linears.": ".cross_"})
    names = activation_names(config, flat)
    assert names["decoder.layers.0@logits"] == ("decoder.layers.0.self_attention.logits",)
    assert names["decoder.layers.0@logits#2"] == ("decoder.layers.0.cross_attention.logits",)
    assert names["encoder.layers.1@weights"] == ("encoder.layers.1.self_attention.weights",)


def test_queries_keys_and_values_of_one_linear_map() -> None:
    """A module of its own that is called, unlike nn.MultiheadAttention's parameter."""
    config = config_of(norm_placement="post", final_norm=False)
    fused = [
        rule
        for rule in harvard.DIALECT.rules(config)
        if not re.search(r"linears\.[012]|^(en|de)coder\.norm", rule.names[0])
    ]
    for stack, attention, ours in (
        ("encoder", "self_attn", "self"),
        ("decoder", "self_attn", "self"),
        ("decoder", "src_attn", "cross"),
    ):
        path = f"{stack}/layers/{ours}_attention/{{query,key,value}}/kernel"
        fused.append(Rule(f"{stack}.layers.{{i}}.{attention}.qkv.weight", path, "(3 N H) D -> D N H"))
    names = activation_names(config, fused)
    assert names["encoder.layers.0.self_attn.qkv@input"] == ("encoder.embedding",)
    assert names["encoder.layers.0.self_attn@logits"] == ("encoder.layers.0.self_attention.logits",)
    assert names["decoder.layers.0.src_attn.linears.3"] == ("decoder.layers.0.cross_attention.output",)
    assert not any(ours.endswith((".query", ".key", ".value")) for found in names.values() for ours in found)


def test_every_name_is_one_of_the_trace_and_stands_once() -> None:
    for dialect in all_dialects().values():
        choices = {name: values[0] for name, values in dialect.choices.items()}
        config = TransformerConfig.from_flat(SIZES | {"d_model": 8, "target_vocab_size": 11} | dialect.fixed | choices)
        ours = [name for names in activation_names(config, dialect.rules(config)).values() for name in names]
        assert len(set(ours)) == len(ours)
        assert set(ours) <= {node.name for node in nodes(config)}, dialect.name


def test_layers_that_share_one_module_are_its_calls() -> None:
    config = config_of(share_layers=True)
    names = activation_names(config, harvard.DIALECT.rules(config))
    assert names["encoder.layers.0.self_attn.linears.0"] == ("encoder.layers.0.self_attention.query",)
    assert names["encoder.layers.0.self_attn.linears.0#2"] == ("encoder.layers.1.self_attention.query",)
    assert names["decoder.layers.0.src_attn@weights#2"] == ("decoder.layers.1.cross_attention.weights",)
    assert names["decoder.layers.0.sublayer.0.norm#2@input"] == ("decoder.layers.0.output",)
    assert names["encoder.norm@input"] == ("encoder.layers.1.output",)
    assert not any(captured.startswith(("encoder.layers.1.", "decoder.layers.1.")) for captured in names)


def test_what_a_projection_reads_is_the_last_of_what_is_done_to_contexts_and_hidden_units() -> None:
    config = config_of(head_scale=True, context_norm="self_attention", feed_forward_hidden_norm=True)
    added = [
        Rule("decoder.layers.{i}.self_attn.norm.a_2", "decoder/layers/self_attention/context_norm/scale"),
        Rule("decoder.layers.{i}.feed_forward.norm.a_2", "decoder/layers/feed_forward/hidden_norm/scale"),
    ]
    names = activation_names(config, [*harvard.DIALECT.rules(config_of()), *added])
    attention, feed_forward = "decoder.layers.1.self_attn", "decoder.layers.1.feed_forward"
    assert names[f"{attention}.norm@input"] == ("decoder.layers.1.self_attention.scaled_context",)
    assert names[f"{attention}.norm"] == ("decoder.layers.1.self_attention.normed_context",)
    assert f"{attention}.linears.3@input" not in names  # the same again
    assert names["decoder.layers.1.src_attn.linears.3@input"] == ("decoder.layers.1.cross_attention.scaled_context",)
    assert names[f"{feed_forward}.norm@input"] == ("decoder.layers.1.feed_forward.hidden",)
    assert names[f"{feed_forward}.norm"] == ("decoder.layers.1.feed_forward.hidden_norm",)
    found = {ours for several in names.values() for ours in several}
    assert found <= {node.name for node in nodes(config)}


def test_a_module_that_holds_several_parts_returns_none_of_them() -> None:
    """Kernels as parameters of the attention or the feed-forward itself."""
    config = config_of()
    parts = {f".self_attn.linears.{n}.": f".self_attn.{name}_" for n, name in enumerate("qkvo")}
    parts |= {".feed_forward.w_1.": ".feed_forward.first_", ".feed_forward.w_2.": ".feed_forward.second_"}
    names = activation_names(config, renamed(harvard.DIALECT.rules(config), parts))
    assert names["encoder.layers.0.self_attn@logits"] == ("encoder.layers.0.self_attention.logits",)
    assert "encoder.layers.0.self_attn" not in names
    found = {ours for several in names.values() for ours in several}
    assert not found & {f"encoder.layers.0.self_attention.{name}" for name in ("query", "key", "value", "context")}
    assert "encoder.layers.0.feed_forward.hidden" not in found
    assert "decoder.layers.0.cross_attention.query" in found
