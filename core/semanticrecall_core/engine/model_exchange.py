"""The exchange of the model that answers, as callers of the engine see it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

from semanticrecall_core.engine.backlog import EmbeddingBacklog
from semanticrecall_core.engine.generations import NextModel, Reembedding, UnusedVectors
from semanticrecall_core.engine.low_priority import lower_priority
from semanticrecall_core.engine.serving import Bundle, ServedModel, Serving
from semanticrecall_core.types.errors import FailedPreconditionError
from semanticrecall_core.types.generations import ReembedProgress
from semanticrecall_core.types.ports import MessageStore
from semanticrecall_core.types.values import CallBudget


class ModelExchange:
    """Whether there is a next model, and the way to it. Thread-safe."""

    def __init__(
        self,
        store: MessageStore,
        serving: Serving,
        backlog: EmbeddingBacklog,
        bundle: Callable[[ServedModel], Bundle],
    ) -> None:
        """There is no next model, until `offer`.

        Args:
            store, serving, backlog: of the engine.
            bundle: makes recalls over a model.
        """
        self._store = store
        self._serving = serving
        self._backlog = backlog
        self._bundle = bundle
        self._reembedding: Reembedding | None = None
        self._former_identity = ""
        self._lacking = "there is no next model; start the server with --next-model-dir"
        self._switched: list[Callable[[], None]] = []
        self._stopped = threading.Event()
        self._deleting = threading.Thread(
            target=self._delete_unused_vectors, name="former-vectors", daemon=True
        )

    # ---- life ----

    def offer(self, following: NextModel) -> None:
        """A model that `reembed` makes all vectors anew with; before `start`. It is closed here."""
        self._reembedding = Reembedding(
            self._store, self._serving, self._backlog, following, self._bundle, self._tell_switched
        )

    def has_switched_from(self, index_identity: str) -> None:
        """The record was switched to the model that serves: who asks for that is told so."""
        self._former_identity = index_identity

    def has_no_other(self) -> None:
        """The next model is the one that serves: who asks for it is told so."""
        self._lacking = (
            "the next model is the one that serves; name another one in --next-model-dir"
        )

    def start(self) -> None:
        """Delete what is left of former models, in the background."""
        self._deleting.start()

    def stop(self) -> None:
        """End what runs; it is taken up by the next call after the next start."""
        self._stopped.set()
        if self._reembedding is not None:
            self._reembedding.stop()
        if self._deleting.is_alive():
            self._deleting.join()

    def close(self) -> None:
        """Let go of a model that never served; after `stop`."""
        if self._reembedding is not None:
            self._reembedding.close()

    # ---- callers ----

    @property
    def next_index_identity(self) -> str:
        """Identity of the next model's vectors; "" where there is none, or it answers already."""
        reembedding = self._reembedding
        return "" if reembedding is None or reembedding.complete else reembedding.index_identity

    def embedded(self) -> int:
        """Messages that have vectors of the next model; 0 where there is none."""
        reembedding = self._reembedding
        return 0 if reembedding is None or reembedding.complete else reembedding.embedded()

    def running(self) -> bool:
        """Vectors are made anew, or those of the former model are deleted."""
        return self._reembedding is not None and self._reembedding.running

    def reembed(self, budget: CallBudget) -> Iterator[ReembedProgress]:
        """Make all vectors anew with the next model, then answer with it; see generations.py.

        Begins, or joins what runs, and tells how far it is as often as it is asked, to the end.

        Raises:
            FailedPreconditionError: NO_NEXT_MODEL, or NEXT_MODEL_FAILS.
            SemanticRecallError: why it ended otherwise; what was made stays.
        """
        if self._reembedding is not None:
            return self._reembedding.follow(budget)
        if not self._former_identity:
            raise FailedPreconditionError(self._lacking, reason="NO_NEXT_MODEL")
        done = self._store.embedded(self._store.generation)
        now = self._serving.model.embedder.index_identity
        return iter([ReembedProgress(done, done, self._former_identity, now, True)])

    def on_switch(self, switched: Callable[[], None]) -> None:
        """Call `switched` once another model answers, whatever answer was begun before.

        On the record's writer thread: it must be quick and must not call the engine's writing
        methods.
        """
        self._switched.append(switched)

    # ---- inside ----

    def _tell_switched(self) -> None:
        for switched in self._switched:
            switched()

    def _delete_unused_vectors(self) -> None:
        lower_priority()
        UnusedVectors(self._store, self._stopped).delete()
