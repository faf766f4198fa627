"""Words to stems: what is equal in all forms of a word, as far as cheap rules reach.

A stem is only ever compared with other stems; it need not be a word. Accents and the like are taken
off last, so `café` and `cafe` meet. Cyrillic й and the like are letters of their own and stay.
"""

# ruff: noqa: RUF001 letters of many scripts
from __future__ import annotations

import re
import threading
import unicodedata
from functools import lru_cache

import Stemmer  # type: ignore[import-not-found]  # a C module without types

from .analysis_languages import Language

STEMS_CACHED = 16_384
# A longer "word" is a code or a blob; it is taken as it is.
WORD_CHARS_MAX = 48

_SNOWBALL = {
    Language.ENGLISH: "english",
    Language.FRENCH: "french",
    Language.GERMAN: "german",
    Language.SPANISH: "spanish",
    Language.ITALIAN: "italian",
    Language.PORTUGUESE: "portuguese",
    Language.DUTCH: "dutch",
    Language.SWEDISH: "swedish",
    Language.DANISH: "danish",
    Language.NORWEGIAN: "norwegian",
    Language.FINNISH: "finnish",
    Language.TURKISH: "turkish",
    Language.POLISH: "polish",
    Language.CZECH: "czech",
    Language.ROMANIAN: "romanian",
    Language.HUNGARIAN: "hungarian",
    Language.INDONESIAN: "indonesian",
}
# Scripts that one language, or one family of languages, is written in: by their first character.
_SCRIPTS = (
    (0x0370, 0x0400, "greek"),
    (0x0400, 0x0530, "russian"),
    (0x0530, 0x0590, "armenian"),
    (0x0600, 0x0700, "arabic"),
    (0x0900, 0x0980, "hindi"),
    (0x0B80, 0x0C00, "tamil"),
    (0x1F00, 0x2000, "greek"),
)
# Languages that write several words as one.
COMPOUNDING = frozenset(
    {
        Language.GERMAN,
        Language.DUTCH,
        Language.SWEDISH,
        Language.DANISH,
        Language.NORWEGIAN,
        Language.FINNISH,
        Language.HUNGARIAN,
    }
)
# Shorter than this, beginnings and ends of words are no words.
INNER_CHARS_MIN = 4
COMPOUND_CHARS_MIN = 9
COMPOUND_CHARS_MAX = 32
# Turkish hangs endings on endings, and the stemmer takes off only some: of what is left the first
# letters tell a word best (Can et al., 2008: the first five).
TURKISH_CHARS_MAX = 5
# French, Italian and Catalan words before an apostrophe that are not worth finding.
_ELIDED = re.compile(
    r"(?:[cdjlmnst]|qu|jusqu|lorsqu|puisqu|quelqu|dell|nell|dall|sull|all|coll|un|quest|quell)'(?=\w)"
)
# No decomposition in Unicode takes these apart.
_LETTERS = str.maketrans(
    {
        **{"ø": "o", "ł": "l", "đ": "d", "ı": "i", "ð": "d", "þ": "th", "æ": "ae", "œ": "oe"},
        **{"ß": "ss", "ħ": "h", "ŧ": "t"},
    }
)
_ACCENTS = re.compile("[\u0300-\u036f]+")
# Arabic: vowel signs and the stretching of words; spellings of alef, ya, kaf and ta marbuta.
_ARABIC_MARKS = re.compile("[\u0610-\u061a\u0640\u064b-\u065f\u0670\u06d6-\u06ed]+")
_ARABIC_LETTERS = str.maketrans("أإآٱىیک", "ااااييك")
# "And the ...", "with the ...": the stemmer takes the article off, but not what is before it.
_ARABIC_JOINED = re.compile("^[وفبك](?=ال\\w{2})|^و?لل(?=\\w{3})")
_HEBREW_MARKS = re.compile("[\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7]+")

# A stemmer holds the word it works on: one for each thread.
_of_thread = threading.local()


def _snowball(algorithm: str, word: str) -> str:
    stemmers: dict[str, Stemmer.Stemmer] | None = getattr(_of_thread, "stemmers", None)
    if stemmers is None:
        stemmers = _of_thread.stemmers = {}
    stemmer = stemmers.get(algorithm)
    if stemmer is None:
        stemmer = stemmers[algorithm] = Stemmer.Stemmer(algorithm, 0)
    return str(stemmer.stemWord(word))


def without_accents(word: str) -> str:
    """A word in Latin or Greek letters without marks on them; others as they are."""
    if word.isascii():
        return word
    apart = unicodedata.normalize("NFD", word.translate(_LETTERS))
    if not ("\u0400" <= word[0] < "\u1e00"):
        apart = _ACCENTS.sub("", apart)
    return unicodedata.normalize("NFC", apart)


def is_latin(word: str) -> bool:
    """Whether a word is written in Latin letters, by its first character."""
    return word[0] < "\u0370" or "\u1e00" <= word[0] < "\u1f00"


def without_ending(word: str) -> str:
    """A case-folded word without the 's of a possessive or of a plural."""
    return word[:-2] if word.endswith("'s") else word.rstrip("'")


@lru_cache(STEMS_CACHED)
def stem(word: str, language: Language) -> str:
    """The stem of a word: by its script, and in Latin script by the language.

    Args:
        word: NFKC, case-folded, one or more letters, apostrophes as '.
    """
    if len(word) > WORD_CHARS_MAX:
        return word
    if is_latin(word):
        return _latin(word, language)
    first = ord(word[0])
    if 0x0590 <= first < 0x0600:
        return _HEBREW_MARKS.sub("", word)
    if 0x0600 <= first < 0x0700:
        word = _ARABIC_MARKS.sub("", word).translate(_ARABIC_LETTERS)
        word = _ARABIC_JOINED.sub("", word)
    algorithm = next((name for low, high, name in _SCRIPTS if low <= first < high), None)
    if algorithm is None or not word:
        return word
    return without_accents(_snowball(algorithm, word.replace("ё", "е")))


def stems(word: str, language: Language) -> tuple[str, ...]:
    """The stem of a word, and that of the word without accents where it is another one.

    Stemmers go by accents, and people leave them out: `volcán` is `volcan`, `volcan` is `volc`.
    """
    first = stem(word, language)
    if word.isascii() or not is_latin(word):
        return (first,)
    second = stem(without_accents(word), language)
    return (first,) if second == first else (first, second)


def _latin(word: str, language: Language) -> str:
    word = without_ending(word)
    if "'" in word:
        if language is Language.TURKISH:
            # Endings of a name stand behind an apostrophe.
            word = word.partition("'")[0]
        elif language is not Language.ENGLISH:
            word = _ELIDED.sub("", word, 1)
    if language is Language.ENGLISH:
        # English writes its few accents or does not: naïve, naive.
        word = without_accents(word)
    algorithm = _SNOWBALL.get(language)
    if not algorithm or not word:
        return word
    stemmed = without_accents(_snowball(algorithm, word))
    return stemmed[:TURKISH_CHARS_MAX] if language is Language.TURKISH else stemmed


def inner_word(stemmed: str) -> str:
    """What a stem is called where it begins or ends a longer word; no stem is spelled so."""
    return "\0in " + stemmed


def inner_words(stemmed: str) -> list[str]:
    """All that could be a word at the beginning or the end of a long one: `kuch` of `apfelkuch`.

    Without a dictionary most of them are no words, and then no query looks for them.
    """
    n = len(stemmed)
    if not COMPOUND_CHARS_MIN <= n <= COMPOUND_CHARS_MAX:
        return []
    ends = range(INNER_CHARS_MIN, n - INNER_CHARS_MIN + 1)
    return list(
        dict.fromkeys(inner_word(piece) for i in ends for piece in (stemmed[:i], stemmed[i:]))
    )
