"""Builds the tokenizers of a model of Hugging Face's transformers from its files, as transformers 5 builds them.

| class | files | source | target |
|---|---|---|---|
| MarianTokenizer | vocab.json, source.spm, target.spm; target_vocab.json if there are two vocabularies | … </s> | … |
| BartTokenizer, RobertaTokenizer | tokenizer.json, or vocab.json and merges.txt | <s> … </s> | … |
| BlenderbotTokenizer | the same | … </s> | … |
| BlenderbotSmallTokenizer | vocab.json, merges.txt | … | … |
| MBartTokenizer | tokenizer.json or sentencepiece.bpe.model | … </s> tag | … |
| PLBartTokenizer | sentencepiece.bpe.model | … </s> tag | … |
| MBart50Tokenizer | tokenizer.json or sentencepiece.bpe.model | tag … </s> | … |
| M2M100Tokenizer | vocab.json, sentencepiece.bpe.model | tag … </s> | … |
| NllbTokenizer | tokenizer.json | tag … </s> | … |
| IndicTransTokenizer | dict.SRC.json, model.SRC, dict.TGT.json, model.TGT | tag tag … </s> | … |
| FSMTTokenizer | vocab-src.json, vocab-tgt.json, merges.txt | … </s> | … |
| PegasusTokenizer, T5Tokenizer | tokenizer.json or spiece.model | … </s> | … |
| ByT5Tokenizer | | … </s> | … |
| BertTokenizer | tokenizer.json or vocab.txt | [CLS] … [SEP] | … |
| GemmaTokenizer | tokenizer.json | add_bos_token and add_eos_token, or its post_processor | … |
| TokenizersBackend, PreTrainedTokenizer | tokenizer.json | its post_processor | … |

Training (`data.encoding`) and decoding add the tokens around targets.

From a tokenizer.json, these classes of transformers read only the vocabulary, merges, character map and special tokens,
and build the rest of the pipeline in code. The readers here do the same, since the file's own steps may differ.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from jax_transformer.data.tokenizers import hugging_face_lists as lists
from jax_transformer.data.tokenizers import hugging_face_pipelines as pipelines
from jax_transformer.data.tokenizers.hugging_face_files import SETTINGS, Files, Json, Pair, content_of, json_in

CLASSES = {
    "marian": "MarianTokenizer",
    "bart": "BartTokenizer",
    "mvp": "RobertaTokenizer",
    "plbart": "PLBartTokenizer",
    "mbart": "MBartTokenizer",
    "blenderbot": "BlenderbotTokenizer",
    "blenderbot-small": "BlenderbotSmallTokenizer",
    "pegasus": "PegasusTokenizer",
    "fsmt": "FSMTTokenizer",
    "IndicTrans": "IndicTransTokenizer",
    "m2m_100": "M2M100Tokenizer",
    "t5": "T5Tokenizer",
    "mt5": "T5Tokenizer",
    "umt5": "TokenizersBackend",
    "encoder-decoder": "BertTokenizer",
    "t5gemma": "GemmaTokenizer",
}
"""A config.json's model_type → the class of its tokenizer if no file names one."""
NAMES = {
    "unk_token": "<unk>",
    "bos_token": "<s>",
    "eos_token": "</s>",
    "pad_token": "<pad>",
    "sep_token": "</s>",
    "cls_token": "<s>",
}
"""The default names of the special tokens in these classes."""
CLASS_NAMES = {
    "BlenderbotSmallTokenizer": lists.SMALL_NAMES,
    "BertTokenizer": {"unk_token": "[UNK]", "pad_token": "[PAD]", "sep_token": "[SEP]", "cls_token": "[CLS]"},
    "GemmaTokenizer": {"unk_token": "<unk>", "bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>"},
}
"""The default names in a class that has others."""


def read_tokenizers(files: Files, config: Json) -> Pair:
    """Builds the tokenizers of source and target.

    Unlike in transformers, the name of a special token in a text is plain text, and decoding shows <unk>.

    Args:
      files: the files' content by name.
      config: the model's config.json.

    Raises:
      ValueError: a file is missing or malformed; an unsupported class or setting.
    """
    settings = _settings(files)
    usual = CLASSES[config["model_type"]]
    named = str(settings.get("tokenizer_class") or config.get("tokenizer_class") or usual).removesuffix("Fast")
    return read_class(usual if usual == "TokenizersBackend" else named, files, config)


def known_class(kind: type) -> str:
    """Returns the name under which `read_class` builds the tokenizers of a class of transformers from its files; "" for
    a class whose pipeline may be any."""
    names = (each.__name__.removesuffix("Fast") for each in kind.__mro__)
    return next((name for name in names if _READERS.get(name, pipelines.unchanged) is not pipelines.unchanged), "")


def read_class(name: str, files: Files, config: Json) -> Pair:
    """Builds the tokenizers of source and target of the class `name`. See `read_tokenizers`."""
    settings = {"vocab_size": _rows(config)} | _settings(files)
    if name not in _READERS:
        raise ValueError(f"{SETTINGS}: tokenizer_class must be one of {', '.join(_READERS)}; received {name}")
    _check(
        settings | dict.fromkeys(["auto_map"] if name == "IndicTransTokenizer" else []), CLASS_NAMES.get(name, NAMES)
    )
    try:
        return _READERS[name](files, settings)
    except (AttributeError, IndexError, KeyError, TypeError) as error:
        raise ValueError(
            f"{', '.join(files)}: expected the files of a {name}; received other content ({error!r})"
        ) from None


def _rows(config: Json) -> Any:
    """Returns the rows of the embedding that a config.json states: of a model with a config for each side, those of
    both.

    Raises:
      ValueError: the two have vocabularies of several sizes.
    """
    if not isinstance(config.get("encoder"), Mapping):
        return config.get("vocab_size")
    sizes = [(config.get(side) or {}).get("vocab_size") for side in ("encoder", "decoder")]
    if sizes[0] != sizes[1]:
        raise ValueError(f"config.json: expected one vocabulary for both sides; received {sizes[0]} and {sizes[1]} ids")
    return sizes[0]


def cleans_up(files: Files) -> bool:
    """Checks whether transformers deletes spaces before punctuation when decoding; here they stay."""
    return bool(_settings(files).get("clean_up_tokenization_spaces"))


def _settings(files: Files) -> dict[str, Any]:
    """Reads tokenizer_config.json, and special_tokens_map.json if the former lists no added tokens."""
    settings = json_in(files, SETTINGS) if SETTINGS in files else {}
    is_older = "added_tokens_decoder" not in settings and "special_tokens_map.json" in files
    return settings | json_in(files, "special_tokens_map.json") if is_older else settings


def _check(settings: Json, names: Mapping[str, str]) -> None:
    """Raises ValueError for settings that would change the tokenizer. `names` are those of special tokens."""
    only: dict[str, Any] = {"sp_model_kwargs": {}, "legacy_behaviour": False, "auto_map": None}
    for name, value in only.items():
        if settings.get(name) and settings[name] != value:
            raise ValueError(f"{SETTINGS}: {name} must be {json.dumps(value)}; received {json.dumps(settings[name])}")
    for name, value in names.items():
        received = content_of(settings.get(name) or value)
        if received != value:
            raise ValueError(f"{SETTINGS}: {name} must be {value}; received {received}")


_READERS: dict[str, Callable[[Files, Json], Pair]] = {
    "MarianTokenizer": lists.marian,
    "M2M100Tokenizer": lists.m2m_100,
    "NllbTokenizer": pipelines.nllb,
    "BartTokenizer": pipelines.bart,
    "RobertaTokenizer": pipelines.bart,
    "MvpTokenizer": pipelines.bart,
    "BlenderbotTokenizer": pipelines.blenderbot,
    "MBartTokenizer": pipelines.mbart,
    "MBart50Tokenizer": pipelines.mbart_50,
    "PLBartTokenizer": lists.plbart,
    "PegasusTokenizer": pipelines.pegasus,
    "FSMTTokenizer": lists.fsmt,
    "IndicTransTokenizer": lists.indictrans,
    "BlenderbotSmallTokenizer": lists.blenderbot_small,
    "ByT5Tokenizer": lists.byt5,
    "T5Tokenizer": pipelines.t5,
    "BertTokenizer": pipelines.bert,
    "GemmaTokenizer": pipelines.gemma,
    "TokenizersBackend": pipelines.unchanged,
    "PreTrainedTokenizer": pipelines.unchanged,
}
