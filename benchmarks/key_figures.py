"""The figures that `check` watches, each with the calibration parts it is compared with.

One round is a sidecar of its own on a fresh copy of a store, so that what differs from process to
process differs between rounds too. In it:

  turns     one call of each kind after the other, the parts between them (docs/decisions/0007)
  blocks    import of new messages, and recalls with 8 in flight, in turns with blocks of the parts
  start     from exec to SERVING, each after a start of the part `process`

A round's ratio of a figure is the median of the ratios of its calls, each to the sum of the parts
that were measured beside it, as often as they are named in `Figure.parts`. (With the medians of all
divided instead, ratios of rounds scattered up to twice as much.)
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import grpc

from benchmarks import corpus, processes, wire_requests
from benchmarks.calibration import (
    DEADLINE_S,
    ECHO,
    ECHO_MANY,
    EMBED,
    EMBED_ALL,
    FSYNC,
    PROCESS,
    SCAN,
    Calibration,
    Libraries,
    Times,
    calibrating,
    in_flight,
    start_process,
)
from benchmarks.derived_files import forget_cached_vectors, make_snapshots
from benchmarks.measure import timed
from benchmarks.report import Digest
from benchmarks.store_builder import ResourcePlan, build
from semanticrecall.v1 import recall_pb2, types_pb2

RESOURCE, WRITER, IMPORTED = "checked", "checked-writer", "checked-import"
STARTS = 2
WARM_UP_CALLS = 20
IMPORT_BATCH = 8
QUIET = ("--log-level", "error")


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure. `parts` are added up; a part may be named twice."""

    name: str
    parts: tuple[str, ...]


START = Figure("start, to SERVING", (PROCESS,))
COLD = Figure("recall of a new query", (EMBED, SCAN, ECHO))
AGAIN = Figure("recall asked again", (ECHO,))
AFTER_WRITE = Figure("recall of a known query after a write", (SCAN, ECHO))
DURABLE = Figure("index of a turn, durable", (FSYNC, ECHO))
SEARCHABLE = Figure("index of a turn, searchable", (EMBED, EMBED, FSYNC, ECHO))
IMPORT = Figure("import of a new message", (EMBED_ALL,))
MANY = Figure("recall of a new query, 8 in flight", (EMBED_ALL, ECHO_MANY))
FIGURES = (COLD, AGAIN, AFTER_WRITE, DURABLE, SEARCHABLE, IMPORT, MANY, START)


@dataclass(frozen=True, slots=True)
class Work:
    """How much is done in a round. All of it is a matter of the seed."""

    messages: int
    turns: int
    blocks: int
    block_calls: int
    seed: int

    def queries(self) -> list[str]:
        """All texts of a round, no two alike: to warm up, for turns, and for blocks."""
        count = WARM_UP_CALLS + 3 * self.turns + self.blocks * self.block_calls
        return corpus.queries(count, seed=self.seed)

    def imported(self) -> list[types_pb2.Message]:
        """Messages that are new to the store."""
        chat = corpus.chat(self.blocks * self.block_calls, seed=self.seed + 1)
        return [wire_requests.message(one, "new-") for one in chat]


@dataclass(frozen=True, slots=True)
class Round:
    """What a round came to.

    Attributes:
        seconds: medians of every figure and part.
        ratios: of every figure to its parts.
        digest: of what was recalled.
    """

    seconds: Mapping[str, float]
    ratios: Mapping[str, float]
    digest: str

    @classmethod
    def of(cls, times: Times, digest: str) -> Round:
        """From the times of all calls."""
        ratios = {figure.name: times.ratio(figure.name, figure.parts) for figure in FIGURES}
        return cls(times.medians(), ratios, digest)


def prepare(directory: Path, work: Work) -> None:
    """The store that every round copies, with snapshots, in `directory`/check."""
    plan = [ResourcePlan(RESOURCE, work.messages, work.seed)]
    build(directory / "check", plan)
    make_snapshots(directory / "check")  # each time: a run that was broken off may have left none
    forget_cached_vectors(directory / "check")


def measure_round(stores: Path, work: Work, libraries: Libraries) -> Round:
    """Start a sidecar on a copy of the store, measure everything once."""
    times, digest = Times(), Digest()
    with tempfile.TemporaryDirectory(prefix="semanticrecall-bench-") as name:
        directory = Path(name)
        shutil.copytree(stores / "check/data", directory / "data")
        for _ in range(STARTS - 1):
            start_process(libraries, times)
            with _sidecar(directory, times):
                pass
        start_process(libraries, times)
        with _sidecar(directory, times) as calls:
            answer_bytes = _warm_up(calls, work)
            with calibrating(libraries, times, directory, answer_bytes) as calibration:
                _turns(work, calls, calibration, digest)
                _blocks(work, calls, calibration, digest)
    return Round.of(times, digest.text())


class _Calls:
    """Timed calls of a sidecar, from one thread."""

    def __init__(self, channel: grpc.Channel, times: Times) -> None:
        self.times = times
        self.recall: Any = channel.unary_unary(wire_requests.RECALL)
        self.index: Any = channel.unary_unary(wire_requests.INDEX)

    def timed_recall(self, figure: Figure, request: bytes) -> list[str]:
        """The ids of the answer."""
        call = partial(self.recall, request, timeout=DEADLINE_S)
        return recalled(self.times.time(figure.name, call))

    def timed_index(self, figure: Figure, request: recall_pb2.IndexRequest, status: int) -> None:
        """Every message must get this status."""
        call = partial(self.index, request.SerializeToString(), timeout=DEADLINE_S)
        _check_indexed(self.times.time(figure.name, call), status)


@contextmanager
def _sidecar(directory: Path, times: Times) -> Iterator[_Calls]:
    with (
        processes.started(directory, "semanticrecall_server", *QUIET) as sidecar,
        grpc.insecure_channel(sidecar.address) as channel,
    ):
        times.add(START.name, sidecar.start_s)
        yield _Calls(channel, times)


def _warm_up(calls: _Calls, work: Work) -> int:
    """Returns the bytes of the longest answer."""
    requests = [_request(query) for query in work.queries()[:WARM_UP_CALLS]]
    return max(len(calls.recall(request, timeout=DEADLINE_S)) for request in requests)


def _turns(work: Work, calls: _Calls, calibration: Calibration, digest: Digest) -> None:
    texts = work.queries()[WARM_UP_CALLS:]
    for number in range(work.turns):
        query, raw, said = texts[3 * number : 3 * number + 3]
        request = _request(query)
        vector = calibration.embed(raw)
        calibration.scan(vector)
        calibration.echo(request)
        ids = calls.timed_recall(COLD, request)
        if calls.timed_recall(AGAIN, request) != ids:
            raise RuntimeError("the same query was answered differently")
        calibration.fsync()
        durable = wire_requests.turn(WRITER, number, said, types_pb2.WAIT_DURABLE, plain=True)
        calls.timed_index(DURABLE, durable, types_pb2.STATUS_NOT_EMBEDDED)
        turn = wire_requests.turn(RESOURCE, number, said, types_pb2.WAIT_SEARCHABLE)
        calls.timed_index(SEARCHABLE, turn, types_pb2.STATUS_INDEXED)
        digest.add(ids)
        digest.add(calls.timed_recall(AFTER_WRITE, request))


def _blocks(work: Work, calls: _Calls, calibration: Calibration, digest: Digest) -> None:
    texts = work.queries()[WARM_UP_CALLS + 3 * work.turns :]
    messages = work.imported()
    for block in range(work.blocks):
        mine = slice(block * work.block_calls, (block + 1) * work.block_calls)
        calibration.embed_all([message.text for message in messages[mine]])
        _import(calls, messages[mine])
        requests = [_request(query) for query in texts[mine]]
        calibration.echo_many(requests)
        seconds, answers = timed(partial(in_flight, calls.recall, requests))
        calls.times.add(MANY.name, seconds / len(requests))
        for answer in answers:
            digest.add(recalled(answer))


def _import(calls: _Calls, messages: Sequence[types_pb2.Message]) -> None:
    requests = [
        request.SerializeToString()
        for request in wire_requests.imports(IMPORTED, messages, IMPORT_BATCH)
    ]
    seconds, answers = timed(partial(in_flight, calls.index, requests))
    calls.times.add(IMPORT.name, seconds / len(messages))
    for answer in answers:
        _check_indexed(answer, types_pb2.STATUS_INDEXED)


def recalled(answer: bytes) -> list[str]:
    """The ids of an encoded answer.

    Raises:
        RuntimeError: the recall failed.
    """
    return wire_requests.recalled_ids(recall_pb2.RecallResponse.FromString(answer))


def _check_indexed(answer: bytes, status: int) -> None:
    results = recall_pb2.IndexResponse.FromString(answer).results
    if any(result.status != status for result in results):
        raise RuntimeError("a message was not indexed as it should be")


def _request(query: str) -> bytes:
    return wire_requests.recall(RESOURCE, query).SerializeToString()
