"""The model that answers, with all that is made of its vectors, exchanged as a whole.

Promises:
  - A recall is answered by one model from its first to its last step: its query's vector, the
    partitions it searches, their images. Whoever began before the exchange finishes on the former
    one, which then sees no changes any more and must stay until the last of them is done; what was
    edited or forgotten meanwhile is found out when the messages are fetched.
  - The record's listeners hear of the vectors of the model that answers, and of no others.
  - What is forgotten leaves the caches and images of every model that is in memory.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from semanticrecall_core.engine.recall import RecallUseCase
from semanticrecall_core.engine.snapshotting import Snapshotting
from semanticrecall_core.types.errors import SemanticRecallError
from semanticrecall_core.types.ports import Embedder, VectorIndex
from semanticrecall_core.types.values import PartitionRows

if TYPE_CHECKING:
    from semanticrecall_core.types.values import IntColumn


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model with all that is made of its vectors.

    Attributes:
        embedder: closed with it.
        index: the partitions of its vectors.
        snapshotting: keeps images of them; None keeps none.
    """

    embedder: Embedder
    index: VectorIndex
    snapshotting: Snapshotting | None = None


class Bundle:
    """A model and the recalls over it."""

    __slots__ = ("model", "recall", "users")

    def __init__(self, model: ServedModel, recall: RecallUseCase) -> None:
        """`recall` searches the model's index and embeds with the model."""
        self.model = model
        self.recall = recall
        self.users = 0

    def close(self) -> None:
        """Let go of everything but the snapshots."""
        self.recall.close()
        self.model.embedder.close()
        self.model.index.close()


class Serving:
    """Which bundle answers; a `CommitListener` in its name. Thread-safe."""

    def __init__(self, bundle: Bundle) -> None:
        """Answer with this one."""
        self._lock = threading.Lock()
        self._unused = threading.Condition(self._lock)
        self._current = bundle
        self._next: Bundle | None = None
        self._former: Bundle | None = None

    @property
    def model(self) -> ServedModel:
        """The model that answers now."""
        return self._current.model

    @property
    def former(self) -> Bundle | None:
        """The one that answered before, until it is retired."""
        return self._former

    @contextmanager
    def use(self) -> Generator[Bundle]:
        """The bundle that answers; it stays whole until this ends."""
        with self._lock:
            bundle = self._current
            bundle.users += 1
        try:
            yield bundle
        finally:
            with self._lock:
                bundle.users -= 1
                if not bundle.users:
                    self._unused.notify_all()

    def bundles(self) -> tuple[Bundle, ...]:
        """All that are in memory: the one that answers first."""
        with self._lock:
            everyone = (self._current, self._next, self._former)
            return tuple(bundle for bundle in everyone if bundle is not None)

    def close(self) -> None:
        """Let go of all; who answers now writes its snapshots first."""
        for bundle in self.bundles()[1:]:
            if bundle.model.snapshotting is not None:
                bundle.model.snapshotting.retire()
        for bundle in self.bundles():
            bundle.recall.close()
            if bundle is self._current and bundle.model.snapshotting is not None:
                bundle.model.snapshotting.stop()
            bundle.close()

    # ---- the exchange ----

    def prepare(self, bundle: Bundle) -> None:
        """This one is next. Its partitions may be read; each is dropped when it changes."""
        with self._lock:
            self._next = bundle

    def switch(self) -> None:
        """Answer with the next one. Called on the record's writer thread."""
        with self._lock:
            assert self._next is not None
            self._former, self._current, self._next = self._current, self._next, None

    def wait_until_unused(self, seconds: float) -> bool:
        """Whether nobody uses the former one any more."""
        with self._lock:
            former = self._former
            return former is None or self._unused.wait_for(lambda: not former.users, seconds)

    def retired(self) -> None:
        """The former one is closed."""
        with self._lock:
            self._former = None

    # ---- what is forgotten ----

    def embedders(self) -> tuple[Embedder, ...]:
        """All whose caches may hold vectors of texts."""
        return tuple(bundle.model.embedder for bundle in self.bundles())

    def forget_texts(self, texts: Sequence[str], owner: str = "") -> int:
        """As Embedder.forget_texts, of all of them."""
        return _of_all(self.embedders(), lambda embedder: embedder.forget_texts(texts, owner))

    def forget_owner(self, owner: str) -> int:
        """As Embedder.forget_owner, of all of them."""
        return _of_all(self.embedders(), lambda embedder: embedder.forget_owner(owner))

    def forget(self, resource_id: str) -> None:
        """Remove the images of a resource from the disk; see Snapshotting.forget."""
        for bundle in self.bundles():
            if bundle.model.snapshotting is not None:
                bundle.model.snapshotting.forget(resource_id)

    # ---- CommitListener ----

    def vectors_put(self, resource_id: str, rows: PartitionRows) -> None:
        """See CommitListener."""
        model = self._current.model
        model.index.vectors_put(resource_id, rows)
        if model.snapshotting is not None:
            model.snapshotting.vectors_put(resource_id, rows)

    def vectors_removed(self, resource_id: str, seqs: IntColumn) -> None:
        """See CommitListener."""
        model = self._current.model
        model.index.vectors_removed(resource_id, seqs)
        if model.snapshotting is not None:
            model.snapshotting.vectors_removed(resource_id, seqs)

    def resource_dropped(self, resource_id: str) -> None:
        """See CommitListener."""
        model = self._current.model
        model.index.resource_dropped(resource_id)
        if model.snapshotting is not None:
            model.snapshotting.resource_dropped(resource_id)

    def resource_changed(self, resource_id: str) -> None:
        """See CommitListener. The next model is not told what; it reads the resource anew."""
        with self._lock:
            following = self._next
        if following is not None:
            following.model.index.resource_dropped(resource_id)


def _of_all(embedders: Sequence[Embedder], count: Callable[[Embedder], int]) -> int:
    """The sum; each is asked, whatever becomes of the others. Raises the first error."""
    total = 0
    failure: SemanticRecallError | None = None
    for embedder in embedders:
        try:
            total += count(embedder)
        except SemanticRecallError as error:
            failure = failure or error
    if failure is not None:
        raise failure
    return total
