"""Tokenizers: text to ids and back.

Six kinds are trained here:

| kind | a token is | decode(encode(text)) is |
|---|---|---|
| words | a word (with inner apostrophes and hyphens), a number, or one punctuation character | the text up to spaces
around punctuation |
| whitespace | what stands between white space | the text, each run of white space made one space |
| characters | one code point | the text |
| bpe | a learned piece of a word, its leading space included (as ▁) | the text, but for U+2581 (▁) itself, which
becomes a space |
| unigram | the same, learned by sentencepiece | the same |
| spacy | what spaCy's rules of a language split off | the text up to white space, and spaces around punctuation |

The last column is for known tokens, and before lowercasing and normalization. All but spacy are a plain pipeline of
Hugging Face `tokenizers`, normalise → split → look up → join, whose parts are all in its `tokenizer.json`.

    tokenizer.py            Tokenizer: the interface of every kind
    special_tokens.py       the special tokens' ids, and the names that other programs give them
    pipelines.py            the parts of a tokenizer.json
    spacy_rules.py          spaCy's splitting, and a vocabulary
    sentencepiece_model.py  a sentencepiece .model, used as it is
    training.py             vocabularies from text
    word_counts.py          counting the words of any amount of text
    load.py                 vocabularies from files that other programs wrote
    hugging_face.py         the tokenizers of a model of Hugging Face's transformers, from its files
    piece_lists.py          a sentencepiece .model whose pieces have the ids of a list
    subword_sampling.py     random segmentations, by seed
    words.py                which word each token belongs to
"""

from jax_transformer.data.tokenizers.load import load_tokenizer
from jax_transformer.data.tokenizers.special_tokens import SpecialIds
from jax_transformer.data.tokenizers.tokenizer import Ids, Tokenizer
from jax_transformer.data.tokenizers.training import Kind, Normalization, train_tokenizer
from jax_transformer.data.tokenizers.words import NO_WORD, Words, words_of_ids, words_of_text

__all__ = [
    "NO_WORD",
    "Ids",
    "Kind",
    "Normalization",
    "SpecialIds",
    "Tokenizer",
    "Words",
    "load_tokenizer",
    "train_tokenizer",
    "words_of_ids",
    "words_of_text",
]
