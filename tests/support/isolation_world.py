"""Resources with hostile ids on one server, what each of them holds, and calls that are watched.

Every call names the resource that makes it. Whatever comes back (answers, error texts, trailers)
must hold no canary of another resource and no message of another owner.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.message import Message

from semanticrecall.v1 import recall_pb2, types_pb2
from semanticrecall_server.assembly import default_parts
from support.fake_embedder import FakeEmbedder
from support.isolation_ids import COMMON_IDS, HOSTILE_IDS, Holders, canaries_in, canary
from support.running_server import InProcessServer, running
from support.wire_memory import said

CALL_SECONDS = 60.0
NOON_NS = 1_700_000_000_000_000_000
SECOND_NS = 1_000_000_000
WORDS = "rex turkey vault code seven garden harbour blue nine meeting lamp river".split()
ADMIN = {"GetStats", "Verify", "Export", "CreateSnapshot", "ListSnapshots"}
STREAMED = {"Verify", "Export"}
MARKS_OF_AN_OPERATION = 256
SHOWN_CHARS = 60


@dataclass(frozen=True)
class Outcome:
    """What a call came to: its answers, or how it failed."""

    code: grpc.StatusCode
    answers: tuple[Any, ...] = ()
    error: bytes = b""

    @property
    def answer(self) -> Any:
        """The one answer of a call that must have succeeded."""
        assert self.code is grpc.StatusCode.OK, self
        assert len(self.answers) == 1
        return self.answers[0]

    def as_bytes(self, *own: str) -> bytes:
        """All that can be told from it but for these ids, which the caller sent, times, and
        whether the resource itself has asked the same before."""
        parts = [self.code.name.encode(), self.error]
        for answer in self.answers:
            timeless = type(answer)()
            timeless.CopyFrom(answer)
            if isinstance(timeless, recall_pb2.RecallResponse):
                for member in ("timings", "cache_hit", "answer_cache_hit"):
                    timeless.info.ClearField(member)
            if isinstance(timeless, recall_pb2.ForgetResponse):
                timeless.ClearField("purge_due_time")
            parts.append(timeless.SerializeToString(deterministic=True))
        whole = b"\0".join(parts)
        for sent in own:
            whole = whole.replace(sent.encode(), b"~")
        return whole


@dataclass
class Memory:
    """What one resource holds: its messages by id."""

    resource: str
    messages: dict[str, types_pb2.Message] = field(default_factory=dict)
    given_away: set[str] = field(default_factory=set)
    read_token: str = ""

    @property
    def threads(self) -> dict[str, int]:
        """Messages of each thread."""
        counts: dict[str, int] = {}
        for message in self.messages.values():
            counts[message.thread_id] = counts.get(message.thread_id, 0) + 1
        return counts

    def embedded(self, *excluded: str) -> int:
        """Messages that have a vector."""
        return sum(
            bool(message.text) and message.role in (types_pb2.ROLE_USER, types_pb2.ROLE_ASSISTANT)
            for message in self.messages.values()
            if message.id not in excluded
        )


class Operation:
    """One step: its own random numbers, and canaries that nothing else has.

    The same seed and number give the same ones, whatever runs beside it.
    """

    def __init__(self, world: World, number: int, resource: str) -> None:
        self.world = world
        self.number = number
        self.rng = random.Random(f"{world.seed}/{number}")
        self.memory = world.memories[resource]
        self._marks = 0

    @property
    def resource(self) -> str:
        """Who acts."""
        return self.memory.resource

    def mark(self) -> str:
        """A canary of the acting resource."""
        number = self.number * MARKS_OF_AN_OPERATION + self._marks
        self._marks += 1
        assert self._marks < MARKS_OF_AN_OPERATION
        return self.world.holders.give(canary(number), self.resource)

    def words(self, most: int = 5) -> str:
        """Words that many messages of all resources have."""
        return " ".join(self.rng.choices(WORDS, k=self.rng.randint(1, most)))

    def ask(self, rpc: str, request: Message) -> Outcome:
        """Make a call as the acting resource."""
        return self.world.ask(self.resource, rpc, request)

    def fails(self, why: str) -> AssertionError:
        """What to raise."""
        return AssertionError(f"{why}; {self.world.replay(self.number)}")

    def expect(self, holds: bool, why: str, *shown: object) -> None:
        """Fail with what replays it."""
        if not holds:
            raise self.fails(f"{why}: " + ", ".join(repr(one)[:2000] for one in shown))

    def message(self, thread: str) -> types_pb2.Message:
        """A new message with a canary in every field, under an id of its own or of everybody's."""
        mark = self.mark()
        message_id = self.rng.choice(COMMON_IDS)
        if message_id in self.memory.given_away or self.rng.random() < 0.6:
            message_id = f"{self.rng.choice(HOSTILE_IDS)[:SHOWN_CHARS]}{self.mark()}"
        role = self.rng.choices((1, 2, 3, 4), (5, 3, 1, 1))[0]
        message = said(
            message_id,
            f"{self.words()} {mark}" if self.rng.random() < 0.9 else "",
            at=NOON_NS + self.number * SECOND_NS + self._marks,
            role=types_pb2.Role.Name(role),  # type: ignore[arg-type]
            metadata={"kind": self.rng.choice("ab"), f"key{mark}": mark, "number": self.number},
            author=self.rng.choice(("", "Ann", f"Ann {mark}")),
            payload=f"payload {mark}".encode(),
            payload_type=mark,
        )
        if self.rng.random() < 0.2:
            message.group_id = f"{thread[:SHOWN_CHARS]}{mark}"
        message.thread_id = thread
        message.resource_id = self.resource
        return message

    def thread(self) -> str:
        """A thread to write to: one that is there, one of everybody's, or one of its own."""
        usable = [t for t in (*self.memory.threads, *COMMON_IDS) if t not in self._given_threads()]
        if self.rng.random() < 0.2 or not usable:
            return f"{self.rng.choice(HOSTILE_IDS)[:SHOWN_CHARS]}{self.mark()}"
        return self.rng.choice(sorted(usable))

    def _given_threads(self) -> set[str]:
        return self.memory.given_away


class World:
    """A server with its resources. `start` it; `restart` keeps the data directory."""

    def __init__(self, directory: Path, seed: int, resources: int) -> None:
        self.directory = directory
        self.seed = seed
        self.holders = Holders()
        names = random.Random(seed).sample(HOSTILE_IDS, resources)
        self.memories = {name: Memory(name) for name in names}
        self.server: InProcessServer
        self.calls = 0
        self._counting = threading.Lock()
        self._running = ExitStack()
        self._starts = 0

    def start(self) -> None:
        """Serve; every other time with little memory, where partitions are read from images."""
        memory = ("default", "low")[self._starts % 2]
        self._starts += 1
        self.server = self._running.enter_context(
            running(
                self.directory,
                default_parts(lambda settings: FakeEmbedder()),
                memory=memory,
                snapshot_interval_ms=200,
            )
        )

    def stop(self) -> None:
        """Stop; its log must give nobody away."""
        server = self.server
        self._running.close()
        self.look_through("the log", server.log_text.encode())

    def restart(self) -> None:
        """Stop and start over the same files."""
        self.stop()
        self.start()

    def count(self, calls: int) -> None:
        """Note calls, or requests on a stream."""
        with self._counting:
            self.calls += calls

    def replay(self, number: int) -> str:
        """What to run again after a failure."""
        return f"seed {self.seed}, operation {number}, data in {self.directory / 'data'}"

    def ask(self, reader: str, rpc: str, request: Message) -> Outcome:
        """Make a call and look through what comes back."""
        self.count(1)
        stub = self.server.admin if rpc in ADMIN else self.server.recall
        sent = request.SerializeToString()
        try:
            got = getattr(stub, rpc)(request, timeout=CALL_SECONDS)
            outcome = Outcome(grpc.StatusCode.OK, tuple(got) if rpc in STREAMED else (got,))
        except grpc.RpcError as error:
            outcome = Outcome(error.code(), error=_error_bytes(error))  # type: ignore[attr-defined]
        for answer in outcome.answers:
            self.check(reader, rpc, sent, answer)
        strange = self.holders.foreign(outcome.error, reader, sent)
        assert not strange, (rpc, "error", reader[:SHOWN_CHARS], strange, self.seed)
        return outcome

    def check(self, reader: str, rpc: str, sent: bytes, answer: Message) -> None:
        """Nothing in an answer is somebody else's."""
        strange = self.holders.foreign(answer.SerializeToString(), reader, sent)
        assert not strange, (rpc, reader[:SHOWN_CHARS], strange, self.replay(-1))
        for message in messages_in(answer):
            assert message.resource_id == reader, (rpc, reader, message.resource_id)

    def look_through(self, what: str, data: bytes) -> None:
        """No canary at all, and no resource's id that could not be there by chance."""
        found = canaries_in(data)
        assert not found, (what, found, self.seed)
        for name in self.memories:
            if len(name) > 3 and not name.isalnum():
                assert name.encode() not in data, (what, name, self.seed)


def messages_in(answer: Message) -> Iterator[types_pb2.Message]:
    """All messages of an answer, wherever they are in it."""
    if isinstance(answer, types_pb2.Message):
        yield answer
        return
    for descriptor, value in answer.ListFields():
        if descriptor.message_type is None or descriptor.message_type.GetOptions().map_entry:
            continue
        for part in value if descriptor.is_repeated else (value,):
            yield from messages_in(part)


def _error_bytes(error: Any) -> bytes:
    """Everything that a failed call tells, times excepted."""
    trailers = [
        key.encode() + (value if isinstance(value, bytes) else value.encode())
        for key, value in sorted(error.trailing_metadata() or ())
    ]
    return b"\0".join([(error.details() or "").encode(), *trailers])
