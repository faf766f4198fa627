"""The conditions of a query as one mask over rows of messages, before anything is chosen."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from semanticrecall_core.types.values import ByteColumn, IntColumn, Role

    BoolMask = NDArray[np.bool_]

_ROLE_CODES = 256


class Conditions(Protocol):
    """What a query allows: the attributes of `VectorQuery` and `LexicalQuery` of these names."""

    @property
    def thread_key(self) -> int | None:
        """Only this thread; None is all."""
        ...

    @property
    def roles(self) -> frozenset[Role]:
        """Only these; empty is all."""
        ...

    @property
    def time_from_ns(self) -> int | None:
        """Not before; None is open."""
        ...

    @property
    def time_to_ns(self) -> int | None:
        """Before; None is open."""
        ...

    @property
    def allowed_seqs(self) -> IntColumn | None:
        """Only these (sorted, unique); None is all."""
        ...

    @property
    def excluded_seqs(self) -> IntColumn | None:
        """Never these (sorted, unique)."""
        ...


class Rows(Protocol):
    """Columns of rows; each of shape (n,)."""

    @property
    def thread_keys(self) -> IntColumn:
        """The thread of each row's message."""
        ...

    @property
    def times_ns(self) -> IntColumn:
        """Its time."""
        ...

    @property
    def roles(self) -> ByteColumn:
        """Its role."""
        ...


def has_conditions(query: Conditions) -> bool:
    """Whether the query asks for less than everything alive."""
    return (
        query.thread_key is not None
        or bool(query.roles)
        or query.time_from_ns is not None
        or query.time_to_ns is not None
        or query.allowed_seqs is not None
        or (query.excluded_seqs is not None and len(query.excluded_seqs) > 0)
    )


def allowed_rows(
    rows: Rows,
    alive: BoolMask | None,
    rows_of: Callable[[IntColumn], IntColumn],
    query: Conditions,
) -> BoolMask:
    """Which rows are alive and meet every condition, shape (n,).

    Args:
        rows: the columns.
        alive: which rows are; None is all.
        rows_of: the rows of the messages with these seqs (sorted, unique); dead ones too, or not.
        query: what is allowed.
    """
    if query.allowed_seqs is not None:
        mask = np.zeros(len(rows.roles), np.bool_)
        mask[rows_of(query.allowed_seqs)] = True
        if alive is not None:
            mask &= alive
    elif alive is not None:
        mask = alive.copy()
    else:
        mask = np.ones(len(rows.roles), np.bool_)
    if query.thread_key is not None:
        mask &= rows.thread_keys == query.thread_key
    if query.roles:
        mask &= _roles_allowed(query)[rows.roles]
    if query.time_from_ns is not None:
        mask &= rows.times_ns >= query.time_from_ns
    if query.time_to_ns is not None:
        mask &= rows.times_ns < query.time_to_ns
    if query.excluded_seqs is not None and len(query.excluded_seqs):
        mask[rows_of(query.excluded_seqs)] = False
    return mask


def _roles_allowed(query: Conditions) -> BoolMask:
    table = np.zeros(_ROLE_CODES, np.bool_)
    table[[int(role) for role in query.roles]] = True
    return table
