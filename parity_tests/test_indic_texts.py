"""Texts of IndicTrans2 as its toolkit prepares and finishes them. (`indic_texts.py` wrote them.)"""

from __future__ import annotations

import json
from typing import Any

import pytest
from indic_texts import GOLDENS, ONLY_FINISHED

from jax_transformer.data.tokenizers.indic_rules import finish, prepare

pytest.importorskip("sacremoses")
FOUND: dict[str, Any] = json.loads(GOLDENS.read_text(encoding="utf-8"))


@pytest.mark.parametrize("language", FOUND)
def test_texts_are_those_of_the_toolkit(language: str) -> None:
    assert [prepare(text, language) for text, _ in FOUND[language]["prepared"]] == [
        prepared for _, prepared in FOUND[language]["prepared"]
    ]
    assert [finish(text, language) for text, _ in FOUND[language]["finished"]] == [
        finished for _, finished in FOUND[language]["finished"]
    ]


@pytest.mark.parametrize("language", ONLY_FINISHED)
def test_arabic_scripts_must_be_prepared_already(language: str) -> None:
    with pytest.raises(ValueError, match=f"{language}: its texts are prepared by urduhack, whose rules aren't here"):
        prepare("سلام", language)


@pytest.mark.parametrize("tag", ["deu_Latn", "hin", "__bt__", "sin_Sinh"])
def test_other_languages_are_refused(tag: str) -> None:
    for rule in (prepare, finish):
        with pytest.raises(ValueError, match=f"expected eng_Latn, or a language in one of the .*; received '{tag}'"):
            rule("a", tag)
