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
    "QueryToken",
    "QueryWord",
    "date_terms",
    "query_places",
    "query_tokens",
    "query_words",
    "unpack",
]

# Different words of a query that are looked for: the first so many.
QUERY_TOKENS_MAX = 256
QUERY_CHARS_MAX = 8_192
# Places in a query where a name could stand: the first so many.
QUERY_WORDS_MAX = 1_024
QUERY_CHARS_CACHED_MAX = 512
QUERIES_CACHED = 128
LANGUAGES_CACHED = 64
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
        is_function: whether it is a function word of one of the languages.
        is_exact: whether it is a number or a code. What stands beside it says nothing about it.
    """

    terms: tuple[int, ...]
    is_function: bool = False
    is_exact: bool = False


class QueryWord(NamedTuple):
    """Where a word stands in the query as it was given: text[start:end].

    The place has the word's 's with it.

    Attributes:
        names: what the word is as a part of an author's name, in its possible forms.
    """

    start: int
    end: int
    names: tuple[int, ...]


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


def query_tokens(text: str, languages: Iterable[int]) -> tuple[QueryToken, ...]:
    """The words that a query looks for in a partition, each once, in order.

    QUERY_TOKENS_MAX at most.

    Args:
        text: the first QUERY_CHARS_MAX characters count.
        languages: every `Language` that messages of the partition are in (`AnalysedColumns`).
    """
    known = _known(frozenset(languages))
    tokens: dict[tuple[int, ...], QueryToken] = {}
    for some in _all_tokens(text[:QUERY_CHARS_MAX], known):
        for token in some:
            tokens.setdefault(token.terms, token)
        if len(tokens) >= QUERY_TOKENS_MAX:
            break
    return tuple(islice(tokens.values(), QUERY_TOKENS_MAX))


def query_words(text: str) -> tuple[QueryWord, ...]:
    """Where the words of a query stand, to take names out of its text.

    QUERY_WORDS_MAX at most; the first QUERY_CHARS_MAX characters count.
    """
    # A recall in a partition with authors reads them more than once.
    is_short = len(text) <= QUERY_CHARS_CACHED_MAX
    return (_cached_query_words if is_short else _query_words)(text)


def query_places(text: str) -> Iterator[tuple[int, int]]:
    """Only the places of `query_words`."""
    for start, end, _ in islice(places_of_names(text[:QUERY_CHARS_MAX]), QUERY_WORDS_MAX):
        yield start, end


def _query_words(text: str) -> tuple[QueryWord, ...]:
    places = islice(places_of_names(text[:QUERY_CHARS_MAX]), QUERY_WORDS_MAX)
    return tuple([QueryWord(start, end, name_terms(word)) for start, end, word in places])


_cached_query_words = lru_cache(QUERIES_CACHED)(_query_words)


@lru_cache(LANGUAGES_CACHED)
def _known(languages: frozenset[int]) -> tuple[Language, ...]:
    """The languages that a query is read in."""
    return tuple(sorted({Language(code) for code in languages} - {Language.NONE})) or (ASSUMED,)


def _all_tokens(text: str, known: tuple[Language, ...]) -> Iterator[tuple[QueryToken, ...]]:
    # NFKC makes up to 18 characters of one.
    runs, grams, _ = split(normal(text)[:QUERY_CHARS_MAX])
    for run in runs:
        is_short = len(run) <= RUN_CHARS_CACHED_MAX
        yield (_cached_run_tokens if is_short else _run_tokens)(run, known)
    for gram in grams:
        yield (_cached_gram_token(gram),)


def _run_tokens(run: str, known: tuple[Language, ...]) -> tuple[QueryToken, ...]:
    parts = parts_of(run)
    if run[0].isdecimal() and (date := _ISO_DATE.fullmatch(run)) is not None:
        parts = (*parts, Part(month_gram(int(date.group(1))), False, 0))
    return tuple(
        [_token(part.text, known) if part.is_word else _gram_token(part.text) for part in parts]
    )


_cached_run_tokens = lru_cache(RUNS_CACHED)(_run_tokens)


def _token(word: str, languages: tuple[Language, ...]) -> QueryToken:
    """Of a word, in every language."""
    terms: set[int] = set()
    for language in languages if is_latin(word) else (Language.NONE,):
        for stemmed in stems(word, language):
            terms.add(term_of(stemmed))
            if language in COMPOUNDING and len(stemmed) >= INNER_CHARS_MIN:
                terms.add(term_of(inner_word(stemmed)))
            month = month_of(stemmed, language)
            if month is not None:
                terms.add(month_term(month))
    return QueryToken(tuple(sorted(terms)), is_function_word_in(word, languages))


def _gram_token(text: str) -> QueryToken:
    """Of what is taken as it is."""
    month = month_of(text, Language.NONE)
    months = set() if month is None else {month_term(month)}
    is_exact = any(character.isdecimal() for character in text)
    return QueryToken(tuple(sorted({term_of(without_accents(text))} | months)), is_exact=is_exact)


_cached_gram_token = lru_cache(RUNS_CACHED)(_gram_token)
