"""Tries the steps of a foreign tokenizer.json in a separate process before they process any text.

A pattern such as (a+)+$ takes time exponential in the text's length, `tokenizers` panics when its library gives up, and
replacements of replacements multiply a text until the process is killed. No rule distinguishes good patterns from bad
ones, so those of well-known tokenizers pass at once, and all others are run on texts made of their own characters, in a
process with limited time and memory. A pattern that is too slow only on a later text raises an error there.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from jax_transformer.data.tokenizers.patterns import KNOWN_PATTERNS
from jax_transformer.runtime.json_text import parse_json
from jax_transformer.runtime.limits import PATTERN_SECONDS, TEXT_GROWTH, TOKENIZER_BYTES

PARTS = ("normalizer", "pre_tokenizer", "decoder")
PLAIN = {
    "BertNormalizer", "NFC", "NFD", "NFKC", "NFKD", "Nmt", "Lowercase", "Strip", "StripAccents", "Precompiled",
    "Prepend", "BertPreTokenizer", "CharDelimiterSplit", "Metaspace", "Whitespace", "WhitespaceSplit", "Digits",
    "Punctuation", "UnicodeScripts", "BPEDecoder", "ByteLevel", "WordPiece", "ByteFallback", "Fuse", "CTC", "Sequence",
}  # fmt: skip
"""Steps that take time linear in the text, and lengthen it by at most a constant factor."""
MOST_PLAIN_STEPS, LONGEST_INSERTION = 64, 16
TRIAL_MEMORY = 2**30
"""Bytes of address space of the trial's process."""
QUIET = {"RUST_BACKTRACE": "0", "RAYON_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1"}
PROGRAM, SECONDS_TO_START = "from {module} import try_steps; try_steps({seconds})", 20
REPEATS = 200
SENTENCES = ("who sleeps and dreams, isn't 12.5 years old!", "Träume & Wünsche: 北京  \n\t…", "")


def check_steps(text: str) -> None:
    """Checks the steps of a tokenizer.json, and tries the unknown ones.

    Raises:
      ValueError: the steps take more than PATTERN_SECONDS for short texts, or more memory than a trial has; they panic;
        they lengthen a text beyond TEXT_GROWTH; the file is too large.

    Example:
      >>> from jax_transformer.data.tokenizers.trial import check_steps
      >>> check_steps('{"normalizer": {"type": "NFC"}, "model": {"vocab": {}}}')
    """
    TOKENIZER_BYTES.check(len(text), "tokenizer")
    try:
        content = parse_json(text)
    except ValueError:
        return  # the library reports the error
    steps = {part: content.get(part) for part in PARTS} if isinstance(content, dict) else {}
    if _needs_trial(steps):
        problem = _tried(json.dumps(steps), PATTERN_SECONDS.value)
        if problem:
            raise ValueError(f"tokenizer: {problem}. Replace its patterns, or use another tokenizer.")


def is_panic(error: BaseException) -> bool:
    """Checks whether the library `tokenizers` raised this because a pattern took too long; its class derives directly
    from BaseException."""
    return type(error).__name__ == "PanicException"


def _needs_trial(steps: dict[str, Any]) -> bool:
    found = [step for part in steps.values() for step in _steps(part)]
    return len(found) > MOST_PLAIN_STEPS or any(not _is_plain(step) for step in found)


def _steps(part: Any) -> Iterator[dict[str, Any]]:
    """Yields the steps of a part, including nested ones."""
    if isinstance(part, dict):
        yield part
        for value in part.values():
            yield from _steps(value) if isinstance(value, list) else ()
    elif isinstance(part, list):
        for inner in part:
            yield from _steps(inner)


def _is_plain(step: dict[str, Any]) -> bool:
    inserted = [value for name, value in step.items() if isinstance(value, str) and name != "precompiled_charsmap"]
    if any(len(text) > LONGEST_INSERTION for text in inserted):
        return False
    if "pattern" not in step:
        return step.get("type") in PLAIN
    pattern, content = step["pattern"], step.get("content", "")
    if step.get("type") not in ("Split", "Replace") or not isinstance(pattern, dict):
        return False
    literal = pattern.get("String")
    is_known = pattern.get("Regex") in KNOWN_PATTERNS or (isinstance(literal, str) and literal)
    return bool(is_known) and len(content) <= max(1, len(literal) if isinstance(literal, str) else 0)


@functools.cache
def _tried(steps: str, seconds: int) -> str:
    """Tries the steps in another process; returns the problem with them, or ""."""
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-c", PROGRAM.format(module=__name__, seconds=seconds)],
            input=steps.encode(),
            capture_output=True,
            timeout=2 * seconds + SECONDS_TO_START,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **QUIET},
        )
    except subprocess.TimeoutExpired:
        return _too_slow(seconds)
    answer = done.stdout.decode(errors="replace").strip().splitlines()
    if done.returncode == 0 and answer:
        return answer[-1].removeprefix("right").strip()
    return _too_slow(seconds) if done.returncode in (-24, -9) else f"{_EXPECTED}; received ones that end their process"


_EXPECTED = "expected patterns and replacements that take a short text in a moment"


def _too_slow(seconds: int) -> str:
    return f"{_EXPECTED}; received ones that take more than {seconds} s ({PATTERN_SECONDS.variable})"


# --- in the trial's process


def try_steps(seconds: int) -> None:
    """Tries the steps from standard input, within limits of this process, and prints "right" or the problem."""
    import resource

    from tokenizers import Tokenizer

    resource.setrlimit(resource.RLIMIT_AS, (TRIAL_MEMORY, TRIAL_MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 5))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    steps = json.load(sys.stdin)
    model = {"type": "WordLevel", "vocab": {"<unk>": 0}, "unk_token": "<unk>"}
    try:
        tokenizer = Tokenizer.from_str(json.dumps({"version": "1.0", "added_tokens": [], "model": model} | steps))
        for text in trial_texts(steps):
            grown = tokenizer.normalizer.normalize_str(text) if tokenizer.normalizer else text
            for made in (grown, tokenizer.decoder.decode([text, "a", text]) if tokenizer.decoder else ""):
                if len(made) > TEXT_GROWTH.value * (3 * len(text) + 16):
                    print(
                        f"expected steps that make at most {TEXT_GROWTH.value} characters of one "
                        f"({TEXT_GROWTH.variable}); received ones that make {len(made):,} of {len(text)}"
                    )
                    return
            tokenizer.encode(text)
    except BaseException as error:
        if is_panic(error):
            print(f"{_EXPECTED}; received ones that `tokenizers` gives up ({error})")
            return
        if not isinstance(error, Exception):
            raise
    print("right")  # any other mistake is reported when the file is read


def trial_texts(steps: Any) -> list[str]:
    """Returns texts that expose bad patterns and replacements: their own characters, repeated, with an end that no
    repetition matches."""
    found = [
        text for part in steps.values() for step in _steps(part) for text in (*_patterns(step), step.get("content"))
    ]
    written = "".join(text for text in found if isinstance(text, str))
    characters = list(dict.fromkeys([*"a0 .'-é▁\n", *written]))[:200]
    letters = [one for one in characters if one.isalnum()]
    mixed = ["".join(letters[start : start + count]) for count in (2, 3, 5) for start in range(0, len(letters), count)]
    return [*SENTENCES, *(one * REPEATS + end for one in [*characters, *mixed] for end in ("!", "\x01"))]


def _patterns(step: dict[str, Any]) -> list[str]:
    pattern = step.get("pattern")
    return [text for text in pattern.values() if isinstance(text, str)] if isinstance(pattern, dict) else []
