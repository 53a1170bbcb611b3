"""The phrasebook: correct German, one German sentence for one English one and the reverse, and splits that never
meet."""

import random
import re
from collections import Counter
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Any

import pytest

from jax_transformer.data.phrasebook import lexicon as lex
from jax_transformer.data.phrasebook import pairs as phrasebook
from jax_transformer.data.phrasebook import sentences as phrasebook_sentences
from jax_transformer.data.phrasebook.grammar import Sentence, choose_predicate, choose_subject, noun_options
from jax_transformer.data.phrasebook.pairs import CONSTRUCTIONS, SPLITS, sample_pairs, split_of
from jax_transformer.data.phrasebook.phrases import german_cases, german_prepositional, noun_phrase

WORD = re.compile(r"\w+(?:'\w+)*|[^\w\s]")

# Noun phrases in the nominative, accusative, dative and genitive.
DECLENSIONS = [
    (("man", False, "the", lex.OLD), "der alte Mann, den alten Mann, dem alten Mann, des alten Mannes"),
    (("woman", False, "the", lex.YOUNG), "die junge Frau, die junge Frau, der jungen Frau, der jungen Frau"),
    (("child", False, "the", lex.SMALL), "das kleine Kind, das kleine Kind, dem kleinen Kind, des kleinen Kindes"),
    (("book", True, "the", lex.NEW), "die neuen Bücher, die neuen Bücher, den neuen Büchern, der neuen Bücher"),
    (("dog", False, "a", lex.BIG), "ein großer Hund, einen großen Hund, einem großen Hund, eines großen Hundes"),
    (("bag", False, "a", lex.RED), "eine rote Tasche, eine rote Tasche, einer roten Tasche, einer roten Tasche"),
    (
        ("house", False, "my", lex.BEAUTIFUL),
        "mein schönes Haus, mein schönes Haus, meinem schönen Haus, meines schönen Hauses",
    ),
    (
        ("aunt", True, "your", lex.TIRED),
        "deine müden Tanten, deine müden Tanten, deinen müden Tanten, deiner müden Tanten",
    ),
    (("doctor", True, "his", lex.OLD), "seine alten Ärzte, seine alten Ärzte, seinen alten Ärzten, seiner alten Ärzte"),
    (("picture", False, "no", lex.OLD), "kein altes Bild, kein altes Bild, keinem alten Bild, keines alten Bildes"),
    (("apple", True, "", lex.RED), "rote Äpfel, rote Äpfel, roten Äpfeln, roter Äpfel"),
    (("neighbor", False, "the", None), "der Nachbar, den Nachbarn, dem Nachbarn, des Nachbarn"),
    (("student", False, "a", None), "ein Student, einen Studenten, einem Studenten, eines Studenten"),
    (("boy", False, "the", lex.SMALL), "der kleine Junge, den kleinen Jungen, dem kleinen Jungen, des kleinen Jungen"),
    (("car", True, "the", None), "die Autos, die Autos, den Autos, der Autos"),
    (("brother", False, "my", None), "mein Bruder, meinen Bruder, meinem Bruder, meines Bruders"),
]

# Present of `ich`, `du`, `er`, `wir` without the prefix; perfect; infinitive.
CONJUGATIONS = {
    "see": "sehe siehst sieht sehen, hat gesehen, sehen",
    "read": "lese liest liest lesen, hat gelesen, lesen",
    "eat": "esse isst isst essen, hat gegessen, essen",
    "invite": "lade lädst lädt laden, hat eingeladen, einladen",
    "take": "nehme nimmst nimmt nehmen, hat mitgenommen, mitnehmen",
    "open": "mache machst macht machen, hat aufgemacht, aufmachen",
    "help": "helfe hilfst hilft helfen, hat geholfen, helfen",
    "follow": "folge folgst folgt folgen, ist gefolgt, folgen",
    "give": "gebe gibst gibt geben, hat gegeben, geben",
    "bring": "bringe bringst bringt bringen, hat gebracht, bringen",
    "sleep": "schlafe schläfst schläft schlafen, hat geschlafen, schlafen",
    "work": "arbeite arbeitest arbeitet arbeiten, hat gearbeitet, arbeiten",
    "go": "gehe gehst geht gehen, ist gegangen, gehen",
    "run": "laufe läufst läuft laufen, ist gelaufen, laufen",
}

GOLD = """
statement: My old neighbor reads the newspaper. / Mein alter Nachbar liest die Zeitung.
statement: The child calls the doctor. / Das Kind ruft den Arzt an.
statement: We put a beautiful picture next to the window. / Wir legen ein schönes Bild neben das Fenster.
statement: The old man gives his daughter an apple. / Der alte Mann gibt seiner Tochter einen Apfel.
statement: He goes to the doctor with my sister. / Er geht mit meiner Schwester zum Arzt.
statement: The student buys flowers for me. / Der Student kauft Blumen für mich.
statement: I wait for you. / Ich warte auf dich.
statement: The keys lie on the small table. / Die Schlüssel liegen auf dem kleinen Tisch.
statement: The birds sleep under the old trees. / Die Vögel schlafen unter den alten Bäumen.
statement: They run into the house. / Sie laufen ins Haus.
fronted_adverb: Today the old man sees the dog. / Heute sieht der alte Mann den Hund.
fronted_adverb: In the evening my brother helps me. / Am Abend hilft mir mein Bruder.
inner_adverb: The teacher often opens the window. / Der Lehrer macht oft das Fenster auf.
inner_adverb: I see him every day. / Ich sehe ihn jeden Tag.
past: Yesterday the children went into the park. / Gestern sind die Kinder in den Park gegangen.
past: I read a letter last week. / Ich habe letzte Woche einen Brief gelesen.
future: Tomorrow I will visit the young doctor. / Morgen werde ich den jungen Arzt besuchen.
future: The cats will sleep in the kitchen soon. / Die Katzen werden bald in der Küche schlafen.
modal: You must help the small children. / Du musst den kleinen Kindern helfen.
modal: My aunt wants to invite the neighbor. / Meine Tante will den Nachbarn einladen.
negation: The boy does not buy a red hat. / Der Junge kauft keinen roten Hut.
negation: He did not help me. / Er hat mir nicht geholfen.
negation: We do not take the dog along. / Wir nehmen den Hund nicht mit.
negation: A student cannot sleep in the school. / Ein Student kann nicht in der Schule schlafen.
negation: They do not eat apples. / Sie essen keine Äpfel.
negation: The women do not give the child a cake. / Die Frauen geben dem Kind keinen Kuchen.
command: Do not follow me! / Folge mir nicht!
command: Give her the big book! / Gib ihr das große Buch!
command: Go to the bridge! / Geh zur Brücke!
joint_subject: The teacher and the boys play in the garden. / Der Lehrer und die Jungen spielen im Garten.
possession: The student's horse sleeps in the garden. / Das Pferd des Studenten schläft im Garten.
possession: I look for my sister's keys. / Ich suche die Schlüssel meiner Schwester.
possession: They see the old man's dogs. / Sie sehen die Hunde des alten Mannes.
description: The old house is not beautiful. / Das alte Haus ist nicht schön.
description: Is the child sick? / Ist das Kind krank?
comparison: The apple is not as big as the cake. / Der Apfel ist nicht so groß wie der Kuchen.
comparison: His garden is more beautiful than the bridge. / Sein Garten ist schöner als die Brücke.
yes_no_question: Do you call the doctor? / Rufst du den Arzt an?
yes_no_question: Did they eat the cake? / Haben sie den Kuchen gegessen?
yes_no_question: May I open the window? / Darf ich das Fenster aufmachen?
object_question: Who did you invite? / Wen hast du eingeladen?
object_question: What do they bring you? / Was bringen sie dir?
object_question: What will the woman take along? / Was wird die Frau mitnehmen?
subject_question: Who thanks us? / Wer dankt uns?
place_question: Where did the letters lie? / Wo haben die Briefe gelegen?
adverb_question: Why did his friends run through the park? / Warum sind seine Freunde durch den Park gelaufen?
reason: We call the doctor because the child is sick. / Wir rufen den Arzt an, weil das Kind krank ist.
condition: I thank you if you help me. / Ich danke dir, wenn du mir hilfst.
report: The man knows that the women put the books into the car. \
/ Der Mann weiß, dass die Frauen die Bücher ins Auto legen.
report: I hope that my friend visits you. / Ich hoffe, dass dich mein Freund besucht.
indirect_question: The children ask whether the neighbor found the cat. \
/ Die Kinder fragen, ob der Nachbar die Katze gefunden hat.
subject_relative: I see the birds that sleep in your garden. / Ich sehe die Vögel, die in deinem Garten schlafen.
subject_relative: The child who does not sleep is sad. / Das Kind, das nicht schläft, ist traurig.
object_relative: The child whom we thank is happy. / Das Kind, dem wir danken, ist glücklich.
object_relative: The women whom the students follow are sad. / Die Frauen, denen die Studenten folgen, sind traurig.
object_relative: The letter that the teacher wants to read is old. / Der Brief, den der Lehrer lesen will, ist alt.
coordination: I read a book and my brother sleeps. / Ich lese ein Buch und mein Bruder schläft.
"""

# The held-out combinations as they look in English, found without the grammar's own account.
INSIDE = r"(?:(?!,| and| but| if| because| whether| that| who).)*"  # anything within one clause
RELATIVE = r"(?<!know )(?<!knows )(?<!say )(?<!says )(?<!hope )(?<!hopes )\b(?:who|whom|that)"
LOOKS = {
    '"buy" in a relative clause': rf"{RELATIVE} {INSIDE}\b(?:buys?|bought)\b",
    '"visit" in a because clause': rf"because {INSIDE}\bvisit(?:s|ed)?\b",
    '"help" in a future clause': rf"(?i:\bwill )(?:{INSIDE})\bhelp\b",
    '"call" in a that clause': rf"\b(?:know|say|hope)s? that {INSIDE}\bcall(?:s|ed)?\b",
    '"find" in a negated clause': r"\b(?:not|cannot|not want to) find\b",
    '"open" in a modal clause': rf"(?i:\b(?:can|cannot|must|may|should|want to|wants to)\b){INSIDE}\bopen\b",
    '"table" after "under"': r"\bunder (?:\w+ ){0,2}table\b",
    '"car" after "behind"': r"\bbehind (?:\w+ ){0,2}cars?\b",
    '"school" after "in front of"': r"\bin front of (?:\w+ ){0,2}school\b",
    '"garden" after "through"': r"\bthrough (?:\w+ ){0,2}garden\b",
    '"doctor" after "with"': r"\bwith (?:\w+ ){0,2}doctors?\b",
    '"sister" after "without"': r"\bwithout (?:\w+ ){0,2}sisters?\b",
}


def looks(english: str) -> list[str]:
    """The held-out combinations that show in a sentence."""
    return [name for name, pattern in LOOKS.items() if re.search(pattern, english)]


class Towards(random.Random):
    """A generator whose choices lean to the words of a sentence, so that the grammar soon makes just that sentence."""

    def __init__(self, sentence: str) -> None:
        super().__init__(0)
        self.text = f" {' '.join(WORD.findall(sentence)).lower()} ".replace(" an ", " a ")

    def choice(self, seq: Sequence[Any]) -> Any:
        fitting = [one for one in seq if self.fits(one)]
        return super().choice(fitting if fitting and self.random() < 0.95 else seq)

    def fits(self, option: Any) -> bool:
        if isinstance(option, tuple):  # words, or (plural, determiner) with "" for no determiner
            forms = [part or " " for part in option if isinstance(part, str)]
        elif isinstance(option, lex.Tense):
            forms = [*option.statement] if option.statement else [" "]
        else:
            forms = [getattr(option, name, "") for name in ("english", "plural", "third", "past", "english_object")]
            forms.append(f"{option.english}'s")
        return any(form == " " or f" {form.lower()} " in self.text for form in forms if form)


def translation(construction: Callable[[random.Random], Sentence], english: str) -> str:
    """The construction's German for the English sentence, which it has to be able to make."""
    rng = Towards(english)
    for _ in range(30_000):
        sentence = construction(rng)
        if sentence.english == english:
            return sentence.german
    raise AssertionError(f"{construction.__name__} does not make {english!r}")


@pytest.fixture(scope="module")
def sentences() -> list[Sentence]:
    """200 000 sentences of all splits, as the grammar draws them."""
    rng = random.Random(0)
    return [rng.choice(CONSTRUCTIONS)(rng) for _ in range(200_000)]


@pytest.mark.parametrize(("words", "expected"), DECLENSIONS)
def test_noun_phrases_are_declined(words: tuple[str, bool, str, lex.Adjective | None], expected: str) -> None:
    noun, plural, determiner, adjective = words
    assert ", ".join(german_cases(lex.NOUN[noun], plural, determiner, adjective)) == expected


@pytest.mark.parametrize("english", CONJUGATIONS)
def test_verbs_are_conjugated(english: str) -> None:
    verb = next(verb for verb in lex.VERBS if verb.english == english)
    perfect = f"{'ist' if verb.sein else 'hat'} {verb.participle}"
    assert f"{' '.join(verb.german)}, {perfect}, {verb.prefix}{verb.german[3]}" == CONJUGATIONS[english]


@pytest.mark.parametrize(("adjective", "article"), [(None, "a"), (lex.BIG, "a"), (lex.OLD, "an")])
def test_a_becomes_an_before_a_vowel(adjective: lex.Adjective | None, article: str) -> None:
    assert noun_phrase(lex.NOUN["dog"], False, "a", adjective).english.split()[0] == article


def test_prepositions_contract_with_the_article_only() -> None:
    inside = lex.PLACES[0]
    garden = lex.NOUN["garden"]
    forms = [german_prepositional(inside, noun_phrase(garden, False, determiner)) for determiner in ("the", "a", "my")]
    assert forms == ["im Garten", "in einem Garten", "in meinem Garten"]


@pytest.mark.parametrize("line", GOLD.strip().splitlines())
def test_gold_pairs(line: str) -> None:
    name, pair = line.split(": ")
    english, german = pair.split(" / ")
    assert translation(getattr(phrasebook_sentences, name), english) == german


@pytest.mark.parametrize("construction", CONSTRUCTIONS)
def test_docstring_pairs(construction: Callable[[random.Random], Sentence]) -> None:
    english, german = (construction.__doc__ or "").splitlines()[0].split(" / ")
    assert translation(construction, english) == german


def test_there_are_enough_constructions_and_words(sentences: list[Sentence]) -> None:
    assert len({construction.__name__ for construction in CONSTRUCTIONS}) >= 18
    for side in (0, 1):
        assert (
            len(
                {
                    word.lower()
                    for sentence in sentences[:50_000]
                    for word in WORD.findall(sentence[side])
                    if word.isalpha()
                }
            )
            >= 200
        )


def test_lengths(sentences: list[Sentence]) -> None:
    for side in (0, 1):
        lengths = [len(WORD.findall(sentence[side])) for sentence in sentences]
        assert max(lengths) <= 20
        assert sum(4 <= length <= 14 for length in lengths) > 0.95 * len(lengths)


def test_sentences_are_well_formed(sentences: list[Sentence]) -> None:
    for english, german, _ in sentences:
        assert english[0].isupper()
        assert german[0].isupper()
        assert english[-1] == german[-1]
        assert english[-1] in ".?!"
        assert "  " not in english + german
        assert " ," not in german


def test_translations_are_unique_in_both_directions(sentences: list[Sentence]) -> None:
    pairs = {(sentence.english, sentence.german) for sentence in sentences}
    assert len({english for english, _ in pairs}) == len(pairs)
    assert len({german for _, german in pairs}) == len(pairs)


def test_more_than_a_million_sentences() -> None:
    """A lower bound by counting one verb in one construction: "Today ... sees ..." with nouns, not the same one on both
    sides."""
    see = lex.VERBS[0]
    assert see.english == "see"

    def phrases(nouns: tuple[lex.Noun, ...], role: str) -> dict[lex.Noun, set[str]]:
        return {
            noun: {
                noun_phrase(noun, plural, determiner, adjective).english
                for plural, determiner in noun_options(noun, role)
                for adjective in (None, *lex.ATTRIBUTES[noun.kind])
            }
            for noun in nouns
        }

    subjects, objects = phrases(see.subjects, "subject"), phrases(see.objects, "object")
    for phrase in set[str]().union(*subjects.values(), *objects.values()):
        assert not {"see", "sees"} & set(phrase.split())  # so that a sentence can be taken apart in one way only
    pairs = sum(
        len(some) * len(others)
        for one, some in subjects.items()
        for other, others in objects.items()
        if one is not other
    )
    assert len({adverb.english for adverb in lex.TIMES}) * pairs > 2_000_000
    # The grammar does make them: every subject occurs, and after one of them every object.
    rng = random.Random(0)
    made = {choose_subject(rng, see.subjects).english for _ in range(60_000)}
    assert made >= set[str]().union(*subjects.values())
    dog = noun_phrase(lex.NOUN["dog"], False, "the")
    made = {choose_predicate(rng, see, dog).english for _ in range(120_000)}
    assert made >= set[str]().union(*(some for noun, some in objects.items() if noun is not dog.noun))


def test_splits_do_not_meet() -> None:
    owners: dict[str, str] = {}
    for split in SPLITS:
        for seed, count in ((0, 1500), (1, 1000), (12345, 500)):
            for english, _ in sample_pairs(split, count, seed):
                assert owners.setdefault(english, split) == split


def test_held_out_combinations_are_in_their_split_only(sentences: list[Sentence]) -> None:
    assert tuple(LOOKS) == phrasebook.held_out_combinations()
    seen: Counter[str] = Counter()
    for sentence in sentences[:60_000]:
        held_out = looks(sentence.english)
        assert bool(held_out) == (split_of(sentence) == "combinations"), sentence.english
        seen.update(held_out)
    assert min(seen[name] for name in LOOKS) >= 20


def test_sampled_combinations_hold_one_each() -> None:
    assert all(looks(english) for english, _ in sample_pairs("combinations", 1000))
    for split in ("train", "valid", "test"):
        assert not any(looks(english) for english, _ in sample_pairs(split, 1000))


def test_both_members_of_a_combination_are_frequent_in_training(sentences: list[Sentence]) -> None:
    train = [sentence for sentence in sentences if split_of(sentence) == "train"]
    words = Counter(word for sentence in train for word in set(WORD.findall(sentence.english)))
    places = Counter(place for sentence in train for _, place in set(sentence.uses))
    for word, place in phrasebook.HELD_OUT_CLAUSES + phrasebook.HELD_OUT_PREPOSITIONS:
        assert words[word] > 500, word
        assert places[place] > 500, place


def test_shares_of_the_splits(sentences: list[Sentence]) -> None:
    shares = Counter(split_of(sentence) for sentence in sentences)
    assert 0.7 < shares["train"] / len(sentences) < 0.8
    assert all(shares[split] > 0.03 * len(sentences) for split in SPLITS)


def test_smaller_requests_are_prefixes() -> None:
    for split in SPLITS:
        pairs = sample_pairs(split, 300, seed=3)
        assert len(dict(pairs)) == 300
        assert sample_pairs(split, 120, seed=3) == pairs[:120]
        assert sample_pairs(split, 0, seed=3) == []


def test_seed_and_split_enter_the_stream() -> None:
    samples = [tuple(sample_pairs(split, 20, seed)) for split in SPLITS for seed in (0, 1)]
    assert len(set(samples)) == len(samples)


def test_the_sample_never_changes() -> None:
    text = "\n".join(f"{english}\t{german}" for split in SPLITS for english, german in sample_pairs(split, 100, seed=7))
    assert blake2b(text.encode(), digest_size=16).hexdigest() == "2994eb5654855a50ba207cbb496b18d6"


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="expected one of train, valid, test, combinations; received 'dev'"):
        sample_pairs("dev", 1)
    with pytest.raises(ValueError, match="count: expected 0 or more; received -1"):
        sample_pairs("train", -1)


def test_more_pairs_than_there_are_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def tiny(rng: random.Random) -> Sentence:
        number = rng.randrange(40)
        return Sentence(f"{number} dogs.", f"{number} Hunde.", ())

    monkeypatch.setattr(phrasebook, "CONSTRUCTIONS", (tiny,))
    available = sum(split_of(Sentence(f"{number} dogs.", "", ())) == "valid" for number in range(40))
    assert len(sample_pairs("valid", available)) == available
    with pytest.raises(
        ValueError, match=f"at most the {available} distinct pairs found of 'valid'.*received {available + 1}$"
    ):
        sample_pairs("valid", available + 1)
