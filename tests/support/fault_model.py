"""What must be there after a fault: a model of acknowledged operations, and its comparison.

Every operation is announced to the model before it is sent (`begin`), and told what became of it:
`acked`, `failed` (refused: nothing of it may be there), or nothing at all: the connection broke, or
the answer was one after which nobody knows. Such an operation may be there or not, but whole.

An operation is what it makes of messages: for each key, the message that is there afterwards, or
None. One key is changed by one caller at a time.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import grpc

from semanticrecall.v1 import admin_pb2, recall_pb2, types_pb2
from support.fault_sidecar import wait_until
from support.running_server import Stubs

Message = types_pb2.Message
Key = tuple[str, str]
"""Resource and message id."""

Effects = Mapping[Key, Message | None]

CALL_TIMEOUT_S = 60.0
CALLS_AT_ONCE = 64
REFUSED_MAX = 5
PAGE = 1_000
ANSWER_BYTES = 2 << 20
UNKNOWN_MAX = 12
SHOWN_MAX = 5
ONE_SIDED = (types_pb2.MODE_DENSE, types_pb2.MODE_LEXICAL)
MODES = (types_pb2.MODE_HYBRID, *ONE_SIDED)


class Operation:
    """One that was begun; tell what became of it, or leave it unknown."""

    def __init__(self, model: AckModel, effects: Effects) -> None:
        self._model = model
        self.effects = dict(effects)
        self.known = False

    def acked(self) -> None:
        """It was answered: it must be there from now on."""
        self._model._acked(self)

    def failed(self) -> None:
        """It was refused: nothing of it may be there."""
        self._model._failed(self)


@dataclass
class Checked:
    """What a check looked at."""

    messages: int = 0
    recalls: int = 0
    gone: int = 0
    unknown_there: int = 0
    unknown_absent: int = 0


@dataclass
class _State:
    """Messages by resource and id."""

    resources: dict[str, dict[str, Message]] = field(default_factory=dict)

    def apply(self, effects: Effects) -> None:
        for (resource, message_id), message in effects.items():
            inside = self.resources.setdefault(resource, {})
            if message is None:
                inside.pop(message_id, None)
            else:
                inside[message_id] = message

    def get(self, key: Key) -> Message | None:
        return self.resources.get(key[0], {}).get(key[1])

    def every_key(self) -> Iterator[Key]:
        for resource, inside in self.resources.items():
            for message_id in inside:
                yield resource, message_id


@dataclass
class _Choice:
    """What is recalled, in which modes."""

    chance: random.Random
    sample: int | None
    modes: Sequence[types_pb2.Mode]

    def of_live(self, live: list[Key], recent: set[Key]) -> list[tuple[types_pb2.Mode, Key]]:
        """All of the recent ones, in the first mode and in another one; a sample of the others."""
        if self.sample is None:
            return [(mode, key) for key in live for mode in self.modes]
        old = [key for key in live if key not in recent]
        asked = [(mode, k) for k in live if k in recent for mode in self._two()]
        sample = self.chance.sample(old, min(self.sample, len(old)))
        return asked + [(self.chance.choice(self.modes), key) for key in sample]

    def of_gone(self, gone: list[tuple[Key, str]]) -> list[tuple[Key, str]]:
        """All, or a sample."""
        if self.sample is None:
            return gone
        return self.chance.sample(gone, min(self.sample, len(gone)))

    def _two(self) -> set[types_pb2.Mode]:
        return {self.modes[0], self.chance.choice(self.modes)}


class AckModel:
    """See the module. Thread-safe, but for `check`, during which nothing else is done."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._base = _State()
        self._now = _State()
        self._log: list[Operation] = []
        self._gone: dict[Key, list[str]] = {}
        self._recent: set[Key] = set()
        self.acks = 0
        self.saved: set[str] = set()
        """Names of the saved snapshots that must be there."""

    # ---- what happens ----

    def begin(self, effects: Effects) -> Operation:
        """Before it is sent."""
        operation = Operation(self, effects)
        with self._lock:
            self._log.append(operation)
        return operation

    def _acked(self, operation: Operation) -> None:
        with self._lock:
            operation.known = True
            self._now.apply(operation.effects)
            self.acks += 1

    def _failed(self, operation: Operation) -> None:
        with self._lock:
            self._log.remove(operation)

    # ---- what is known ----

    def messages(self, resource: str, thread: str | None = None) -> list[Message]:
        """What is acknowledged to be there, in no order."""
        with self._lock:
            inside = self._now.resources.get(resource, {}).values()
            return [m for m in inside if thread is None or m.thread_id == thread]

    def possible_ids(self, resource: str, thread: str | None = None) -> set[str]:
        """Ids of messages that are there or may be."""
        found = {message.id for message in self.messages(resource, thread)}
        with self._lock:
            for operation in self._log:
                if not operation.known:
                    found |= {
                        message.id
                        for (owner, _), message in operation.effects.items()
                        if message is not None
                        and owner == resource
                        and (thread is None or message.thread_id == thread)
                    }
        return found

    def every(self) -> list[Message]:
        """What is acknowledged to be there, of all resources."""
        with self._lock:
            return [m for inside in self._now.resources.values() for m in inside.values()]

    def total(self) -> int:
        """Messages that are acknowledged to be there."""
        with self._lock:
            return sum(map(len, self._now.resources.values()))

    # ---- the comparison ----

    def check(
        self,
        stubs: Stubs,
        *,
        chance: random.Random | None = None,
        sample: int | None = None,
        embedded: bool = True,
    ) -> Checked:
        """Compare with a sidecar that serves; what was unknown is known afterwards.

        Args:
            stubs: of the sidecar.
            chance: chooses the sample.
            sample: beside all that changed since the last check so many messages are recalled, and
                so many of those that are gone, not each in every mode; None: all, in every mode.
            embedded: False where vectors cannot be stored: then words are what finds messages.

        Raises:
            AssertionError: something is lost, half there, came back, or is nobody's.
        """
        checked = Checked()
        if embedded:
            pending_done(stubs)
        actual = _State()
        for resource in self._resources():
            actual.resources[resource] = {m.id: m for m in exported(stubs, resource)}
        self._resolve(actual, checked)
        self._must_equal(actual)
        checked.messages = self.total()
        self._check_stats(stubs)
        for resource in self._resources():
            self._check_reads(stubs, resource)
        modes = MODES if embedded else (types_pb2.MODE_LEXICAL,)
        self._check_recalls(stubs, _Choice(chance or random.Random(0), sample, modes), checked)
        names = stubs.admin.ListSnapshots(admin_pb2.ListSnapshotsRequest(), timeout=CALL_TIMEOUT_S)
        missing = self.saved - {snapshot.name for snapshot in names.snapshots}
        assert not missing, f"saved snapshots are lost: {sorted(missing)}"
        findings = verified(stubs)
        assert findings == [], findings[:SHOWN_MAX]
        self._base = actual
        self._recent = set()
        return checked

    def _resources(self) -> list[str]:
        named = {owner for operation in self._log for owner, _ in operation.effects}
        return sorted({*named, *self._now.resources})

    def _resolve(self, actual: _State, checked: Checked) -> None:
        """Find out which of the unknown operations are there; no other state may be."""
        before = {key: m.text for key in self._base.every_key() if (m := self._base.get(key))}
        for operations in _related(self._log):
            keys = {key for operation in operations for key in operation.effects}
            unknown = [operation for operation in operations if not operation.known]
            assert len(unknown) <= UNKNOWN_MAX, "too many operations of unknown outcome at once"
            found = {key: _bytes(actual.get(key)) for key in keys}
            for choice in product((True, False), repeat=len(unknown)):
                done = {
                    id(operation)
                    for operation, is_done in zip(unknown, choice, strict=True)
                    if is_done
                }
                state = _State()
                state.apply({key: self._base.get(key) for key in keys})
                for operation in operations:
                    if operation.known or id(operation) in done:
                        state.apply(operation.effects)
                if all(_bytes(state.get(key)) == found[key] for key in keys):
                    checked.unknown_there += sum(choice)
                    checked.unknown_absent += len(unknown) - sum(choice)
                    break
            else:
                raise AssertionError(_no_state(keys, found, unknown))
            self._now.apply({key: state.get(key) for key in keys})
        for operation in self._log:
            for key, message in operation.effects.items():
                self._recent.add(key)
                texts = self._gone.setdefault(key, [])
                texts += [t for t in (before.get(key), message.text if message else None) if t]
        self._log.clear()
        for key in self._recent:
            live = self._now.get(key)
            self._gone[key] = [
                t for t in dict.fromkeys(self._gone[key]) if not live or t != live.text
            ]

    def _must_equal(self, actual: _State) -> None:
        expected = {key: _bytes(self._now.get(key)) for key in self._now.every_key()}
        found = {key: _bytes(actual.get(key)) for key in actual.every_key()}
        lost = sorted(expected.keys() - found.keys())
        extra = sorted(found.keys() - expected.keys())
        other = sorted(key for key in expected.keys() & found.keys() if expected[key] != found[key])
        said = (
            f"{len(lost)} acknowledged messages are lost {lost[:SHOWN_MAX]}, "
            f"{len(extra)} are there that must not be {extra[:SHOWN_MAX]}, "
            f"{len(other)} differ {other[:SHOWN_MAX]}"
        )
        is_same = not lost and not extra and not other
        assert is_same, said

    def _check_stats(self, stubs: Stubs) -> None:
        stats = stubs.admin.GetStats(admin_pb2.GetStatsRequest(), timeout=CALL_TIMEOUT_S)
        inside = [list(found.values()) for found in self._now.resources.values()]
        assert stats.messages == sum(map(len, inside)), "GetStats counts other messages"
        threads = sum(len({m.thread_id for m in messages}) for messages in inside)
        assert stats.threads == threads, "GetStats counts other threads"

    def _check_reads(self, stubs: Stubs, resource: str) -> None:
        """Lists, threads and reads by id say the same."""
        expected = self._now.resources.get(resource, {})
        assert {m.id: _bytes(m) for m in listed(stubs, resource)} == {
            message_id: _bytes(message) for message_id, message in expected.items()
        }, f"ListMessages of {resource} says something else"
        counts: dict[str, int] = {}
        for message in expected.values():
            counts[message.thread_id] = counts.get(message.thread_id, 0) + 1
        assert threads_of(stubs, resource) == counts, f"ListThreads of {resource} is wrong"
        for some in _fitting(list(expected.values())):
            request = recall_pb2.GetMessagesRequest(
                resource_id=resource, message_ids=[message.id for message in some]
            )
            got = stubs.recall.GetMessages(request, timeout=CALL_TIMEOUT_S)
            assert [_bytes(m) for m in got.messages] == [_bytes(m) for m in some]

    def _check_recalls(self, stubs: Stubs, choice: _Choice, checked: Checked) -> None:
        """Each by its own text at rank 1; what is gone by none, and nothing of anybody else."""
        live = [key for key in self._now.every_key() if (m := self._now.get(key)) and m.text]
        gone = [(key, text) for key, texts in self._gone.items() for text in texts]
        asked = choice.of_live(live, self._recent)
        gone = choice.of_gone(gone)
        requests = [self._by_own_text(key, mode) for mode, key in asked]
        for (mode, key), answer in zip(asked, recalled(stubs, requests), strict=True):
            first = [m.message.id for m in answer.messages if m.rank == 1]
            assert first == [key[1]], f"{key} is not first by its own text in {mode}: {first}"
            self._must_be_ours(key[0], answer)
        lost = [(mode, key, text) for key, text in gone for mode in ONE_SIDED]
        requests = [
            recall_pb2.RecallRequest(
                resource_id=key[0], query=text, top_k=3, ranking={"mode": mode}
            )
            for mode, key, text in lost
        ]
        for (_, key, _), answer in zip(lost, recalled(stubs, requests), strict=True):
            self._must_be_ours(key[0], answer)
        checked.recalls, checked.gone = len(asked), len(lost)
        for key in sorted({key for key, _ in gone} - set(self._now.every_key())):
            assert not is_there(stubs, key), f"{key} was forgotten and can be read"

    def _by_own_text(self, key: Key, mode: types_pb2.Mode) -> recall_pb2.RecallRequest:
        message = self._now.get(key)
        assert message is not None
        return recall_pb2.RecallRequest(
            resource_id=key[0], query=message.text, top_k=1, ranking={"mode": mode}
        )

    def _must_be_ours(self, resource: str, answer: recall_pb2.RecallResponse) -> None:
        for one in answer.messages:
            expected = self._now.get((resource, one.message.id))
            assert expected is not None, f"{one.message.id} came back to {resource}"
            assert _bytes(one.message) == _bytes(expected), f"an older {one.message.id} came back"


def _fitting(messages: Sequence[Message]) -> Iterator[list[Message]]:
    """Messages in parts that one answer has room for."""
    part: list[Message] = []
    room = ANSWER_BYTES
    for message in messages:
        if part and (len(part) == PAGE or message.ByteSize() > room):
            yield part
            part, room = [], ANSWER_BYTES
        part.append(message)
        room -= message.ByteSize()
    if part:
        yield part


def _related(log: Sequence[Operation]) -> list[list[Operation]]:
    """Operations that share keys, in order, of those groups that hold an unknown one."""
    group_of: dict[Key, int] = {}
    groups: dict[int, list[Operation]] = {}
    for number, operation in enumerate(log):
        touched = {group_of[key] for key in operation.effects if key in group_of}
        members = [one for group in sorted(touched) for one in groups.pop(group)]
        groups[number] = [*members, operation]
        for one in groups[number]:
            for key in one.effects:
                group_of[key] = number
    order = {id(operation): place for place, operation in enumerate(log)}
    return [
        sorted(group, key=lambda one: order[id(one)])
        for group in groups.values()
        if not all(one.known for one in group)
    ]


def _no_state(keys: Iterable[Key], found: Mapping[Key, bytes], unknown: Sequence[Operation]) -> str:
    there = sorted(key for key in keys if found[key])
    told = [sorted(operation.effects) for operation in unknown]
    return f"half an operation: {there[:20]} are there, of unknown outcome were {told[:SHOWN_MAX]}"


def _bytes(message: Message | None) -> bytes:
    return b"" if message is None else message.SerializeToString(deterministic=True)


# ---- calls ----


def pending_done(stubs: Stubs) -> None:
    """Wait until every message has its vectors."""

    def is_done() -> bool:
        stats = stubs.admin.GetStats(admin_pb2.GetStatsRequest(), timeout=CALL_TIMEOUT_S)
        return int(stats.pending) == 0

    wait_until(is_done, CALL_TIMEOUT_S)


def exported(stubs: Stubs, resource: str) -> list[Message]:
    """All messages of a resource, by Export."""
    request = admin_pb2.ExportRequest(resource_id=resource)
    return [one.message for one in stubs.admin.Export(request, timeout=CALL_TIMEOUT_S)]


def listed(stubs: Stubs, resource: str) -> list[Message]:
    """All messages of a resource, by pages."""
    found: list[Message] = []
    token = ""
    while True:
        page = stubs.recall.ListMessages(
            recall_pb2.ListMessagesRequest(resource_id=resource, page_size=PAGE, page_token=token),
            timeout=CALL_TIMEOUT_S,
        )
        found += page.messages
        token = page.next_page_token
        if not token:
            return found


def threads_of(stubs: Stubs, resource: str) -> dict[str, int]:
    """Threads of a resource, and how many messages each has."""
    found: dict[str, int] = {}
    token = ""
    while True:
        page = stubs.recall.ListThreads(
            recall_pb2.ListThreadsRequest(resource_id=resource, page_size=PAGE, page_token=token),
            timeout=CALL_TIMEOUT_S,
        )
        found |= {thread.thread_id: thread.messages for thread in page.threads}
        token = page.next_page_token
        if not token:
            return found


def is_there(stubs: Stubs, key: Key) -> bool:
    """Whether GetMessages finds it."""
    request = recall_pb2.GetMessagesRequest(resource_id=key[0], message_ids=[key[1]])
    try:
        stubs.recall.GetMessages(request, timeout=CALL_TIMEOUT_S)
    except grpc.RpcError as error:
        if error.code() is not grpc.StatusCode.NOT_FOUND:
            raise
        return False
    return True


def recalled(
    stubs: Stubs, requests: Sequence[recall_pb2.RecallRequest]
) -> list[recall_pb2.RecallResponse]:
    """Answers in order; many calls at once, which a slow server may refuse for want of room."""
    answers: list[Any] = []
    for start in range(0, len(requests), CALLS_AT_ONCE):
        calls = [
            stubs.recall.Recall.future(request, timeout=CALL_TIMEOUT_S)
            for request in requests[start : start + CALLS_AT_ONCE]
        ]
        answers += [
            _answered(stubs, request, call)
            for request, call in zip(requests[start : start + CALLS_AT_ONCE], calls, strict=True)
        ]
    return answers


def _answered(stubs: Stubs, request: recall_pb2.RecallRequest, call: Any) -> Any:
    """What comes of a call; a refused one is made again, when those before it have ended."""
    for _ in range(REFUSED_MAX):
        try:
            return call.result()
        except grpc.RpcError as error:
            if error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED:
                raise
        call = stubs.recall.Recall.future(request, timeout=CALL_TIMEOUT_S)
    return call.result()


def verified(stubs: Stubs) -> list[str]:
    """What Verify finds, as kinds with their details."""
    events = stubs.admin.Verify(admin_pb2.VerifyRequest(), timeout=CALL_TIMEOUT_S)
    return [
        f"{event.finding.kind}: {event.finding.detail}"
        for event in events
        if event.WhichOneof("event") == "finding"
    ]
