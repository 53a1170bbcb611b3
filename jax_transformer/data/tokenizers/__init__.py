"""Converts text to ids and back.

Six kinds of tokenizers are trained here:

| kind | a token is | decode(encode(text)) is |
|---|---|---|
| words | a word (with inner apostrophes and hyphens), a number, or one punctuation character | the text up to spaces
around punctuation |
| whitespace | a run of characters without white space | the text, each run of white space made one space |
| characters | one code point | the text |
| bpe | a learned piece of a word, its leading space included (as ▁) | the text, but for U+2581 (▁) itself, which
becomes a space |
| unigram | the same, learned by sentencepiece | the same |
| spacy | a token of spaCy's rules of a language | the text up to white space, and spaces around punctuation |

The last column is for known tokens, and before lowercasing and normalization. All but spacy are a plain pipeline of
Hugging Face `tokenizers`, normalise → split → look up → join, whose parts are all in its `tokenizer.json`.

    tokenizer.py            Tokenizer: the interface of every kind
    special_tokens.py       the special tokens' ids, and their names in other programs
    pipelines.py            the parts of a tokenizer.json
    spacy_rules.py          spaCy's splitting, and a vocabulary
    sentencepiece_model.py  a sentencepiece .model, used as it is
    byte_tokens.py          a token for each byte
    merge_lists.py          words cut by a list of merges
    piece_lists.py          a sentencepiece .model whose pieces have the ids of a list
    training.py             vocabularies from text
    word_counts.py          counts of words, in bounded memory
    load.py                 vocabularies from files of other programs
    trial.py                a trial of foreign patterns in a separate process
    hugging_face.py         the tokenizers of a model of Hugging Face's transformers, from its files
    objects.py              tokenizers of transformers and of `tokenizers`, as objects
    subword_sampling.py     random segmentations, by seed
    words.py                the word of each token
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
