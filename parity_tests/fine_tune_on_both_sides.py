"""Fine-tune a model of transformers here and there, on Multi30k, and compare the runs.

    python parity_tests/fine_tune_on_both_sides.py [--kinds marian t5] [--steps 200] [--first 600] [--lora-rank R]
                                                   [--json FILE]

A small Marian-like and a small T5-like model are first trained in transformers, in float32. Both sides then train that
model further, in float64 and without dropout, by the preset finetune on the batches of this project: AdamW with
clipping, and a rate that falls from 5e-4 to 0. Each loss and the weights at the end are compared; beside them stands
PyTorch against itself, each of its first weights changed in the last bit. The fine-tuned models translate sentences of
the test set greedily: BLEU by sacreBLEU, and the number of equal translations. With --lora-rank, both sides train
adapters in place of the weights, there by PEFT, from the same first values and by a rate that falls from 5e-3.

The text is multi30k under data in JAX_TRANSFORMER_SHARED. Exit code 1: a loss or a weight differs by more than the
gates of a trajectory.
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import gzip
import json
import os
import sys
import tempfile
import time
from itertools import islice
from pathlib import Path
from typing import Any

import jax
import numpy as np
import peft
import sacrebleu
import torch
import transformers
from fine_tuning import train_in_jax, train_in_torch
from recipes_in_torch import NO_DROPOUT, trained_leaves
from text_families import train as train_sentencepiece
from text_families import write_json

from jax_transformer.cli import main as command
from jax_transformer.comparison.gates.compare import compare
from jax_transformer.comparison.gates.tolerances import (
    TRAJECTORY_LOSS_RELATIVE,
    TRAJECTORY_PARAMETERS_RELATIVE_RMS,
    has_zero_gradient,
)
from jax_transformer.config.presets import get_preset
from jax_transformer.config.run import RunConfig, TrainConfig
from jax_transformer.data.batching import Batch
from jax_transformer.data.preparation import PreparedCorpus, prepare
from jax_transformer.data.tokenizers.sentencepiece_model import pieces_of
from jax_transformer.decoding.translation import translate
from jax_transformer.porting import import_adapter, import_checkpoint
from jax_transformer.runtime.trees import flatten, unflatten
from jax_transformer.storage.adapters import Adapters
from jax_transformer.storage.model_directory import load_model
from jax_transformer.training.batch_schedule import BatchSchedule
from jax_transformer.training.export import make_model
from jax_transformer.training.fitting import fit_config
from jax_transformer.training.state import all_params, init_state
from jax_transformer.training.warm_start import follow_initial_model, load_initial_model, load_initial_params

VOCABULARY, TRANSLATED = 2_000, 500
SIZES = {
    "d_model": 64, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 128, "decoder_ffn_dim": 128, "max_position_embeddings": 128,
}  # fmt: skip
T5_SIZES = {"d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_decoder_layers": 2, "num_heads": 4}


def unpacked(shared: Path, folder: Path) -> dict[str, tuple[Path, Path]]:
    """Writes the sentences of each split as plain text, and returns the files of both sides."""
    files = {}
    for split in ("train", "val", "test_2016_flickr"):
        for side in ("en", "de"):
            with gzip.open(shared / "data" / "multi30k" / f"{split}.lc.norm.tok.{side}.gz", "rb") as file:
                (folder / f"{split}.{side}").write_bytes(file.read())
        files[split] = (folder / f"{split}.en", folder / f"{split}.de")
    return files


def lines_of(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()


def make_marian(folder: Path, text: tuple[Path, Path]) -> Any:
    """Returns a model with random weights, and writes its tokenizer to `folder`."""
    sides = zip(("source", "target"), text, strict=True)
    models = {side: train_sentencepiece(lines_of(path), vocab_size=VOCABULARY) for side, path in sides}
    pieces = dict.fromkeys(piece.text for model in models.values() for piece in pieces_of(model) if piece.kind == 1)
    write_json(folder / "vocab.json", {piece: i for i, piece in enumerate(["</s>", "<unk>", *pieces, "<pad>"])})
    for side, model in models.items():
        (folder / f"{side}.spm").write_bytes(model)
    files = [str(folder / name) for name in ("source.spm", "target.spm", "vocab.json")]
    tokenizer = transformers.MarianTokenizer(*files)
    tokenizer.save_pretrained(folder)
    ids = {"pad_token_id": tokenizer.pad_token_id, "decoder_start_token_id": tokenizer.pad_token_id, "eos_token_id": 0}
    sizes = SIZES | {"vocab_size": len(tokenizer), "decoder_vocab_size": len(tokenizer), "forced_eos_token_id": 0}
    return transformers.MarianMTModel(transformers.MarianConfig(**sizes, **ids, scale_embedding=True))


def make_t5(folder: Path, text: tuple[Path, Path]) -> Any:
    """Returns a model with random weights, and writes its tokenizer to `folder`."""
    both = [line for path in text for line in lines_of(path)]
    ids = {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}
    (folder / "spiece.model").write_bytes(train_sentencepiece(both, vocab_size=VOCABULARY, **ids))
    names = {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
    settings = {"tokenizer_class": "T5Tokenizer", "extra_ids": 0, **names}
    write_json(folder / "tokenizer_config.json", settings)
    config = transformers.T5Config(**T5_SIZES, vocab_size=VOCABULARY, decoder_start_token_id=0)
    return transformers.T5ForConditionalGeneration(config)


KINDS = {"marian": make_marian, "t5": make_t5}
LINEAR = {"marian": ["q_proj", "v_proj"], "t5": ["q", "v"]}
"""The modules that get adapters, as by PEFT's default."""


def run_config(folder: Path, files: dict[str, tuple[Path, Path]]) -> RunConfig:
    """Returns the config of a run that starts from the directory `hf` in a folder, which it ports."""
    assert command(["port", str(folder / "hf"), str(folder / "model")]) == 0
    preset = get_preset("finetune")
    train, valid = (tuple(map(str, files[split])) for split in ("train", "val"))
    data = dataclasses.replace(
        preset.data, train=train, valid=valid, max_length=64, batch_tokens=1024, cache_dir=str(folder / "cache")
    )
    return follow_initial_model(dataclasses.replace(preset, data=data), load_initial_model(str(folder / "model")))


def first_trained(theirs: Any, batches: list[Batch]) -> float:
    """Trains a model of transformers in float32; returns its last loss."""
    optimizer = torch.optim.AdamW(theirs.train().parameters(), 3e-3)
    rates = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda done: min(1.0, (done + 1) / 100))
    return train_in_torch(theirs, batches, optimizer, rates.step, 1.0)[-1]


def fine_tuned(theirs: Any, train: TrainConfig, batches: list[Batch]) -> tuple[Any, list[float]]:
    """Returns the model in float64 after these steps, and their losses."""
    model = theirs.double().eval()
    optimizer = torch.optim.AdamW(model.parameters(), train.learning_rate, weight_decay=train.weight_decay)
    rates = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda done: 1.0 - done / train.max_steps)
    return model, train_in_torch(model, batches, optimizer, rates.step, train.clip_norm)


def adapted(theirs: Any, targets: list[str], rank: int, folder: Path) -> tuple[Any, Adapters]:
    """Returns a model with PEFT's adapters of these modules, and the same adapters here."""
    transformers.set_seed(0)
    config = peft.LoraConfig(task_type="SEQ_2_SEQ_LM", r=rank, target_modules=targets)
    model = peft.get_peft_model(theirs, config)
    return model, adapters_of(model, folder / "first")


def adapters_of(model: Any, folder: Path) -> Adapters:
    model.save_pretrained(folder)
    adapters = import_adapter(folder, load_model(folder.parent / "model")).adapters
    assert adapters is not None
    return adapters


def leaves_of(model: Any, folder: Path) -> dict[str, np.ndarray]:
    """Returns the trained parameters by path."""
    if isinstance(model, peft.PeftModel):
        return flatten(adapters_of(model, folder).params)
    model.save_pretrained(folder)
    return trained_leaves(import_checkpoint(folder).params)


def joined(params: Any, trained: Any) -> Any:
    """Returns the first parameters with the trained ones in their places."""
    return unflatten(flatten(params) | flatten(trained))


def differences(
    losses: list[float], weights: dict[str, np.ndarray], expected: list[float], reference: dict[str, np.ndarray]
) -> dict[str, Any]:
    """Returns the largest relative differences of losses, and of weights but for biases whose gradient is zero."""
    errors = {path: compare(weights[path], leaf).relative_rms for path, leaf in reference.items()}
    errors = {path: error for path, error in errors.items() if not has_zero_gradient(path.split("[")[0])}
    worst = max(errors, key=lambda path: errors[path])
    relative = np.abs(np.array(losses) / np.array(expected) - 1.0)
    return {"losses": float(relative.max()), "weights": errors[worst], "worst": worst}


def translations(model: Any, folder: Path, sources: list[str]) -> list[str]:
    """Translates greedily in transformers."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    texts = []
    for start in range(0, len(sources), 50):
        inputs = tokenizer(sources[start : start + 50], padding=True, return_tensors="pt")
        with torch.no_grad():
            ids = model.generate(**inputs, max_new_tokens=64, num_beams=1, do_sample=False)
        texts += tokenizer.batch_decode(ids, skip_special_tokens=True)
    return texts


def bleu_scores(texts: dict[str, list[str]], references: list[str]) -> dict[str, float]:
    """Returns sacreBLEU's score of each system's translations; the text is tokenized."""
    return {
        name: sacrebleu.corpus_bleu(translated, [references], tokenize="none", force=True).score
        for name, translated in texts.items()
    }


def run(kind: str, options: argparse.Namespace, files: dict[str, tuple[Path, Path]], folder: Path) -> dict[str, Any]:
    """Trains one kind of model on both sides, and prints what came out."""
    transformers.set_seed(0)
    (folder / "hf").mkdir(parents=True)
    theirs = KINDS[kind](folder / "hf", files["train"])
    theirs.save_pretrained(folder / "hf")
    config = run_config(folder, files)
    corpus = prepare(config.data)
    began = time.perf_counter()
    longest = dataclasses.replace(config.train, max_steps=max(options.first, options.steps))
    schedule = BatchSchedule(dataclasses.replace(config, train=longest), corpus)
    loss = first_trained(theirs, list(islice(schedule.batches_from(0), options.first)))
    seconds = time.perf_counter() - began
    print(f"{kind}: {options.first} steps in transformers, to a loss of {loss:.3f}, {seconds:.0f} s", flush=True)
    theirs.save_pretrained(folder / "hf")
    config = run_config(folder, files)
    train = dataclasses.replace(config.train, max_steps=options.steps, learning_rate=5e-4, weight_decay=0.01)
    params = load_initial_params(config.init_from, fit_config(config.model, corpus), corpus)
    first = params
    if options.lora_rank:
        theirs, adapters = adapted(theirs, LINEAR[kind], options.lora_rank, folder)
        train = dataclasses.replace(train, learning_rate=5e-3, lora=adapters.config)
        first = unflatten(flatten(params) | flatten(adapters.params))
    config = dataclasses.replace(config, train=train)
    batches = list(islice(schedule.batches_from(0), options.steps))
    found = compare_sides(config, corpus, first, theirs, batches, folder)

    sources, references = (lines_of(path)[:TRANSLATED] for path in files["test_2016_flickr"])
    texts = {
        "before": translate(make_model(config, corpus, params), sources),
        "jax": translate(make_model(config, corpus, found.pop("params")), sources),
        "transformers": translations(found.pop("model").float(), folder / "hf", sources),
    }
    found |= {f"bleu_{name}": score for name, score in bleu_scores(texts, references).items()}
    found["equal"] = sum(one == other for one, other in zip(texts["jax"], texts["transformers"], strict=True))
    print(json.dumps(found, indent=1), flush=True)
    return found


def compare_sides(
    config: RunConfig, corpus: PreparedCorpus, params: Any, theirs: Any, batches: list[Batch], folder: Path
) -> dict[str, Any]:
    """Returns the differences of JAX, and of PyTorch from weights changed in the last bit, from PyTorch; and both
    trained models."""
    fitted = fit_config(config.model, corpus)
    model = dataclasses.replace(fitted, **NO_DROPOUT, output_dropout_rate=0.0)
    nudged = copy.deepcopy(theirs).double()
    with torch.no_grad():
        for parameter in nudged.parameters():
            parameter.copy_(torch.nextafter(parameter, torch.full_like(parameter, torch.inf)))
    with jax.enable_x64(True), jax.default_matmul_precision("highest"):
        losses, trained = train_in_jax(model, config.train, params, batches)
    reference, expected = fine_tuned(theirs, config.train, batches)
    weights = leaves_of(reference, folder / "reference")
    ours = flatten(trained) if config.train.lora.rank else trained_leaves(trained)
    again, changed = fine_tuned(nudged, config.train, batches)
    return {
        "first_loss": expected[0],
        "last_loss": expected[-1],
        "some_losses": [[losses[step], expected[step]] for step in range(0, len(losses), 20)],
        "jax": differences(losses, ours, expected, weights),
        "torch_nudged": differences(changed, leaves_of(again, folder / "nudged"), expected, weights),
        "params": jax.device_get(all_params(init_state(model, config.train, joined(params, trained)))),
        "model": reference,
    }


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", nargs="*", default=list(KINDS), choices=list(KINDS))
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--first", type=int, default=600, help="steps of the first training, in transformers")
    parser.add_argument("--lora-rank", type=int, default=0, help="train adapters of this rank in place of the weights")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    torch.set_num_threads(2)
    results = {}
    with tempfile.TemporaryDirectory() as directory:
        files = unpacked(Path(os.environ["JAX_TRANSFORMER_SHARED"]), Path(directory))
        for kind in options.kinds:
            results[kind] = run(kind, options, files, Path(directory) / kind)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    return int(
        any(
            found["jax"]["losses"] > TRAJECTORY_LOSS_RELATIVE
            or found["jax"]["weights"] > TRAJECTORY_PARAMETERS_RELATIVE_RMS
            for found in results.values()
        )
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
