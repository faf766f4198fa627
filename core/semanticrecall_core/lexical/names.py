"""The names of people in a query, which its vector is turned away from.

Who said something is told by the author and by words; in a vector a name only draws it towards
whatever is by or about that person. Which words are names is known from the authors of the
partition. Where it has none, words are taken for names that the query writes with a capital and
that many messages have; not in German, which writes every noun so.
"""

from __future__ import annotations

import math
import re
from itertools import islice
from typing import TYPE_CHECKING

from .analysis import query_places, query_tokens, query_words
from .analysis_format import term_of
from .word_postings import in_many

if TYPE_CHECKING:
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
    if view.authors.keys() <= ROLE_NAMES:
        out = [] if view.has_capital_nouns else _common_names(view, text)
    else:
        words, authors = query_words(text), view.authors
        people = {name for word in words for name in word.names if name in authors} - ROLE_NAMES
        out = [(word.start, word.end) for word in words if not people.isdisjoint(word.names)]
    if not out:
        return ()
    left, last = [], 0
    for start, end in out:  # stretches of a script without spaces overlap
        left.append(text[last : max(start, last)])
        last = max(end, last)
    if not any(map(str.isalnum, "".join([*left, text[last:]]))):
        return ()
    spelled = [_POSSESSIVE.sub("", text[start:end]) for start, end in out]
    # A name of marks alone has no vector.
    names = dict.fromkeys(name for name in spelled if any(map(str.isalnum, name)))
    return tuple(names)[:NAMES_MAX]


def _common_names(view: View, text: str) -> list[tuple[int, int]]:
    """Words with a capital, the first one apart, that many messages have: where they stand."""
    if view.searchable < COMMON_MIN:
        return []
    capitalised = [
        (start, end, query_tokens(text[start:end], view.languages))
        for start, end in islice(query_places(text), 1, None)
        if text[start].isupper() and not _FIRST_PERSON.match(text, start, end)
    ]
    enough = max(COMMON_MIN, math.ceil(COMMON_SHARE * view.searchable))
    looked_up = {token.terms for _, _, tokens in capitalised for token in tokens}
    common = in_many(view, tuple(looked_up), enough)
    return [
        (start, end)
        for start, end, tokens in capitalised
        if tokens and common.issuperset([token.terms for token in tokens])
    ]
