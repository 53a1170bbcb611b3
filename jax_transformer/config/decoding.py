"""How sentences are decoded: greedily, by beams, or by drawing."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from jax_transformer.config.model import GenerationConfig, Semantics, decoding_problems
from jax_transformer.config.validation import check_field_types, require

OF_BEAMS = ("beam_size", "semantics", "length_penalty", "early_stopping", "renormalize")
OF_DRAWING = ("sampling", "temperature", "top_k", "top_p", "min_p")


@dataclass(frozen=True)
class DecodingConfig:
    """How sentences are decoded; validated once. One beam and no sampling is greedy decoding.

    The score of a hypothesis is the sum of its tokens' log-probabilities, over what `length_penalty` p makes of its
    length n, the end token counted and a forced prefix not: n^p (huggingface, floydhub), or ((5 + n) / 6)^p (gnmt; Wu
    et al. 2016, §7). A token that forced_bos_id or forced_eos_id asks for counts as certain, and in the length.
    """

    beam_size: int = 1
    """Hypotheses that are followed side by side."""
    num_return: int = 1
    """Hypotheses of each sentence that are returned, the best first; of sampling, how many are drawn, whose cost grows
    with the square of
    this: for hundreds, draw some at a time with other seeds."""
    max_new_tokens: int | None = None
    """Most tokens decoded, the end token included and a forced prefix not. None: as many as the model allows."""
    min_new_tokens: int = 0
    """The end token isn't decoded before so many others."""
    semantics: Semantics = "huggingface"
    """Whose beam search: huggingface is `generate` of transformers 5; gnmt is the same with another penalty of length;
    floydhub's goes on with beams that have ended until all have, and then compares them."""
    length_penalty: float = 1.0
    """Above 0 favours long hypotheses."""
    early_stopping: bool | Literal["never"] = False
    """When a sentence is done: true, with beam_size ended hypotheses; false, when what is under way, were it to end
    now, is worse than all of these; "never", when it could not become better at any length."""
    renormalize: bool = False
    """Of beams: the probabilities of the tokens that may come next are made to sum to 1, once those that may not are
    left out."""
    no_repeat_ngram: int = 0
    """No sequence of so many tokens is decoded twice; 0 for no such rule."""
    bad_words: tuple[tuple[int, ...], ...] = ()
    """Sequences of ids that aren't decoded."""
    forced_bos_id: int | None = None
    """The first token, such as the target language of a multilingual model."""
    forced_eos_id: int | None = None
    """The last token, where max_new_tokens is reached."""
    sampling: bool = False
    """Draw each token by its probability."""
    temperature: float = 1.0
    """Divides the logits that are drawn by."""
    top_k: int = 0
    """Only the k most probable tokens are drawn; 0 for all."""
    top_p: float = 1.0
    """Only the most probable tokens are drawn, as few as have this probability together (Holtzman et al. 2020)."""
    min_p: float = 0.0
    """Only tokens are drawn of at least this times the greatest probability (Nguyen et al. 2024)."""
    seed: int = 0

    def __post_init__(self) -> None:
        check_field_types(self)
        problems = decoding_problems(self)

        def check(holds: bool, field: str, allowed: str) -> None:
            if not holds:
                problems.append(f"{field} must be {allowed}; received {getattr(self, field)!r}")

        check(self.num_return >= 1, "num_return", "at least 1")
        check(0 <= self.seed < 1 << 63, "seed", "at least 0 and below 2^63")
        if not self.sampling:
            check(self.num_return <= self.beam_size, "num_return", f"at most beam_size={self.beam_size}")
            for field, usual in (("temperature", 1.0), ("top_k", 0), ("top_p", 1.0), ("min_p", 0.0)):
                check(getattr(self, field) == usual, field, f"{usual} without sampling")
        else:
            check(self.beam_size == 1, "beam_size", "1 with sampling")
        if self.beam_size == 1:
            check(self.early_stopping is False, "early_stopping", "false without beams")
        if self.semantics == "floydhub":
            check(self.early_stopping is False, "early_stopping", "false of floydhub, which knows no other rule")
        require(self, problems)

    @classmethod
    def for_model(cls, generation: GenerationConfig, **given: Any) -> DecodingConfig:
        """How a model is decoded: as is given; where nothing is, as the model says; where it says nothing, by the
        defaults above.

        What the model says is left out where it isn't meant: of drawing, unless tokens are drawn; of beams, where
        tokens are drawn or there is one beam; of length_penalty and early_stopping, with other semantics than the
        model's. A beam_size that is given asks for no drawing. Where one of max_new_tokens and min_new_tokens is given,
        the model's other one makes room.

        Args:
          generation: what the model says.
          given: fields by name; None where one isn't given.

        Raises:
          ConfigError: what is given is out of range, or contradicts itself.
        """
        given = {name: value for name, value in given.items() if value is not None}
        left_out = _not_meant(generation.decoding, given)
        merged = {name: value for name, value in generation.decoding.items() if name not in left_out} | given
        most = merged.get("max_new_tokens")
        if most is not None and merged.get("min_new_tokens", 0) >= most:  # the given one prevails over the model's
            if "min_new_tokens" not in given:
                merged["min_new_tokens"] = max(most - 1, 0)
            elif "max_new_tokens" not in given:
                del merged["max_new_tokens"]
        return cls(**merged)

    @property
    def num_rows(self) -> int:
        """Hypotheses of a sentence that are decoded side by side."""
        return self.num_return if self.sampling else self.beam_size

    def program(self) -> DecodingConfig:
        """What of it a compiled program depends on; the rest is given to the program as numbers."""
        return dataclasses.replace(
            self,
            max_new_tokens=None,
            min_new_tokens=min(self.min_new_tokens, 1),
            length_penalty=1.0,
            temperature=1.0,
            top_p=1.0 if self.top_p == 1 else 0.5,  # whether there is one
            min_p=0.0 if self.min_p == 0 else 0.5,
            seed=0,
        )


def _not_meant(own: Mapping[str, Any], given: Mapping[str, Any]) -> tuple[str, ...]:
    """The fields in which a model's own values aren't meant for the decoding that is asked for."""
    said = {**own, **given}
    if (given if "beam_size" in given else said).get("sampling"):
        return OF_BEAMS
    if said.get("beam_size", 1) == 1:
        return OF_DRAWING + OF_BEAMS
    usual = own.get("semantics", "huggingface")
    return OF_DRAWING if given.get("semantics", usual) == usual else (*OF_DRAWING, "length_penalty", "early_stopping")
