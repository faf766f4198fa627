"""Who has the words of a query: all of them looked up at once in every part of a view."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from .blocks import COUNT_MAX
from .thread_order import DEAD_PLACE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from semanticrecall_core.types.values import ByteColumn

    from .partition import View
    from .thread_order import PlaceColumn


class WordPostings:
    """The postings of some words; a word has one or more terms.

    Attributes:
        sizes: how many each word has; of the dead too, and more than one of a message that has
            several of its terms.
        are_messages: nobody is dead and each word has one term, so that `sizes` are messages.
    """

    __slots__ = ("_found", "_numbers", "_view", "are_messages", "sizes")

    def __init__(self, view: View, words: Sequence[Sequence[int]]) -> None:
        """Look the terms up."""
        wanted = sorted({term for terms in words for term in terms})
        column = np.array(wanted, np.uint32)
        number = {term: i for i, term in enumerate(wanted)}
        self._view = view
        self._numbers = [[number[term] for term in terms] for terms in words]
        self._found = [(part.places, part.postings.find(column)) for part in view.parts]
        of_term = [0] * len(wanted)
        for _, found in self._found:
            ranges = zip(of_term, found.starts, found.stops, strict=True)
            of_term = [size + stop - start for size, start, stop in ranges]
        self.are_messages = max(map(len, words), default=0) <= 1 and not _dead(view)
        self.sizes = [sum([of_term[i] for i in numbers]) for numbers in self._numbers]

    def of(self, word: int) -> Iterator[tuple[PlaceColumn, ByteColumn, bool]]:
        """Places and counts of one word; each place once in an entry, DEAD_PLACE for all the dead.

        And whether it is another term than the first: only then a place was there already.
        """
        for nth, number in enumerate(self._numbers[word]):
            for places, found in self._found:
                start, stop = found.starts[number], found.stops[number]
                if start < stop:
                    # No row is out of range, and so it is quickest.
                    at = places.take(found.rows[start:stop], mode="clip")
                    yield at, found.counts[start:stop], nth > 0

    def put_counts(self, words: Sequence[int], out: NDArray[np.uint8]) -> None:
        """How often the messages have some words, by place.

        Args:
            out: shape (words, places). Zeros; has anything at DEAD_PLACE afterwards.
        """
        for places, found in self._found:
            rows, counts, starts, stops = found
            for word, of_place in zip(words, out, strict=True):
                first, *others = self._numbers[word]
                start, stop = starts[first], stops[first]
                of_place[places.take(rows[start:stop], mode="clip")] = counts[start:stop]
                for number in others:
                    start, stop = starts[number], stops[number]
                    at = places.take(rows[start:stop], mode="clip")
                    of_place[at] = summed(of_place[at], counts[start:stop])

    def messages(self, word: int) -> int:
        """How many messages have a word."""
        has = np.zeros(self._view.end, np.bool_)
        for places, _, _ in self.of(word):
            has[places] = True
        has[DEAD_PLACE] = False
        return int(np.count_nonzero(has))


def in_many(view: View, words: Sequence[tuple[int, ...]], count: int) -> set[tuple[int, ...]]:
    """Those words, by their terms, that at least `count` (above 0) messages have."""
    if not words:
        return set()
    postings = WordPostings(view, words)
    dead = _dead(view)
    return {
        terms
        for word, (terms, size) in enumerate(zip(words, postings.sizes, strict=True))
        # Nearly always the numbers of postings tell, whoever of them is dead or has several terms.
        if size >= count
        and (size >= (count + dead) * len(terms) or postings.messages(word) >= count)
    }


def _dead(view: View) -> int:
    """Messages of the parts that are gone."""
    return sum([len(part.columns) for part in view.parts]) - view.searchable


def summed(some: ByteColumn, more: ByteColumn) -> ByteColumn:
    """Sums of counts, COUNT_MAX at most."""
    sums: ByteColumn = np.minimum(some.astype(np.uint16) + more, COUNT_MAX).astype(np.uint8)
    return sums
