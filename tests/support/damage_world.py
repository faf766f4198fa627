"""A data directory of a real store, what must be found in it, and reading all of it.

The expected content is what was given to the store, kept in plain dictionaries. Reading is done
without threads of an engine, so that thousands of damaged copies are read in minutes.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

import numpy as np
from structlog.testing import capture_logs

from semanticrecall_core.engine.verification import Verification, VerifiedParts
from semanticrecall_core.lexical.analysis import Analyser
from semanticrecall_core.lexical.index import InMemoryLexicalIndex
from semanticrecall_core.messages import SqliteMessageStore
from semanticrecall_core.types.errors import SemanticRecallError
from semanticrecall_core.types.lexical import LexicalQuery
from semanticrecall_core.types.recalling import RecallAnswer, RecallQuery
from semanticrecall_core.types.values import (
    CallBudget,
    Finding,
    ForgetTarget,
    ListQuery,
    MessageDraft,
    Role,
    StoredMessage,
    VectorQuery,
    VectorRecord,
)
from semanticrecall_core.types.windows import GroupQuery, WindowQuery
from semanticrecall_core.vectors import FaissVectorIndex
from support.fake_embedder import text_vector
from support.stored_messages import open_store

DIMENSIONS = 16
GENERATION = "fake-words@1/16"
BUDGET = CallBudget(float("inf"))
EVERY_TEXT = "says changed report waits"
"""Each text has one of these words."""
_ALARMS = frozenset({"warning", "error", "critical"})
_PAGE = 7  # so that a history of a few dozen has several pages

Shown = tuple[str, str, int, str, str, str, str, str, int]


def shown(message: StoredMessage | MessageDraft) -> Shown:
    """All of a message that its writer gave, and its time, which a draft must have."""
    assert message.create_time_ns is not None
    return (
        message.id,
        message.thread_id,
        int(message.role),
        message.author,
        message.text,
        message.metadata_json,
        message.payload.hex(),
        message.group_id,
        message.create_time_ns,
    )


@dataclass(slots=True)
class World:
    """What a store must hold.

    Attributes:
        messages: by resource, all that a message is, in the order of the history.
        embedded: by resource and id, the texts that have vectors; one a chunk.
        waiting: by resource, ids of messages that wait to be embedded.
    """

    messages: dict[str, list[Shown]] = field(default_factory=dict)
    embedded: dict[str, dict[str, list[str]]] = field(default_factory=dict)
    waiting: dict[str, list[str]] = field(default_factory=dict)

    def to_json(self) -> str:
        return json.dumps([self.messages, self.embedded, self.waiting])

    @classmethod
    def of_json(cls, text: str) -> World:
        messages, embedded, waiting = json.loads(text)
        rows = {name: [tuple(row) for row in found] for name, found in messages.items()}
        return cls(rows, embedded, waiting)


def chunks_of(text: str) -> list[str]:
    """As the store's vectors are made here: long texts have several."""
    words = text.split()
    return [" ".join(words[at : at + 24]) for at in range(0, len(words), 24)]


def opened(home: Path) -> SqliteMessageStore:
    return open_store(home, generation=GENERATION, analyser=Analyser())


class Builder:
    """Does what a server does to a store, and keeps the account of it."""

    def __init__(self, home: Path) -> None:
        self.store = opened(home)
        self.world = World()
        self._time_ns = 1_700_000_000_000_000_000

    def add(self, resource: str, drafts: list[MessageDraft], *, embed: bool = True) -> None:
        """Index new messages, later than all before."""
        timed = []
        for draft in drafts:
            self._time_ns += 1_000_000_000
            timed.append(_with_time(draft, self._time_ns))
        outcomes = self.store.append(resource, timed, BUDGET)
        rows = self.world.messages.setdefault(resource, [])
        records = []
        for draft, outcome in zip(timed, outcomes, strict=True):
            rows[:] = [row for row in rows if row[0] != draft.id]
            rows.append(shown(draft))
            embedded = self.world.embedded.setdefault(resource, {})
            embedded.pop(draft.id, None)
            if not draft.embeddable:
                continue
            if not embed:
                self.world.waiting.setdefault(resource, []).append(draft.id)
                continue
            chunks = chunks_of(draft.text)
            vectors = np.stack([text_vector(chunk, DIMENSIONS) for chunk in chunks])
            records.append(VectorRecord(resource, outcome.seq, outcome.revision, vectors))
            embedded[draft.id] = chunks
        rows.sort(key=lambda row: row[8])
        assert all(self.store.put_vectors(records))

    def forget(self, resource: str, ids: list[str]) -> None:
        self.store.forget(resource, ForgetTarget(message_ids=tuple(ids)))
        rows = self.world.messages[resource]
        rows[:] = [row for row in rows if row[0] not in ids]
        for name in ids:
            self.world.embedded[resource].pop(name, None)


def build(home: Path) -> Builder:
    """A store after some life: several resources, edits, long texts, groups, forgotten ones."""
    made = Builder(home)
    for resource, count in (("alice", 40), ("bob", 12), ("carol-é", 5)):
        for start in range(0, count, 4):
            made.add(resource, [_draft(resource, n) for n in range(start, min(start + 4, count))])
    made.add("alice", [_draft("alice", 3, text="alice changed her mind about number three")])
    made.forget("alice", ["alice-5", "alice-6"])
    made.forget("bob", ["bob-0"])
    long = " ".join(f"word{n % 53} of a long report" for n in range(40))
    made.add("bob", [_draft("bob", 90, text=long)])
    empty = MessageDraft("bob-91", "t1", Role.TOOL, payload=b"\x00\xff" * 600, embeddable=False)
    made.add("bob", [empty])
    made.add("alice", [_draft("alice", 92, text="this one waits for its vector")], embed=False)
    return made


def _draft(resource: str, n: int, text: str | None = None) -> MessageDraft:
    roles = (Role.USER, Role.ASSISTANT)
    return MessageDraft(
        id=f"{resource}-{n}",
        thread_id=f"t{n % 3}",
        role=roles[n % 2],
        author=f"{resource} the {n % 4}th",
        text=text or f"{resource} says thing{n * 7919 % 1009} about topic{n % 11} once more",
        metadata_json=f'{{"n":{n}}}' if n % 2 else "",
        group_id=f"g{n // 8}" if n % 5 == 0 else "",
        payload=bytes([n]) * (n % 9),
    )


def _with_time(draft: MessageDraft, time_ns: int) -> MessageDraft:
    return replace(draft, create_time_ns=time_ns)


@dataclass(slots=True)
class Reading:
    """What came of reading a directory.

    Attributes:
        refused: the reason for which it was not opened; None where it was.
        reports: whatever said that something is damaged: errors, log lines, counts.
        findings: kinds of what Verify found, after everything was read.
        differences: what is not as the world has it.
    """

    refused: str | None = None
    reports: set[str] = field(default_factory=set)
    findings: set[str] = field(default_factory=set)
    differences: set[str] = field(default_factory=set)


def read_all(home: Path, world: World, *, thorough: bool = True) -> Reading:
    """Open a directory as a server does, read everything in every way, and compare.

    Args:
        home: the directory; what is done to it when it is opened is done.
        world: what must be in it.
        thorough: False reads the histories alone: for files that are of no use later.
    """
    reading = Reading()
    with capture_logs() as logs:
        try:
            store = opened(home)
        except SemanticRecallError as error:
            reading.refused = error.reason
            return reading
        try:
            reader = _Reader(store, world, reading)
            if thorough:
                reader.read()
            else:
                reader.read_histories()
        finally:
            store.close()
    reading.reports.update(f"log {log['event']}" for log in logs if log["log_level"] in _ALARMS)
    return reading


class _Reader:
    """Reads an open store."""

    def __init__(self, store: SqliteMessageStore, world: World, reading: Reading) -> None:
        self._store = store
        self._world = world
        self._reading = reading
        self._index = FaissVectorIndex(DIMENSIONS, store.load_partition)
        self._lexical = InMemoryLexicalIndex(store.load_lexical)

    def read_histories(self) -> None:
        for resource, rows in self._world.messages.items():
            self._tell("list", lambda r=resource, w=rows: self._list(r, w))

    def read(self) -> None:
        for resource, rows in self._world.messages.items():
            self._tell("list", lambda r=resource, w=rows: self._list(r, w))
            self._tell("get", lambda r=resource, w=rows: self._get(r, w))
            self._tell("threads", lambda r=resource, w=rows: self._threads(r, w))
            self._tell("windows", lambda r=resource, w=rows: self._windows(r, w))
            self._tell("groups", lambda r=resource, w=rows: self._groups(r, w))
            self._tell("search", lambda r=resource, w=rows: self._search(r, w))
        self._tell("waiting", self._waiting)
        self._tell("resources", self._resources)
        damaged = self._store.care.counts()
        self._reading.reports.update(f"count {kind}" for kind, count in damaged.items() if count)
        self._verify()

    def _tell(self, what: str, read) -> None:  # type: ignore[no-untyped-def]
        try:
            differences = list(read())
        except SemanticRecallError as error:
            self._reading.reports.add(f"error {error.reason}")
            self._reading.differences.add(f"{what} failed")
            return
        self._reading.differences.update(f"{what}: {one}" for one in differences)

    def _list(self, resource: str, expected: list[Shown]) -> Iterator[str]:
        found: list[StoredMessage] = []
        query: ListQuery | None = ListQuery(resource, None, _PAGE)
        while query is not None:
            page = self._store.list_messages(query)
            found += page
            query = None
            if len(page) == _PAGE:
                after = (page[-1].create_time_ns, page[-1].seq)
                query = ListQuery(resource, None, _PAGE, after=after)
        yield from _differing([shown(m) for m in found], expected)
        for thread in sorted({row[1] for row in expected}):
            rows = self._store.list_messages(ListQuery(resource, thread, 1_000, newest_first=True))
            wanted = [row for row in reversed(expected) if row[1] == thread]
            yield from _differing([shown(m) for m in rows], wanted)

    def _get(self, resource: str, expected: list[Shown]) -> Iterator[str]:
        for row in expected:
            try:
                found = [shown(m) for m in self._store.get(resource, [row[0]])]
            except SemanticRecallError as error:
                self._reading.reports.add(f"error {error.reason}")
                yield f"{row[0]} failed"
                continue
            yield from _differing(found, [row])

    def _threads(self, resource: str, expected: list[Shown]) -> Iterator[str]:
        wanted: dict[str, tuple[int, int, int]] = {}
        for row in expected:
            count, first, _ = wanted.get(row[1], (0, row[8], 0))
            wanted[row[1]] = (count + 1, first, row[8])
        found = {
            thread.thread_id: (
                thread.messages,
                thread.first_create_time_ns,
                thread.last_create_time_ns,
            )
            for thread in self._store.list_threads(resource, 100, None)
        }
        if found != wanted:
            yield "threads"
        if self._store.stats(resource).messages != len(expected):
            yield "count of messages"

    def _windows(self, resource: str, expected: list[Shown]) -> Iterator[str]:
        """A window around every third message: itself and both neighbours in its thread."""
        rows = self._store.list_messages(ListQuery(resource, None, 1_000))
        for row in rows[::3]:
            query = WindowQuery(resource, ((row.seq, row.revision),), 1, 1, 10**9)
            found = [shown(m) for m in self._store.windows(query).messages]
            thread = [one for one in expected if one[1] == row.thread_id]
            at = [one[0] for one in thread].index(row.id) if shown(row) in thread else -1
            if at < 0:
                yield "window of an unknown message"
            else:
                yield from _differing(found, thread[max(0, at - 1) : at + 2])

    def _groups(self, resource: str, expected: list[Shown]) -> Iterator[str]:
        for thread, group in sorted({(row[1], row[7]) for row in expected if row[7]}):
            rows = self._store.group(GroupQuery(resource, thread, group, 100, 10**9)).messages
            wanted = [row for row in expected if (row[1], row[7]) == (thread, group)]
            yield from _differing([shown(m) for m in rows or ()], wanted)

    def _search(self, resource: str, expected: list[Shown]) -> Iterator[str]:
        """Every text, by its meaning and by its words, must find its message."""
        rows = self._store.list_messages(ListQuery(resource, None, 1_000))
        seqs = {row.id: row.seq for row in rows}
        embedded = self._world.embedded.get(resource, {})
        for name, chunks in embedded.items():
            for at, chunk in enumerate(chunks):
                vector = _vector(chunk)
                hits = self._index.search(resource, VectorQuery(vector, 1)).hits
                best = hits[0] if hits else None
                if best is None or best.score < 0.9999:
                    yield f"{name} chunk {at} is not found by its meaning"
                elif best.seq != seqs.get(name) and best.score < 0.99999:
                    yield f"{name} chunk {at} is not the first"
        with_text = [row for row in expected if row[4]]
        searchable = self._index.search(resource, VectorQuery(vector_of_nothing(), 1)).searchable
        if searchable != len(embedded):
            yield f"{searchable} messages are searched"
        if not with_text:
            return
        match = self._lexical.match(resource, LexicalQuery((EVERY_TEXT,), 1_000))
        if match.searchable != len(with_text):
            yield f"{match.searchable} messages have words"
        found = set(match.seqs[match.own[0] > 0].tolist())
        for row in with_text:
            if seqs.get(row[0]) not in found:
                yield f"{row[0]} is not found by its words"

    def _waiting(self) -> Iterator[str]:
        found: dict[str, list[str]] = {}
        for row in self._store.pending(0, 1_000):
            found.setdefault(row.resource_id, []).append(row.text or "")
        wanted = {
            resource: [row[4] for row in self._world.messages[resource] if row[0] in ids]
            for resource, ids in self._world.waiting.items()
        }
        if found != wanted:
            yield "what waits to be embedded"

    def _resources(self) -> Iterator[str]:
        if sorted(self._store.recent_resources(100)) != sorted(self._world.messages):
            yield "resources"

    def _verify(self) -> None:
        parts = VerifiedParts(
            self._index, self._lexical, None, None, DIMENSIONS, _no_recall, lambda: None
        )
        for event in Verification(self._store, lambda: parts)(None, BUDGET):
            if isinstance(event, Finding):
                self._reading.findings.add(event.kind)


def _differing(found: list[Shown], expected: list[Shown]) -> Iterator[str]:
    if found == expected:
        return
    for row in expected:
        if row not in found:
            yield f"{row[0]} is missing or changed"
    for row in found:
        if row not in expected:
            yield f"{row[0]!r} is not what was given"
    if sorted(found) == sorted(expected):
        yield "order"


@cache
def _vector(text: str) -> np.ndarray:
    return text_vector(text, DIMENSIONS)


def vector_of_nothing() -> np.ndarray:
    """A unit vector of no text."""
    vector = np.zeros(DIMENSIONS, np.float32)
    vector[0] = 1.0
    return vector


def _no_recall(query: RecallQuery, budget: CallBudget) -> RecallAnswer:
    raise AssertionError("nothing is recalled here")


def copy_of(home: Path, target: Path) -> Path:
    """The files that are data; the ballast is made anew."""
    shutil.copytree(home, target, ignore=shutil.ignore_patterns("BALLAST", "*-shm", "LOCK"))
    return target
