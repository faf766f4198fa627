"""What a partition is made of when it is read: rows of the record, and rows of an image of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from semanticrecall_core.types.values import PartitionImage, PartitionRows

if TYPE_CHECKING:
    from .rows import BoolMask


@dataclass(frozen=True, slots=True)
class CurrentImage:
    """An image, and which of its rows the record holds now.

    Attributes:
        image: by (seq, chunk); checked when it was written, and not looked at again.
        current: shape (n,). Whole messages only.
        mapped: the vectors are a file's and cost no memory.
    """

    image: PartitionImage
    current: BoolMask
    mapped: bool


@dataclass(frozen=True, slots=True)
class LoadedPartition:
    """All current vectors of a resource.

    Attributes:
        rows: those that were read from the record, by (seq, chunk).
        imaged: the others; None where there are none.
    """

    rows: PartitionRows
    imaged: CurrentImage | None = None
