"""Texts to terms, and queries to the terms they look for.

The rules in short: NFKC, case folding, words with their stems (`analysis_stems`), codes whole and
in parts, pairs of characters where a script has no spaces (`analysis_words`). The form of what a
message becomes is in `analysis_format`. Why so: docs/decisions/0018-text-analysis.md.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import NamedTuple

from .analysis_format import AnalysedColumns, is_current, pack, term_of, unpack
from .analysis_languages import (
    ASSUMED,
    WORDS_MAX,
    Language,
    is_function_word_in,
    language_of,
)
from .analysis_months import date_terms, month_of, month_term
from .analysis_names import name_terms, places_of_names, terms_of_author
from .analysis_stems import (
    COMPOUNDING,
    INNER_CHARS_MIN,
    inner_word,
    inner_words,
    is_latin,
    stems,
    without_accents,
)
from .analysis_words import (
    RUN_CHARS_CACHED_MAX,
    RUNS_CACHED,
    UNSPACED,
    Part,
    month_gram,
    normal,
    parts_of,
    split,
)

__all__ = [
    "QUERY_TOKENS_MAX",
    "AnalysedColumns",
    "Analyser",
    "Language",
    "QueryTerms",
    "QueryToken",
    "QueryWord",
    "date_terms",
    "query_terms",
    "unpack",
]

# Different words of a query that are looked for: the first so many.
QUERY_TOKENS_MAX = 256
QUERY_CHARS_MAX = 8_192
# Places in a query where a name could stand: the first so many.
QUERY_WORDS_MAX = 1_024
QUERY_CHARS_CACHED_MAX = 512
QUERIES_CACHED = 128
_LATIN = re.compile("[A-Za-z\u00aa-\u036f\u1e00-\u1eff]")
_ISO_DATE = re.compile(r"\d{4}-(0?[1-9]|1[0-2])-\d{1,2}")
# A mark before white space or the end, with a few others between: not the one inside an address.
_QUESTION = re.compile(r"\?(?=[^\w\s]{0,8}(?:\s|\Z))|[\uff1f\u061f]")


@dataclass(frozen=True, slots=True)
class QueryToken:
    """A word of a query. It counts once, however many of its terms a message has.

    Attributes:
        terms: alternatives, ascending: its stems in the languages asked for, and what else means
            the same.
        names: what the word is as a part of an author's name; may be empty. A token that names an
            author of the partition has one of that author's terms here.
        is_function: whether it is a function word of one of the languages.
        is_exact: whether it is a number or a code. What stands beside it says nothing about it.
    """

    terms: tuple[int, ...]
    names: tuple[int, ...]
    is_function: bool = False
    is_exact: bool = False


class QueryWord(NamedTuple):
    """Where a word stands in the query as it was given: text[start:end].

    Attributes:
        names, terms: as in `QueryToken`. The place has the word's 's with it.
        is_capitalised: whether it begins with a capital letter.
    """

    start: int
    end: int
    names: tuple[int, ...]
    terms: tuple[int, ...]
    is_capitalised: bool


@dataclass(frozen=True, slots=True)
class QueryTerms:
    """What a query looks for.

    Attributes:
        tokens: each once, in order; QUERY_TOKENS_MAX at most.
        author_terms: everything in it that could be a part of an author's name.
        words: where its words stand, to take names out of its text; QUERY_WORDS_MAX at most.
    """

    tokens: tuple[QueryToken, ...]
    author_terms: frozenset[int]
    words: tuple[QueryWord, ...]


class Analyser:
    """Implements `TextAnalyser`. Has no state of its own; thread-safe."""

    def analyse(self, text: str, author: str) -> bytes:
        """The terms of a message; the form is that of `analysis_format`. Linear in the text."""
        runs, grams, length = split(normal(text))
        language = _language(runs)
        terms = [_term_of_gram(gram) for gram in grams]
        for run in runs:
            is_short = len(run) <= RUN_CHARS_CACHED_MAX
            of_run, words = (_cached_terms if is_short else _terms)(run, language)
            terms += of_run
            length += words
        return pack(
            Counter(terms),
            length,
            terms_of_author(author),
            language=language,
            asks=_QUESTION.search(text) is not None,
        )

    def is_current(self, analysed: bytes) -> bool:
        """Whether these bytes are undamaged and of this version; else analyse anew."""
        return is_current(analysed)


def _language(runs: list[str]) -> Language:
    """NONE where no word is in Latin script."""
    words = [run.casefold() for run in runs[:WORDS_MAX] if _LATIN.search(run)]
    if words:
        return language_of(words)
    return ASSUMED if any(map(_LATIN.search, runs[WORDS_MAX:])) else Language.NONE


def _terms(run: str, language: Language) -> tuple[tuple[int, ...], int]:
    """The terms of a run, and what it adds to the length."""
    parts = parts_of(run)
    forms: list[str] = []
    for part in parts:
        if not part.is_word:
            forms.append(without_accents(part.text))
            continue
        of_part = stems(part.text, language)
        forms += of_part
        if language in COMPOUNDING and is_latin(part.text):
            forms += inner_words(of_part[0])
    return tuple(term_of(form) for form in forms if form), sum(part.length for part in parts)


_cached_terms = lru_cache(RUNS_CACHED)(_terms)
_term_of_gram = lru_cache(RUNS_CACHED)(term_of)


def query_terms(text: str, languages: Iterable[int]) -> QueryTerms:
    """What a query looks for in a partition.

    Args:
        text: the first QUERY_CHARS_MAX characters count.
        languages: every `Language` that messages of the partition are in (`AnalysedColumns`).
    """
    known = tuple(sorted({Language(code) for code in languages} - {Language.NONE})) or (ASSUMED,)
    # A recall reads a query more than once.
    if len(text) <= QUERY_CHARS_CACHED_MAX:
        return _cached_query_terms(text, known)
    return _query_terms(text[:QUERY_CHARS_MAX], known)


def _query_terms(text: str, known: tuple[Language, ...]) -> QueryTerms:
    tokens: dict[tuple[int, ...], QueryToken] = {}
    for part in _query_parts(text):
        token = _query_token(part, known)
        tokens.setdefault(token.terms, token)
        if len(tokens) >= QUERY_TOKENS_MAX:
            break
    words = tuple(islice(_query_words(text, known), QUERY_WORDS_MAX))
    return QueryTerms(
        tokens=tuple(tokens.values()),
        author_terms=frozenset(name for word in words for name in word.names),
        words=words,
    )


_cached_query_terms = lru_cache(QUERIES_CACHED)(_query_terms)


def _query_parts(text: str) -> Iterator[Part]:
    # NFKC makes up to 18 characters of one.
    runs, grams, _ = split(normal(text)[:QUERY_CHARS_MAX])
    for run in dict.fromkeys(runs):
        yield from parts_of(run)
        if run[0].isdecimal() and (date := _ISO_DATE.fullmatch(run)) is not None:
            yield Part(month_gram(int(date.group(1))), False, 0)
    for gram in dict.fromkeys(grams):
        yield Part(gram, False, 0)


def _query_words(text: str, languages: tuple[Language, ...]) -> Iterator[QueryWord]:
    for start, end, word in places_of_names(text):
        is_word = word.isascii() or UNSPACED.match(word) is None
        token = _query_token(Part(word, is_word, 1), languages)
        yield QueryWord(start, end, token.names, token.terms, text[start].isupper())


def _query_token(part: Part, languages: tuple[Language, ...]) -> QueryToken:
    if len(part.text) <= RUN_CHARS_CACHED_MAX:
        return _cached_token(part, languages)
    return _token(part, languages)


def _token(part: Part, languages: tuple[Language, ...]) -> QueryToken:
    if not part.is_word:
        month = month_of(part.text, Language.NONE)
        months = set() if month is None else {month_term(month)}
        term = term_of(without_accents(part.text))
        names = (term,) if UNSPACED.match(part.text) else ()
        is_exact = any(character.isdecimal() for character in part.text)
        return QueryToken(tuple(sorted({term} | months)), names, is_exact=is_exact)
    terms: set[int] = set()
    for language in languages if is_latin(part.text) else (Language.NONE,):
        for stemmed in stems(part.text, language):
            terms.add(term_of(stemmed))
            if language in COMPOUNDING and len(stemmed) >= INNER_CHARS_MIN:
                terms.add(term_of(inner_word(stemmed)))
            month = month_of(stemmed, language)
            if month is not None:
                terms.add(month_term(month))
    is_function = is_function_word_in(part.text, languages)
    return QueryToken(tuple(sorted(terms)), name_terms(part.text), is_function)


_cached_token = lru_cache(RUNS_CACHED)(_token)
