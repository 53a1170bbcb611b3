"""Small models of transformers' families with tokenizers, as `save_pretrained` leaves them: vocabularies of a few
sentences."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import sentencepiece
import tokenizers
import transformers
from families import randomised
from tokenizers import AddedToken, decoders, normalizers, pre_tokenizers, processors, trainers

from jax_transformer.data.phrasebook.pairs import sample_pairs
from jax_transformer.data.tokenizers.sentencepiece_model import character_map_of, pieces_of

PAIRS = sample_pairs("train", 120)
SOURCES, TARGETS = [source for source, _ in PAIRS], [target for _, target in PAIRS]
LANGUAGES = ["eng_Latn", "deu_Latn", "fra_Latn"]


class TextFamily(NamedTuple):
    """A kind of directory: how its tokenizer is made and put there, and its model."""

    tokenizer: Callable[[Path], Any]
    model: type[Any]
    config: Callable[..., Any]
    ids: dict[str, int]
    """Special ids of its config.json; where there is none, those of its class hold."""
    more_rows: int
    """Rows of the embedding beyond the vocabulary; -1 as of facebook/bart-large-cnn, whose <mask> has none."""
    source_tag: str = ""
    target_tag: str = ""
    shares_embeddings: bool = True


def train(texts: Iterable[str], **options: Any) -> bytes:
    """A sentencepiece model of the texts."""
    model = io.BytesIO()
    usual = {
        "vocab_size": 120,
        "hard_vocab_limit": False,
        "character_coverage": 1.0,
        "minloglevel": 2,
        "num_threads": 1,
    }
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(texts), model_writer=model, **usual | options)
    return model.getvalue()


def write_json(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")


def marian(folder: Path, *, two: bool = False) -> Any:
    files = {"source": train(SOURCES), "target": train(TARGETS)}
    own = {side: [piece.text for piece in pieces_of(model) if piece.kind == 1] for side, model in files.items()}
    codes = [] if two else [">>deu<<", ">>fra<<"]
    lists = own if two else {"source": [*dict.fromkeys([*own["source"], *own["target"]])]}
    for side, name in (("source", "vocab.json"), ("target", "target_vocab.json")):
        (folder / f"{side}.spm").write_bytes(files[side])
        if side in lists:
            write_json(
                folder / name, {piece: i for i, piece in enumerate(["</s>", "<unk>", *lists[side], *codes, "<pad>"])}
            )
    target = {"target_vocab_file": str(folder / "target_vocab.json"), "separate_vocabs": True} if two else {}
    return transformers.MarianTokenizer(
        str(folder / "source.spm"), str(folder / "target.spm"), str(folder / "vocab.json"), **target
    )


def marian_two(folder: Path) -> Any:
    return marian(folder, two=True)


def m2m_100(folder: Path) -> Any:
    (folder / "sentencepiece.bpe.model").write_bytes(train([*SOURCES, *TARGETS], model_type="bpe"))
    pieces = [piece.text for piece in pieces_of((folder / "sentencepiece.bpe.model").read_bytes())[3:]]
    write_json(folder / "vocab.json", {piece: i for i, piece in enumerate(["<s>", "<pad>", "</s>", "<unk>", *pieces])})
    codes = transformers.models.m2m_100.tokenization_m2m_100.FAIRSEQ_LANGUAGE_CODES["m2m100"]
    more = [f"__{code}__" for code in codes]  # as facebook/m2m100_418M names them
    return transformers.M2M100Tokenizer(
        str(folder / "vocab.json"),
        str(folder / "sentencepiece.bpe.model"),
        src_lang="en",
        tgt_lang="de",
        additional_special_tokens=more,
    )


def trained_bpe(pre_tokenizer: Any, texts: Iterable[str] = (*SOURCES, *TARGETS), **options: Any) -> dict[str, Any]:
    """The vocabulary and the merges of a BPE, of both languages unless other texts are given."""
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = pre_tokenizer
    names = ["<s>", "<pad>", "</s>", "<unk>"]
    made.train_from_iterator(texts, trainers.BpeTrainer(special_tokens=names, show_progress=False, **options))
    model = json.loads(made.to_str())["model"]
    return {"vocab": model["vocab"], "merges": [tuple(pair) for pair in model["merges"]]}


def character_map() -> bytes:
    """Of sentencepiece's usual normalization."""
    return character_map_of(train(SOURCES[:20], vocab_size=60))


def nllb(folder: Path) -> Any:
    made = trained_bpe(pre_tokenizers.Metaspace(), vocab_size=250)
    languages = {"src_lang": "eng_Latn", "tgt_lang": "deu_Latn"}
    return transformers.NllbTokenizer(
        **made, **languages, _spm_precompiled_charsmap=character_map(), additional_special_tokens=LANGUAGES
    )


def byte_level() -> dict[str, Any]:
    splitting = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return trained_bpe(splitting, vocab_size=400, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())


def bart(folder: Path) -> Any:
    return transformers.BartTokenizer(**byte_level())


def bart_in_two_files(folder: Path) -> Any:
    made = byte_level()
    write_json(folder / "vocab.json", made["vocab"] | {"<mask>": len(made["vocab"])})
    lines = ["#version: 0.2", *map(" ".join, made["merges"])]
    (folder / "merges.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return None


def spiece(**options: Any) -> bytes:
    return train([*SOURCES, *TARGETS], pad_id=0, eos_id=1, unk_id=2, bos_id=-1, **options)


def t5(folder: Path) -> Any:
    model = spiece()
    pieces = [(piece.text, piece.score) for piece in pieces_of(model)]
    sentinels = [(f"<extra_id_{i}>", 0.0) for i in reversed(range(100))]
    return transformers.T5Tokenizer([*pieces, *sentinels], _spm_precompiled_charsmap=character_map_of(model))


def t5_in_spiece(folder: Path) -> Any:
    (folder / "spiece.model").write_bytes(spiece(user_defined_symbols=["Hund"]))
    return None


def mt5(folder: Path) -> Any:
    """As google/mt5-small is: its sentinels are among sentencepiece's pieces."""
    (folder / "spiece.model").write_bytes(spiece(user_defined_symbols=[f"▁<extra_id_{i}>" for i in range(3)]))
    settings = {
        "tokenizer_class": "T5Tokenizer",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "pad_token": "<pad>",
        "extra_ids": 0,
    }
    write_json(folder / "tokenizer_config.json", settings | {"additional_special_tokens": None, "sp_model_kwargs": {}})
    return None


def umt5(folder: Path) -> Any:
    """A tokenizer.json that is used as it is."""
    pieces = [(piece.text, piece.score) for piece in pieces_of(spiece())]
    made = tokenizers.Tokenizer(tokenizers.models.Unigram(pieces, 2, True))
    made.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace("`", "'")])
    made.pre_tokenizer, made.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    made.add_special_tokens([AddedToken(name, normalized=False, special=True) for name in ("<pad>", "</s>", "<unk>")])
    made.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="<pad>", eos_token="</s>", unk_token="<unk>"
    )


def fairseq_pieces() -> list[tuple[str, float]]:
    """The pieces of both languages, with fairseq's special tokens in place of sentencepiece's."""
    own = [(piece.text, piece.score) for piece in pieces_of(train([*SOURCES, *TARGETS]))[3:]]
    return [*((name, 0.0) for name in ("<s>", "<pad>", "</s>", "<unk>")), *own]


def mbart(folder: Path) -> Any:
    codes = transformers.models.mbart.tokenization_mbart.FAIRSEQ_LANGUAGE_CODES
    pieces = [*fairseq_pieces(), *((code, 0.0) for code in codes), ("<mask>", 0.0)]
    return transformers.MBartTokenizer(pieces, src_lang="en_XX", tgt_lang="de_DE")


def mbart_in_a_model(folder: Path) -> Any:
    (folder / "sentencepiece.bpe.model").write_bytes(train([*SOURCES, *TARGETS]))
    write_json(folder / "tokenizer_config.json", {"src_lang": "en_XX", "tgt_lang": "de_DE"})
    return None


def mbart_50(folder: Path) -> Any:
    codes = transformers.models.mbart50.tokenization_mbart50.FAIRSEQ_LANGUAGE_CODES
    pieces = [*fairseq_pieces(), *((code, 0.0) for code in codes), ("<mask>", 0.0)]
    languages = {"src_lang": "en_XX", "tgt_lang": "de_DE"}
    return transformers.MBart50Tokenizer(pieces, character_map(), **languages)


def mbart_50_in_a_model(folder: Path) -> Any:
    mbart_in_a_model(folder)
    settings = {"tokenizer_class": "MBart50Tokenizer", "src_lang": "en_XX", "tgt_lang": "de_DE"}
    write_json(folder / "tokenizer_config.json", settings)
    return None


def plbart(folder: Path) -> Any:
    (folder / "sentencepiece.bpe.model").write_bytes(train([*SOURCES, *TARGETS]))
    languages = {"src_lang": "python", "tgt_lang": "en_XX"}
    return transformers.PLBartTokenizer(str(folder / "sentencepiece.bpe.model"), **languages)


def pegasus(folder: Path) -> Any:
    (folder / "spiece.model").write_bytes(spiece())
    return transformers.PegasusTokenizer.from_pretrained(folder)


def pegasus_in_spiece(folder: Path) -> Any:
    (folder / "spiece.model").write_bytes(spiece())
    return None


def blenderbot(folder: Path) -> Any:
    """As facebook/blenderbot-400M-distill is: its tokenizer.json adds </s>."""
    made = transformers.BlenderbotTokenizer(**byte_level())
    end = ("</s>", made.eos_token_id)
    made._tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[end])
    return made


def blenderbot_small(folder: Path) -> Any:
    """Pieces that only occur within others aren't in its vocabulary."""
    names = ["__null__", "__start__", "__end__", "__unk__"]
    texts = [text.lower() for text in [*SOURCES, *TARGETS]]
    made = trained_bpe(pre_tokenizers.Whitespace(), texts, vocab_size=300, end_of_word_suffix="</w>")
    merges = ["#version: 0.2", *map(" ".join, made["merges"])]
    (folder / "merges.txt").write_text("\n".join(merges) + "\n", encoding="utf-8")
    pieces = [piece for piece in made["vocab"] if not piece.startswith("<")]
    kept = [piece for number, piece in enumerate(pieces) if len(piece) < 3 or number % 7]
    entries = [piece.removesuffix("</w>") if piece.endswith("</w>") else f"{piece}@@" for piece in kept]
    write_json(folder / "vocab.json", {entry: i for i, entry in enumerate(dict.fromkeys([*names, *entries]))})
    return None


def fsmt(folder: Path) -> Any:
    made = trained_bpe(pre_tokenizers.Whitespace(), vocab_size=300, end_of_word_suffix="</w>")
    (folder / "merges.txt").write_text("\n".join(map(" ".join, made["merges"])) + "\n", encoding="utf-8")
    pieces = [piece for number, piece in enumerate(made["vocab"]) if len(piece) < 6 or number % 7]
    for name, order in (("vocab-src.json", pieces), ("vocab-tgt.json", [*pieces[:4], *reversed(pieces[4:])])):
        write_json(folder / name, {piece: index for index, piece in enumerate(order)})
    settings = {"langs": ["en", "de"], "tokenizer_class": "FSMTTokenizer", "do_lower_case": False}
    write_json(folder / "tokenizer_config.json", settings)
    return None


def byt5(folder: Path) -> Any:
    return transformers.ByT5Tokenizer()


def codet5(folder: Path) -> Any:
    """As Salesforce/codet5-small is: BART's tokenizer with sentinels."""
    extra = [f"<extra_id_{i}>" for i in reversed(range(5))]
    return transformers.RobertaTokenizer(**byte_level(), additional_special_tokens=extra)


def madlad(folder: Path) -> Any:
    """As google/madlad400-3b-mt is: the target's language is a piece of sentencepiece's."""
    (folder / "spiece.model").write_bytes(spiece(user_defined_symbols=["<2de>", "<2fr>"]))
    write_json(folder / "tokenizer_config.json", {"tokenizer_class": "T5Tokenizer", "extra_ids": 0})
    return None


def gemma(folder: Path) -> Any:
    """As google/gemma-2-2b is: pieces across words, and bytes."""
    bytes_in_order = [f"<0x{number:02X}>" for number in range(256)]
    names = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "<start_of_turn>", *bytes_in_order]
    made = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    made.normalizer = normalizers.Replace(" ", "▁")
    trainer = trainers.BpeTrainer(special_tokens=names, show_progress=False, vocab_size=420, max_token_length=9)
    made.train_from_iterator([*SOURCES, *TARGETS], trainer)
    model = json.loads(made.to_str())["model"]
    merges = [tuple(pair) for pair in model["merges"]]
    return transformers.GemmaTokenizer(
        vocab=model["vocab"], merges=merges, add_bos_token=True, additional_special_tokens=["<start_of_turn>"]
    )


def _t5gemma_config(**more: Any) -> Any:
    """The config of a model whose sides have one vocabulary."""
    side = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1}
    side |= {"head_dim": 8, "intermediate_size": 20, "sliding_window": 6, "vocab_size": more["vocab_size"]}
    return transformers.T5GemmaConfig(encoder=side, decoder=side, **more)


_FAIRSEQ = {
    "d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2, "decoder_attention_heads": 2,
    "encoder_ffn_dim": 20, "decoder_ffn_dim": 20, "max_position_embeddings": 128,
}  # fmt: skip
_T5 = {"d_model": 16, "d_kv": 8, "d_ff": 20, "num_layers": 1, "num_decoder_layers": 1, "num_heads": 2}
_OF_T5 = {"pad_token_id": 0, "decoder_start_token_id": 0, "eos_token_id": 1}
_T5_KIND = (transformers.T5ForConditionalGeneration, transformers.T5Config, _OF_T5)
_MARIAN_KIND = (transformers.MarianMTModel, transformers.MarianConfig, {})
_BART_KIND = (
    transformers.BartForConditionalGeneration,
    transformers.BartConfig,
    {"pad_token_id": 1, "decoder_start_token_id": 2},
)
_M2M_KIND = (
    transformers.M2M100ForConditionalGeneration,
    transformers.M2M100Config,
    {"pad_token_id": 1, "decoder_start_token_id": 2},
)
_MBART_KIND = (
    transformers.MBartForConditionalGeneration,
    transformers.MBartConfig,
    {"pad_token_id": 1, "decoder_start_token_id": 2},
)
_T5_GATED_KIND = (*_T5_KIND[:2], _OF_T5 | {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False})
FAMILIES = {
    "marian": TextFamily(marian, *_MARIAN_KIND, 0, ">>deu<<"),
    "marian_two": TextFamily(marian_two, *_MARIAN_KIND, 0, shares_embeddings=False),
    "bart": TextFamily(bart, *_BART_KIND, 0),
    "bart_in_two_files": TextFamily(bart_in_two_files, *_BART_KIND, -1),
    "mvp": TextFamily(bart, transformers.MvpForConditionalGeneration, transformers.MvpConfig, _BART_KIND[2], 0),
    "plbart": TextFamily(
        plbart,
        transformers.PLBartForConditionalGeneration,
        transformers.PLBartConfig,
        {"pad_token_id": 1},
        0,
        "__python__",
        "__en_XX__",
    ),
    "mbart": TextFamily(mbart, *_MBART_KIND[:2], {"pad_token_id": 1}, 0, "en_XX", "de_DE"),
    "mbart_in_a_model": TextFamily(mbart_in_a_model, *_MBART_KIND[:2], {"pad_token_id": 1}, 0, "en_XX", "de_DE"),
    "mbart_50": TextFamily(mbart_50, *_MBART_KIND, 0, "en_XX", "de_DE"),
    "mbart_50_in_a_model": TextFamily(mbart_50_in_a_model, *_MBART_KIND, 0, "en_XX", "de_DE"),
    "blenderbot": TextFamily(
        blenderbot,
        transformers.BlenderbotForConditionalGeneration,
        transformers.BlenderbotConfig,
        {"pad_token_id": 1, "bos_token_id": 0, "decoder_start_token_id": 0},
        0,
    ),
    "blenderbot_small": TextFamily(
        blenderbot_small,
        transformers.BlenderbotSmallForConditionalGeneration,
        transformers.BlenderbotSmallConfig,
        {},
        3,
    ),
    "pegasus": TextFamily(pegasus, transformers.PegasusForConditionalGeneration, transformers.PegasusConfig, {}, 7),
    "pegasus_in_spiece": TextFamily(
        pegasus_in_spiece, transformers.PegasusForConditionalGeneration, transformers.PegasusConfig, {}, 7
    ),
    "fsmt": TextFamily(
        fsmt, transformers.FSMTForConditionalGeneration, transformers.FSMTConfig, {}, 0, shares_embeddings=False
    ),
    "m2m_100": TextFamily(m2m_100, *_M2M_KIND, 8, "__en__", "__de__"),
    "nllb": TextFamily(nllb, *_M2M_KIND, 2, "eng_Latn", "deu_Latn"),
    "t5": TextFamily(t5, *_T5_KIND, 28),
    "t5_in_spiece": TextFamily(t5_in_spiece, *_T5_KIND, 28),
    "mt5": TextFamily(mt5, transformers.MT5ForConditionalGeneration, transformers.MT5Config, _OF_T5, 12),
    "byt5": TextFamily(byt5, *_T5_KIND, 0),
    "codet5": TextFamily(codet5, *_T5_KIND[:2], {"pad_token_id": 1, "decoder_start_token_id": 1, "eos_token_id": 2}, 0),
    "madlad": TextFamily(madlad, *_T5_GATED_KIND, 6),
    "t5gemma": TextFamily(gemma, transformers.T5GemmaForConditionalGeneration, _t5gemma_config, {}, 5),
    "umt5": TextFamily(umt5, transformers.UMT5ForConditionalGeneration, transformers.UMT5Config, _OF_T5, 0),
}


class TextCase(NamedTuple):
    """A directory, and what transformers reads in it."""

    family: TextFamily
    directory: Path
    tokenizer: Any
    model: Any


def make_case(name: str, folder: Path) -> TextCase:
    """The same whenever it is made; its directory lies in `folder`. Its model says only what is pieces of the target's
    sentences."""
    family, directory = FAMILIES[name], folder / name
    directory.mkdir()
    made = family.tokenizer(directory)
    if made is not None:
        made.save_pretrained(directory)
    config = family.config(**{} if name == "fsmt" else {"vocab_size": 4}, **family.ids)
    config.save_pretrained(directory)  # by which AutoTokenizer finds the class
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    config.vocab_size = len(tokenizer) + family.more_rows
    if name == "fsmt":
        config.src_vocab_size = config.vocab_size
    if name.startswith("marian"):
        config.decoder_vocab_size = config.vocab_size
        config.share_encoder_decoder_embeddings = family.shares_embeddings
        config.pad_token_id = config.decoder_start_token_id = tokenizer.pad_token_id
        config.eos_token_id, config.forced_eos_token_id = tokenizer.eos_token_id, None
    if name == "t5gemma":
        config = family.config(vocab_size=config.vocab_size)
    else:
        for field, value in (_T5 if hasattr(config, "d_kv") else _FAIRSEQ).items():
            setattr(config, field, value)
        config.num_hidden_layers = 1
    model = randomised(family.model(config).eval(), np.random.default_rng([*name.encode()]), untied=False)
    said = {index for ids in tokenizer(text_target=TARGETS).input_ids for index in ids} - {*tokenizer.all_special_ids}
    silent = {*range(config.vocab_size)} - said - {tokenizer.eos_token_id}
    model.generation_config.bad_words_ids = [[index] for index in sorted(silent)]
    model.generation_config.update(max_new_tokens=24, min_new_tokens=8, no_repeat_ngram_size=1)  # or it would stammer
    model.save_pretrained(directory)
    return TextCase(family, directory, tokenizer, model)
