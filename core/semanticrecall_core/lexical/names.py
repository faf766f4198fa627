"""The names of people in a query, which its vector is turned away from.

Who said something is told by the author and by words; in a vector a name only draws it towards
whatever is by or about that person. Which words are names is known from the authors of the
partition. Where it has none, words are taken for names that the query writes with a capital and
that many messages have; not in German, which writes every noun so.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

from .analysis import query_terms
from .analysis_format import term_of
from .scoring import has_in_many

if TYPE_CHECKING:
    from .analysis import QueryWord
    from .partition import View

ROLE_NAMES = frozenset(
    map(term_of, ("user", "assistant", "ai", "bot", "system", "tool", "human", "agent", "model"))
)
"""Authors of these names are no people: the words stay."""
_FIRST_PERSON = re.compile(r"I\b")
_POSSESSIVE = re.compile(r"['\u2019]s$")
NAMES_MAX = 8
COMMON_SHARE = 0.02
COMMON_MIN = 8
"""A capitalised word is taken for a name if that share of the messages has it, but so many."""


def names_in(view: View, text: str) -> tuple[str, ...]:
    """As `LexicalIndex.names_in`."""
    words = query_terms(text, view.languages).words
    if view.authors.keys() <= ROLE_NAMES:
        out = [] if view.has_capital_nouns else _common_names(view, text, words)
    else:
        out = [word for word in words if _is_author(view, word)]
    if not out:
        return ()
    left, end = [], 0
    for word in out:  # stretches of a script without spaces overlap
        left.append(text[end : max(word.start, end)])
        end = max(word.end, end)
    if not any(character.isalnum() for character in "".join([*left, text[end:]])):
        return ()
    spelled = (_POSSESSIVE.sub("", text[word.start : word.end]) for word in out)
    # A name of marks alone has no vector.
    names = dict.fromkeys(name for name in spelled if any(map(str.isalnum, name)))
    return tuple(names)[:NAMES_MAX]


def _is_author(view: View, word: QueryWord) -> bool:
    return any(term in view.authors and term not in ROLE_NAMES for term in word.names)


def _common_names(view: View, text: str, words: tuple[QueryWord, ...]) -> list[QueryWord]:
    """Words with a capital, the first one apart, that many messages have."""
    out: list[QueryWord] = []
    enough = max(COMMON_MIN, math.ceil(COMMON_SHARE * view.searchable))
    if view.searchable < COMMON_MIN:
        return out
    for word in words[1:]:
        spelled = text[word.start : word.end]
        if not spelled[:1].isupper() or _FIRST_PERSON.match(spelled):
            continue
        tokens = query_terms(spelled, view.languages).tokens
        if tokens and all(has_in_many(view, token.terms, enough) for token in tokens):
            out.append(word)
    return out
