"""The languages that Whisper's models know, by code."""

from __future__ import annotations

_NAMES = """
af afrikaans; am amharic; ar arabic; as assamese; az azerbaijani; ba bashkir; be belarusian; bg bulgarian; bn
bengali; bo tibetan; br breton; bs bosnian; ca catalan, valencian; cs czech; cy welsh; da danish; de german; el
greek; en english; es spanish, castilian; et estonian; eu basque; fa persian; fi finnish; fo faroese; fr french;
gl galician; gu gujarati; ha hausa; haw hawaiian; he hebrew; hi hindi; hr croatian; ht haitian creole, haitian;
hu hungarian; hy armenian; id indonesian; is icelandic; it italian; ja japanese; jw javanese; ka georgian; kk
kazakh; km khmer; kn kannada; ko korean; la latin; lb luxembourgish, letzeburgesch; ln lingala; lo lao; lt
lithuanian; lv latvian; mg malagasy; mi maori; mk macedonian; ml malayalam; mn mongolian; mr marathi; ms malay;
mt maltese; my myanmar, burmese; ne nepali; nl dutch, flemish; nn nynorsk; no norwegian; oc occitan; pa punjabi,
panjabi; pl polish; ps pashto, pushto; pt portuguese; ro romanian, moldavian, moldovan; ru russian; sa sanskrit;
sd sindhi; si sinhala, sinhalese; sk slovak; sl slovenian; sn shona; so somali; sq albanian; sr serbian; su
sundanese; sv swedish; sw swahili; ta tamil; te telugu; tg tajik; th thai; tk turkmen; tl tagalog; tr turkish;
tt tatar; uk ukrainian; ur urdu; uz uzbek; vi vietnamese; yi yiddish; yo yoruba; yue cantonese; zh chinese,
mandarin
"""


def _codes() -> dict[str, str]:
    entries = (entry.strip().partition(" ") for entry in _NAMES.replace("\n", " ").split(";"))
    return {name.strip(): code for code, _, names in entries for name in names.split(",")}


CODES = _codes()
"""Name of a language, in English and small letters → its code; some have several names."""


def code_of(language: str) -> str:
    """Returns the code of a language that is given as a code, a name, or a tag such as `<|de|>`, in small or capital
    letters; other texts in small letters.

    Example:
      >>> from jax_transformer.config.languages import code_of
      >>> code_of("German"), code_of("<|de|>"), code_of("DE")
      ('de', 'de', 'de')
    """
    plain = language.strip("<|>").lower()
    return CODES.get(plain, plain)


def name_of(code: str) -> str:
    """Returns the English name of a language, in small letters; an unknown code itself.

    Example:
      >>> from jax_transformer.config.languages import name_of
      >>> name_of("de"), name_of("nl"), name_of("xx")
      ('german', 'dutch', 'xx')
    """
    return next((name for name, known in CODES.items() if known == code), code)
