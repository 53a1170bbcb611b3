"""Read the stack, sublayer, role, part and kind of parameter from the words of a name in any model."""

from __future__ import annotations

import re
from collections.abc import Mapping

Concepts = Mapping[str, frozenset[str]]
"""Group → the possible meanings of a name in it; groups that the name doesn't mention are left out."""

_STACKS = {"encoder": "encoder encoders enc source src", "decoder": "decoder decoders dec target tgt trg"}
_WORDS = {
    "sublayer": {
        "self": "self own attn attention mha attentions",
        "cross": "cross multihead memory attn attention mha attentions",
        "feed_forward": "feed ff ffn mlp pwff dense",
    },
    "role": {
        "norm": "norm norms ln layernorm rmsnorm",
        "embedding": "embed embeds emb embedding embeddings lut tok token tokens wte",
        "head": "head generator unembed classifier lm",
        "positions": "pe pos position positions positional wpe",
    },
    "part": {
        "query": "q query queries wq",
        "key": "k key keys wk",
        "value": "v value values wv",
        "output": "o out output wo concat",
        "hidden": "hidden wi",
        "gate": "gate",
    },
    "kind": {
        "bias": "bias beta b",
        "kernel": "kernel weight w",
        "scale": "scale gamma alpha g a weight",
        "embedding": "embedding weight",
    },
}
_MISSING = {"role": -1, "part": -1}
"""Score of a group that only one of two names mentions; 0 for unlisted groups."""


def concepts(name: str, *, is_parameter: bool = False) -> Concepts:
    """Returns the meanings of a name's words; the last word gives a parameter's kind."""
    words = re.findall(r"[a-z]+|[0-9]+", re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).lower())
    found: dict[str, set[str]] = {}
    for group, meanings in _WORDS.items():
        for word in words[-1:] if group == "kind" else words:
            meant = {meaning for meaning, known in meanings.items() if word in known.split()}
            if meant and (group != "kind" or is_parameter):
                before = found.get(group, meant)
                found[group] = before & meant or before | meant
    stacks = [stack for word in words for stack, known in _STACKS.items() if word in known.split()]
    if stacks:
        found["stack"] = {stacks[0]}
        if stacks[0] == "decoder" and "encoder" in stacks:  # decoder.layers.0.encoder_attn
            found["sublayer"] = {"cross"}
    return {group: frozenset(meant) for group, meant in found.items()}


def likeness(first: Concepts, second: Concepts) -> int | None:
    """Scores the match of two names; None if they contradict each other."""
    score = 0
    for group in ("stack", *_WORDS):
        a, b = first.get(group), second.get(group)
        if a and b and not a & b:
            return None
        if a and b:
            score += 2 if a == b else 1
        elif a or b:
            score += _MISSING.get(group, 0)
    return score
