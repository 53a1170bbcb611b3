"""The grammar of the phrasebook: phrases, predicates and clauses are chosen at random, and a clause is rendered in any
word order."""

import random
from functools import cache
from typing import NamedTuple

from jax_transformer.data.phrasebook import lexicon as lex
from jax_transformer.data.phrasebook.lexicon import (
    ACCUSATIVE,
    DATIVE,
    FUTURE,
    NOMINATIVE,
    PAST,
    PRESENT,
    VERBS,
    Noun,
    Verb,
)
from jax_transformer.data.phrasebook.phrases import (
    OBJECT_PRONOUNS,
    POSSESSIVES,
    PRONOUNS,
    Phrase,
    german_prepositional,
    noun_phrase,
)

Uses = tuple[tuple[str, str], ...]
"""Combinations (English word, where it stands): a verb in a kind of clause, or a noun after a preposition."""


class Sentence(NamedTuple):
    """Holds a sentence pair, and its combinations, which decide its split."""

    english: str
    german: str
    uses: Uses


# How much a clause may hold: adjectives and companions; neither of them; nor a preposition of several words, for two
# clauses in full.
FULL, PLAIN, SHORT = 2, 1, 0


# Choosing phrases


@cache
def noun_options(noun: Noun, role: str) -> tuple[tuple[bool, str], ...]:
    """Returns the pairs (plural, determiner) of a noun, repeated by weight.

    Roles: "object" (anything), "subject" (no bare plural), "definite" (no `a` either), "place" (no plural of things,
      nobody's houses).
    """
    options = [(False, "the")] * 3
    if noun.indefinite and role != "definite":
        options += [(False, "a")] * 3
    if noun.owned:
        options += [(False, owner) for owner in POSSESSIVES]
    if not noun.plural or (role == "place" and noun.kind == "thing"):
        return tuple(options)
    options += [(True, "the")] * 2
    if noun.indefinite and role in ("object", "place"):
        options += [(True, "")] * 2
    if noun.owned and not (role == "place" and noun.kind == "place"):
        options += [(True, owner) for owner in POSSESSIVES]
    return tuple(options)


def choose_phrase(rng: random.Random, noun: Noun, role: str, detail: int = FULL) -> Phrase:
    """Returns the noun with a determiner and, in full detail, perhaps an adjective."""
    plural, determiner = rng.choice(noun_options(noun, role))
    if detail == FULL and rng.random() < 0.35:
        return noun_phrase(noun, plural, determiner, rng.choice(lex.ATTRIBUTES[noun.kind]))
    return noun_phrase(noun, plural, determiner)


def choose_other(rng: random.Random, among: tuple[Noun, ...], taken: Noun | None) -> Noun:
    """Returns one of the nouns, but not the one already taken."""
    noun = rng.choice(among)
    while noun is taken:
        noun = rng.choice(among)
    return noun


def choose_subject(
    rng: random.Random, among: tuple[Noun, ...], detail: int = FULL, taken: Noun | None = None, role: str = "subject"
) -> Phrase:
    """Returns a noun phrase for one of the nouns that is not taken, or a pronoun in place of a person."""
    noun = choose_other(rng, among, taken)
    if noun.person and rng.random() < 0.45:
        return rng.choice(PRONOUNS)
    return choose_phrase(rng, noun, role, detail)


def choose_object(
    rng: random.Random,
    among: tuple[Noun, ...],
    case: int,
    subject: Phrase,
    detail: int,
    role: str = "object",
    pronouns: bool = True,
) -> Phrase:
    """Returns an object phrase that does not repeat the subject."""
    noun = choose_other(rng, among, subject.noun)
    if pronouns and noun.person and rng.random() < 0.35:
        return rng.choice(OBJECT_PRONOUNS[case, subject.person])
    return choose_phrase(rng, noun, role, detail)


# Predicates


class Predicate(NamedTuple):
    """Holds a verb with its objects and places in both languages, without a tense.

    The German parts follow the order `pronoun`, `objects`, `places`. `negated_objects` is `objects` with `kein`, or ""
    if `nicht` negates.
    """

    verb: Verb
    english: str = ""  # all that follows the verb
    pronoun: str = ""
    objects: str = ""
    negated_objects: str = ""
    places: str = ""
    uses: Uses = ()


NOWHERE: tuple[str, str, Uses] = "", "", ()


def join_words(*parts: str) -> str:
    """Returns the parts that are not empty, joined by spaces."""
    return " ".join([part for part in parts if part])


def choose_place(
    rng: random.Random, prepositions: tuple[lex.Preposition, ...], subject: Phrase, detail: int
) -> tuple[str, str, Uses]:
    """(English, German, uses) of a prepositional phrase."""
    preposition = rng.choice(prepositions)
    while detail == SHORT and " " in preposition.english:
        preposition = rng.choice(prepositions)
    phrase = choose_object(rng, preposition.nouns, preposition.case, subject, detail, "place", preposition.pronouns)
    uses = ((phrase.noun.english, preposition.english),) if phrase.noun else ()
    return f"{preposition.english} {phrase.english_object}", german_prepositional(preposition, phrase), uses


def choose_predicate(rng: random.Random, verb: Verb, subject: Phrase, detail: int = FULL) -> Predicate:
    """Returns a predicate of the verb that suits the subject."""
    if verb.frame in ("place", "goal"):
        return _choose_place_predicate(rng, verb, subject, detail)
    if verb.frame == "give":
        given = choose_gapped_predicate(rng, verb, subject, detail)
        thing = choose_object(rng, verb.objects, ACCUSATIVE, subject, detail)
        return given._replace(
            english=f"{given.english} {thing.english}",
            objects=join_words(given.objects, thing.german[ACCUSATIVE]),
            negated_objects=join_words(given.objects, thing.negated[ACCUSATIVE]) if thing.negated else "",
        )
    case = DATIVE if verb.frame == "dative" else ACCUSATIVE
    thing = choose_object(rng, verb.objects, case, subject, detail)
    where, wo, uses = NOWHERE
    if verb.frame == "put":
        where, wo, uses = choose_place(rng, verb.places, thing, detail)  # the thing: no book is put next to the book
    elif verb.english == "buy" and detail == FULL and rng.random() < 0.4:
        where, wo, uses = choose_place(rng, (lex.BENEFIT,), subject, detail)
    english = join_words(thing.english_object, verb.particle, where)
    if thing.pronoun:
        return Predicate(verb, english, pronoun=thing.german[case], places=wo, uses=uses)
    return Predicate(verb, english, "", thing.german[case], thing.negated[case] if thing.negated else "", wo, uses)


def _choose_place_predicate(rng: random.Random, verb: Verb, subject: Phrase, detail: int) -> Predicate:
    """Returns a predicate of place, perhaps with a companion, whom German puts before the place."""
    accompanied = detail == FULL and verb.subjects[0].person and rng.random() < 0.25
    if accompanied:
        detail = PLAIN  # long enough without adjectives
    where, wo, uses = NOWHERE
    if verb.frame == "goal" or rng.random() < 0.8:
        where, wo, uses = choose_place(rng, verb.places, subject, detail)
    if accompanied:
        english, german, more = choose_place(rng, lex.COMPANIONS, subject, detail)
        where, wo, uses = join_words(where, english), join_words(german, wo), uses + more
    return Predicate(verb, where, places=wo, uses=uses)


def choose_gapped_predicate(rng: random.Random, verb: Verb, subject: Phrase, detail: int) -> Predicate:
    """Returns a predicate without its (last) object, for questions and relative clauses."""
    if verb.frame != "give":
        return Predicate(verb, verb.particle)
    person = choose_object(rng, lex.PEOPLE, DATIVE, subject, detail, "definite")
    if person.pronoun:
        return Predicate(verb, person.english_object, pronoun=person.german[DATIVE])
    return Predicate(verb, person.english_object, objects=person.german[DATIVE])


# Clauses


class Clause(NamedTuple):
    """Renders a subject and a predicate in a tense, in every word order."""

    subject: Phrase
    predicate: Predicate
    tense: lex.Tense = PRESENT
    adverb: lex.Adverb = lex.NO_ADVERB
    negated: bool = False

    def uses(self, kind: str = "main clause") -> Uses:
        """Returns the combinations in this clause, which is of the kind."""
        verb = self.predicate.verb.english
        negation = ((verb, "negated clause"),) if self.negated else ()
        return (*self.predicate.uses, (verb, kind), (verb, f"{self.tense.name} clause"), *negation)

    def english_rest(self) -> str:
        """Returns everything but the subject: "does not see the dog"."""
        verb, tense, agreement = self.predicate.verb, self.tense, self.subject.agreement
        if self.negated:
            auxiliary = tense.auxiliary[agreement]
            auxiliary = "cannot" if auxiliary == "can" else f"{auxiliary} not"
            group = f"{auxiliary} {tense.link}{verb.english}"
        elif tense.statement:
            group = f"{tense.statement[agreement]} {verb.english}"
        elif tense is PAST:
            group = verb.past
        else:
            group = verb.third if agreement == lex.THIRD else verb.english
        if self.adverb.medial:
            return join_words(self.adverb.english, group, self.predicate.english)
        return join_words(group, self.predicate.english, self.adverb.english)

    def english(self) -> str:
        """Returns the statement: "the man sees the dog"."""
        return f"{self.subject.english} {self.english_rest()}"

    def english_question(self) -> str:
        """Returns the question: "does the man see the dog"."""
        base = self.tense.link + self.predicate.verb.english
        return join_words(
            self.tense.auxiliary[self.subject.agreement], self.subject.english, base, self.predicate.english
        )

    def german_verbs(self) -> tuple[str, str]:
        """Returns the finite verb, and what ends a main clause."""
        verb, agreement = self.predicate.verb, self.subject.agreement
        if self.tense is PAST:
            return (lex.SEIN if verb.sein else lex.HABEN)[agreement], verb.participle
        if self.tense.german:
            return self.tense.german[agreement], verb.prefix + verb.german[lex.PLURAL]
        return verb.german[agreement], verb.prefix

    def german_middle(self, with_subject: bool) -> str:
        """Returns everything but the verbs. A pronoun precedes a noun subject: "(Heute hilft) mir der Mann"."""
        subject, predicate, nicht = "", self.predicate, ""
        objects = predicate.objects
        if with_subject:
            subject = self.subject.german[NOMINATIVE]
        if self.negated:
            nicht = "" if predicate.negated_objects else "nicht"
            objects = predicate.negated_objects or objects
        first, second = (subject, predicate.pronoun) if self.subject.pronoun else (predicate.pronoun, subject)
        return join_words(first, second, self.adverb.german, objects, nicht, predicate.places)

    def german(self) -> str:
        """Returns the statement, verb second: "der Mann ruft den Arzt an"."""
        finite, end = self.german_verbs()
        return join_words(self.subject.german[NOMINATIVE], finite, self.german_middle(False), end)

    def german_inverted(self) -> str:
        """Verb before subject, for questions and after a first element: "ruft der Mann den Arzt an"."""
        finite, end = self.german_verbs()
        return join_words(finite, self.german_middle(True), end)

    def german_final(self, with_subject: bool = True) -> str:
        """Verb last, for subordinate clauses: "der Mann den Arzt anruft"."""
        finite, end = self.german_verbs()
        return join_words(
            self.german_middle(with_subject), end + finite if self.tense is PRESENT else f"{end} {finite}"
        )


@cache
def _tenses(verb: Verb, negated: bool) -> tuple[lex.Tense, ...]:
    """Returns the tenses of a clause without an adverb, repeated by weight. "I read" and "I put", which could be past,
    are present."""
    options = [PRESENT] * 5 + [FUTURE] * 2 + [PAST] * 3 * (negated or verb.past != verb.english)
    modals = lex.NEGATABLE_MODALS if negated else lex.MODALS
    return (*options, *modals) if verb.modal else tuple(options)


def in_any_tense(rng: random.Random, clause: Clause) -> Clause:
    """Returns the clause in a tense that suits its verb."""
    return clause._replace(tense=rng.choice(_tenses(clause.predicate.verb, clause.negated)))


def choose_clause(
    rng: random.Random, verbs: tuple[Verb, ...] = VERBS, detail: int = FULL, taken: Noun | None = None
) -> Clause:
    """Returns an affirmative clause in the present, with one of the verbs; its subject is not the noun already
    taken."""
    verb = rng.choice(verbs)
    subject = choose_subject(rng, verb.subjects, detail, taken)
    return Clause(subject, choose_predicate(rng, verb, subject, detail))


def varied(rng: random.Random, clause: Clause) -> Clause:
    """Returns the clause, sometimes negated, in a tense that suits its verb."""
    return in_any_tense(rng, clause._replace(negated=rng.random() < 0.15))


def make_sentence(english: str, german: str, uses: Uses, mark: str = ".") -> Sentence:
    """Returns a sentence with its capital letters and its final mark."""
    return Sentence(english[0].upper() + english[1:] + mark, german[0].upper() + german[1:] + mark, uses)
