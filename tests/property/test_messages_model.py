"""Random histories, with restarts, on the SQLite store and on the dictionary model."""

from __future__ import annotations

import tempfile
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from semanticrecall_core.messages import SqliteMessageStore, StoreOptions
from semanticrecall_core.types.errors import AlreadyExistsError, NotFoundError
from semanticrecall_core.types.generations import ModelIdentity, RecordedVectors
from semanticrecall_core.types.lexical import LexicalRows
from semanticrecall_core.types.ports import MessageStore
from semanticrecall_core.types.values import (
    CallBudget,
    ForgetTarget,
    ListQuery,
    MessageDraft,
    PartitionRows,
    PendingRow,
    Role,
    Status,
    VectorRecord,
)
from semanticrecall_core.types.windows import MatchingRows, WindowQuery
from support.model_store import ModelStore
from support.recorded_commits import RecordedCommits
from support.recorded_texts import RecordedTexts, text_rows
from support.stored_messages import open_store
from support.word_analyser import WordAnalyser

# Where there is such a place: what is tried here is not the disk.
MEMORY = Path("/dev/shm")
RESOURCES = ["u", "u_", "U"]
THREADS = ["t", "t2", "t%"]
IDS = [f"m{n}" for n in range(6)]
TIMES = st.integers(0, 5)

resources = st.sampled_from(RESOURCES)
threads = st.sampled_from(THREADS)
drafts = st.builds(
    MessageDraft,
    id=st.sampled_from(IDS),
    thread_id=threads,
    role=st.sampled_from(Role),
    author=st.sampled_from(["", "Ann"]),
    text=st.sampled_from(["", "one", "two"]),
    create_time_ns=st.none() | TIMES,
    metadata_json=st.sampled_from(["", '{"k":1}']),
    group_id=st.sampled_from(["", "g"]),
    embeddable=st.booleans(),
)
targets = st.one_of(
    st.lists(st.sampled_from(IDS), max_size=3).map(lambda i: ForgetTarget(message_ids=tuple(i))),
    threads.map(lambda t: ForgetTarget(thread_id=t)),
    TIMES.map(lambda t: ForgetTarget(create_time_before_ns=t)),
    st.just(ForgetTarget(everything=True)),
)


class StoreAgainstModel(RuleBasedStateMachine):
    """Every rule does the same to both; every answer and every notice must agree."""

    def __init__(self) -> None:
        super().__init__()
        self._directory = tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None)
        self._ticks = {"real": count(10), "model": count(10), "generation": count(2)}
        self.generation = "g1"
        self.following = ""
        self.model = ModelStore(
            generation="g1", clock=lambda: next(self._ticks["model"]), analyser=WordAnalyser()
        )
        self._told = RecordedCommits()
        self.model.subscribe(self._told)
        self._texts_told = RecordedTexts(self.model)
        self.model.subscribe_lexical(self._texts_told)
        self.late: list[list[PendingRow]] = []

    @initialize()
    def begin(self) -> None:
        self.real = self._opened()

    def _opened(self) -> SqliteMessageStore:
        store = open_store(
            Path(self._directory.name) / "data",
            generation=self.generation,
            analyser=WordAnalyser(),
            options=StoreOptions(clock=lambda: next(self._ticks["real"])),
        )
        self._heard = RecordedCommits()
        store.subscribe(self._heard)
        self._texts_heard = RecordedTexts(store)
        store.subscribe_lexical(self._texts_heard)
        return store

    @rule(resource=resources, given=st.lists(drafts, min_size=1, max_size=4))
    def append(self, resource: str, given: list[MessageDraft]) -> None:
        budget = CallBudget.of_seconds(60)
        real = self.real.append(resource, given, budget)
        model = self.model.append(resource, given, budget)
        assert [(o.seq, o.revision, o.status, o.pending) for o in real] == [
            (o.seq, o.revision, o.status, o.pending) for o in model
        ]
        assert all(o.status is not Status.REJECTED for o in real)

    @rule(limit=st.integers(1, 4), chunks=st.integers(1, 3), keep=st.booleans())
    def embed_pending(self, limit: int, chunks: int, keep: bool) -> None:
        """Embed what waits now; or keep the rows, to come too late with them."""
        real, model = self.real.pending(0, limit), self.model.pending(0, limit)
        assert [(r.resource_id, r.seq, r.text) for r in real] == [
            (r.resource_id, r.seq, r.text) for r in model
        ]
        if keep:
            self.late = [real, model]
        else:
            self._put(real, model, chunks)

    @rule(chunks=st.integers(1, 2))
    def embed_late(self, chunks: int) -> None:
        if self.late:
            self._put(*self.late, chunks)

    def _put(self, real: list[PendingRow], model: list[PendingRow], chunks: int) -> None:
        rng = np.random.default_rng(len(real) + chunks)
        vectors = rng.standard_normal((chunks, _dimensions(self.generation))).astype(np.float32)
        answers = [
            store.put_vectors(
                [VectorRecord(r.resource_id, r.seq, r.revision, vectors) for r in rows]
            )
            for store, rows in ((self.real, real), (self.model, model))
        ]
        assert answers[0] == answers[1]

    @rule(resource=resources, what=targets)
    def forget(self, resource: str, what: ForgetTarget) -> None:
        real, model = self.real.forget(resource, what), self.model.forget(resource, what)
        assert (real.seqs, real.vectors, real.threads) == (model.seqs, model.vectors, model.threads)
        assert sorted(real.texts) == sorted(model.texts)

    @rule(resource=resources, thread=threads, to=resources)
    def transfer(self, resource: str, thread: str, to: str) -> None:
        outcomes: list[Any] = []
        for store in (self.real, self.model):
            try:
                outcomes.append(store.transfer_thread(resource, thread, to))
            except (NotFoundError, AlreadyExistsError) as error:
                outcomes.append(type(error))
        assert outcomes[0] == outcomes[1]

    @rule(
        resource=resources,
        hits=st.lists(st.tuples(st.integers(1, 20), st.sampled_from((0, 0, 0, 0, 1))), max_size=4),
        matching=st.none()
        | st.builds(
            lambda seqs, revision: MatchingRows(np.array(sorted(seqs), np.int64), revision),
            st.sets(st.integers(1, 20)),
            st.integers(1, 40),
        ),
        before=st.integers(0, 3),
        after=st.integers(0, 3),
        bytes_max=st.integers(0, 400) | st.just(10**9),
        excluded=st.lists(st.sampled_from(IDS), max_size=3),
    )
    def windows(
        self,
        resource: str,
        hits: list[tuple[int, int]],
        matching: MatchingRows | None,
        before: int,
        after: int,
        bytes_max: int,
        excluded: list[str],
    ) -> None:
        now = {
            m.seq: m.revision for m in self.model.list_messages(ListQuery(resource, None, limit=99))
        }
        pairs = tuple((seq, now.get(seq, 1) - stale) for seq, stale in hits)
        query = WindowQuery(resource, pairs, before, after, bytes_max, tuple(excluded), matching)
        assert self.real.windows(query) == self.model.windows(query)

    @rule(
        resource=resources,
        thread=st.none() | threads,
        newest_first=st.booleans(),
        after=st.none() | st.tuples(TIMES, st.integers(1, 20)),
        times=st.tuples(st.none() | TIMES, st.none() | TIMES),
        roles=st.frozensets(st.sampled_from(Role)),
    )
    def page(self, **asked: Any) -> None:
        query = ListQuery(
            resource_id=asked["resource"],
            thread_id=asked["thread"],
            limit=5,
            newest_first=asked["newest_first"],
            after=asked["after"],
            time_from_ns=asked["times"][0],
            time_to_ns=asked["times"][1],
            roles=asked["roles"],
        )
        assert self.real.list_messages(query) == self.model.list_messages(query)

    @rule(resource=resources, after=st.none() | st.tuples(TIMES, st.integers(1, 20)))
    def thread_page(self, resource: str, after: tuple[int, int] | None) -> None:
        real = self.real.list_threads(resource, 2, after)
        assert real == self.model.list_threads(resource, 2, after)

    @rule()
    def begin_another_generation(self) -> None:
        """Of whatever was being made before, nothing is left."""
        self.following = f"g{next(self._ticks['generation'])}"
        for store in (self.real, self.model):
            store.vectors_of(ModelIdentity(self.following))
        self._drop_unused()

    @precondition(lambda self: self.following)
    @rule(limit=st.integers(1, 4), chunks=st.integers(1, 2), late=st.booleans())
    def embed_lacking(self, limit: int, chunks: int, late: bool) -> None:
        """Make vectors of the next generation; or come with some of the one before it."""
        real, model = self._lacking(self.real)[:limit], self._lacking(self.model)[:limit]
        assert [(r.resource_id, r.seq, r.text) for r in real] == [
            (r.resource_id, r.seq, r.text) for r in model
        ]
        rng = np.random.default_rng(len(real) + chunks)
        vectors = rng.standard_normal((chunks, _dimensions(self.following))).astype(np.float32)
        answers: list[list[bool]] = []
        for store, rows in ((self.real, real), (self.model, model)):
            records = [VectorRecord(r.resource_id, r.seq, r.revision, vectors) for r in rows]
            if late:
                answers.append(store.put_vectors(records, self.following))
            else:
                answers.append(store.vectors_of(ModelIdentity(self.following)).put(records))
        assert answers[0] == answers[1]
        assert all(answers[0]) != late or not real

    @precondition(lambda self: self.following)
    @rule(without_all=st.booleans())
    def serve_the_next(self, without_all: bool) -> None:
        switched: list[str] = []
        left_out = [row.seq for row in self._lacking(self.model)] if without_all else []
        real = self.real.serve(self.following, left_out, lambda: switched.append("real"))
        model = self.model.serve(self.following, left_out, lambda: switched.append("model"))
        assert real == model
        assert switched == ([] if real else ["real", "model"])
        if real:
            return
        self.generation, self.following = self.following, ""
        assert self.real.generation == self.generation
        self._drop_unused()

    def _lacking(self, store: SqliteMessageStore | ModelStore) -> list[PendingRow]:
        vectors = store.vectors_of(ModelIdentity(self.following))
        found: list[PendingRow] = []
        place: int | None = 0
        while place is not None:
            lacking = vectors.lacking(place, 3)
            found += lacking.rows
            place = lacking.read_to
        among = vectors.lacking_among([row.seq for row in found] + [99])
        assert sorted(r.seq for r in among.rows) == [r.seq for r in found]
        return found

    def _drop_unused(self) -> None:
        place: tuple[int, int] | None = (0, 0)
        while place is not None:
            place = self.real.drop_unused_vectors(place, 2)
        # These are changes of the record as any; the model deletes at once.
        self.model._revision = self.real._writer._journal.revision

    @rule()
    def restart(self) -> None:
        store_id = self.real.store_id
        assert list(self.real.verify(None)) == []
        self.real.close()
        self._told.clear()
        self._texts_told.calls.clear()
        self.real = self._opened()
        assert self.real.store_id == store_id

    @invariant()
    def they_agree(self) -> None:
        assert self._heard.heard == self._told.heard
        assert self._texts_heard.calls == self._texts_told.calls
        for resource in (*RESOURCES, None):
            real, model = self.real.stats(resource), self.model.stats(resource)
            assert (real.messages, real.vectors, real.pending, real.threads, real.resources) == (
                model.messages,
                model.vectors,
                model.pending,
                model.threads,
                model.resources,
            )
        for resource in RESOURCES:
            assert self.real.get(resource, IDS) == self.model.get(resource, IDS)
            assert _partition(self.real, resource) == _partition(self.model, resource)
            _checksums_agree(self.real, resource)
            if self.following:
                model = ModelIdentity(self.following)
                made = (store.vectors_of(model) for store in (self.real, self.model))
                real, model_ = (
                    _partition(store, resource, vectors)
                    for store, vectors in zip((self.real, self.model), made, strict=True)
                )
                assert real == model_
            real_texts = self.real.load_lexical(resource)
            assert _texts(self.real, resource, real_texts) == _texts(
                self.model, resource, self.model.load_lexical(resource)
            )
            assert self._texts_heard.rows(resource) == text_rows(real_texts)

    def teardown(self) -> None:
        assert list(self.real.verify(None)) == []
        self.real.close()
        self._directory.cleanup()


def _checksums_agree(store: MessageStore, resource: str) -> None:
    """The index of checksums has the rows that a load gives, no more and no fewer."""
    rows, told = store.load_partition(resource), store.row_checksums(resource)
    for name in ("seqs", "chunks", "checksums"):
        assert getattr(told, name).tolist() == getattr(rows, name).tolist()


def _dimensions(generation: str) -> int:
    """Vectors of neighbouring generations have other lengths."""
    return 3 + int(generation[1:]) % 2


def _partition(
    store: MessageStore, resource: str, vectors: RecordedVectors | None = None
) -> list[tuple[object, ...]]:
    """A partition with thread ids for keys, which each store may choose."""
    rows: PartitionRows = (vectors or store).load_partition(resource)
    names = {store.thread_key(resource, thread): thread for thread in THREADS}
    return [
        (seq, names[key], time_ns, role, chunk, revision, tuple(vector))
        for seq, key, time_ns, role, chunk, revision, vector in zip(
            rows.seqs.tolist(),
            rows.thread_keys.tolist(),
            rows.times_ns.tolist(),
            rows.roles.tolist(),
            rows.chunks.tolist(),
            rows.revisions.tolist(),
            rows.vectors.tolist(),
            strict=True,
        )
    ]


def _texts(store: MessageStore, resource: str, rows: LexicalRows) -> list[tuple[object, ...]]:
    """Analyses with thread ids for keys."""
    names = {store.thread_key(resource, thread): thread for thread in THREADS}
    return [(seq, names[key], *more) for seq, key, *more in text_rows(rows)]


TestStoreAgainstModel = StoreAgainstModel.TestCase
TestStoreAgainstModel.settings = settings(stateful_step_count=30)
