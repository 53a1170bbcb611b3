"""Phrases of the phrasebook: noun phrases and pronouns in every case, and what stands before them.

Determiners and pronouns follow the rule of the lexicon, that no two words share a translation in the same position. So
there are `my`, `your` and `his`, but no `her` and `their`, which are both `ihr`; and `sie` is only ever a subject,
where the verb tells `she` from `they`.
"""

from dataclasses import dataclass
from functools import cache

from jax_transformer.data.phrasebook.lexicon import (
    ACCUSATIVE,
    DATIVE,
    FIRST,
    PLURAL,
    SECOND,
    THIRD,
    Adjective,
    Forms,
    Noun,
    Preposition,
)

# Determiners, endings, contractions

DEFINITE = {
    "m": ("der", "den", "dem", "des"),
    "f": ("die", "die", "der", "der"),
    "n": ("das", "das", "dem", "des"),
    "p": ("die", "die", "den", "der"),
}
EIN_ENDINGS = {
    "m": ("", "en", "em", "es"),
    "f": ("e", "e", "er", "er"),
    "n": ("", "", "em", "es"),
    "p": ("e", "e", "en", "er"),
}
EIN_WORDS = {"a": "ein", "my": "mein", "your": "dein", "his": "sein", "no": "kein"}
POSSESSIVES = ("my", "your", "his")

# Endings by gender ("p": plural), in the order of the cases.
ENDINGS = {
    "weak": {  # after `der`
        "m": ("e", "en", "en", "en"),
        "f": ("e", "e", "en", "en"),
        "n": ("e", "e", "en", "en"),
        "p": ("en", "en", "en", "en"),
    },
    "mixed": {  # after `ein`, `kein`, `mein`, `dein`, `sein`
        "m": ("er", "en", "en", "en"),
        "f": ("e", "e", "en", "en"),
        "n": ("es", "es", "en", "en"),
        "p": ("en", "en", "en", "en"),
    },
    "strong": {"p": ("e", "e", "en", "er")},  # without an article
}

RELATIVE = {
    "m": ("der", "den", "dem"),
    "f": ("die", "die", "der"),
    "n": ("das", "das", "dem"),
    "p": ("die", "die", "denen"),
}

CONTRACTIONS = {("in", "dem"): "im", ("in", "das"): "ins", ("zu", "dem"): "zum", ("zu", "der"): "zur"}


# Phrases


@dataclass(frozen=True, eq=False)
class Phrase:
    """Holds a noun phrase or pronoun in every case.

    `german` is indexed by case. `negated` holds the forms with `kein` of an indefinite phrase; others are negated by
    `nicht`.
    """

    english: str
    english_object: str
    german: Forms
    agreement: int
    person: int = 3
    negated: Forms | tuple[()] = ()
    noun: Noun | None = None
    pronoun: bool = False


PRONOUNS = (  # no accusative `sie`: it would be `her` and `them`
    Phrase("I", "me", ("ich", "mich", "mir", ""), FIRST, 1, pronoun=True),
    Phrase("you", "you", ("du", "dich", "dir", ""), SECOND, 2, pronoun=True),
    Phrase("he", "him", ("er", "ihn", "ihm", ""), THIRD, pronoun=True),
    Phrase("she", "her", ("sie", "", "ihr", ""), THIRD, pronoun=True),
    Phrase("we", "us", ("wir", "uns", "uns", ""), PLURAL, 1, pronoun=True),
    Phrase("they", "them", ("sie", "", "ihnen", ""), PLURAL, pronoun=True),
)
YOU = PRONOUNS[1]
NOMINATIVE_PRONOUNS = tuple(one for one in PRONOUNS if one.german[ACCUSATIVE])  # not `sie`
WHO = Phrase("who", "", ("wer", "", "", ""), THIRD, pronoun=True)
# Object pronouns by case and person of the subject: never "I see me" or "we see me".
OBJECT_PRONOUNS = {
    (case, person): tuple(
        pronoun for pronoun in PRONOUNS if pronoun.german[case] and (person == 3 or pronoun.person != person)
    )
    for case in (ACCUSATIVE, DATIVE)
    for person in (1, 2, 3)
}


def noun_form(noun: Noun, plural: bool, case: int) -> str:
    """Returns the German noun in a case; the dative plural adds -n unless it ends in -n or -s."""
    if plural:
        form = noun.german_plural
        return form + "n" if case == DATIVE and form[-1] not in "ns" else form
    return (noun.german, noun.oblique, noun.oblique, noun.genitive)[case]


def german_noun_phrase(noun: Noun, plural: bool, determiner: str, adjective: Adjective | None, case: int) -> str:
    """Returns article, adjective and noun in a case; `determiner` is English, or "" for none."""
    gender = "p" if plural else noun.gender
    if determiner == "the":
        article, declension = DEFINITE[gender][case], "weak"
    elif determiner:
        article, declension = EIN_WORDS[determiner] + EIN_ENDINGS[gender][case], "mixed"
    else:
        article, declension = "", "strong"
    inflected = adjective.stem + ENDINGS[declension][gender][case] if adjective else ""
    return " ".join(filter(None, (article, inflected, noun_form(noun, plural, case))))


def german_cases(noun: Noun, plural: bool, determiner: str, adjective: Adjective | None) -> Forms:
    """Returns the phrase in the nominative, accusative, dative and genitive."""
    nominative, accusative, dative, genitive = (
        german_noun_phrase(noun, plural, determiner, adjective, case) for case in range(4)
    )
    return nominative, accusative, dative, genitive


def english_noun_phrase(noun: Noun, plural: bool, determiner: str, adjective: Adjective | None) -> str:
    """Returns determiner, adjective and noun, with `an` before a vowel."""
    words = [adjective.english] if adjective else []
    words.append(noun.plural if plural else noun.english)
    if determiner == "a" and words[0][0] in "aeiou":
        determiner = "an"
    return " ".join([determiner, *words] if determiner else words)


@cache  # a few thousand phrases make up all sentences
def noun_phrase(noun: Noun, plural: bool, determiner: str, adjective: Adjective | None = None) -> Phrase:
    """Returns the phrase in both languages and all cases."""
    english = english_noun_phrase(noun, plural, determiner, adjective)
    german = german_cases(noun, plural, determiner, adjective)
    negated = german_cases(noun, plural, "no", adjective) if determiner in ("a", "") else ()
    agreement = PLURAL if plural else THIRD
    return Phrase(english, english, german, agreement, negated=negated, noun=noun)


def relative_pronoun(head: Phrase, case: int) -> str:
    """Returns the German relative pronoun for a noun phrase."""
    assert head.noun
    return RELATIVE["p" if head.agreement == PLURAL else head.noun.gender][case]


def german_prepositional(preposition: Preposition, phrase: Phrase) -> str:
    """Returns preposition and phrase, contracted as in German (`im`, `ins`, `zum`, `zur`)."""
    text = phrase.german[preposition.case]
    article, _, rest = text.partition(" ")
    contracted = CONTRACTIONS.get((preposition.german, article))
    return f"{contracted} {rest}" if contracted and rest else f"{preposition.german} {text}"
