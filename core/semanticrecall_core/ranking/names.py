"""A query's vector turned away from the names in the query.

A name draws the vector of a query towards messages that say the name, whatever they are about. The
query without the name could be embedded instead, at the price of another run of the model for every
query with a name. The vectors of names are few and soon known, so what they have in common with
the query's vector is taken out of that:

    turned = vector - share x (its projection on the space that the names' vectors span)

of unit length again. With a share of 1 nothing of the names is left; a little more does better,
since the other words of a query have taken something of the name on. What either way is worth:
docs/decisions/0022.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from semanticrecall_core.types.values import FloatRows

    WideRows = NDArray[np.float64]

NAME_SHARE = 1.25
LENGTH_MIN = 1e-3
"""A shorter rest of a vector is rounding, or a name in other words."""


def turned_away(vector: FloatRows, names: Sequence[FloatRows]) -> FloatRows:
    """The unit vector of a query without its names.

    Args:
        vector: shape (dimensions,), unit length.
        names: the names' vectors, as `vector`.

    Returns:
        Shape (dimensions,), float32; `vector` itself where nothing else would be left of it.
    """
    wide = vector.astype(np.float64)
    turned, basis = wide.copy(), list["WideRows"]()
    for name in names:
        rest = name.astype(np.float64)
        for axis in basis:
            rest -= rest.dot(axis) * axis
        length = _length(rest)
        if length < LENGTH_MIN:
            continue
        rest /= length
        basis.append(rest)
        turned -= NAME_SHARE * float(wide.dot(rest)) * rest
    length = _length(turned)
    if not basis or length < LENGTH_MIN:
        return vector
    unit: FloatRows = (turned / length).astype(np.float32)
    return unit


def _length(vector: WideRows) -> float:
    """As `np.linalg.norm`, to the bit, in a third of its time."""
    return math.sqrt(vector.dot(vector))
