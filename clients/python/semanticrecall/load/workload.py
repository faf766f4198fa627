"""Which calls a process sends, one after the other: drawn, written out and ready to go.

The calls follow from the workload, the process's number and how many there are; not from time or
answers. What is drawn for a call, in this order: recall or index; the resource, by its share; then
for a recall whether it repeats one, or else its scope, thread, length and text.

- A recall is repeated whole, with `top_k`, range and scope, as its bytes. A process remembers the
  last 16 of each resource, for the 32,768 resources that it asked most recently; where it
  remembers none, it asks something new. `top_k` and ranges are taken in turn by new recalls.
- A text that is new holds a name that no other text of the load has. Names follow from the prefix
  of the resources too: runs whose prefixes differ find none of each other's texts in caches.
- Message ids are unique among all processes of a run; message n of a process is the user's for
  even n, the assistant's for odd n.
- A recall of one thread names one that was prepared. Where nothing was, one of the last 16 that
  this process sent messages to in that resource; where there is none, it asks the whole resource.
"""

from __future__ import annotations

import itertools
import random
import zlib
from array import array
from bisect import bisect_right
from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from ..errors import InvalidArgumentError
from ..v1 import recall_pb2, types_pb2
from .measured import Operation
from .plan import PROCESSES_MAX, Span, WaitMode, Workload
from .texts import Chat, name

REMEMBERED_PER_RESOURCE = 16
REMEMBERED_RESOURCES_MAX = 32_768
PREPARED_BATCH_MESSAGES = 100
# Of the texts of a request, beyond which no further message is added: a server takes 8 MiB at most
# by default, and a text of 20,000 words is 0.15.
PREPARED_BATCH_CHARS = 1_000_000
# Names are numbered by text and process: (text * _SENDERS) + a number for (worker, workers), which
# is below _PREPARING, so that a load that goes on with more processes makes new texts too.
_PREPARING = PROCESSES_MAX * (PROCESSES_MAX + 1)
_SENDERS = _PREPARING + 1
_ROLES = (types_pb2.ROLE_USER, types_pb2.ROLE_ASSISTANT)
_WAITS = {
    WaitMode.DURABLE: types_pb2.WAIT_DURABLE,
    WaitMode.SEARCHABLE: types_pb2.WAIT_SEARCHABLE,
}

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Call:
    """One call, as it is sent.

    Attributes:
        body: the request, serialised.
        resource: the number of the resource that it falls on, from 0.
        repeated: a recall that this process has sent before.
    """

    operation: Operation
    body: bytes
    resource: int
    repeated: bool = False


class Zipf:
    """Numbers from 0 to `choices` - 1; n is drawn with a share in proportion to (n + 1) ** -s.

    Exact: by bisection in the cumulative weights. 8 bytes for each number.
    """

    def __init__(self, choices: int, exponent: float) -> None:
        weights = ((rank + 1) ** -exponent for rank in range(choices))
        self._cumulative = array("d", itertools.accumulate(weights))

    def draw(self, draws: random.Random) -> int:
        """The next number."""
        most = len(self._cumulative) - 1
        at = draws.random() * self._cumulative[-1]
        return min(bisect_right(self._cumulative, at), most)


class Remembered:
    """The last things of each of the most recently used resources."""

    def __init__(self) -> None:
        self._by_resource: OrderedDict[int, deque[bytes]] = OrderedDict()

    def of(self, resource: int) -> Sequence[bytes]:
        """At most 16, oldest first."""
        return self._by_resource.get(resource, ())

    def add(self, resource: int, thing: bytes) -> None:
        """Remember one more, in place of the oldest of its resource or of the oldest resource."""
        if resource not in self._by_resource:
            self._by_resource[resource] = deque(maxlen=REMEMBERED_PER_RESOURCE)
            if len(self._by_resource) > REMEMBERED_RESOURCES_MAX:
                self._by_resource.popitem(last=False)
        self._by_resource.move_to_end(resource)
        self._by_resource[resource].append(thing)


class CallSequence(Iterator[Call]):
    """The calls of one process, without end.

    Raises:
        InvalidArgumentError: recalls of a thread are wanted of resources whose threads are not
            known.
    """

    def __init__(self, workload: Workload, worker: int, workers: int) -> None:
        if workload.existing_resources and workload.thread_scope_share:
            raise InvalidArgumentError.of(
                "thread_scope_share", "must be 0 with existing resources: threads are not known"
            )
        self._workload = workload
        self._worker, self._workers = worker, workers
        self._draws = random.Random(f"{workload.seed}/{worker}/{workers}")
        self._names_offset = _names_offset(workload)
        self._resources = Zipf(_resource_count(workload), workload.zipf_exponent)
        self._chat = Chat(str(workload.seed))
        self._turns = itertools.cycle(
            recall_pb2.RecallRequest(
                scope=types_pb2.SCOPE_RESOURCE,
                top_k=top_k,
                message_range=recall_pb2.MessageRange(before=before, after=after),
            )
            for before, after in workload.message_range
            for top_k in workload.top_k
        )
        self._wait = _WAITS[workload.wait]
        self._asked = Remembered()
        self._indexed_threads = Remembered()
        self._texts = itertools.count()
        self._queries = itertools.count(worker, workers)
        self._messages = itertools.count()

    def __next__(self) -> Call:
        draws, workload = self._draws, self._workload
        recalls = draws.random() < workload.recall_share
        resource = self._resources.draw(draws)
        if not recalls:
            return Call(Operation.INDEX, self._index(resource), resource)
        known = self._asked.of(resource)
        if draws.random() < workload.query_repeat_share and known:
            return Call(Operation.RECALL, _one_of(draws, known), resource, repeated=True)
        body = self._recall(resource)
        if workload.query_repeat_share:
            self._asked.add(resource, body)
        return Call(Operation.RECALL, body, resource)

    def _recall(self, resource: int) -> bytes:
        workload = self._workload
        # One message for each turn, filled again and again: to make one costs more than to fill it.
        request = next(self._turns)
        request.resource_id = resource_id(workload, resource)
        if workload.thread_scope_share:
            scoped = self._draws.random() < workload.thread_scope_share
            request.thread_id = self._known_thread(resource) if scoped else ""
            request.scope = (
                types_pb2.SCOPE_THREAD if request.thread_id else types_pb2.SCOPE_RESOURCE
            )
        request.query = self._query()
        return request.SerializeToString()

    def _query(self) -> str:
        given = self._workload.queries
        if given:
            return given[next(self._queries) % len(given)]
        words = _length(self._draws, self._workload.query_words)
        return self._chat.question(self._draws, words, self._name())

    def _known_thread(self, resource: int) -> str:
        prepared = min(self._workload.threads, self._workload.messages_before)
        if prepared:
            return _thread_id(int(self._draws.random() * prepared))
        known = self._indexed_threads.of(resource)
        return _one_of(self._draws, known).decode() if known else ""

    def _index(self, resource: int) -> bytes:
        workload = self._workload
        thread_id = _thread_id(int(self._draws.random() * workload.threads))
        request = recall_pb2.IndexRequest(
            resource_id=resource_id(workload, resource), thread_id=thread_id, wait=self._wait
        )
        for number in itertools.islice(self._messages, workload.messages_per_index):
            words = _length(self._draws, workload.message_words)
            request.messages.add(
                id=f"{self._workers}-{self._worker}-{number}",
                thread_id=thread_id,
                role=_ROLES[number % 2],
                text=self._chat.statement(self._draws, words, self._name()),
            )
        if workload.thread_scope_share and not workload.messages_before:
            self._indexed_threads.add(resource, thread_id.encode())
        return request.SerializeToString()

    def _name(self) -> str:
        sender = self._workers * PROCESSES_MAX + self._worker - PROCESSES_MAX
        return name(next(self._texts) * _SENDERS + sender, self._names_offset)


def resource_id(workload: Workload, number: int) -> str:
    """The id of the n-th resource, from 0."""
    if workload.existing_resources:
        return workload.existing_resources[number]
    return f"{workload.resource_prefix}{number + 1}"


def resource_ids(workload: Workload) -> Iterator[str]:
    """All resources that calls fall on, the most asked one first."""
    return (resource_id(workload, number) for number in range(_resource_count(workload)))


def prepared(workload: Workload, worker: int, workers: int) -> Iterator[recall_pb2.IndexRequest]:
    """What one of several processes indexes before the load: every n-th resource's messages.

    Message n of a resource is in thread n modulo `threads`. A request holds at most 100, and ends
    with the one that makes it a million characters. What is prepared for a resource does not depend
    on who prepares it. Nothing for existing resources. `wait` is the receiver's to set.
    """
    if workload.existing_resources:
        return
    chat = Chat(str(workload.seed))
    for number in range(worker, workload.resources, workers):
        draws = random.Random(f"{workload.seed}/prepared/{number}")
        request = recall_pb2.IndexRequest(resource_id=resource_id(workload, number))
        chars = 0
        for message in range(workload.messages_before):
            text = number * workload.messages_before + message
            named = name(text * _SENDERS + _PREPARING, _names_offset(workload))
            words = _length(draws, workload.message_words)
            thread = message % workload.threads
            added = request.messages.add(
                id=f"before-{message}",
                thread_id=_thread_id(thread),
                role=_ROLES[message // workload.threads % 2],
                text=chat.statement(draws, words, named),
            )
            chars += len(added.text)
            if len(request.messages) == PREPARED_BATCH_MESSAGES or chars >= PREPARED_BATCH_CHARS:
                yield request
                request = recall_pb2.IndexRequest(resource_id=request.resource_id)
                chars = 0
        if request.messages:
            yield request


def _resource_count(workload: Workload) -> int:
    return len(workload.existing_resources) or workload.resources


def _names_offset(workload: Workload) -> int:
    return zlib.crc32(f"{workload.seed}/{workload.resource_prefix}".encode())


def _thread_id(number: int) -> str:
    return f"thread-{number + 1}"


def _length(draws: random.Random, span: Span) -> int:
    return span.low + int(draws.random() * (span.high - span.low + 1))


def _one_of(draws: random.Random, things: Sequence[T]) -> T:
    return things[int(draws.random() * len(things))]
