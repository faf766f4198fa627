"""The conditions of a query as one mask over a part's rows, before any top-k."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from semanticrecall_core.partitions import conditions
from semanticrecall_core.partitions.conditions import has_conditions as has_conditions
from semanticrecall_core.types.values import VectorQuery

from .rows import rows_of_seqs
from .segment import Part

if TYPE_CHECKING:
    from .rows import BoolMask


def allowed_rows(part: Part, query: VectorQuery) -> BoolMask:
    """Which rows are alive and meet every condition, shape (n,)."""
    found = partial(rows_of_seqs, part.block, part.ordered)
    return conditions.allowed_rows(part.block, part.alive, found, query)
