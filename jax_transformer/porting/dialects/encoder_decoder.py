"""Encoder-decoders of BERT and RoBERTa in transformers (Rothe et al. 2020): post-norm, learned positions,
token types, a head with a transform. Each side is either of the two, as its part of config.json says."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from jax_transformer.config.model import TransformerConfig
from jax_transformer.config.positions import Learned
from jax_transformer.config.specs import Stack
from jax_transformer.mapping.rules import Rule
from jax_transformer.porting.dialects import (
    ConfigFile,
    Dialect,
    Json,
    Reader,
    fairseq,
    heads_as_wide_as_the_model,
    one_target_pad_id,
)
from jax_transformer.porting.dialects.tables import LINEAR, attention, layers, norm, within
from jax_transformer.porting.dialects.two_sides import fields_of_both, problems_of_both
from jax_transformer.storage.tensors import PortingError, Tensors

FIXED = fairseq.FIXED | {
    "scale_embedding": False,
    "share_embeddings": False,
    "encoder_embedding_norm": "after_positions",
    "decoder_embedding_norm": "after_positions",
    "head_bias": "parameter",
    "position_kind": "learned",
    "norm_placement": "post",
    "final_norm": False,
}
INDEX = {"bert": "column", "roberta": "non_pad_count"}
"""model_type of a side → how its positions are numbered, from 0 or from the token after the pad."""
PREFIX = {"bert": "decoder.bert", "roberta": "decoder.roberta"}
"""The same → the beginning of the decoder's names."""
HEAD = {
    "bert": {
        "transform": "decoder.cls.predictions.transform.dense",
        "norm": "decoder.cls.predictions.transform.LayerNorm",
        "bias": "decoder.cls.predictions.bias",
        "output": "decoder.cls.predictions.decoder",
    },
    "roberta": {
        "transform": "decoder.lm_head.dense",
        "norm": "decoder.lm_head.layer_norm",
        "bias": "decoder.lm_head.bias",
        "output": "decoder.lm_head.decoder",
    },
}
"""model_type of the decoder → the names of the head's parts. The bias lies under a second name, output.bias, which is
the one that counts if the head isn't tied."""
WORDS = "embeddings.word_embeddings.weight"
POOLER = ("encoder.pooler.dense.weight", "encoder.pooler.dense.bias")
"""Tensors that the encoder's program loads; nothing of an encoder-decoder reads what it computes with them."""

NORM = norm("weight", "bias")
ATTENTION = attention("self.query", "self.key", "self.value", "output.dense")
LAYER = {
    "attention": ("self_attention", ATTENTION),
    "attention.output.LayerNorm": ("self_attention_norm", NORM),
    "intermediate.dense": ("feed_forward/hidden", LINEAR),
    "output.dense": ("feed_forward/output", LINEAR),
    "output.LayerNorm": ("feed_forward_norm", NORM),
}
DECODER_LAYER = LAYER | {
    "crossattention": ("cross_attention", ATTENTION),
    "crossattention.output.LayerNorm": ("cross_attention_norm", NORM),
}


def program(stack: Stack) -> str:
    """Returns the model_type of the program that a stack is of."""
    return "bert" if stack.numbering[0] == "column" else "roberta"


def rules(config: TransformerConfig) -> list[Rule]:
    """Returns the correspondence."""
    names = {"encoder": "encoder", "decoder": PREFIX[program(config.decoder)]}
    head = HEAD[program(config.decoder)]
    source, target = (f"{name}.{WORDS}" for name in names.values())
    output, biases = f"{head['output']}.weight", (head["bias"], f"{head['output']}.bias?")
    table = [Rule(source, "source_embedding/embedding")]
    if config.tie_head:
        table += [Rule((target, f"{output}?"), "target_embedding/embedding"), Rule(biases, "head_bias")]
    else:
        table += [Rule(target, "target_embedding/embedding"), Rule(output, "head/kernel", "V D -> D V")]
        table.append(Rule(f"{head['output']}.bias", "head/bias"))
    for stack, parts in (("encoder", LAYER), ("decoder", DECODER_LAYER)):
        embeddings = f"{names[stack]}.embeddings"
        table.append(Rule(f"{embeddings}.position_embeddings.weight", f"{stack}/positions/embedding"))
        table.append(Rule(f"{embeddings}.token_type_embeddings.weight", f"{stack}/token_types/embedding"))
        table += within(f"{embeddings}.LayerNorm", f"{stack}/embedding_norm", NORM)
        table += layers(f"{names[stack]}.encoder.layer", stack, parts)
    table += within(head["transform"], "head_transform", LINEAR)
    return table + within(head["norm"], "head_norm", NORM)


def recognises(names: Collection[str]) -> bool:
    """Returns whether the names are the family's."""
    return f"encoder.{WORDS}" in names and any(f"{prefix}.{WORDS}" in names for prefix in PREFIX.values())


def read(tensors: Tensors) -> dict[str, Any]:
    """Reads the sizes from the tensors. Raises PortingError naming the tensors that are missing for it."""
    reader = Reader(tensors)
    kind = _decoder_of(tensors)
    decoder, output = PREFIX[kind], f"{HEAD[kind]['output']}.weight"
    fields = reader.finished(
        "encoder-decoder",
        source_vocab_size=reader.size(f"encoder.{WORDS}", 0, 2),
        target_vocab_size=reader.size(f"{decoder}.{WORDS}", 0, 2),
        d_model=reader.size(f"encoder.{WORDS}", 1, 2),
        d_ff=reader.size("encoder.encoder.layer.0.intermediate.dense.weight", 0, 2),
        decoder_d_ff=reader.size(f"{decoder}.encoder.layer.0.intermediate.dense.weight", 0, 2),
        num_encoder_layers=reader.layers("encoder.encoder.layer.{i}."),
        num_decoder_layers=reader.layers(f"{decoder}.encoder.layer.{{i}}."),
    )
    types = {
        f"{stack}.token_types": reader.size(f"{name}.embeddings.token_type_embeddings.weight", 0, 2)
        for stack, name in (("encoder", "encoder"), ("decoder", decoder))
    }
    return fields | types | {"tie_head": not reader.differ(f"{decoder}.{WORDS}", output)}


def _decoder_of(names: Collection[str]) -> str:
    """Returns the model_type of the decoder's program."""
    return next((kind for kind, prefix in PREFIX.items() if f"{prefix}.{WORDS}" in names), "bert")


def refuses(config: TransformerConfig) -> list[str]:
    """Lists the other obstacles of a config."""
    problems = heads_as_wide_as_the_model(config) + one_target_pad_id(config)
    for name, stack, tokens in (("encoder", config.encoder, config.source), ("decoder", config.decoder, config.target)):
        index, offset = stack.numbering
        first = 0 if index == "column" else tokens.pad_id
        if offset != first:
            problems.append(f"{name}.positions.offset must be {first} with index={index!r}; received {offset}")
        trains = index == "column"
        if isinstance(stack.positions, Learned) and stack.positions.trains_pad != trains:
            problems.append(f"{name}.positions.trains_pad must be {trains} with index={index!r}; received {not trains}")
        if stack.token_types < 1:
            problems.append(f"{name}.token_types must be at least 1; received {stack.token_types}")
    activation = getattr(config.decoder.feed_forward, "activation", None)
    expected = activation if program(config.decoder) == "bert" else "gelu"
    if config.head.transform != expected:
        problems.append(f"head_transform must be {expected!r}; received {config.head.transform!r}")
    return problems


def follows(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields that follow from the numbering of positions, of a checkpoint without config.json."""
    if "position_index" not in fields:
        return {}
    is_bert = fields["position_index"] == INDEX["bert"]
    return {
        "position_offset": 0 if is_bert else fields.get("target_pad_id", 0),
        "trains_pad_position": is_bert,
        "head_transform": fields.get("activation") if is_bert else "gelu",
    }


def ignores(tensors: Tensors) -> list[str]:
    """Returns the poolers (the decoder's is in old files), the positions' numbers in old files, and the bias that an
    untied head doesn't read."""
    kind = _decoder_of(tensors)
    names = [*POOLER, *(f"{PREFIX[kind]}.{name.removeprefix('encoder.')}" for name in POOLER)]
    names += [*(f"{name}.embeddings.{ids}" for name in ("encoder", PREFIX[kind]) for ids in NUMBERS)]
    bias, output = HEAD[kind]["bias"], HEAD[kind]["output"]
    if Reader(tensors).differ(f"{PREFIX[kind]}.{WORDS}", f"{output}.weight"):
        names.append(bias)
    return [name for name in names if name in tensors]


NUMBERS = ("position_ids", "token_type_ids")
"""Buffers of the embeddings in the files of transformers up to 4.30."""

# --- config.json

SIDE: dict[str, Any] = {
    "vocab_size": 30522,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-12,
    "pad_token_id": 0,
    "tie_word_embeddings": True,
}
"""Defaults of a side's part of config.json."""
OF_PROGRAM = {"bert": {}, "roberta": {"vocab_size": 50265, "pad_token_id": 1}}
"""model_type → its other defaults."""
NEEDED: dict[str, dict[str, tuple[Any, ...]]] = {
    "encoder": {"is_decoder": (False,), "add_cross_attention": (False,)},
    "decoder": {"is_decoder": (True,), "add_cross_attention": (True,), "cross_attention_hidden_size": (None,)},
}
"""Keys of each side that only one value is for, where they are given."""


def read_config(json: Json) -> dict[str, Any]:
    """Returns the config fields of a resolved config.json; where the sides may differ and no short name says so, under
    the path of the option."""
    sides = {name: _side(json, name) for name in ("encoder", "decoder")}
    problems = [problem for name, side in sides.items() for problem in _side_problems(name, side)]
    encoder, decoder = sides["encoder"], sides["decoder"]
    problems += problems_of_both(json, encoder, decoder, "a projection between two widths")
    if problems:
        raise PortingError("config.json: another kind of encoder-decoder", problems)
    fields = fields_of_both(encoder, decoder) | {
        "tie_head": decoder["tie_word_embeddings"],
    }
    for name, key in (("num_heads", "num_attention_heads"), ("d_ff", "intermediate_size")):
        fields |= {name: encoder[key], f"decoder_{name}": None if decoder[key] == encoder[key] else decoder[key]}
    lengths = {name: _length(side) for name, side in sides.items()}
    fields["max_length"] = lengths["encoder"]
    fields["decoder_max_length"] = None if lengths["decoder"] == lengths["encoder"] else lengths["decoder"]
    activations = {name: fairseq.activation(side, "hidden_act") for name, side in sides.items()}
    fields["activation"] = activations["encoder"]
    fields["decoder_activation"] = None if len({*activations.values()}) == 1 else activations["decoder"]
    fields["head_transform"] = activations["decoder"] if decoder["model_type"] == "bert" else "gelu"
    return fields | {
        f"{name}.{path}": value for name, side in sides.items() for path, value in _of_each_side(side).items()
    }


def _side(json: Json, name: str) -> dict[str, Any]:
    """Returns a side's part of config.json with its defaults."""
    side = json[name] if isinstance(json[name], Mapping) else {}
    kind = side.get("model_type")
    return {**SIDE, **OF_PROGRAM.get(kind if isinstance(kind, str) else "", {}), **side}


def _side_problems(name: str, side: Json) -> list[str]:
    """Lists what a side's part says that no model here has."""
    wanted = {"model_type": tuple(INDEX), "position_embedding_type": ("absolute",), **NEEDED[name]}
    return [
        f"{name}.{key} must be {' or '.join(map(repr, values))}; received {side.get(key)!r}"
        for key, values in wanted.items()
        if (key in side or key == "model_type") and side.get(key) not in values
    ]


def _length(side: Json) -> int:
    """Returns the longest sentence of a side: RoBERTa's first token has the row after its pad's."""
    rows: int = side["max_position_embeddings"]
    return rows if side["model_type"] == "bert" else rows - side["pad_token_id"] - 1


def _of_each_side(side: Json) -> dict[str, Any]:
    """Returns the options of one stack, by their paths in it."""
    is_bert = side["model_type"] == "bert"
    return {
        "token_types": side["type_vocab_size"],
        "norm.eps": side["layer_norm_eps"],
        "positions.index": INDEX[side["model_type"]],
        "positions.offset": 0 if is_bert else side["pad_token_id"],
        "positions.trains_pad": is_bert,
        "dropout.rate": side["hidden_dropout_prob"],
        "dropout.attention": side["attention_probs_dropout_prob"],
        "dropout.feed_forward": 0.0,
    }


def write_config(config: TransformerConfig) -> dict[str, Any]:
    """Returns the config.json of a config: the inverse of `read_config`."""
    encoder = _written(config.encoder, config.source_vocab_size, config.source_pad_id)
    decoder = _written(config.decoder, config.target_vocab_size, config.target_pad_id)
    decoder |= {"is_decoder": True, "add_cross_attention": True, "tie_word_embeddings": config.tie_head}
    return {"encoder": encoder, "decoder": decoder, "pad_token_id": config.target_pad_id}


def _written(stack: Stack, vocab_size: int, pad_id: int) -> dict[str, Any]:
    """Returns a side's part of config.json."""
    assert stack.feed_forward is not None  # as FIXED says
    assert stack.norm is not None
    kind = program(stack)
    activation = {ours: theirs for theirs, ours in reversed(fairseq.ACTIVATIONS.items())}
    return {
        "model_type": kind,
        "vocab_size": vocab_size,
        "hidden_size": stack.d_model,
        "num_hidden_layers": stack.num_layers,
        "num_attention_heads": stack.self_attention.num_heads,
        "intermediate_size": stack.feed_forward.width,
        "hidden_act": activation[stack.feed_forward.activation],
        "hidden_dropout_prob": stack.dropout.rate,
        "attention_probs_dropout_prob": stack.dropout.at("attention"),
        "max_position_embeddings": stack.table_rows,
        "type_vocab_size": stack.token_types,
        "layer_norm_eps": stack.norm.eps,
        "pad_token_id": pad_id,
    }


DIALECT = Dialect(
    name="encoder_decoder",
    title="an encoder-decoder of BERT or RoBERTa in transformers (bert2bert)",
    recognises=recognises,
    fixed=FIXED,
    choices={
        "position_index": tuple(INDEX.values()),
        "activation": fairseq.CHOICES["activation"],
        "decoder_activation": (None, *fairseq.CHOICES["activation"]),
        "tie_head": (False, True),
    },
    may_differ=("norm_eps", "position_index", "position_offset", "trains_pad_position", "token_types"),
    read=read,
    asks={
        "num_heads": "how many heads the encoder's attentions have (encoder.num_attention_heads)",
        "decoder_num_heads": "how many heads the decoder's attentions have (decoder.num_attention_heads)",
        "source_pad_id": "the id that pads sources (encoder.pad_token_id)",
        "target_pad_id": "the id that pads targets (decoder.pad_token_id)",
        "activation": "'relu', 'gelu', 'gelu_tanh' or 'silu' (hidden_act)",
        "norm_eps": "layer_norm_eps",
        "position_index": "'column' of BERT, 'non_pad_count' of RoBERTa",
        "max_length": "the rows of the position tables (max_position_embeddings); of RoBERTa less pad_token_id + 1",
    },
    rules=rules,
    determines=("position_offset", "trains_pad_position", "token_types", "head_transform"),
    refuses=refuses,
    follows=follows,
    ignores=ignores,
    config_file=ConfigFile(
        model_type="encoder-decoder",
        architectures=("EncoderDecoderModel",),
        aliases={},
        defaults={
            "encoder": {},
            "decoder": {},
            "pad_token_id": None,
            "eos_token_id": None,
            "decoder_start_token_id": None,
        },
        allowed={"is_encoder_decoder": (True,)},
        read=read_config,
        write=write_config,
        kept=(*POOLER, *(head["bias"] for head in HEAD.values())),
    ),
)

DIALECTS = (DIALECT,)
