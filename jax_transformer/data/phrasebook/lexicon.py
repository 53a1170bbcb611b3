"""Words of the phrasebook: English-German tables of nouns, adjectives, prepositions, verbs, tenses and adverbs.

Two rules keep the languages in step, one English form for one German form:

* No two words share a translation in the same position.
* Every word has one meaning: `call` is only `anrufen`, `take ... along` only `mitnehmen`.

Rows are compared by identity (`eq=False`): each is unique, and hashes fast.
"""

from dataclasses import dataclass
from typing import Any

NOMINATIVE, ACCUSATIVE, DATIVE, GENITIVE = range(4)

# Agreement: four verb forms are enough in both languages, because `we` and `they` share theirs and there is no plural
# `you`.
FIRST, SECOND, THIRD, PLURAL = range(4)

Forms = tuple[str, str, str, str]


# Nouns


@dataclass(frozen=True, eq=False)
class Noun:
    """Describes a noun; `plural` or `german_plural` is "" if it has none."""

    english: str
    plural: str
    gender: str  # "m", "f" or "n"
    german: str  # nominative singular
    oblique: str  # accusative and dative singular (differs for weak nouns only)
    genitive: str
    german_plural: str
    kind: str  # "adult", "child", "animal", "thing" or "place": selects adjectives
    owned: bool = True  # may follow `my`, `your`, `his`
    indefinite: bool = True  # may follow `a` or stand bare in the plural

    @property
    def person(self) -> bool:
        return self.kind in ("adult", "child")


def _noun(english: str, gender: str, german: str, kind: str, **rest: bool) -> Noun:
    """Reads a row of the table: singular, plural; nominative, oblique and genitive singular, plural."""
    singular, plural = english.split(", ")
    nominative, oblique, genitive, german_plural = german.split(", ")
    return Noun(singular, plural, gender, nominative, oblique, genitive, german_plural, kind, **rest)


# "mein Mann" and "meine Frau" are a husband and a wife, "mein Junge" is a son: owned=False. There is no girl: "sein"
# after "das Mädchen" is her own, not his.
NOUNS = (
    _noun("man, men", "m", "Mann, Mann, Mannes, Männer", "adult", owned=False),
    _noun("woman, women", "f", "Frau, Frau, Frau, Frauen", "adult", owned=False),
    _noun("teacher, teachers", "m", "Lehrer, Lehrer, Lehrers, Lehrer", "adult"),
    _noun("doctor, doctors", "m", "Arzt, Arzt, Arztes, Ärzte", "adult"),
    _noun("neighbor, neighbors", "m", "Nachbar, Nachbarn, Nachbarn, Nachbarn", "adult"),
    _noun("student, students", "m", "Student, Studenten, Studenten, Studenten", "adult"),
    _noun("friend, friends", "m", "Freund, Freund, Freundes, Freunde", "adult"),
    _noun("brother, brothers", "m", "Bruder, Bruder, Bruders, Brüder", "adult", indefinite=False),
    _noun("sister, sisters", "f", "Schwester, Schwester, Schwester, Schwestern", "adult", indefinite=False),
    _noun("aunt, aunts", "f", "Tante, Tante, Tante, Tanten", "adult", indefinite=False),
    _noun("child, children", "n", "Kind, Kind, Kindes, Kinder", "child"),
    _noun("boy, boys", "m", "Junge, Jungen, Jungen, Jungen", "child", owned=False),
    _noun("daughter, daughters", "f", "Tochter, Tochter, Tochter, Töchter", "child", indefinite=False),
    _noun("dog, dogs", "m", "Hund, Hund, Hundes, Hunde", "animal"),
    _noun("cat, cats", "f", "Katze, Katze, Katze, Katzen", "animal"),
    _noun("horse, horses", "n", "Pferd, Pferd, Pferdes, Pferde", "animal"),
    _noun("bird, birds", "m", "Vogel, Vogel, Vogels, Vögel", "animal"),
    _noun("book, books", "n", "Buch, Buch, Buches, Bücher", "thing"),
    _noun("letter, letters", "m", "Brief, Brief, Briefes, Briefe", "thing"),
    _noun("newspaper, newspapers", "f", "Zeitung, Zeitung, Zeitung, Zeitungen", "thing"),
    _noun("key, keys", "m", "Schlüssel, Schlüssel, Schlüssels, Schlüssel", "thing"),
    _noun("picture, pictures", "n", "Bild, Bild, Bildes, Bilder", "thing"),
    _noun("apple, apples", "m", "Apfel, Apfel, Apfels, Äpfel", "thing"),
    _noun("cake, cakes", "m", "Kuchen, Kuchen, Kuchens, Kuchen", "thing"),
    _noun("bag, bags", "f", "Tasche, Tasche, Tasche, Taschen", "thing"),
    _noun("suitcase, suitcases", "m", "Koffer, Koffer, Koffers, Koffer", "thing"),
    _noun("flower, flowers", "f", "Blume, Blume, Blume, Blumen", "thing"),
    _noun("hat, hats", "m", "Hut, Hut, Hutes, Hüte", "thing"),
    _noun("car, cars", "n", "Auto, Auto, Autos, Autos", "thing"),
    _noun("door, doors", "f", "Tür, Tür, Tür, Türen", "thing"),
    _noun("window, windows", "n", "Fenster, Fenster, Fensters, Fenster", "thing"),
    _noun("table, ", "m", "Tisch, Tisch, Tisches, ", "thing"),
    _noun("chair, ", "m", "Stuhl, Stuhl, Stuhls, ", "thing"),
    _noun("bed, ", "n", "Bett, Bett, Bettes, ", "thing"),
    _noun("house, houses", "n", "Haus, Haus, Hauses, Häuser", "place"),
    _noun("tree, trees", "m", "Baum, Baum, Baumes, Bäume", "place", owned=False),
    _noun("bridge, ", "f", "Brücke, Brücke, Brücke, ", "place", owned=False),
    _noun("garden, ", "m", "Garten, Garten, Gartens, ", "place"),
    _noun("park, ", "m", "Park, Park, Parks, ", "place", owned=False),
    _noun("school, ", "f", "Schule, Schule, Schule, ", "place"),
    _noun("city, ", "f", "Stadt, Stadt, Stadt, ", "place"),
    _noun("kitchen, ", "f", "Küche, Küche, Küche, ", "place"),
)
NOUN = {noun.english: noun for noun in NOUNS}


def nouns(words: str) -> tuple[Noun, ...]:
    """Returns the nouns of a space-separated list of English words."""
    return tuple(NOUN[word] for word in words.split())


PEOPLE = tuple(noun for noun in NOUNS if noun.person)
ADULTS = tuple(noun for noun in NOUNS if noun.kind == "adult")
POSSESSED_PEOPLE = nouns("teacher doctor neighbor friend brother sister aunt child daughter")
ANIMALS = tuple(noun for noun in NOUNS if noun.kind == "animal")
BEINGS = PEOPLE + ANIMALS
READABLE = nouns("book letter newspaper")
FOOD = nouns("apple cake")
OPENABLE = nouns("door window letter bag suitcase")
LYING = nouns("book letter newspaper key picture apple bag flower hat")
PORTABLE = LYING + nouns("suitcase cake")
GOODS = nouns("book newspaper picture apple cake bag suitcase flower hat car house dog horse")
TAKEN = PORTABLE + PEOPLE + nouns("dog cat")
SHOWN = PORTABLE + ANIMALS + nouns("car house")
SIGHTS = PORTABLE + nouns("car house tree bridge door window")


# Adjectives


@dataclass(frozen=True, eq=False)
class Adjective:
    """Describes an adjective; German attributive forms are `stem` + ending."""

    english: str
    german: str  # predicative
    stem: str
    comparative: str = ""  # English, "" where the grammar does not compare
    german_comparative: str = ""


OLD = Adjective("old", "alt", "alt", "older", "älter")
YOUNG = Adjective("young", "jung", "jung", "younger", "jünger")
SMALL = Adjective("small", "klein", "klein", "smaller", "kleiner")
BIG = Adjective("big", "groß", "groß", "bigger", "größer")
BEAUTIFUL = Adjective("beautiful", "schön", "schön", "more beautiful", "schöner")
NEW = Adjective("new", "neu", "neu")
RED = Adjective("red", "rot", "rot")
TIRED = Adjective("tired", "müde", "müd")
HAPPY = Adjective("happy", "glücklich", "glücklich")
SAD = Adjective("sad", "traurig", "traurig")
SICK = Adjective("sick", "krank", "krank")

ATTRIBUTES = {  # what may stand before a noun, by its kind
    "adult": (OLD, YOUNG, TIRED, HAPPY),
    "child": (SMALL, TIRED, HAPPY),
    "animal": (OLD, YOUNG, SMALL, BIG),
    "thing": (OLD, NEW, SMALL, BIG, RED, BEAUTIFUL),
    "place": (OLD, SMALL, BIG, BEAUTIFUL),
}
STATES = (TIRED, HAPPY, SAD, SICK)  # what a person may be for a reason
# What may follow `is`.
PREDICATIVES = {kind: STATES if kind in ("adult", "child") else words for kind, words in ATTRIBUTES.items()}
COMPARABLE = (  # what is compared, and in what
    (PEOPLE, (OLD, YOUNG)),
    (ANIMALS, (OLD, YOUNG, SMALL, BIG)),
    (PORTABLE, (OLD, SMALL, BIG, BEAUTIFUL)),
    (nouns("house garden tree city bridge"), (OLD, SMALL, BIG, BEAUTIFUL)),
)


# Prepositions


@dataclass(frozen=True, eq=False)
class Preposition:
    """Describes a preposition in one meaning, with the case it governs and the nouns it takes."""

    english: str
    german: str
    case: int
    nouns: tuple[Noun, ...]
    pronouns: bool = False  # may take a pronoun in place of a person


AREAS = nouns("garden park house school city kitchen")
PLACES = (  # where people and animals are
    Preposition("in", "in", DATIVE, AREAS),
    Preposition("behind", "hinter", DATIVE, nouns("house school tree bridge car")),
    Preposition("in front of", "vor", DATIVE, nouns("house school tree door car")),
    Preposition("next to", "neben", DATIVE, nouns("house tree bridge door car")),
    Preposition("under", "unter", DATIVE, nouns("tree bridge car")),
)
INTO = Preposition("into", "in", ACCUSATIVE, AREAS)
THROUGH = Preposition("through", "durch", ACCUSATIVE, AREAS)
GOING = (INTO, THROUGH, Preposition("to", "zu", DATIVE, PEOPLE + nouns("bridge tree house school") * 3))
RUNNING = (INTO, THROUGH, Preposition("out of", "aus", DATIVE, AREAS), PLACES[0])
THING_PLACES = (  # where things lie
    Preposition("in", "in", DATIVE, nouns("bag suitcase car kitchen garden")),
    Preposition("on", "auf", DATIVE, nouns("table chair bed suitcase")),
    Preposition("next to", "neben", DATIVE, nouns("bag suitcase door window")),
    Preposition("under", "unter", DATIVE, nouns("table chair bed tree")),
)
THING_GOALS = (  # where things are put: the same words, but the accusative
    Preposition("into", "in", ACCUSATIVE, nouns("bag suitcase car kitchen garden")),
    Preposition("on", "auf", ACCUSATIVE, nouns("table chair bed suitcase")),
    Preposition("next to", "neben", ACCUSATIVE, nouns("bag suitcase door window")),
    Preposition("under", "unter", ACCUSATIVE, nouns("table chair bed tree")),
)
WAITING = PLACES + (Preposition("for", "auf", ACCUSATIVE, PEOPLE, pronouns=True),) * 3
BENEFIT = Preposition("for", "für", ACCUSATIVE, PEOPLE, pronouns=True)
COMPANIONS = (
    Preposition("with", "mit", DATIVE, PEOPLE + nouns("dog"), pronouns=True),
    Preposition("without", "ohne", ACCUSATIVE, PEOPLE + nouns("dog"), pronouns=True),
)


# Verbs


@dataclass(frozen=True, eq=False)
class Verb:
    """Describes a verb: its forms and the phrases it takes.

    `german` holds the present by agreement class, without the separable prefix; its last entry is also the infinitive.
    `frame` names what the verb takes: "accusative", "dative", "give" (a dative person and an accusative thing), "put"
    (an accusative thing and a place), "place" (perhaps a place) or "goal" (a place always).
    """

    english: str
    third: str
    past: str
    german: Forms
    participle: str
    imperative: str  # "" where a command would be odd
    frame: str
    objects: tuple[Noun, ...] = ()
    subjects: tuple[Noun, ...] = PEOPLE
    places: tuple[Preposition, ...] = ()
    prefix: str = ""
    particle: str = ""  # the English word after the object
    sein: bool = False  # perfect with `sein`, not `haben`
    modal: bool = True  # makes sense with `can`, `must`, ...


def _verb(english: str, german: str, frame: str, objects: tuple[Noun, ...] = (), **rest: Any) -> Verb:
    """Reads a row of the table: base, third person, past; `ich`, `du`, `er`, `wir`, participle, imperative."""
    base, third, past = english.split(", ")
    ich, du, er, wir, participle, imperative = german.split(", ")
    return Verb(base, third, past, (ich, du, er, wir), participle, imperative, frame, objects, **rest)


VERBS = (
    _verb("see, sees, saw", "sehe, siehst, sieht, sehen, gesehen, ", "accusative", BEINGS + SIGHTS, subjects=BEINGS),
    _verb("buy, buys, bought", "kaufe, kaufst, kauft, kaufen, gekauft, kauf", "accusative", GOODS),
    _verb("find, finds, found", "finde, findest, findet, finden, gefunden, ", "accusative", PORTABLE + ANIMALS),
    _verb(
        "look for, looks for, looked for",
        "suche, suchst, sucht, suchen, gesucht, such",
        "accusative",
        PORTABLE + BEINGS,
    ),
    _verb("visit, visits, visited", "besuche, besuchst, besucht, besuchen, besucht, besuch", "accusative", PEOPLE),
    _verb("read, reads, read", "lese, liest, liest, lesen, gelesen, lies", "accusative", READABLE),
    _verb(
        "eat, eats, ate", "esse, isst, isst, essen, gegessen, iss", "accusative", FOOD
    ),  # people only: animals `fressen`
    _verb("call, calls, called", "rufe, rufst, ruft, rufen, angerufen, ruf", "accusative", PEOPLE, prefix="an"),
    _verb("invite, invites, invited", "lade, lädst, lädt, laden, eingeladen, lade", "accusative", PEOPLE, prefix="ein"),
    _verb(
        "open, opens, opened", "mache, machst, macht, machen, aufgemacht, mach", "accusative", OPENABLE, prefix="auf"
    ),
    _verb(
        "take, takes, took",
        "nehme, nimmst, nimmt, nehmen, mitgenommen, nimm",
        "accusative",
        TAKEN,
        prefix="mit",
        particle="along",
    ),
    _verb("help, helps, helped", "helfe, hilfst, hilft, helfen, geholfen, hilf", "dative", BEINGS),
    _verb("thank, thanks, thanked", "danke, dankst, dankt, danken, gedankt, danke", "dative", PEOPLE),
    _verb(
        "follow, follows, followed",
        "folge, folgst, folgt, folgen, gefolgt, folge",
        "dative",
        BEINGS,
        subjects=BEINGS,
        sein=True,
    ),
    _verb("give, gives, gave", "gebe, gibst, gibt, geben, gegeben, gib", "give", PORTABLE),
    _verb("show, shows, showed", "zeige, zeigst, zeigt, zeigen, gezeigt, zeig", "give", SHOWN),
    _verb("bring, brings, brought", "bringe, bringst, bringt, bringen, gebracht, bring", "give", PORTABLE),
    _verb("put, puts, put", "lege, legst, legt, legen, gelegt, leg", "put", LYING, places=THING_GOALS),
    _verb(
        "lie, lies, lay",
        "liege, liegst, liegt, liegen, gelegen, ",
        "goal",
        subjects=LYING,
        places=THING_PLACES,
        modal=False,
    ),
    _verb(
        "sleep, sleeps, slept",
        "schlafe, schläfst, schläft, schlafen, geschlafen, schlaf",
        "place",
        subjects=BEINGS,
        places=PLACES,
    ),
    _verb("work, works, worked", "arbeite, arbeitest, arbeitet, arbeiten, gearbeitet, arbeite", "place", places=PLACES),
    _verb(
        "play, plays, played",
        "spiele, spielst, spielt, spielen, gespielt, spiel",
        "place",
        subjects=BEINGS,
        places=PLACES,
    ),
    _verb(
        "wait, waits, waited",
        "warte, wartest, wartet, warten, gewartet, warte",
        "place",
        subjects=BEINGS,
        places=WAITING,
    ),
    _verb("go, goes, went", "gehe, gehst, geht, gehen, gegangen, geh", "goal", places=GOING, sein=True),
    _verb(
        "run, runs, ran",
        "laufe, läufst, läuft, laufen, gelaufen, lauf",
        "goal",
        subjects=BEINGS,
        places=RUNNING,
        sein=True,
    ),
)

BE = (("am", "bin"), ("are", "bist"), ("is", "ist"), ("are", "sind"))  # by agreement
KNOW = (("know", "weiß"), ("know", "weißt"), ("knows", "weiß"), ("know", "wissen"))
SAY = (("say", "sage"), ("say", "sagst"), ("says", "sagt"), ("say", "sagen"))
HOPE = (("hope", "hoffe"), ("hope", "hoffst"), ("hopes", "hofft"), ("hope", "hoffen"))
ASK = (("ask", "frage"), ("ask", "fragst"), ("asks", "fragt"), ("ask", "fragen"))


# Tenses and adverbials


@dataclass(frozen=True, eq=False)
class Tense:
    """Describes a tense or modal by the words before the English base form and the German infinitive.

    `auxiliary` is the English word for questions and negation, and `link` the word between it and the verb; `statement`
    begins an affirmative statement, and is empty if the verb itself is inflected. `german` is the finite verb, empty
    for the present and the past, which depend on the verb.
    """

    name: str
    auxiliary: Forms
    statement: tuple[str, ...] = ()
    german: tuple[str, ...] = ()
    link: str = ""


DO = ("do", "do", "does", "do")
HABEN = ("habe", "hast", "hat", "haben")
SEIN = ("bin", "bist", "ist", "sind")

PRESENT = Tense("present", DO)
PAST = Tense("past", ("did",) * 4)  # simple past in English, perfect in German
FUTURE = Tense("future", ("will",) * 4, ("will",) * 4, ("werde", "wirst", "wird", "werden"))
CAN = Tense("modal", ("can",) * 4, ("can",) * 4, ("kann", "kannst", "kann", "können"))
MUST = Tense("modal", ("must",) * 4, ("must",) * 4, ("muss", "musst", "muss", "müssen"))
MAY = Tense("modal", ("may",) * 4, ("may",) * 4, ("darf", "darfst", "darf", "dürfen"))
SHOULD = Tense("modal", ("should",) * 4, ("should",) * 4, ("sollte", "solltest", "sollte", "sollten"))
WANT = Tense(
    "modal", DO, ("want to", "want to", "wants to", "want to"), ("will", "willst", "will", "wollen"), link="want to "
)
MODALS = (CAN, MUST, MAY, SHOULD, WANT)
# "must not" and "may not" would both be `darf nicht`, so `must` is never negated.
NEGATABLE_MODALS = (CAN, MAY, SHOULD, WANT)


@dataclass(frozen=True, eq=False)
class Adverb:
    """Describes an adverbial of time; `medial` ones precede the English verb."""

    english: str
    german: str
    medial: bool = False


NO_ADVERB = Adverb("", "")
TIMES = (
    Adverb("today", "heute"),
    Adverb("every day", "jeden Tag"),
    Adverb("in the evening", "am Abend"),
    Adverb("on Sunday", "am Sonntag"),
)
FREQUENCIES = (Adverb("often", "oft", True), Adverb("sometimes", "manchmal", True))
PAST_TIMES = (Adverb("yesterday", "gestern"), Adverb("last week", "letzte Woche"))
FUTURE_TIMES = (Adverb("tomorrow", "morgen"), Adverb("soon", "bald"), Adverb("next week", "nächste Woche"))
