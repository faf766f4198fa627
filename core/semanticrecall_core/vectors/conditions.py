"""The conditions of a query as one mask over a part's rows, before any top-k."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from semanticrecall_core.types.values import VectorQuery

from .rows import rows_of_seqs
from .segment import Part

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .rows import BoolMask

_ROLE_CODES = 256


def has_conditions(query: VectorQuery) -> bool:
    """Whether the query asks for less than everything alive."""
    return (
        query.thread_key is not None
        or bool(query.roles)
        or query.time_from_ns is not None
        or query.time_to_ns is not None
        or query.allowed_seqs is not None
        or (query.excluded_seqs is not None and len(query.excluded_seqs) > 0)
    )


def allowed_rows(part: Part, query: VectorQuery) -> BoolMask:
    """Which rows are alive and meet every condition, shape (n,)."""
    block = part.block
    if query.allowed_seqs is not None:
        mask = np.zeros(len(block), np.bool_)
        mask[rows_of_seqs(block, part.ordered, query.allowed_seqs)] = True
        if part.alive is not None:
            mask &= part.alive
    elif part.alive is not None:
        mask = part.alive.copy()
    else:
        mask = np.ones(len(block), np.bool_)
    if query.thread_key is not None:
        mask &= block.thread_keys == query.thread_key
    if query.roles:
        mask &= _roles_allowed(query)[block.roles]
    if query.time_from_ns is not None:
        mask &= block.times_ns >= query.time_from_ns
    if query.time_to_ns is not None:
        mask &= block.times_ns < query.time_to_ns
    if query.excluded_seqs is not None and len(query.excluded_seqs):
        mask[rows_of_seqs(block, part.ordered, query.excluded_seqs)] = False
    return mask


def _roles_allowed(query: VectorQuery) -> NDArray[np.bool_]:
    table = np.zeros(_ROLE_CODES, np.bool_)
    table[[int(role) for role in query.roles]] = True
    return table
