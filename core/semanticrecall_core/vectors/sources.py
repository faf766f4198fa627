"""Where a search looks: the allowed rows of each part of a view."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from semanticrecall_core.types.errors import InvalidArgumentError
from semanticrecall_core.types.values import VectorQuery

from .conditions import allowed_rows, has_conditions
from .partition import Tuning, View
from .segment import Part, packed

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from semanticrecall_core.types.values import IntColumn

    from .ranked import Scores
    from .rows import BoolMask


@dataclass(frozen=True, slots=True)
class Source:
    """The allowed rows of one part.

    Attributes:
        part: where they are.
        allowed: mask over the part's rows; None is all.
        bits: `allowed` packed, where a coded scan needs it.
        chosen: positions of the allowed rows where they are few; None otherwise.
        rows: how many are allowed; above zero.
    """

    part: Part
    allowed: BoolMask | None
    bits: NDArray[np.uint8] | None
    chosen: IntColumn | None
    rows: int

    @property
    def in_codes(self) -> bool:
        """Codes are scanned, and few of the rows are read."""
        return self.part.coded is not None and self.chosen is None

    def allowed_of(self, scores: Scores) -> tuple[IntColumn, Scores]:
        """The allowed rows, and what is theirs of the scores of all rows of the part."""
        if self.allowed is None:
            return np.arange(len(scores)), scores
        rows = self.allowed.nonzero()[0] if self.chosen is None else self.chosen
        return rows, scores[rows]

    @property
    def unconditional(self) -> bool:
        """Everything alive is allowed, so that the next search may ask for the same."""
        return self.allowed is self.part.alive


def check_top_k(query: VectorQuery) -> None:
    """Refuse a search for nothing (InvalidArgumentError)."""
    if query.top_k < 1:
        raise InvalidArgumentError.of("top_k", "must be at least 1")


def sources_of(view: View, query: VectorQuery, tuning: Tuning) -> tuple[list[Source], int]:
    """Where the allowed rows are, and how many messages they make."""
    if not has_conditions(query):
        parts = view.parts
        return [Source(p, p.alive, p.alive_bits, None, p.rows) for p in parts], view.searchable
    sources: list[Source] = []
    messages = 0
    for part in view.parts:
        allowed = allowed_rows(part, query)
        rows = int(np.count_nonzero(allowed))
        if not rows:
            continue
        messages += int(np.count_nonzero(allowed & part.block.firsts))
        if rows == len(allowed):
            sources.append(Source(part, None, None, None, rows))
        elif rows <= tuning.gather_rows_max:
            sources.append(Source(part, allowed, None, np.flatnonzero(allowed), rows))
        else:
            bits = packed(allowed) if part.coded is not None else None
            sources.append(Source(part, allowed, bits, None, rows))
    return sources, messages
