"""Vectors that come with a message, made elsewhere by the model that serves here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .values import FloatRows


@dataclass(frozen=True, slots=True)
class VectorForm:
    """What the vectors that are searched are.

    Attributes:
        generation: their identity.
        index_identity: the same for people, and on the wire.
        dimensions: numbers in one.
    """

    generation: str
    index_identity: str
    dimensions: int


@dataclass(frozen=True, slots=True)
class GivenVectors:
    """Vectors of messages that are given to Index; stored only while their generation is searched.

    Attributes:
        generation: what they are of.
        by_id: message id -> shape (chunks, dimensions), unit length.
    """

    generation: str
    by_id: Mapping[str, FloatRows]
