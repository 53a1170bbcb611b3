"""Writes indic_texts.json: texts in eleven scripts as IndicTransToolkit 1.1.1 prepares and finishes them.

    python parity_tests/indic_texts.py

needs the package, and indic-nlp-library 0.92 in place of the one that comes with it (pip install --no-deps
IndicTransToolkit==1.1.1 indic-nlp-library==0.92, with cython, pandas, regex and sacremoses): IndicTrans2 was trained
with it, and in indic-nlp-library-itt 0.1.1, letters with dots become texts such as \\u093C. `test_indic_texts.py`
compares.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

GOLDENS = Path(__file__).with_name("indic_texts.json")
TEXTS = {
    "eng_Latn": "Human beings are born free and equal in dignity and rights (Art. 1): they're “endowed” with reason.",
    "hin_Deva": "सभी मनुष्यों को गौरव और अधिकारों के मामले में जन्मजात स्वतन्त्रता और समानता प्राप्त है । उन्हें बुद्धि (१) मिली है|",
    "mar_Deva": "सर्व मानवी व्यक्ति जन्मतःच स्वतंत्र आहेत व त्यांना समान प्रतिष्ठा व समान अधिकार आहेत. ॲप, ऱ्हास!",
    "npi_Deva": "सबै व्यक्तिहरू जन्मजात स्वतन्त्र हुन् ती सबैको समान अधिकार र महत्व छ: '२०७८/०५/१२' मा ।",
    "ben_Beng": "সমস্ত মানুষ স্বাধীনভাবে সমান মর্যাদা এবং অধিকার নিয়ে জন্মগ্রহণ করে। তাঁদের বিবেক এবং বুদ্ধি আছে; ১৯৪৮ সালে…",
    "asm_Beng": "জন্মগতভাৱে সকলো মানুহ মৰ্য্যদা আৰু অধিকাৰত সমান আৰু স্বতন্ত্ৰ। তেওঁলোকৰ বিবেক আছে, বুদ্ধি আছে।",
    "guj_Gujr": "પ્રતિષ્ઠા અને અધિકારોની દૃષ્ટિએ સર્વ માનવો જન્મથી સ્વતંત્ર અને સમાન હોય છે. (૧૨ ટકા) - “હા”!",
    "pan_Guru": "ਸਾਰਾ ਮਨੁੱਖੀ ਪਰਿਵਾਰ ਆਪਣੀ ਮਹਿਮਾ, ਸ਼ਾਨ ਅਤੇ ਹੱਕਾਂ ਦੇ ਪੱਖੋਂ ਜਨਮ ਤੋਂ ਹੀ ਆਜ਼ਾਦ ਹੈ ਅਤੇ ਸੁਤੇ ਸਿੱਧ ਸਾਰੇ ਲੋਕ ਬਰਾਬਰ ਹਨ।",
    "ory_Orya": "ସମସ୍ତ ମନୁଷ୍ୟ ଜନ୍ମକାଳରୁ ସ୍ୱାଧୀନ। ସେମାନଙ୍କର ମର୍ଯ୍ୟାଦା ଓ ଅଧିକାର ସମାନ, ବଡ଼ ଓ ଦୃଢ଼: ୧ ଏବଂ ୨।",
    "tam_Taml": "மனிதப் பிறவியினர் சகலரும் சுதந்திரமாகவே பிறக்கின்றனர்; அவர்கள் மதிப்பிலும், உரிமைகளிலும் சமமானவர்கள் (1948).",
    "tel_Telu": "ప్రతిపత్తిస్వత్వముల విషయమున మానవులెల్లరును జన్మతః స్వతంత్రులును సమానులును నగుదురు. ౧౨ / ౩",
    "kan_Knda": "ಎಲ್ಲಾ ಮಾನವರೂ ಸ್ವತಂತ್ರರಾಗಿಯೇ ಜನಿಸಿದ್ದಾರೆ. ಹಾಗೂ ಘನತೆ ಮತ್ತು ಹಕ್ಕುಗಳಲ್ಲಿ ಸಮಾನರಾಗಿದ್ದಾರೆ: ೧೨%",
    "mal_Mlym": "മനുഷ്യരെല്ലാവരും തുല്യാവകാശങ്ങളോടും അന്തസ്സോടും സ്വാതന്ത്ര്യത്തോടുംകൂടി ജനിച്ചിട്ടുള്ളവരാണ്‌, 'അവര്‍' - അവൻ.",
    "san_Deva": "सर्वे मानवाः स्वतन्त्राः समुत्पन्नाः वर्तन्ते अपि च, गौरवदृशा अधिकारदृशा च समानाः एव वर्तन्ते।",
    "mni_Mtei": "ꯃꯤꯑꯣꯏꯕ ꯈꯨꯗꯤꯡꯃꯛ ꯄꯣꯛꯄ ꯃꯇꯝꯗ ꯅꯤꯡꯇꯝꯃꯤ꯫ ꯱꯲ 3",
    "sat_Olck": "ᱡᱚᱛᱚ ᱢᱟᱱᱣᱟ ᱡᱟᱱᱟᱢ ᱠᱷᱚᱱ ᱯᱷᱩᱨᱜᱟᱹᱞ ᱜᱮᱭᱟ᱾ ᱑᱒",
}
"""Article 1 of the Universal Declaration of Human Rights by language, or its beginning, with marks and numbers."""
ONLY_FINISHED = ("urd_Arab", "kas_Arab", "snd_Arab")
"""Languages whose texts are prepared by urduhack."""
BLOCKS = {
    "hin_Deva": 0x900,
    "ben_Beng": 0x980,
    "asm_Beng": 0x980,
    "pan_Guru": 0xA00,
    "guj_Gujr": 0xA80,
    "ory_Orya": 0xB00,
    "tam_Taml": 0xB80,
    "tel_Telu": 0xC00,
    "kan_Knda": 0xC80,
    "mal_Mlym": 0xD00,
    "sat_Olck": 0x1C50,
    "mni_Mtei": 0xABC0,
    "eng_Latn": 0x40,
    "urd_Arab": 0x600,
}
"""Languages whose characters are drawn → the first ones of their blocks."""
MARKS = [
    *"  ,.;:!?\"'()[]{}<>-/\\|%$#@&*+=_~`0123456789\u0967\u0968\u00a0\u200b\u200c\u200d\u2060",
    *"“”„‘’‚«»–—…´º\u0964\u0965\t",
    *("''", "n\u00ba\u00a0", "\u00a0\u00baC", "( ", " )", "12 %", "3\u00a04", "1 , 2", '"..', ") .", " : ", " \u094d "),
    *("é", "abc", "The cat's"),
]


def draw(rng: random.Random, language: str) -> str:
    """Returns characters of a language's block and of Devanagari's, with marks, in any order."""
    parts = []
    for _ in range(rng.randrange(1, 30)):
        kind = rng.random()
        first = BLOCKS[language] if kind < 0.55 else 0x900
        parts.append(chr(first + rng.randrange(0x80)) if kind < 0.6 else rng.choice(MARKS))
    return "".join(parts)


def compute() -> dict[str, dict[str, list[list[str]]]]:
    """Returns, by language, the pairs of texts and what the package makes of them, before and after the model."""
    from IndicTransToolkit.processor import IndicProcessor

    def finished(texts: list[str], language: str) -> list[list[str]]:
        processor = IndicProcessor(inference=True)
        processor.preprocess_batch(["a"] * len(texts), src_lang="eng_Latn", tgt_lang="hin_Deva")  # without entities
        return [list(pair) for pair in zip(texts, processor.postprocess_batch(texts, lang=language), strict=True)]

    rng, processor = random.Random(1), IndicProcessor(inference=False)
    found: dict[str, dict[str, list[list[str]]]] = {}
    for language in (*TEXTS, *ONLY_FINISHED):
        texts = [TEXTS[language]] if language in TEXTS else []
        texts += [draw(rng, language) for _ in range(12)] if language in BLOCKS else []
        found[language] = {"prepared": [], "finished": []}
        if language in TEXTS:
            made = processor.preprocess_batch(texts, src_lang=language, tgt_lang="hin_Deva", is_target=True)
            found[language]["prepared"] = [list(pair) for pair in zip(texts, made, strict=True)]
            texts = [made[0], *(draw(rng, "hin_Deva") for _ in range(6))]
        texts += [draw(rng, language) for _ in range(6)] if language in BLOCKS else ["بچہ آزاد ہے ۔ کیا ؟ ہاں ، 12"]
        found[language]["finished"] = finished(texts, language)
    return found


if __name__ == "__main__":
    GOLDENS.write_text(json.dumps(compute(), ensure_ascii=True, indent=0) + "\n", encoding="utf-8")
