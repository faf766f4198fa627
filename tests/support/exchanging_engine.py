"""An engine over a directory that may have a next model; words make vectors."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np

from semanticrecall_core.engine import Engine, EngineLimits
from semanticrecall_core.engine.generations import NextModel
from semanticrecall_core.engine.partition_loading import ImageForm, PartitionLoader
from semanticrecall_core.engine.serving import ServedModel
from semanticrecall_core.engine.snapshotting import SnapshotPlan, Snapshotting
from semanticrecall_core.engine.warming import WarmingLimits
from semanticrecall_core.messages import StoreOptions
from semanticrecall_core.snapshots import FileSnapshotStore
from semanticrecall_core.types.generations import (
    ModelIdentity,
    RecordedVectors,
    ReembedProgress,
)
from semanticrecall_core.types.recalling import Mode, RecallQuery
from semanticrecall_core.types.values import CallBudget, MessageDraft, Wait
from semanticrecall_core.vectors import FaissVectorIndex
from support.fake_embedder import FakeEmbedder, text_vector, words_of
from support.running_engine import draft
from support.stored_messages import open_store

WAIT_S = 30.0
CLIP = 0.9


class OtherWords(FakeEmbedder):
    """As FakeEmbedder, but every word is another one to it: its vectors have nothing in common."""

    def __init__(
        self, dimensions: int = 64, generation: str = "other-words@2", prefix: str = "other"
    ) -> None:
        super().__init__(dimensions, generation=generation)
        self._prefix = prefix

    def _run(self, window: str, text: str, budget: CallBudget) -> np.ndarray:
        row = super()._run(window, text, budget)
        if text in self._bad:
            return row
        return other_vector(window, self.dimensions, self._prefix)


class Numbered(OtherWords):
    """One of a row of models; neighbours have other dimensions."""

    def __init__(self, number: int) -> None:
        super().__init__(_dimensions(number), f"model{number}@1", f"n{number}x")

    @staticmethod
    def vector(text: str, number: int) -> np.ndarray:
        """What it gives a text of one window."""
        return other_vector(text, _dimensions(number), f"n{number}x")


def _dimensions(number: int) -> int:
    return 48 + 16 * (number % 2)


def other_vector(text: str, dimensions: int, prefix: str = "other") -> np.ndarray:
    """The vector that OtherWords gives a text of one window."""
    return text_vector(" ".join(f"{prefix}{word}" for word in words_of(text)), dimensions)


class Exchanging:
    """An engine that reads nothing ahead; not started."""

    def __init__(
        self,
        home: Path,
        embedder: FakeEmbedder,
        following: FakeEmbedder | None = None,
        *,
        mapped: bool = False,
    ) -> None:
        self.embedder, self.following = embedder, following
        self.folder = home / "snapshots"
        next_model = None
        if following is not None:
            next_model = ModelIdentity(following.generation, following.index_identity)
        options = StoreOptions(index_identity=embedder.index_identity, next_model=next_model)
        self.store = open_store(home / "data", generation=embedder.generation, options=options)
        self.snapshots = FileSnapshotStore(self.folder, store_id=self.store.store_id, mapped=mapped)
        self._plan = SnapshotPlan(interval_s=3600.0, rows_min=1, mapped=mapped)
        serves = embedder
        if following is not None and self.store.generation == following.generation:
            serves, following = following, None
        identity = ModelIdentity(serves.generation, serves.index_identity)
        served = self._served(self.store.vectors_of(identity), serves)
        limits = EngineLimits(warming=WarmingLimits(0.0, 0))
        self.discarded = threading.Event()
        self.engine = Engine(self.store, serves, served.index, limits, served.snapshotting)
        if following is not None:
            chosen = following
            self.engine.exchange.offer(
                NextModel(
                    chosen,
                    lambda vectors: self._served(vectors, chosen),
                    lambda own_bytes: own_bytes < 2**30,
                    self.discarded.set,
                )
            )
        elif serves is not embedder:
            self.engine.exchange.has_switched_from(embedder.index_identity)

    @property
    def next_embedder(self) -> FakeEmbedder:
        """The next model."""
        assert self.following is not None
        return self.following

    def _served(self, vectors: RecordedVectors, embedder: FakeEmbedder) -> ServedModel:
        form = ImageForm(embedder.generation, embedder.dimensions, CLIP, mapped=self._plan.mapped)
        loader = PartitionLoader(vectors, self.snapshots, form)
        index = FaissVectorIndex(embedder.dimensions, loader, scale_clip=CLIP)
        snapshotting = Snapshotting(vectors, self.snapshots, index, embedder.generation, self._plan)
        loader.tell_rows_read(snapshotting.rows_read)
        return ServedModel(embedder, index, snapshotting)

    def start(self) -> Exchanging:
        self.engine.start()
        return self

    def add(self, resource: str, texts: Mapping[str, str], wait: Wait = Wait.SEARCHABLE) -> str:
        """Index texts by their ids; returns the read token."""
        drafts: list[MessageDraft] = [draft(name, text) for name, text in texts.items()]
        answer = self.engine.index(resource, drafts, wait, CallBudget.of_seconds(WAIT_S))
        return answer.read_token

    def found(self, resource: str, text: str, top_k: int = 5) -> list[tuple[str, float]]:
        """(message id, cosine) of the hits, best first."""
        query = RecallQuery(resource, text, top_k=top_k, before=0, after=0, mode=Mode.DENSE)
        answer = self.engine.recall(query, CallBudget.of_seconds(WAIT_S))
        hits = sorted((m for m in answer.messages if m.rank), key=lambda m: m.rank)
        return [
            (m.message.id, m.found.cosine)
            for m in hits
            if m.found is not None and m.found.cosine is not None
        ]

    def reembed(self) -> list[ReembedProgress]:
        """Follow it to the end."""
        poll = threading.Event()
        events: list[ReembedProgress] = []
        for progress in self.follow():
            events.append(progress)
            poll.wait(0.005)
        return events

    def follow(self) -> Iterator[ReembedProgress]:
        return self.engine.exchange.reembed(CallBudget.of_seconds(WAIT_S))

    def wait_until_retired(self) -> None:
        """Wait until the former model is closed and its vectors are gone."""
        assert self.discarded.wait(WAIT_S)
        self._wait(lambda: not self.engine.exchange.running())

    def wait_until_embedded(self) -> None:
        """Wait until nothing is pending."""
        self._wait(lambda: self.engine.pending() == 0)

    def wait_until_embedding(self, text: str) -> None:
        """Wait until the present model has begun with a text that it is held up on."""
        assert self.embedder.block_on(text).entered.wait(WAIT_S)

    def wait_until_made(self, messages: int) -> None:
        """Wait until so many messages have vectors of the next model."""
        self._wait(lambda: self.engine.exchange.embedded() >= messages)

    def vectors_on_record(self) -> set[tuple[int, int]]:
        """Rows of the whole table by the length of a vector in bytes: (rows, bytes)."""
        with self.store._readers.read() as connection:
            rows = connection.execute(
                "SELECT count(*), length(vector) FROM vectors GROUP BY length(vector)"
            ).fetchall()
        return set(rows)

    @staticmethod
    def _wait(holds: Callable[[], bool]) -> None:
        poll = threading.Event()
        for _ in range(int(WAIT_S * 100)):
            if holds():
                return
            poll.wait(0.01)
        raise AssertionError("it did not come to that")
