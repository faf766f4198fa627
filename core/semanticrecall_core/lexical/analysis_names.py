"""Names of authors, as messages give them and as queries mention them.

A name is compared as it is, without case, accents and the 's or the ending that hangs on it; in
scripts of their own by its stem. Where a script has no spaces, every short stretch of a query could
be a name.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from .analysis_format import AUTHOR_TERMS_MAX, term_of
from .analysis_languages import Language, is_function_word
from .analysis_stems import is_latin, stem, without_accents, without_ending
from .analysis_words import NAME, NAME_ASCII, RUN_CHARS_CACHED_MAX, UNSPACED, normal

AUTHOR_CHARS_MAX = 256
AUTHORS_CACHED = 4_096
# Words of queries, as parts of names.
WORDS_CACHED = 4_096
# Lengths of the stretches that could be a name.
_STRETCHES = (2, 3, 4)


def terms_of_author(author: str) -> tuple[int, ...]:
    """What a query has to say to mean this author: any of it; AUTHOR_TERMS_MAX at most.

    Function words and single letters are left out unless there is nothing else (`Will`, `X`).
    """
    return _terms_of_author(author[:AUTHOR_CHARS_MAX])


@lru_cache(AUTHORS_CACHED)
def _terms_of_author(author: str) -> tuple[int, ...]:
    words: list[str] = []
    names: list[str] = []
    for found in NAME.finditer(normal(author)):
        word = found.group()
        if UNSPACED.match(word):
            names.extend(_stretches_of_author(word))
        elif not word.isdecimal():
            words.append(word.casefold())
    telling = [word for word in words if len(word) > 1 and not is_function_word(word)]
    names += [_form(word) for word in telling or ([] if names else words)]
    return tuple(dict.fromkeys(map(term_of, filter(None, names))))[:AUTHOR_TERMS_MAX]


def _stretches_of_author(name: str) -> Iterator[str]:
    """A name without spaces; of a Korean one of three syllables also the given name."""
    yield name
    if len(name) == 3 and "가" <= name[0] <= "힣":
        yield name[1:]


def _form(word: str) -> str:
    if is_latin(word):
        return without_accents(without_ending(word))
    return stem(word, Language.NONE)


def places_of_names(text: str) -> Iterator[tuple[int, int, str]]:
    """What could be a name in a text as it was given: start, end, normal form."""
    if text.isascii():  # nearly all are
        for found in NAME_ASCII.finditer(text):
            word = found.group()
            if not word.isdecimal():
                yield *found.span(), word.casefold()
        return
    for found in NAME.finditer(text):
        start, word = found.start(), found.group()
        if word.isascii():
            if not word.isdecimal():
                yield start, found.end(), word.casefold()
            continue
        if not UNSPACED.match(word):
            if len(word) > AUTHOR_CHARS_MAX:
                continue
            word = normal(word).casefold()
            if word and not word.isdecimal():
                yield start, found.end(), word
            continue
        for size in _STRETCHES:
            for i in range(len(word) - size + 1):
                yield start + i, start + i + size, normal(word[i : i + size])


def name_terms(word: str) -> tuple[int, ...]:
    """What a word of a query is as a part of a name, in its possible forms.

    Args:
        word: as `places_of_names` gives it.
    """
    return (_cached_names if len(word) <= RUN_CHARS_CACHED_MAX else _names)(word)


def _names(word: str) -> tuple[int, ...]:
    if not word.isascii() and UNSPACED.match(word):
        return (term_of(without_accents(word)),)
    forms = [_form(word)]
    if "'" in word:
        # d'Anna; Ayşe'nin.
        before, _, behind = word.partition("'")
        forms += [_form(part) for part in (before, behind) if len(part) > 2]
    return tuple(dict.fromkeys(term_of(form) for form in forms if form))


_cached_names = lru_cache(WORDS_CACHED)(_names)
