"""Words that people know from other programs, for the options of each command."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

DEVICE = "the environment variable JAX_PLATFORMS, such as JAX_PLATFORMS=cpu"
FIRST = "the model as the first argument"
TOKENS = "which counts tokens of a batch, not sentences"

ALL = dict.fromkeys(("--device", "--gpu", "--gpus", "--cuda", "--cpu", "--use-cpu", "--no-cuda"), DEVICE)
MODEL = dict.fromkeys(("--model", "--model-name-or-path", "--checkpoint", "--ckpt", "--path", "--model-dir"), FIRST)
SECOND = ("--output", "--out", "--output-dir", "--save-dir", "--destination", "-o")
SEARCH = {
    **dict.fromkeys(("--beam", "--beams", "--num-beams", "--beam-width", "-b"), "--beam-size"),
    **dict.fromkeys(("--max-length", "--max-len", "--max-len-b", "--max-decoding-length"), "--max-new-tokens"),
    **dict.fromkeys(("--min-length", "--min-len", "--min-decoding-length"), "--min-new-tokens"),
    **dict.fromkeys(("--lenpen", "--alpha", "--beam-alpha", "--length-alpha"), "--length-penalty"),
    **dict.fromkeys(("--no-repeat-ngram-size", "--block-ngram-repeat"), "--no-repeat-ngram"),
    "--encoder-no-repeat-ngram-size": "--encoder-no-repeat-ngram",
    "--num-beam-groups": "--beam-groups",
    "--diverse-beam-groups": "--beam-groups",
    "--diverse-beam-strength": "--diversity-penalty",
    "--do-sample": "--sampling",
    **dict.fromkeys(("--torch-dtype", "--compute-type", "--precision"), "--dtype"),
    **dict.fromkeys(("--fp16", "--bf16", "--half"), "--dtype bfloat16"),
    "--topk": "--top-k",
    "--sampling-topk": "--top-k",
    "--topp": "--top-p",
    "--sampling-topp": "--top-p",
    **dict.fromkeys(("--batch-size", "--max-batch-size", "--per-device-eval-batch-size"), "--rows"),
}
TAGS = {
    **dict.fromkeys(("--src-lang", "--source-lang", "--source-language"), "--source-tag, if the model knows languages"),
    **dict.fromkeys(
        ("--tgt-lang", "--target-lang", "--target-language", "--forced-bos-token"),
        "--target-tag, if the model knows languages",
    ),
}
RUN = {
    "--lr": "--train.learning-rate",
    "--batch-size": f"--data.batch-tokens, {TOKENS}",
    "--per-device-train-batch-size": f"--data.batch-tokens, {TOKENS}",
    "--max-tokens": "--data.batch-tokens",
    "--epochs": "--train.max-epochs",
    "--num-train-epochs": "--train.max-epochs",
    "--max-epoch": "--train.max-epochs",
    "--steps": "--train.max-steps",
    "--train-steps": "--train.max-steps",
    "--max-update": "--train.max-steps",
    "--warmup": "--train.warmup-steps",
    "--warmup-updates": "--train.warmup-steps",
    "--optim": "--train.optimizer",
    "--lr-scheduler": "--train.schedule",
    "--lr-scheduler-type": "--train.schedule",
    "--adam-betas": "--train.adam-b1 and --train.adam-b2",
    "--label-smoothing-factor": "--train.label-smoothing",
    "--eval-steps": "--train.evaluate-every",
    "--valid-steps": "--train.evaluate-every",
    "--save-steps": "--train.evaluate-every, after which a checkpoint is kept",
    "--logging-steps": "--train.log-every",
    "--log-interval": "--train.log-every",
    "--dtype": "--model.compute-dtype",
    "--bf16": "--model.compute-dtype bfloat16",
    "--fp16": "--model.compute-dtype bfloat16",
    "--dropout": "--model.dropout-rate",
    "--hidden-size": "--model.d-model",
    "--embed-dim": "--model.d-model",
    "--intermediate-size": "--model.d-ff",
    "--ffn-dim": "--model.d-ff",
    "--dim-feedforward": "--model.d-ff",
    "--nhead": "--model.num-heads",
    "--heads": "--model.num-heads",
    "--num-attention-heads": "--model.num-heads",
    "--layers": "--model.num-encoder-layers and --model.num-decoder-layers",
    "--num-layers": "--model.num-encoder-layers and --model.num-decoder-layers",
    "--arch": "a preset: jax-transformer presets",
    "--update-freq": "--train.accumulate",
    "--gradient-accumulation-steps": "--train.accumulate",
    "--clip-grad": "--train.clip-norm",
    "--max-grad-norm": "--train.clip-norm",
    "--model": "--init-from",
    "--model-name-or-path": "--init-from",
    "--train-file": "--data.train",
    "--validation-file": "--data.valid",
    "--source-lang": "--data.source-language",
    "--target-lang": "--data.target-language",
    "--fsdp": "--parallel.fsdp",
    "--devices": "--parallel.data",
    "--early-stopping-patience": "--train.patience",
    "--early-stopping-threshold": "--train.min-improvement",
    "--metric-for-best-model": "--train.best-metric",
    "--greater-is-better": "--train.best-metric, which goes down for a loss and up for a score",
    "--load-best-model-at-end": "no option: the best checkpoint becomes the model",
    "--save-total-limit": "--train.keep-checkpoints, to which the best one comes",
    "--max-decoding-length": "--train.max-decode-length",
}
"""Words for the options of a run."""

WORDS: Mapping[str, Mapping[str, str]] = {
    "train": {
        **RUN,
        **dict.fromkeys(("--output-dir", "--save-dir", "--output", "--out", "-o"), "--run-dir"),
        "--resume-from-checkpoint": "--resume",
        "--restore-file": "--resume",
        **dict.fromkeys(
            ("--beam", "--beams", "--num-beams", "--beam-size", "--length-penalty"),
            "it in translate or evaluate: a training decodes greedily",
        ),
    },
    "compile": {
        **RUN,
        "--devices": "--target",
        "--device": "--target",
        "--topology": "--target",
        **dict.fromkeys(("--beam", "--beams", "--num-beams"), "--beam-size"),
    },
    "launch": dict.fromkeys(("--nproc-per-node", "--nproc", "--num-processes", "--np", "-n", "--n"), "--processes"),
    "translate": {
        **MODEL,
        **SEARCH,
        **TAGS,
        **dict.fromkeys(("--source", "--src", "--input-file", "--file", "-i"), "--input"),
        **dict.fromkeys(SECOND, "standard output, so > FILE after the command"),
        **dict.fromkeys(("--nbest", "--n-best", "--num-return-sequences", "--num-hypotheses"), "--num-return"),
        "--max-tokens": "--batch-tokens",
    },
    "evaluate": {
        **MODEL,
        **SEARCH,
        **TAGS,
        **dict.fromkeys(("--src", "--input", "--input-file", "-i"), "--source"),
        **dict.fromkeys(("--ref", "--refs", "--reference", "--references", "--tgt"), "--target"),
        **dict.fromkeys(("--hyp", "--hypothesis", "--system", "--predictions"), "--hypotheses"),
        **dict.fromkeys(("--out", "--output-file", "-o"), "--output"),
        "--json": "--format json",
    },
    "serve": {
        **MODEL,
        **SEARCH,
        **TAGS,
        "--address": "--host",
        "--workers": "--parallel.data, devices that share the work: one process answers all requests",
    },
    "score": {
        **MODEL,
        **TAGS,
        **dict.fromkeys(("--src", "--input", "--input-file"), "--source"),
        **dict.fromkeys(("--tgt", "--hyp", "--hypotheses", "--predictions", "--references"), "--target"),
        **dict.fromkeys(SECOND, "standard output, so > FILE after the command"),
        "--batch-size": "--rows",
        "--json": "--format jsonl",
    },
    "average": {
        **dict.fromkeys(("--n", "-n", "--num", "--num-epoch-checkpoints", "--num-update-checkpoints"), "--count"),
        **dict.fromkeys(("--out", "--output-dir", "-o"), "--output"),
        **dict.fromkeys(("--inputs", "--checkpoints", "--run-dir"), "the run as the first argument"),
    },
    "port": {
        **dict.fromkeys((*MODEL, "--input", "--source", "--pytorch-model"), "the checkpoint as the first argument"),
        **dict.fromkeys(SECOND, "what to write as the second argument"),
        **dict.fromkeys(("--arch", "--architecture", "--model-type", "--format"), "--dialect"),
        **dict.fromkeys(("--src-vocab", "--vocab"), "--source-vocab"),
        "--tgt-vocab": "--target-vocab",
        "--torch-dtype": "--dtype",
        "--heads": "--num-heads",
        "--num-attention-heads": "--num-heads",
    },
    "parity": {
        **MODEL,
        **dict.fromkeys(("--device", "--cuda", "--gpu"), "--candidate-device and --reference-device"),
        **dict.fromkeys(("--atol", "--rtol", "--tol"), "--tolerance, with --diff"),
        **dict.fromkeys(SECOND, "--json or --html"),
        **dict.fromkeys(("--beam", "--num-beams"), "--beam-size"),
        "--dtype": "--dtypes",
        "--precision": "--dtypes",
        "--max-length": "--max-new-tokens",
        "--heads": "--num-heads",
        "--torch": "--reference",
        "--pytorch": "--reference",
        "--jax": "--candidate",
    },
    "export": {
        **MODEL,
        **dict.fromkeys(SECOND, "the directory as the second argument"),
        **dict.fromkeys(("--format", "--target", "--framework"), "--to"),
        **dict.fromkeys(("--dtype", "--quantize", "--compute-type"), "--quantization"),
        **dict.fromkeys(("--beam", "--num-beams"), "--beam-size"),
        "--batch-size": "--batch",
        "--max-length": "--length, of sources, or --max-new-tokens",
        "--src-lang": "--source-tag",
        "--tgt-lang": "--target-tag",
    },
    "push": {
        **MODEL,
        **dict.fromkeys(("--repo", "--repo-id", "--repository", "--name"), "the repository as the second argument"),
        "--commit-message": "--message",
        "--branch": "--revision",
        "--language": "--languages",
        "--dataset": "--datasets",
    },
    "freeze": {
        **dict.fromkeys(("--output", "-o"), "--out"),
        **dict.fromkeys(("--model", "--program"), "the program as the first argument"),
        "--lr": "--learning-rate",
    },
    "discover": {
        **dict.fromkeys(("--model", "--module", "--reference"), "the module as the first argument"),
        **dict.fromkeys(("--out", "--output-dir"), "--output"),
        "--max-length": "--longest",
    },
    "report": {
        **dict.fromkeys(("--run", "--run-dir"), "the run as the first argument"),
        "--live": "--watch",
        **dict.fromkeys(("--out", "--html", "-o"), "--output"),
    },
}
"""A word of transformers, fairseq, OpenNMT, CTranslate2 or common use → what to write here, by command."""
FREE_TEXT = {
    "translate": "text comes from --input FILE or from standard input",
    "evaluate": "files are named by --source, --target and --hypotheses",
    "score": "files are named by --source and --target",
    "train": "a preset comes first, and files are named by --data.train",
}
"""What to do instead of naming more arguments than a command has."""


def known_word(name: str, command: str, options: Iterable[str]) -> str:
    """Returns what to write for an option that another program or `train` has, or that is in a group; or "".

    Args:
      options: the options that there are, such as --train.learning-rate.
    """
    own = WORDS.get(command.partition(" ")[0], {})
    inside = [option for option in options if option.rpartition(".")[2] == name.removeprefix("--")]
    answer = own.get(name) or " or ".join(sorted(inside)) or ALL.get(name)
    if answer:
        return f"expected {answer}"
    return f"training has {WORDS['train'][name]}" if name in WORDS["train"] else ""
