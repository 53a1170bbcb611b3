"""The model card: its header is what the Hub's library reads, and text never becomes markup."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest
import yaml
from huggingface_hub import ModelCard
from shared_models import DATA, SCORES

from jax_transformer.config.files import dump_config, load_config
from jax_transformer.config.run import DataConfig, LoraConfig, RunConfig, TrainConfig
from jax_transformer.sharing.card import escaped, make_card
from jax_transformer.sharing.facts import CardOptions, read_facts
from jax_transformer.storage.model_directory import Model, save_model

HOSTILE = "a](javascript:x) <img src=x onerror=alert(1)> |\n# h `c` **b** $x$ \\ ![i](http://e) &lt; {{ _u_"


def test_the_header_is_read_by_the_hubs_library(run: Callable[..., Path]) -> None:
    options = CardOptions(license="apache-2.0", tags=("legal", "jax"), base_model="owner/base")
    card = ModelCard(make_card(read_facts(str(run()), "someone/tiny", options)))
    data = card.data
    assert (data.language, data.license, data.base_model) == (["en", "de"], "apache-2.0", "owner/base")
    assert (data.library_name, data.pipeline_tag, data.datasets) == (
        "jax-transformer",
        "translation",
        ["someone/corpus"],
    )
    assert data.tags == ["jax", "jax-transformer", "encoder-decoder", "translation", "legal"]
    assert data.metrics == ["bleu", "chrf"]
    first, second = data.eval_results
    assert (first.metric_type, first.metric_value, first.dataset_split) == ("bleu", 31.25, "test")
    assert first.metric_args == {"signature": SCORES["bleu_signature"]}
    assert (second.metric_type, second.metric_value, second.dataset_type) == ("chrf", 55.5, "someone/corpus")


def test_the_text_tells_what_the_model_and_its_run_are(run: Callable[..., Path]) -> None:
    text = make_card(read_facts(str(run() / "model"), "someone/tiny", CardOptions()))
    for line in (
        "# tiny",
        "| `d_model` | 16 |",
        "- someone/corpus de-en train",
        "| train | 12,000 |",
        "| `train.optimizer` | adam |",
        "| device | cpu |",
        "| test | 31.25 | 55.50 | 10.00 | 4 |",
        "jax-transformer translate someone/tiny < input.txt",
        'model = jt.load_model("someone/tiny")',
        "Trained by jax-transformer, step 300.",
        "License: not stated.",
    ):
        assert line in text.splitlines(), line
    assert "Translations are decoded greedily. sacreBLEU's signatures:" in text
    assert f"- {escaped(SCORES['bleu_signature'])}" in text
    assert "smooth:exp" in text


def test_the_recipe_tells_that_only_a_part_was_trained(run: Callable[..., Path]) -> None:
    folder = run()
    config = load_config(folder / "config.yaml", RunConfig())
    assert "train.freeze" not in make_card(read_facts(str(folder), "someone/tiny", CardOptions()))
    for train, rows in (
        (TrainConfig(freeze=("encoder/*", "head/*")), ["| `train.freeze` | encoder/&#42;, head/&#42; |"]),
        (
            TrainConfig(lora=LoraConfig(rank=4, use_rslora=True, targets=("head/kernel",))),
            [
                "| `train.lora.rank` | 4 |",
                "| `train.lora.alpha` | 8.0 |",
                "| `train.lora.use_rslora` | True |",
                "| `train.lora.targets` | head/kernel |",
            ],
        ),
    ):
        changed = dataclasses.replace(config, train=train, init_from="./base")
        (folder / "config.yaml").write_text(dump_config(changed))
        lines = make_card(read_facts(str(folder), "someone/tiny", CardOptions())).splitlines()
        assert all(row in lines for row in rows), lines


def test_a_model_without_a_run_has_a_card(tmp_path: Path, model: Model) -> None:
    origin = {"dialect": "marian", "hugging_face": {"config": {"_name_or_path": "outputs/checkpoint-500"}}}
    save_model(dataclasses.replace(model, training=None, origin=origin), tmp_path / "model")
    text = make_card(read_facts(str(tmp_path / "model"), "someone/tiny", CardOptions(languages=("en", "de"))))
    header = yaml.safe_load(text.split("---\n")[1])
    assert "base_model" not in header, "it may be a path"
    assert "checkpoint-500" not in text
    assert "model-index" not in header
    assert "## Scores" not in text
    assert "no vocabularies" not in text
    assert "Ported from a PyTorch checkpoint; its names follow the dialect marian." in text
    save_model(dataclasses.replace(model, source_tokenizer=None, target_tokenizer=None), tmp_path / "without")
    text = make_card(read_facts(str(tmp_path / "without"), "someone/tiny", CardOptions()))
    assert "The model has no vocabularies: it takes and gives ids." in text
    assert "jax-transformer translate" not in text


def test_the_base_model_is_the_one_on_the_hub_that_the_run_started_from(
    run: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not a local directory, which may not be in the working directory."""
    monkeypatch.chdir(tmp_path)
    folder = run()
    config = load_config(folder / "config.yaml", RunConfig())
    commit = "0123456789" * 4
    for initial, expected in (("runs/demo", ""), ("./base", ""), (f"owner/base@{commit}", "owner/base")):
        (folder / "config.yaml").write_text(dump_config(dataclasses.replace(config, init_from=initial)))
        assert read_facts(str(folder), "someone/tiny", CardOptions()).base_model == expected, initial


class Tags(HTMLParser):
    """Collects the tags, links and texts of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.found: set[str] = set()
        self.links: list[str] = []
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.found.add(tag)
        self.links += [str(value) for name, value in attributes if name in ("href", "src")]

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_names_and_paths_never_become_markup(run: Callable[..., Path], model: Model, tmp_path: Path) -> None:
    markdown = pytest.importorskip("markdown_it", reason="the package markdown-it-py is not installed")
    data = DataConfig(
        train=(f"/secret/place/{HOSTILE}".replace("/e", "e"), "/secret/b.de"), valid=("v.en", "v.de"),
        source_language="en: [x\n", target_language="- y",
    )  # fmt: skip
    folder = run(data)
    scores = {f"te|st {HOSTILE}": {**SCORES, "bleu_signature": HOSTILE}, "odd": {"bleu": "x"}}
    save_model(
        dataclasses.replace(model, training={"step": HOSTILE, "scores": scores}, origin={"dialect": HOSTILE}),
        folder / "model",
    )
    text = make_card(read_facts(str(folder), "someone/tiny", CardOptions(license=HOSTILE, tags=(HOSTILE,))))
    _, head, body = text.split("---\n", 2)
    header = yaml.safe_load(head)
    assert (header["license"], header["language"], header["tags"][-1]) == (HOSTILE, ["en: [x\n", "- y"], HOSTILE)
    assert "secret" not in text, "where files are on this machine"
    page = Tags()
    page.feed(markdown.MarkdownIt("commonmark", {"html": True}).enable("table").render(body))
    assert page.found <= {"h1", "h2", "p", "table", "thead", "tbody", "tr", "th", "td", "code", "pre", "ul", "li"}
    assert page.links == []
    shown = " ".join("".join(page.texts).split())
    assert " ".join(HOSTILE.split()) in shown
    assert "&#" not in shown


@pytest.mark.parametrize("text", ["layer_norm", "nrefs:1", "v1.0-rc+2", "größe → 日本"])
def test_plain_text_stays_as_it_is(text: str) -> None:
    assert escaped(text) == text
    assert DATA.dataset == "someone/corpus"
