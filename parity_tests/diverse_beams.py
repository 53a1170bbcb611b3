"""Writes diverse_beams.json: what transformers 4.55.4 decodes, which has group beam search; 4.57 doesn't.

    python parity_tests/diverse_beams.py

makes small models with the installed transformers, and decodes them with 4.55.4 in an environment of its own.
`test_diverse_beams.py` compares. Each entry has a model, the options of both libraries, and the sequences and scores.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

VERSION = "4.55.4"
GOLDENS = Path(__file__).with_name("diverse_beams.json")
FAMILIES = ("marian", "bart", "t5")
MOST = 12


def cases(common: list[int]) -> list[dict[str, Any]]:
    """Returns the searches as a list of `theirs`, `ours`, and the prefix.

    Args:
      common: the ids that the model decodes most often.
    """
    found: list[dict[str, Any]] = []

    def add(beams: int, groups: int, penalty: float, prefix: list[int] | None = None, **both: Any) -> None:
        theirs: dict[str, Any] = {"num_beams": beams, "num_beam_groups": groups, "diversity_penalty": penalty}
        ours: dict[str, Any] = {"beam_size": beams, "beam_groups": groups, "diversity_penalty": penalty}
        for name, value in both.items():
            theirs[name] = value
            ours[NAMES.get(name, name)] = value
        found.append({"theirs": theirs, "ours": ours, "prefix": prefix or []})

    for early_stopping in (False, True, "never"):
        for length_penalty in (-0.5, 0.0, 1.0, 2.0):
            add(6, 3, 0.7, early_stopping=early_stopping, length_penalty=length_penalty)
        add(4, 4, 0.7, early_stopping=early_stopping)
    add(2, 2, 0.7)
    add(6, 2, 0.7)
    for penalty in (0.1, 3.0, 50.0):
        add(6, 3, penalty)
    for max_new_tokens in (1, 2, 5):
        for early_stopping in (False, True, "never"):
            add(6, 3, 0.7, max_new_tokens=max_new_tokens, early_stopping=early_stopping, length_penalty=-1.0)
    for options in (
        {"no_repeat_ngram_size": 2},
        {"min_new_tokens": 6},
        {"bad_words_ids": [[common[0]], [common[1], common[2]]]},
        {"forced_bos_token_id": common[0]},
        {"forced_eos_token_id": common[1]},
        {"repetition_penalty": 1.3},
        {"renormalize_logits": True, "repetition_penalty": 0.8},
    ):
        add(4, 2, 0.7, **options)
    add(4, 2, 0.7, prefix=common[:2])
    add(6, 3, 0.7, prefix=common[:1], early_stopping="never")
    return found


NAMES = {
    "no_repeat_ngram_size": "no_repeat_ngram",
    "bad_words_ids": "bad_words",
    "forced_bos_token_id": "forced_bos_id",
    "forced_eos_token_id": "forced_eos_id",
    "renormalize_logits": "renormalize",
}


def main() -> None:
    """Makes the models, and has the other version decode them."""
    from other_transformers import run_with
    from test_decoding import make_search

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for family in FAMILIES:
            search = make_search(family, folder)
            config, generation = search.case.config, search.model.generation
            description = {
                "directory": str(search.case.directory),
                "sources": search.sources.tolist(),
                "source_pad_id": config.source_pad_id,
                "pad_id": config.target_pad_id,
                "start_id": generation.decoder_start_id,
                "eos_id": generation.eos_id,
                "cases": cases(search.common),
            }
            (folder / f"{family}.json").write_text(json.dumps(description))
        run_with(VERSION, __file__, [name])


def decode(folder: Path) -> None:
    """Decodes the cases of each model, with the version of transformers that this process has."""
    import torch
    import transformers

    assert transformers.__version__ == VERSION
    found = {}
    for family in FAMILIES:
        given = json.loads((folder / f"{family}.json").read_text())
        model = transformers.AutoModelForSeq2SeqLM.from_pretrained(
            given["directory"], torch_dtype=torch.float32, attn_implementation="eager"
        ).eval()
        model.generation_config = transformers.GenerationConfig()
        sources = torch.tensor(given["sources"])
        for case in given["cases"]:
            beams = case["theirs"]["num_beams"]
            start = [[given["start_id"], *case["prefix"]]] * len(sources)
            with torch.no_grad():
                output = model.generate(
                    sources,
                    attention_mask=sources != given["source_pad_id"],
                    decoder_input_ids=torch.tensor(start),
                    decoder_start_token_id=given["start_id"],
                    eos_token_id=given["eos_id"],
                    pad_token_id=given["pad_id"],
                    num_return_sequences=beams,
                    do_sample=False,
                    return_dict_in_generate=True,
                    output_scores=True,
                    **{"max_new_tokens": MOST} | case["theirs"],
                )
            sequences = output.sequences[:, 1:].reshape(len(sources), beams, -1)
            case["sequences"] = sequences.tolist()
            case["scores"] = output.sequences_scores.reshape(len(sources), beams).tolist()
        found[family] = [
            {name: case[name] for name in ("ours", "prefix", "sequences", "scores")} for case in given["cases"]
        ]
    GOLDENS.write_text(json.dumps(found, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        decode(Path(sys.argv[1]))
    else:
        os.environ["TRANSFORMERS_VERBOSITY"] = "error"
        main()
