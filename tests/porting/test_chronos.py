"""`chronos_config` of a directory is kept and written again; what isn't a Chronos-T5 is refused by name."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from hugging_face_directories import write

from jax_transformer.cli import main
from jax_transformer.config import SeriesTokens
from jax_transformer.porting import export_checkpoint, import_checkpoint
from jax_transformer.storage.model_directory import load_model
from jax_transformer.storage.tensors import PortingError

CHRONOS: dict[str, Any] = {
    "tokenizer_class": "MeanScaleUniformBins", "tokenizer_kwargs": {"low_limit": -15.0, "high_limit": 15.0},
    "context_length": 20, "prediction_length": 6, "n_tokens": 12, "n_special_tokens": 4, "pad_token_id": 1,
    "eos_token_id": 3, "use_eos_token": True, "model_type": "seq2seq", "num_samples": 7, "temperature": 0.9,
    "top_k": 5, "top_p": 0.8,
}  # fmt: skip
SERIES = SeriesTokens(
    num_tokens=12, context_length=20, prediction_length=6, num_special=4, num_samples=7, temperature=0.9, top_k=5,
    top_p=0.8,
)  # fmt: skip


def test_settings_are_kept_and_written_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write(tmp_path / "chronos", chronos_config=CHRONOS)
    assert main(["port", str(folder), str(tmp_path / "model")]) == 0
    printed = capsys.readouterr().out
    assert "series:   7 bins from -15 to 15; reads 20 values and predicts 6\n" in printed
    assert printed.endswith("ready to forecast\n")
    assert load_model(tmp_path / "model").generation.series == SERIES
    assert main(["port", str(tmp_path / "model"), str(tmp_path / "back")]) == 0
    texts = [json.loads((tmp_path / name / "config.json").read_text()) for name in ("chronos", "back")]
    assert texts[1].pop("dtype") == "float32"
    assert texts[0] == texts[1]


def test_changed_settings_are_written(tmp_path: Path) -> None:
    model = import_checkpoint(write(tmp_path / "chronos", chronos_config=CHRONOS))
    longer = dataclasses.replace(SERIES, prediction_length=9, high=12.0)
    for name, series in (("longer", longer), ("text", None)):
        generation = dataclasses.replace(model.generation, series=series)
        export_checkpoint(dataclasses.replace(model, generation=generation), tmp_path / name)
    written = json.loads((tmp_path / "longer" / "config.json").read_text())["chronos_config"]
    limits = {"low_limit": -15.0, "high_limit": 12.0}
    assert written == CHRONOS | {"prediction_length": 9, "tokenizer_kwargs": limits}
    assert import_checkpoint(tmp_path / "longer").generation.series == longer
    assert "chronos_config" not in json.loads((tmp_path / "text" / "config.json").read_text())


def test_other_families_keep_none(tmp_path: Path) -> None:
    model = import_checkpoint(write(tmp_path / "t5"))
    assert model.generation.series is None
    export_checkpoint(model, tmp_path / "back")
    assert "chronos_config" not in json.loads((tmp_path / "back" / "config.json").read_text())


def changed(**changes: Any) -> dict[str, Any]:
    return {"chronos_config": {key: value for key, value in (CHRONOS | changes).items() if value is not ...}}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"architectures": ["ChronosBoltModelForForecasting"], "chronos_pipeline_class": "ChronosBoltPipeline",
             "chronos_config": {"context_length": 2048, "quantiles": [0.5]}},
            "expected a Chronos-T5, an encoder-decoder of tokens; received Chronos-Bolt, which reads patches of values",
        ),
        ({"architectures": ["ChronosBoltModelForForecasting"]}, "received Chronos-Bolt"),
        ({"chronos_pipeline_class": "Chronos2Pipeline"}, "received Chronos-2, an encoder of patches"),
        (
            {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], **changed(model_type="causal")},
            r"received a causal Chronos \(gpt2\), a decoder without an encoder",
        ),
        ({"chronos_config": [1]}, r"expected an object with an object tokenizer_kwargs; received \[1\]"),
        (changed(tokenizer_kwargs=...), "expected an object with an object tokenizer_kwargs"),
        (changed(tokenizer_class="StudentT"), "tokenizer_class must be 'MeanScaleUniformBins'; received 'StudentT'"),
        (changed(pad_token_id=0), "pad_token_id must be 1, as of the model; received 0"),
        (changed(eos_token_id=2), "eos_token_id must be 3, as of the model; received 2"),
        (changed(n_tokens=..., top_k=...), "\n  - missing key n_tokens\n  - missing key top_k$"),
        (changed(shift=1, tokenizer_kwargs={"low_limit": 0.0, "high": 1}), "key shift\n.*key high\n.*key high_limit"),
        (changed(prediction_length=0), "chronos_config: .*prediction_length must be at least 1; received 0"),
        (changed(prediction_length="x"), "chronos_config: .*prediction_length must be an integer; received 'x'"),
        (changed(n_tokens=14), "chronos_config: n_tokens must be at most vocab_size=13; received 14"),
    ],
)  # fmt: skip
def test_what_is_no_chronos_t5_is_refused(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    folder = write(tmp_path / "chronos", **options)
    with pytest.raises(PortingError, match=rf"(?s)chronos/config.json: .*{message}"):
        import_checkpoint(folder)
