"""Translates the lines of standard input with the programs in this directory: python run.py < SOURCE > TRANSLATIONS.

Needs `pip install jax flatbuffers safetensors tokenizers`, and not the package that exported them. Without tokenizers
in signature.json, the lines are ids separated by spaces.
"""

import json
import os
import sys
from pathlib import Path

import jax
import numpy as np
from jax import export
from jaxlib.version import __version_info__ as version
from safetensors.numpy import load_file
from tokenizers import Tokenizer

FLAG = "--xla_cpu_experimental_ynn_fusion_type"
"""Without it, these jaxlibs may compute wrong sums on CPUs: https://github.com/jax-ml/jax/issues/39103."""
if (0, 10, 2) <= version < (0, 13) and FLAG not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {FLAG}=LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT".strip()


def main() -> None:
    """Reads all lines, translates them in batches of similar lengths, and writes them in order."""
    here = Path(__file__).resolve().parent
    signature = json.loads((here / "signature.json").read_text(encoding="utf-8"))
    program, batch, text = signature["programs"][signature["run"]], signature["batch"], signature["text"]
    search = jax.jit(export.deserialize(bytearray((here / program["file"]).read_bytes())).call)
    params = jax.device_put(load_file(here / "params.safetensors"))
    tokenizers = [Tokenizer.from_file(str(here / name)) for name in text["tokenizers"]]
    lines = [line.decode("utf-8").rstrip("\r\n") for line in sys.stdin.buffer]
    if tokenizers:
        tokenizers[0].encode_special_tokens = True  # "<eos>" in a sentence is text
        encoded = [line.ids for line in tokenizers[0].encode_batch(lines, add_special_tokens=False)]
        sources = [[*text["before"], *ids, *text["after"]] for ids in encoded]
    else:
        sources = [[int(token) for token in line.split()] for line in lines]
    order = sorted((i for i, line in enumerate(lines) if line.strip()), key=lambda i: len(sources[i]))
    translations = [""] * len(lines)
    while order:
        chunk, order = order[: batch["sentences"]], order[batch["sentences"] :]
        longest = len(sources[chunk[-1]])
        if longest > batch["most_tokens"]:
            sys.exit(f"line {chunk[-1] + 1}: expected at most {batch['most_tokens']} tokens; received {longest}")
        rows = next(rows for rows in batch["rows"] if rows >= len(chunk))
        length = next((length for length in batch["lengths"] if length >= longest), longest)
        source_ids = np.full((rows, length), signature["ids"]["source_pad"], np.int32)
        for row, i in zip(source_ids, chunk, strict=False):
            row[: len(sources[i])] = sources[i]
        found = jax.device_get(search(params, source_ids))
        for i, tokens, count in zip(chunk, found["tokens"].tolist(), found["lengths"].tolist(), strict=False):
            if tokenizers:
                shown = [text["read_as"].get(str(token), token) for token in tokens[:count]]
                visible = [token for token in shown if token is not None]
                translations[i] = tokenizers[1].decode(visible, skip_special_tokens=False).replace(*text["unknown"])
            else:
                translations[i] = " ".join(map(str, tokens[:count]))
    sys.stdout.buffer.write("".join(f"{line}\n" for line in translations).encode())


if __name__ == "__main__":
    main()
