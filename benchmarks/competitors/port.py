"""The work that every system in `side_by_side` does: keep messages of many users, find the nearest.

Each is set up as its own documentation advises for many tenants and for messages that must survive
a restart; `Setup` says how, and names the page. What it returns for a search is what an agent
needs: ids and texts of the nearest messages of one user, best first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Setup:
    """How a system was set up, as it is printed.

    Attributes:
        name: as its users know it.
        versions: of its packages.
        tenants: how users are kept apart.
        index: which index searches, with its parameters; "exact" where it is a plain scan.
        durability: what is promised when `add` returns.
        advice: the page of its documentation that advises this.
    """

    name: str
    versions: dict[str, str]
    tenants: str
    index: str
    durability: str
    advice: str


@dataclass(frozen=True, slots=True)
class Rows:
    """Messages of one user. `vectors` has shape (len(ids), dimensions), float32, unit rows."""

    resource_id: str
    ids: Sequence[str]
    thread_ids: Sequence[str]
    texts: Sequence[str]
    vectors: NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Found:
    """One message of an answer."""

    id: str
    text: str


class System(Protocol):
    """One system, open in a directory of its own. Used by one thread at a time."""

    @property
    def setup(self) -> Setup:
        """How it was set up."""
        ...

    def add(self, rows: Rows) -> None:
        """Keep messages; when it returns they are found, and kept as `Setup.durability` says."""
        ...

    def loaded(self) -> None:
        """All bulk `add`s are done: build or optimise what its documentation advises now."""
        ...

    def search(self, resource_id: str, vector: NDArray[np.float32], top_k: int) -> list[Found]:
        """The nearest `top_k` messages of one user by cosine, best first."""
        ...

    def close(self) -> None:
        """Flush and close; the directory can be opened again."""
        ...


@runtime_checkable
class InOwnProcess(System, Protocol):
    """A system that works in a process of its own.

    It is asked with vectors, and the model is in the process that asks, unless it is `EmbedsTexts`.
    """

    @property
    def process_id(self) -> int:
        """The process whose memory counts."""
        ...


@runtime_checkable
class EmbedsTexts(InOwnProcess, Protocol):
    """A system that embeds texts by itself, in that process.

    `add` takes its word for the vectors only until `loaded`; from then on it makes its own of the
    texts, with the model that made those it was given.
    """

    def recall(
        self,
        resource_id: str,
        question: str | NDArray[np.float32],
        top_k: int,
        *,
        neighbours: int = 0,
    ) -> list[Found]:
        """The nearest messages to a text or a vector, best first.

        Args:
            neighbours: how many messages before and after each are fetched too. They, and the text
                for a prompt that is made of all of them, cost their time and are not returned.
        """
        ...

    def add_texts(
        self, resource_id: str, thread_id: str, texts: dict[str, str], *, found: bool
    ) -> None:
        """Keep messages, by id; they are on disk when it returns.

        Args:
            found: return when they are found, too.
        """
        ...


class Opens(Protocol):
    """What a module of this package offers as `open_system`."""

    def __call__(self, directory: Path, dimensions: int) -> System:
        """Open what is in the directory, or begin anew."""
        ...
