"""The sentences of the phrasebook: one function for each construction, whose docstring starts with a pair that it can
make."""

import random
from collections.abc import Callable

from jax_transformer.data.phrasebook import lexicon as lex
from jax_transformer.data.phrasebook.grammar import (
    FULL,
    PLAIN,
    SHORT,
    Clause,
    Predicate,
    Sentence,
    Uses,
    choose_clause,
    choose_gapped_predicate,
    choose_other,
    choose_phrase,
    choose_predicate,
    choose_subject,
    in_any_tense,
    join_words,
    make_sentence,
    noun_options,
    varied,
)
from jax_transformer.data.phrasebook.lexicon import ACCUSATIVE, DATIVE, FUTURE, NOMINATIVE, PAST, PRESENT, VERBS, Noun
from jax_transformer.data.phrasebook.phrases import NOMINATIVE_PRONOUNS, WHO, YOU, Phrase, noun_phrase, relative_pronoun

# Verbs by what can be made of them.
PERSONAL_VERBS = tuple(verb for verb in VERBS if verb.subjects[0].person)
MODAL_VERBS = tuple(verb for verb in VERBS if verb.modal)
COMMAND_VERBS = tuple(verb for verb in VERBS if verb.imperative)
SHORT_VERBS = tuple(verb for verb in VERBS if verb.frame not in ("give", "put"))
GAP_VERBS = tuple(verb for verb in VERBS if verb.frame in ("accusative", "dative", "give"))
ACCUSATIVE_VERBS = tuple(verb for verb in VERBS if verb.frame == "accusative")
WHERE_VERBS = tuple(verb for verb in VERBS if verb.frame == "place" or verb.english == "lie")
HEAD_VERBS = tuple(verb for verb in VERBS if verb.frame in ("accusative", "dative") and not verb.prefix)
HEAD_VERBS_OF = {noun: tuple(verb for verb in HEAD_VERBS if noun in verb.objects) for noun in lex.NOUNS}


# Constructions of one clause


def statement(rng: random.Random) -> Sentence:
    """The old man calls the doctor. / Der alte Mann ruft den Arzt an."""
    clause = choose_clause(rng)
    return make_sentence(clause.english(), clause.german(), clause.uses())


def fronted_adverb(rng: random.Random) -> Sentence:
    """Today the woman helps me. / Heute hilft mir die Frau."""
    return _with_adverb(choose_clause(rng), rng.choice(lex.TIMES), fronted=True)


def inner_adverb(rng: random.Random) -> Sentence:
    """My brother often reads a book. / Mein Bruder liest oft ein Buch."""
    return _with_adverb(choose_clause(rng), rng.choice(lex.TIMES + lex.FREQUENCIES), fronted=False)


def past(rng: random.Random) -> Sentence:
    """Yesterday we went into the park. / Gestern sind wir in den Park gegangen."""
    return _with_adverb(choose_clause(rng)._replace(tense=PAST), rng.choice(lex.PAST_TIMES), fronted=rng.random() < 0.5)


def future(rng: random.Random) -> Sentence:
    """The bird will see us tomorrow. / Der Vogel wird uns morgen sehen."""
    return _with_adverb(
        choose_clause(rng)._replace(tense=FUTURE), rng.choice(lex.FUTURE_TIMES), fronted=rng.random() < 0.5
    )


def _with_adverb(clause: Clause, adverb: lex.Adverb, fronted: bool) -> Sentence:
    """Returns a statement that starts with the adverb, or holds it inside."""
    if fronted:
        return make_sentence(
            f"{adverb.english} {clause.english()}", f"{adverb.german} {clause.german_inverted()}", clause.uses()
        )
    clause = clause._replace(adverb=adverb)
    return make_sentence(clause.english(), clause.german(), clause.uses())


def modal(rng: random.Random) -> Sentence:
    """The teacher wants to read the letter. / Der Lehrer will den Brief lesen."""
    clause = choose_clause(rng, MODAL_VERBS)._replace(tense=rng.choice(lex.MODALS))
    return make_sentence(clause.english(), clause.german(), clause.uses())


def negation(rng: random.Random) -> Sentence:
    """The boy does not buy a hat. / Der Junge kauft keinen Hut."""
    clause = in_any_tense(rng, choose_clause(rng)._replace(negated=True))
    return make_sentence(clause.english(), clause.german(), clause.uses())


def command(rng: random.Random) -> Sentence:
    """Do not open the door! / Mach die Tür nicht auf!"""
    verb = rng.choice(COMMAND_VERBS)
    clause = Clause(YOU, choose_predicate(rng, verb, YOU), negated=rng.random() < 0.3)
    english = join_words("do not" if clause.negated else "", verb.english, clause.predicate.english)
    return make_sentence(
        english, join_words(verb.imperative, clause.german_middle(False), verb.prefix), clause.uses("command"), "!"
    )


def joint_subject(rng: random.Random) -> Sentence:
    """The man and my aunt wait. / Der Mann und meine Tante warten."""
    first = choose_phrase(rng, rng.choice(lex.PEOPLE), "subject", PLAIN)
    second = choose_phrase(rng, choose_other(rng, lex.PEOPLE, first.noun), "subject", PLAIN)
    german = f"{first.german[NOMINATIVE]} und {second.german[NOMINATIVE]}"
    both = Phrase(f"{first.english} and {second.english}", "", (german, "", "", ""), lex.PLURAL, noun=second.noun)
    clause = in_any_tense(rng, Clause(both, choose_predicate(rng, rng.choice(PERSONAL_VERBS), both, PLAIN)))
    return make_sentence(clause.english(), clause.german(), clause.uses())


def possession(rng: random.Random) -> Sentence:
    """The teacher's dog sleeps. / Der Hund des Lehrers schläft."""
    if rng.random() < 0.5:
        verb = rng.choice(PERSONAL_VERBS)
        subject = _possessed(rng, rng.choice(verb.subjects))
        clause = Clause(subject, choose_predicate(rng, verb, subject, PLAIN))
    else:
        verb = rng.choice(ACCUSATIVE_VERBS)
        thing = _possessed(rng, rng.choice(verb.objects))
        subject = choose_subject(rng, verb.subjects, PLAIN, thing.noun)
        clause = Clause(
            subject, Predicate(verb, join_words(thing.english, verb.particle), objects=thing.german[ACCUSATIVE])
        )
    clause = in_any_tense(rng, clause)
    return make_sentence(clause.english(), clause.german(), clause.uses())


def _possessed(rng: random.Random, noun: Noun) -> Phrase:
    """Returns a noun with its possessor: "the old man's book", "das Buch des alten Mannes". A noun that nobody owns is
    replaced."""
    while not noun.owned:
        noun = rng.choice(lex.POSSESSED_PEOPLE)
    owner_noun = choose_other(rng, lex.ADULTS, noun)
    options = [option for option in noun_options(owner_noun, "subject") if not option[0]]
    adjective = rng.choice(lex.ATTRIBUTES["adult"]) if rng.random() < 0.25 else None
    owner = noun_phrase(owner_noun, *rng.choice(options), adjective)
    plural = bool(noun.plural) and rng.random() < 0.35
    adjective = rng.choice(lex.ATTRIBUTES[noun.kind]) if rng.random() < 0.25 else None
    owned = noun_phrase(noun, plural, "the", adjective)
    english = f"{owner.english}'s {owned.english.removeprefix('the ')}"
    nominative, accusative, dative, _ = [f"{form} {owner.german[lex.GENITIVE]}" for form in owned.german]
    return Phrase(english, english, (nominative, accusative, dative, ""), owned.agreement, noun=noun)


def description(rng: random.Random) -> Sentence:
    """Is the old house beautiful? / Ist das alte Haus schön?"""
    subject = choose_subject(rng, lex.NOUNS, role="definite")
    adjectives = lex.PREDICATIVES[subject.noun.kind if subject.noun else "adult"]
    adjective = rng.choice([one for one in adjectives if one.english not in subject.english])
    be, sein = lex.BE[subject.agreement]
    form = rng.randrange(2 if subject.person == 1 else 3)  # nobody asks "Am I tired?"
    if form == 2:
        english = f"{be} {subject.english} {adjective.english}"
        return make_sentence(english, f"{sein} {subject.german[NOMINATIVE]} {adjective.german}", (), "?")
    english = join_words(subject.english, be, ("", "not")[form], adjective.english)
    return make_sentence(
        english, join_words(subject.german[NOMINATIVE], sein, ("", "nicht")[form], adjective.german), ()
    )


def comparison(rng: random.Random) -> Sentence:
    """I am older than my brother. / Ich bin älter als mein Bruder."""
    among, adjectives = rng.choice(lex.COMPARABLE)
    adjective = rng.choice(adjectives)
    first = choose_subject(rng, among, PLAIN, role="definite")
    second = choose_phrase(rng, choose_other(rng, among, first.noun), "definite", PLAIN)
    be, sein = lex.BE[first.agreement]
    than, als = (
        (f"{adjective.comparative} than", f"{adjective.german_comparative} als"),
        (f"as {adjective.english} as", f"so {adjective.german} wie"),
        (f"not as {adjective.english} as", f"nicht so {adjective.german} wie"),
    )[rng.randrange(3)]
    german = f"{first.german[NOMINATIVE]} {sein} {als} {second.german[NOMINATIVE]}"
    return make_sentence(f"{first.english} {be} {than} {second.english}", german, ())


# Questions


def yes_no_question(rng: random.Random) -> Sentence:
    """Does the dog follow you? / Folgt dir der Hund?"""
    verb = rng.choice(VERBS)
    subject = YOU if verb.subjects[0].person and rng.random() < 0.3 else choose_subject(rng, verb.subjects)
    clause = Clause(subject, choose_predicate(rng, verb, subject))
    # In the present the question starts with the verb. Two forms of each verb there, not four, keep the capitalised
    # words few.
    if subject.agreement in (lex.SECOND, lex.THIRD) and rng.random() < 0.5:
        return _question(clause)
    return _question(clause._replace(tense=rng.choice((PAST, FUTURE, *lex.MODALS) if verb.modal else (PAST, FUTURE))))


def object_question(rng: random.Random) -> Sentence:
    """Who does the child help? / Wem hilft das Kind?"""
    verb = rng.choice(GAP_VERBS)
    subject = choose_subject(rng, verb.subjects)
    clause = in_any_tense(rng, Clause(subject, choose_gapped_predicate(rng, verb, subject, FULL)))
    if verb.frame == "dative":
        return _question(clause, "who", "wem")
    return _question(clause, "who", "wen") if rng.choice(verb.objects).person else _question(clause, "what", "was")


def subject_question(rng: random.Random) -> Sentence:
    """Who opened the door? / Wer hat die Tür aufgemacht?"""
    clause = Clause(
        WHO, choose_predicate(rng, rng.choice(PERSONAL_VERBS), WHO), rng.choice((PRESENT, PRESENT, PAST, FUTURE))
    )
    return make_sentence(clause.english(), clause.german(), clause.uses(), "?")


def place_question(rng: random.Random) -> Sentence:
    """Where does the cat sleep? / Wo schläft die Katze?"""
    verb = rng.choice(WHERE_VERBS)
    return _question(in_any_tense(rng, Clause(choose_subject(rng, verb.subjects), Predicate(verb))), "where", "wo")


def adverb_question(rng: random.Random) -> Sentence:
    """When will you buy the car? / Wann wirst du das Auto kaufen?"""
    asked = rng.choice((("when", "wann"), ("why", "warum")))
    return _question(in_any_tense(rng, choose_clause(rng, PERSONAL_VERBS)), *asked)


def _question(clause: Clause, english: str = "", german: str = "") -> Sentence:
    """Returns the clause asked, after a question word if there is one."""
    if clause.tense is lex.MAY and clause.subject.person != 1:
        clause = clause._replace(tense=lex.CAN)  # "May you work?" would be a wish
    return make_sentence(
        join_words(english, clause.english_question()), join_words(german, clause.german_inverted()), clause.uses(), "?"
    )


# Constructions of several clauses


def reason(rng: random.Random) -> Sentence:
    """I am tired because I must work. / Ich bin müde, weil ich arbeiten muss."""
    person, state = choose_subject(rng, lex.PEOPLE, PLAIN), rng.choice(lex.STATES)
    be, sein = lex.BE[person.agreement]
    being, german = f"{person.english} {be} {state.english}", person.german[NOMINATIVE]
    clause = varied(rng, choose_clause(rng, PERSONAL_VERBS, PLAIN, person.noun))
    if rng.random() < 0.5:
        german = f"{german} {sein} {state.german}, weil {clause.german_final()}"
        return make_sentence(f"{being} because {clause.english()}", german, clause.uses("because clause"))
    return make_sentence(
        f"{clause.english()} because {being}", f"{clause.german()}, weil {german} {state.german} {sein}", clause.uses()
    )


def condition(rng: random.Random) -> Sentence:
    """If you call me, I will help you. / Wenn du mich anrufst, werde ich dir helfen."""
    given = choose_clause(rng, SHORT_VERBS, SHORT)
    then = choose_clause(rng, SHORT_VERBS, SHORT, given.subject.noun)._replace(tense=rng.choice((PRESENT, FUTURE)))
    uses = given.uses("if clause") + then.uses()
    if rng.random() < 0.5:
        return make_sentence(
            f"if {given.english()}, {then.english()}", f"wenn {given.german_final()}, {then.german_inverted()}", uses
        )
    return make_sentence(
        f"{then.english()} if {given.english()}", f"{then.german()}, wenn {given.german_final()}", uses
    )


def report(rng: random.Random) -> Sentence:
    """She hopes that you call me. / Sie hofft, dass du mich anrufst."""
    verb = rng.choice((lex.KNOW, lex.SAY, lex.HOPE))
    person, clause = choose_subject(rng, lex.PEOPLE, PLAIN), varied(rng, choose_clause(rng, detail=PLAIN))
    if verb is lex.HOPE and clause.tense in (lex.MUST, lex.MAY, lex.SHOULD):
        clause = clause._replace(tense=FUTURE)  # nobody hopes that someone must do something
    english, german = verb[person.agreement]
    german = f"{person.german[NOMINATIVE]} {german}, dass {clause.german_final()}"
    return make_sentence(f"{person.english} {english} that {clause.english()}", german, clause.uses("that clause"))


def indirect_question(rng: random.Random) -> Sentence:
    """I do not know whether he works. / Ich weiß nicht, ob er arbeitet."""
    person, clause = choose_subject(rng, lex.PEOPLE, PLAIN), in_any_tense(rng, choose_clause(rng, detail=PLAIN))
    if rng.random() < 0.5:
        english, german = lex.ASK[person.agreement]
    else:
        english, german = f"{lex.DO[person.agreement]} not know", f"{lex.KNOW[person.agreement][1]} nicht"
    german = f"{person.german[NOMINATIVE]} {german}, ob {clause.german_final()}"
    return make_sentence(
        f"{person.english} {english} whether {clause.english()}", german, clause.uses("whether clause")
    )


def subject_relative(rng: random.Random) -> Sentence:
    """The man who helps the child is tired. / Der Mann, der dem Kind hilft, ist müde."""
    verb = rng.choice(VERBS)
    noun = rng.choice(verb.subjects)
    head = _head(rng, noun)
    clause = varied(rng, Clause(head, choose_predicate(rng, verb, head, PLAIN)))
    english = f"{'who' if noun.person else 'that'} {clause.english_rest()}"
    german = f"{relative_pronoun(head, NOMINATIVE)} {clause.german_final(with_subject=False)}"
    return _around(rng, head, noun, english, german, clause.uses("relative clause"))


def object_relative(rng: random.Random) -> Sentence:
    """I see the key that he looks for. / Ich sehe den Schlüssel, den er sucht."""
    verb = rng.choice(GAP_VERBS)
    noun = rng.choice(verb.objects)
    head = _head(rng, noun)
    pronoun = relative_pronoun(head, DATIVE if verb.frame == "dative" else ACCUSATIVE)
    if pronoun == relative_pronoun(head, NOMINATIVE):
        # "die Frau, die die Katze sieht" reads two ways; a pronoun that can only be the subject leaves one.
        subject = rng.choice(NOMINATIVE_PRONOUNS)
    else:
        subject = choose_subject(rng, verb.subjects, PLAIN, noun)
    clause = varied(rng, Clause(subject, choose_gapped_predicate(rng, verb, subject, PLAIN)))
    english = f"{'whom' if noun.person else 'that'} {clause.english()}"
    return _around(rng, head, noun, english, f"{pronoun} {clause.german_final()}", clause.uses("relative clause"))


def _head(rng: random.Random, noun: Noun) -> Phrase:
    """Returns the noun with an article, ready for a relative clause."""
    return noun_phrase(
        noun, *rng.choice([option for option in noun_options(noun, "subject") if option[1] in ("the", "a")])
    )


def _around(rng: random.Random, head: Phrase, noun: Noun, english: str, german: str, uses: Uses) -> Sentence:
    """Returns a main clause around the head (of the noun) and its relative clause, which has the uses."""
    verbs = HEAD_VERBS_OF[noun]
    if not verbs or rng.random() < 0.5:
        (be, sein), adjective = lex.BE[head.agreement], rng.choice(lex.PREDICATIVES[noun.kind])
        german = f"{head.german[NOMINATIVE]}, {german}, {sein} {adjective.german}"
        return make_sentence(f"{head.english} {english} {be} {adjective.english}", german, uses)
    verb = rng.choice(verbs)
    form = head.german[DATIVE if verb.frame == "dative" else ACCUSATIVE]
    main = Clause(choose_subject(rng, verb.subjects, PLAIN, noun), Predicate(verb, head.english, objects=form))
    return make_sentence(f"{main.english()} {english}", f"{main.german()}, {german}", uses + main.uses())


def coordination(rng: random.Random) -> Sentence:
    """The man works, but the child plays. / Der Mann arbeitet, aber das Kind spielt."""
    first = in_any_tense(rng, choose_clause(rng, SHORT_VERBS, SHORT))
    second = in_any_tense(rng, choose_clause(rng, SHORT_VERBS, SHORT, first.subject.noun))
    but, aber = rng.choice(((" and", " und"), (", but", ", aber")))
    german = f"{first.german()}{aber} {second.german()}"
    return make_sentence(f"{first.english()}{but} {second.english()}", german, first.uses() + second.uses())


CONSTRUCTIONS: tuple[Callable[[random.Random], Sentence], ...] = (
    statement,
    fronted_adverb,
    inner_adverb,
    past,
    future,
    modal,
    negation,
    command,
    joint_subject,
    possession,
    description,
    comparison,
    yes_no_question,
    object_question,
    subject_question,
    place_question,
    adverb_question,
    reason,
    condition,
    report,
    indirect_question,
    subject_relative,
    object_relative,
    coordination,
)
