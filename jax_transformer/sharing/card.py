"""Writes the model card: README.md with a YAML header that the Hub reads, and the text that people read.

Names and paths become text: what is markup in Markdown or HTML is written as character references.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from jax_transformer.config.data import CorpusConfig
from jax_transformer.runtime.trees import flatten
from jax_transformer.sharing.facts import Facts, corpora_of
from jax_transformer.storage.adapters import ADAPTERS

MARKUP = re.compile(r"[&<>`*\[\]()#!|~$\\@{}]|(?<!\w)_|_(?!\w)|(?<=:)/")
"""Underscores within words are none, and a colon alone begins no link."""
METRICS = {"bleu": "BLEU", "chrf": "chrF", "exact_match": "exact match"}
SIGNED = ("bleu", "chrf")
"""Metrics of sacreBLEU, which have a signature."""
ARCHITECTURE = (
    *("num_encoder_layers", "num_decoder_layers", "d_model", "num_heads", "d_ff", "source_vocab_size"),
    *("target_vocab_size", "max_length", "position_kind", "norm_kind", "norm_placement", "activation"),
)
RECIPE = (
    *("optimizer", "schedule", "learning_rate", "warmup_steps", "weight_decay", "label_smoothing", "clip_norm"),
    *("accumulate", "ema_decay", "max_steps", "average_checkpoints", "seed"),
)


VERSIONS = ("Python", "jax", "torch", "transformers", "numpy")
"""Versions of a parity report that the card lists."""


def make_card(facts: Facts) -> str:
    """Returns README.md."""
    sections = (_title, _use, _metrics, _model, _data, _training, _parity, _provenance)
    body = "\n\n".join(text for section in sections if (text := "\n".join(section(facts))))
    return f"---\n{header(facts)}---\n\n{body}\n"


def header(facts: Facts) -> str:
    """Returns the YAML that the Hub reads, with the scores as its model-index."""
    from huggingface_hub import ModelCardData

    results = list(_results(facts))
    return (
        ModelCardData(
            language=list(facts.languages) or None,
            license=facts.license or None,
            library_name="jax-transformer",
            pipeline_tag="translation",
            tags=list(dict.fromkeys(["jax", "jax-transformer", "encoder-decoder", "translation", *facts.tags])),
            datasets=list(facts.datasets) or None,
            base_model=facts.base_model or None,
            metrics=list(dict.fromkeys(result.metric_type for result in results)) or None,
            model_name=facts.repository.partition("/")[2] if results else None,
            eval_results=results or None,
            ignore_metadata_errors=False,
        ).to_yaml()
        + "\n"
    )


def _results(facts: Facts) -> Iterator[Any]:
    """Yields the scores as the Hub's library has them."""
    from huggingface_hub import EvalResult

    on_hub = facts.datasets[0] if len(facts.datasets) == 1 else ""
    for split, scores in _scores(facts).items():
        for metric in SIGNED:
            yield EvalResult(
                task_type="translation",
                task_name="Translation",
                dataset_type=on_hub or "parallel-text",
                dataset_name=on_hub or _corpus_name(facts),
                dataset_split=split,
                metric_type=metric,
                metric_name=METRICS[metric],
                metric_value=round(scores[metric], 2),
                metric_args={"signature": scores[f"{metric}_signature"]},
            )


def escaped(value: object) -> str:
    """Returns a value as text of one line in which nothing is markup."""
    text = " ".join(str(value).split())
    return MARKUP.sub(lambda found: f"&#{ord(found[0])};", text)


def _title(facts: Facts) -> Iterator[str]:
    languages = " → ".join(facts.languages) if len(facts.languages) == 2 else ", ".join(facts.languages)
    size = sum(leaf.size for path, leaf in flatten(facts.model.params).items() if not path.startswith("constants/"))
    yield f"# {escaped(facts.repository.partition('/')[2])}"
    yield ""
    spoken = f", {escaped(languages)}" if languages else ""
    yield f"An encoder-decoder Transformer with {size:,} parameters{spoken}, in JAX, for jax-transformer."


def _model(facts: Facts) -> Iterator[str]:
    yield "## Model"
    yield ""
    yield from _table(("config", "value"), ((f"`{name}`", getattr(facts.model.config, name)) for name in ARCHITECTURE))


def _data(facts: Facts) -> Iterator[str]:
    if facts.run is None:
        return
    yield "## Training data"
    yield ""
    if not corpora_of(facts.run):
        yield "- the phrasebook that jax-transformer brings along"
    yield from (f"- {escaped(_corpus_text(corpus))}" for corpus in corpora_of(facts.run))
    if facts.pairs:
        yield ""
        yield from _table(("split", "sentence pairs"), ((name, f"{count:,}") for name, count in facts.pairs.items()))


def _corpus_text(corpus: CorpusConfig) -> str:
    """Describes a corpus, with the names of its files but not where they are on this machine."""
    if corpus.used_dataset:
        name = corpus.used_dataset
        name = Path(name).name if name.startswith(("/", ".", "~")) else name
        return " ".join(filter(None, [name, corpus.dataset_config, corpus.train_split, corpus.dataset_revision]))
    return ", ".join(Path(file).name for file in corpus.train)


def _corpus_name(facts: Facts) -> str:
    if facts.run is None:
        return "held-out sentences"
    return "; ".join(_corpus_text(corpus) for corpus in corpora_of(facts.run)) or "phrasebook"


def _training(facts: Facts) -> Iterator[str]:
    if facts.run is None:
        return
    train, data = facts.run.train, facts.run.data
    training = facts.model.training or {}
    yield "## Training"
    yield ""
    rows: list[tuple[str, object]] = [(f"`train.{name}`", getattr(train, name)) for name in RECIPE]
    if train.freeze:
        rows += [("`train.freeze`", ", ".join(train.freeze))]
    if train.lora.rank:
        rows += [("`train.lora.rank`", train.lora.rank), ("`train.lora.alpha`", train.lora.alpha)]
        rows += [("`train.lora.use_rslora`", True)] if train.lora.use_rslora else []
        rows += [("`train.lora.targets`", ", ".join(train.lora.targets))]
    rows += [("`data.tokenizer`", data.tokenizer), ("`data.batch_tokens`", data.batch_tokens)]
    rows += [("precision", facts.run.model.compute.dtype or "float32")]
    rows += [("checkpoints", ", ".join(map(str, training.get("checkpoints", []))))]
    rows += [
        (name, facts.environment[name]) for name in ("device", "jax", "flax", "optax") if name in facts.environment
    ]
    yield from _table(("setting", "value"), rows)


def _metrics(facts: Facts) -> Iterator[str]:
    scores = _scores(facts)
    if not scores:
        return
    yield "## Scores"
    yield ""
    yield from _table(
        ("split", *METRICS.values(), "sentences"),
        ((split, *(f"{each[name]:.2f}" for name in METRICS), each["sentences"]) for split, each in scores.items()),
    )
    yield ""
    yield "Translations are decoded greedily. sacreBLEU's signatures:"
    yield ""
    signatures = dict.fromkeys(each[f"{name}_signature"] for each in scores.values() for name in SIGNED)
    yield from (f"- {escaped(signature)}" for signature in signatures)


def _scores(facts: Facts) -> Mapping[str, Mapping[str, Any]]:
    """Returns the manifest's scores by split, without entries of another form."""
    found = (facts.model.training or {}).get("scores", {})
    needed = (*METRICS, "sentences")

    def is_score(each: Any) -> bool:
        return isinstance(each, Mapping) and (
            all(isinstance(each.get(name), (int, float)) for name in needed)
            and all(isinstance(each.get(f"{name}_signature"), str) for name in SIGNED)
        )

    return {split: each for split, each in found.items() if is_score(each)} if isinstance(found, Mapping) else {}


def _use(facts: Facts) -> Iterator[str]:
    name = facts.repository
    yield "## Use"
    yield ""
    translates = facts.model.source_tokenizer is not None and facts.model.target_tokenizer is not None
    call = 'print(jt.translate(model, ["…"]))' if translates else "output = jt.generate(model, source_ids)"
    if translates:
        yield from ("```bash", f"jax-transformer translate {name} < input.txt", "```", "")
    yield from ("```python", "import jax_transformer as jt", "", f'model = jt.load_model("{name}")', call, "```")
    if not translates:
        yield from ("", "The model has no vocabularies: it takes and gives ids.")
    yield ""
    yield f"`jax-transformer train finetune --init-from {name}` trains it further."


def _parity(facts: Facts) -> Iterator[str]:
    report = facts.parity
    if report is None:
        return
    yield "## Parity"
    yield ""
    yield f"Compared with {escaped(report['reference'])} by `jax-transformer parity`: **{escaped(report['verdict'])}**."
    yield ""
    stages = [stage for stage in report["stages"] if isinstance(stage, Mapping) and isinstance(stage.get("rows"), list)]
    rows = (
        (stage.get("name"), stage.get("verdict"), sum(_passed(row) for row in stage["rows"]), len(stage["rows"]))
        for stage in stages
    )
    yield from _table(("stage", "verdict", "arrays that pass", "of"), rows)
    versions = [f"{name} {report['environment'][name]}" for name in VERSIONS if name in report["environment"]]
    if versions:
        yield ""
        yield escaped(", ".join(versions))


def _passed(row: Any) -> bool:
    return isinstance(row, Mapping) and row.get("verdict") == "passed"


def _provenance(facts: Facts) -> Iterator[str]:
    origin = facts.model.origin or {}
    yield "## Provenance"
    yield ""
    if "dialect" in origin:
        yield f"Ported from a PyTorch checkpoint; its names follow the dialect {escaped(origin['dialect'])}."
    if facts.base_model:
        yield f"Made of {escaped(facts.base_model)}."
    if facts.run is not None:
        yield f"Trained by jax-transformer, {_steps(facts)}."
    if facts.model.adapters is not None:
        yield f"The parameters contain LoRA adapters of rank {facts.model.adapters.config.rank}: `{ADAPTERS}`."
    yield f"License: {escaped(facts.license) if facts.license else 'not stated'}."
    yield ""
    yield from _table(
        ("file", "SHA-256"), ((escaped(name), f"`{digest}`") for name, digest in facts.sums.items()), raw=True
    )


def _steps(facts: Facts) -> str:
    step = (facts.model.training or {}).get("step")
    return f"step {escaped(step)}" if step is not None else "without scores"


def _table(heads: Sequence[str], rows: Iterable[Sequence[object]], *, raw: bool = False) -> Iterator[str]:
    """Yields a table. Cells are escaped, but for names of settings, which come in backticks; `raw` ones are text."""

    def cell(value: object) -> str:
        text = str(value)
        return text if raw or re.fullmatch(r"`[a-z_.]+`", text) else escaped(text)

    yield f"| {' | '.join(heads)} |"
    yield f"|{'---|' * len(heads)}"
    yield from (f"| {' | '.join(map(cell, row))} |" for row in rows)
