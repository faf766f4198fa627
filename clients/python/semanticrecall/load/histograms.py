"""HdrHistograms of times: recorded cheaply, added up without loss, read as percentiles.

The library's `record_value` costs as much as a tenth of what a small server takes to answer, so
times are counted here, at the index that the format defines (Tene, HdrHistogram: with 2^11
sub-buckets a value v of b bits falls on (max(b - 11, 0) << 10) + (v >> max(b - 11, 0))); all else
(encoding, addition, percentiles) is the library's. Encodings are its own V2 compressed format in
base64, which any HdrHistogram reads.
"""

from __future__ import annotations

import ctypes
import sys
from bisect import bisect_left
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Protocol, Self, cast

from hdrh.histogram import HdrHistogram

from .measured import HISTOGRAM_US_MAX, SIGNIFICANT_DIGITS
from .result import Percentiles

STEPS_PER_HALVING = 5
HALVINGS_MAX = 20
_SUB_BUCKET_BITS = 11
_NAMED = (50.0, 75.0, 90.0, 95.0, 99.0, 99.9, 99.99)


class _Library(Protocol):
    """What is used of the library's class, which has no types."""

    counts: ctypes.Array[ctypes.c_ulonglong]
    total_count: int
    min_value: int
    max_value: int

    def add(self, other_hist: _Library) -> None: ...
    def encode(self) -> bytes: ...
    def get_min_value(self) -> int: ...
    def get_max_value(self) -> int: ...
    def get_mean_value(self) -> float: ...
    def get_target_count_at_percentile(self, percentile: float) -> int: ...
    def get_value_from_index(self, index: int) -> int: ...
    def get_lowest_equivalent_value(self, value: int) -> int: ...
    def get_highest_equivalent_value(self, value: int) -> int: ...
    def get_percentile_to_value_dict(
        self, percentile_list: Sequence[float]
    ) -> dict[float, int]: ...


_new = cast("Callable[[int, int, int], _Library]", HdrHistogram)
_decoded = cast("Callable[[bytes], _Library]", HdrHistogram.decode)


def _index(us: int) -> int:
    """Where a time is counted."""
    shift = us.bit_length() - _SUB_BUCKET_BITS
    return us if shift <= 0 else (shift << (_SUB_BUCKET_BITS - 1)) + (us >> shift)


class Histogram:
    """Times from 1 microsecond to 1 hour, to 3 significant digits; those beyond count as the ends.

    About 190 KB. Not thread-safe.
    """

    def __init__(self) -> None:
        self._all = _new(1, HISTOGRAM_US_MAX, SIGNIFICANT_DIGITS)
        self._counts = self._all.counts
        self._count = 0
        self._least_us = HISTOGRAM_US_MAX
        self._most_us = 0

    def __len__(self) -> int:
        return self._count

    def add_seconds(self, seconds: float) -> None:
        """Count one time, rounded to a microsecond."""
        self.add_us(round(seconds * 1e6))

    def add_us(self, us: int) -> None:
        """Count one time."""
        us = 1 if us < 1 else min(us, HISTOGRAM_US_MAX)
        self._counts[_index(us)] += 1
        self._count += 1
        if us < self._least_us:
            self._least_us = us
        if us > self._most_us:
            self._most_us = us

    def add(self, other: Histogram) -> None:
        """Count all that the other one counted."""
        self._add(other._settled())

    def clear(self) -> None:
        """Count from nothing again."""
        ctypes.memset(self._counts, 0, ctypes.sizeof(self._counts))
        self._all.total_count = self._all.max_value = self._most_us = self._count = 0
        self._all.min_value = sys.maxsize
        self._least_us = HISTOGRAM_US_MAX

    def encode(self) -> bytes:
        """HdrHistogram's V2 compressed format, base64. Some hundred bytes to some thousand."""
        return self._settled().encode()

    def decode_and_add(self, encoded: bytes) -> None:
        """Count all that an encoded one counted."""
        self._add(_decoded(encoded))

    @classmethod
    def decode(cls, encoded: bytes) -> Self:
        """From `encode`'s bytes."""
        decoded = cls()
        decoded.decode_and_add(encoded)
        return decoded

    def percentile_ms(self, percentile: float) -> float:
        """Milliseconds within which that share of the times lies; 0 where there are none."""
        if not self._count:
            return 0.0
        # The library looks at one count after the other from zero on: a day has 172,800 seconds of
        # operations, each asked twice.
        settled = self._settled()
        first = _index(self._least_us)
        sums = list(accumulate(self._counts[first : _index(self._most_us) + 1]))
        index = first + bisect_left(sums, settled.get_target_count_at_percentile(percentile))
        value = settled.get_value_from_index(index)
        if percentile:
            return settled.get_highest_equivalent_value(value) / 1e3
        return settled.get_lowest_equivalent_value(value) / 1e3

    def percentiles(self, *, curve: bool = True) -> Percentiles:
        """All of it in milliseconds, with a curve of at most 102 points.

        The curve's percentiles are 100 * (1 - 2 ** -(i / 5)): five between any and the one half as
        far from 100, as far as there are times to tell them apart, and 100 itself.
        """
        if not self._count:
            return Percentiles()
        settled = self._settled()
        ladder = self._ladder() if curve else ()
        found = settled.get_percentile_to_value_dict([*_NAMED, *ladder, 100.0])
        named = [found[percentile] / 1e3 for percentile in _NAMED]
        return Percentiles(
            count=self._count,
            mean=settled.get_mean_value() / 1e3,
            min=settled.get_min_value() / 1e3,
            p50=named[0],
            p75=named[1],
            p90=named[2],
            p95=named[3],
            p99=named[4],
            p99_9=named[5],
            p99_99=named[6],
            max=settled.get_max_value() / 1e3,
            curve=tuple((percentile, found[percentile] / 1e3) for percentile in ladder),
        )

    def _ladder(self) -> tuple[float, ...]:
        halvings = min(self._count.bit_length(), HALVINGS_MAX)
        steps = range(halvings * STEPS_PER_HALVING + 1)
        return (*(100 * (1 - 2 ** -(step / STEPS_PER_HALVING)) for step in steps), 100.0)

    def _settled(self) -> _Library:
        """The library's, told of what was counted past it."""
        if self._count:
            self._all.total_count = self._count
            self._all.min_value = self._least_us
            self._all.max_value = self._most_us
        return self._all

    def _add(self, other: _Library) -> None:
        if other.total_count:
            self._all.add(other)
            self._count += other.total_count
            # Not the library's least value: it takes that of an empty histogram for 0.
            self._least_us = min(self._least_us, other.get_min_value())
            self._most_us = max(self._most_us, other.get_max_value())
