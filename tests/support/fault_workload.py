"""A mixed load of everything that writes, and recalls beside it; the model is kept here, outside.

    model = AckModel()
    workload = Workload(model, random.Random(7))
    workload.begin(sidecar.stubs)
    workload.wait_for_acks(40)
    sidecar.kill()
    workload.end()
    sidecar.start()
    model.check(sidecar.stubs)

Each worker owns its resources and, in one that all share, its threads: so that what it was answered
last decides. Texts are never used twice.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import grpc

from semanticrecall.v1 import admin_pb2, recall_pb2, types_pb2
from support.fault_model import AckModel, Message, Operation
from support.running_server import ERROR_KEY, Stubs, error_detail

WORDS = (
    "harbour lantern orchard violin glacier meadow copper saffron willow anchor pebble thunder "
    "cinnamon falcon marble ribbon velvet compass juniper quarry"
).split()
SHARED = "shared"
CALL_TIMEOUT_S = 30.0
MESSAGES_AT_ONCE_MAX = 4
FIRST_TIME_S = 1_700_000_000

REFUSALS = {
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.ALREADY_EXISTS,
}
"""After these nothing of the call may be there."""

REFUSING_REASONS = {"STARTING", "DRAINING"}
"""UNAVAILABLE says as much with these reasons."""

Weights = dict[str, int]
EVERYTHING: Weights = {
    "index": 40,
    "edit": 10,
    "recall": 20,
    "forget_messages": 8,
    "forget_thread": 4,
    "forget_everything": 1,
    "transfer": 4,
    "images": 1,
    "save": 1,
    "purge": 1,
}
SAVED_MAX = 2
"""Snapshots that one worker keeps."""


def is_refusal(error: grpc.RpcError) -> bool:
    """Whether a failed call says that nothing of it was done."""
    if error.code() in REFUSALS:
        return True
    names = {name for name, _ in error.trailing_metadata() or ()}
    return ERROR_KEY in names and error_detail(error).reason in REFUSING_REASONS


class Texts:
    """Texts that no two messages share, each with words of its own."""

    def __init__(self, chance: random.Random, name: str) -> None:
        self._chance = chance
        self._name = name
        self._count = 0

    def next(self) -> str:
        """Another one."""
        self._count += 1
        own = f"q{self._name}z{self._count}"
        return " ".join([own, *self._chance.sample(WORDS, 5), f"{own}y"])


@dataclass
class Counts:
    """What a workload did."""

    calls: Counter[str]
    errors: Counter[str]


@dataclass(frozen=True)
class WorkerPlan:
    """What a worker does."""

    name: str
    weights: Weights
    payload_bytes_max: int
    call_timeout_s: float


class Workload:
    """Workers that each send one call after the other."""

    def __init__(
        self,
        model: AckModel,
        chance: random.Random,
        *,
        workers: int = 4,
        weights: Weights = EVERYTHING,
        goes_on: bool = False,
        name: str = "",
        payload_bytes_max: int = 200,
        call_timeout_s: float = CALL_TIMEOUT_S,
    ) -> None:
        """Make the workers; nobody sends yet.

        Args:
            model: told of everything.
            chance: the only source of chance.
            workers: how many send at once.
            weights: how often which kind of call is chosen.
            goes_on: after an error that is no refusal a worker sends more, of other messages;
                otherwise it ends, since its sidecar is gone.
            name: tells workloads over one model apart; letters.
            payload_bytes_max: of a message.
            call_timeout_s: deadline of each call.
        """
        self._lock = threading.Condition()
        self.counts = Counts(Counter(), Counter())
        self.faults: list[str] = []
        self._acks = 0
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self._goes_on = goes_on
        self._answers = 0
        self._workers = [
            Worker(
                model,
                random.Random(chance.getrandbits(64)),
                WorkerPlan(f"{name}{number}", weights, payload_bytes_max, call_timeout_s),
                self._acked,
            )
            for number in range(workers)
        ]

    def begin(self, stubs: Stubs) -> None:
        """Send calls until `end`, or until the sidecar is gone."""
        self._stop.clear()
        self._acks = self._answers = 0
        self._threads = [
            threading.Thread(target=self._work, args=(worker, stubs), name="worker", daemon=True)
            for worker in self._workers
        ]
        for thread in self._threads:
            thread.start()

    def wait_for_acks(self, number: int, timeout_s: float = 60.0) -> None:
        """Wait for so many answers since `begin`, or until nobody sends any more."""
        with self._lock:
            reached = self._lock.wait_for(
                lambda: self._acks >= number or self._is_over(), timeout_s
            )
        assert reached, f"only {self._acks} of {number} acknowledgements came"

    def wait_for_answers(self, number: int, timeout_s: float = 60.0) -> None:
        """Wait for so many answers or errors since `begin`."""
        with self._lock:
            reached = self._lock.wait_for(lambda: self._answers >= number, timeout_s)
        assert reached, f"only {self._answers} of {number} calls ended"

    def end(self) -> None:
        """Wait until nobody sends any more; what was wrong with answers fails the test."""
        self._stop.set()
        for thread in self._threads:
            thread.join(2 * CALL_TIMEOUT_S)
            assert not thread.is_alive(), "a call does not end"
        assert self.faults == [], self.faults[:3]

    def _is_over(self) -> bool:
        return bool(self.faults) or not any(thread.is_alive() for thread in self._threads)

    def _acked(self, kind: str, error: str) -> None:
        with self._lock:
            self._answers += 1
            if error:
                self.counts.errors[error] += 1
            else:
                self.counts.calls[kind] += 1
                self._acks += 1
            self._lock.notify_all()

    def _work(self, worker: Worker, stubs: Stubs) -> None:
        try:
            while not self._stop.is_set():
                if not worker.step(stubs) and not self._goes_on:
                    return
        except Exception as error:
            self.faults.append(f"{type(error).__name__}: {error}")
        finally:
            with self._lock:
                self._lock.notify_all()


class Worker:
    """One caller, with messages that nobody else changes."""

    def __init__(
        self,
        model: AckModel,
        chance: random.Random,
        plan: WorkerPlan,
        tell: Callable[[str, str], None],
    ) -> None:
        name = plan.name
        self._model = model
        self._chance = chance
        self._name = name
        self._tell = tell
        self._texts = Texts(chance, name)
        self._payload_bytes_max = plan.payload_bytes_max
        self._call_timeout_s = plan.call_timeout_s
        self._kinds, self._weights = zip(*plan.weights.items(), strict=True)
        self._own = (f"a{name}", f"b{name}")
        self._scratch = f"scratch{name}"
        self._spoilt: set[tuple[str, str]] = set()
        self._number = 0
        self._saved: list[str] = []

    def step(self, stubs: Stubs) -> bool:
        """One call; False where its outcome is unknown."""
        (kind,) = self._chance.choices(self._kinds, self._weights)
        return bool(getattr(self, f"_{kind}")(stubs))

    # ---- kinds ----

    def _index(self, stubs: Stubs) -> bool:
        resource = self._chance.choice((*self._own, SHARED, self._scratch))
        thread = self._thread(resource)
        count = self._chance.randint(1, MESSAGES_AT_ONCE_MAX)
        messages = [self._made(resource, thread, self._new_id()) for _ in range(count)]
        return self._put(stubs, "index", resource, messages)

    def _edit(self, stubs: Stubs) -> bool:
        known = self._settled()
        if known is None:
            return self._index(stubs)
        old = self._chance.choice(known)
        message = self._made(old.resource_id, old.thread_id, old.id)
        message.create_time.CopyFrom(old.create_time)
        return self._put(stubs, "edit", old.resource_id, [message])

    def _recall(self, stubs: Stubs) -> bool:
        known = self._settled()
        if known is None:
            return self._index(stubs)
        message = self._chance.choice(known)
        request = recall_pb2.RecallRequest(
            resource_id=message.resource_id, query=message.text, top_k=1
        )
        answer = self._called("recall", stubs.recall.Recall, request)
        if answer is None:
            return False
        if isinstance(answer, grpc.RpcError):
            return True
        first = [m.message for m in answer.messages if m.rank == 1]
        assert [m.id for m in first] == [message.id], f"{message.id} is not first by its own text"
        assert first[0] == message, f"{message.id} is another one"
        return True

    def _forget_messages(self, stubs: Stubs) -> bool:
        known = self._settled()
        if known is None:
            return self._index(stubs)
        gone = self._chance.sample(known, min(len(known), self._chance.randint(1, 3)))
        resource = gone[0].resource_id
        ids = [message.id for message in gone]
        request = recall_pb2.ForgetRequest(resource_id=resource, message_ids={"ids": ids})
        return self._forget(stubs, "forget_messages", request, ids)

    def _forget_thread(self, stubs: Stubs) -> bool:
        known = self._settled()
        if known is None:
            return self._index(stubs)
        resource, thread = known[0].resource_id, known[0].thread_id
        ids = sorted(self._model.possible_ids(resource, thread))
        request = recall_pb2.ForgetRequest(resource_id=resource, thread_id=thread)
        return self._forget(stubs, "forget_thread", request, ids)

    def _forget_everything(self, stubs: Stubs) -> bool:
        ids = sorted(self._model.possible_ids(self._scratch))
        request = recall_pb2.ForgetRequest(resource_id=self._scratch, everything=True)
        return self._forget(stubs, "forget_everything", request, ids)

    def _purge(self, stubs: Stubs) -> bool:
        known = self._settled()
        if known is None:
            return self._index(stubs)
        one = self._chance.choice(known)
        request = recall_pb2.ForgetRequest(
            resource_id=one.resource_id, message_ids={"ids": [one.id]}, purge=True
        )
        return self._forget(stubs, "purge", request, [one.id])

    def _transfer(self, stubs: Stubs) -> bool:
        source, target = self._own
        known = self._settled(source)
        if known is None:
            return self._index(stubs)
        thread = known[0].thread_id
        if self._model.possible_ids(target, thread):
            return self._index(stubs)  # there is one of that name
        moved: dict[tuple[str, str], Message | None] = {}
        for message in self._model.messages(source, thread):
            there = Message()
            there.CopyFrom(message)
            there.resource_id = target
            moved[source, message.id] = None
            moved[target, message.id] = there
        operation = self._model.begin(moved)
        request = recall_pb2.TransferThreadRequest(
            resource_id=source, thread_id=thread, to_resource_id=target
        )
        return self._done("transfer", stubs.recall.TransferThread, request, operation)

    def _images(self, stubs: Stubs) -> bool:
        request = admin_pb2.CreateSnapshotRequest(partitions_only=True)
        return self._called("images", stubs.admin.CreateSnapshot, request) is not None

    def _save(self, stubs: Stubs) -> bool:
        if len(self._saved) >= SAVED_MAX:
            name = self._saved.pop(0)
            self._model.saved.discard(name)  # from now on nobody knows
            deleting = admin_pb2.DeleteSnapshotRequest(name=name)
            if self._called("delete", stubs.admin.DeleteSnapshot, deleting) is None:
                return False
        request = admin_pb2.CreateSnapshotRequest()
        answer = self._called("save", stubs.admin.CreateSnapshot, request)
        if isinstance(answer, admin_pb2.CreateSnapshotResponse):
            self._saved.append(answer.snapshot.name)
            self._model.saved.add(answer.snapshot.name)
        return answer is not None

    # ---- parts ----

    def _new_id(self) -> str:
        self._number += 1
        return f"m{self._name}-{self._number}"

    def _thread(self, resource: str) -> str:
        """One of its threads, of those whose messages it knows."""
        while True:
            thread = f"t{self._name}-{resource}-{self._chance.randrange(6)}-{self._number // 40}"
            if (resource, thread) not in self._spoilt:
                return thread
            self._number += 1

    def _settled(self, resource: str | None = None) -> list[Message] | None:
        """Messages of one of its threads; None where there is none whose state it knows."""
        if resource is None:
            resource = self._chance.choice((*self._own, SHARED))
        mine = [
            message
            for message in self._model.messages(resource)
            if message.id.startswith(f"m{self._name}-")
            and (resource, message.thread_id) not in self._spoilt
        ]
        if not mine:
            return None
        thread = self._chance.choice(mine).thread_id
        return [message for message in mine if message.thread_id == thread]

    def _made(self, resource: str, thread: str, message_id: str) -> Message:
        message = Message(
            id=message_id,
            thread_id=thread,
            resource_id=resource,
            role=self._chance.choice((types_pb2.ROLE_USER, types_pb2.ROLE_ASSISTANT)),
            text=self._texts.next(),
            payload=self._chance.randbytes(self._chance.randrange(self._payload_bytes_max)),
        )
        message.create_time.seconds = FIRST_TIME_S + self._number
        message.create_time.nanos = self._chance.randrange(10**9)
        message.metadata.update({"number": float(self._number), "name": self._name})
        return message

    def _put(self, stubs: Stubs, kind: str, resource: str, messages: Sequence[Message]) -> bool:
        operation = self._model.begin({(resource, message.id): message for message in messages})
        wait = self._chance.choice((types_pb2.WAIT_SEARCHABLE, types_pb2.WAIT_DURABLE))
        request = recall_pb2.IndexRequest(resource_id=resource, messages=messages, wait=wait)
        return self._done(kind, stubs.recall.Index, request, operation)

    def _forget(
        self, stubs: Stubs, kind: str, request: recall_pb2.ForgetRequest, ids: Sequence[str]
    ) -> bool:
        operation = self._model.begin({(request.resource_id, one): None for one in ids})
        return self._done(kind, stubs.recall.Forget, request, operation)

    def _done(self, kind: str, call: Any, request: Any, operation: Operation) -> bool:
        """Send what changes something, and tell the model what became of it."""
        answer = self._called(kind, call, request)
        if answer is None:
            self._spoil(operation)
            return False
        if isinstance(answer, grpc.RpcError):
            operation.failed()
            return True
        for result in getattr(answer, "results", ()):
            assert result.status != types_pb2.STATUS_REJECTED, result.error.reason
        operation.acked()
        return True

    def _spoil(self, operation: Operation) -> None:
        """Leave the threads of an unknown outcome alone."""
        for (resource, message_id), message in operation.effects.items():
            if message is not None:
                self._spoilt.add((resource, message.thread_id))
            for known in self._model.messages(resource):
                if known.id == message_id:
                    self._spoilt.add((resource, known.thread_id))

    def _called(self, kind: str, call: Any, request: Any) -> Any:
        """The answer; the error where it is a refusal; None where nobody knows."""
        try:
            answer = call(request, timeout=self._call_timeout_s)
        except grpc.RpcError as error:
            self._tell(kind, error.code().name)
            return error if is_refusal(error) else None
        self._tell(kind, "")
        return answer
