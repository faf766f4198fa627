"""Answers of Recall that may be given again, kept until anything of their resource changes.

An agent recalls before each model call of a turn, with the same words each time, and nothing is
indexed before the turn is over. Such a request needs no search: an answer depends on the request
and on what its resource holds, and on nothing else (no other resource; where it depends on the
clock, as with `recency_weight`, it is not kept).

Promises:
  - What is given again is what would be found now. The record's writer reports a change of a
    resource before it answers whoever made it (`CommitListener.resource_changed`); from then on no
    answer is given that was begun before.
  - Nothing of a forgotten message is left here when Forget answers.
  - A request is known by a 256-bit hash of all its fields that matter: no query is kept.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from dataclasses import dataclass

from semanticrecall.v1 import recall_pb2

ANSWERS_OF_A_RESOURCE_MAX = 64
SHARE_OF_ONE_ANSWER = 16
"""An answer larger than this part of the whole room is not kept."""

ANSWER_OVERHEAD_BYTES = 400
RESOURCE_OVERHEAD_BYTES = 1_000
_DIGEST_BYTES = 32


@dataclass(frozen=True, slots=True)
class KeptAnswer:
    """What of an answer does not depend on when it is given.

    Attributes:
        messages: the encoded fields `messages` and `context_text` of RecallResponse.
        info: an encoded RecallInfo without `pending`, `cache_hit`, `answer_cache_hit`, `timings`.
    """

    messages: bytes
    info: bytes

    def nbytes(self) -> int:
        """Roughly the memory it takes."""
        return len(self.messages) + len(self.info) + ANSWER_OVERHEAD_BYTES


class ResourceAnswers:
    """The answers of one resource as it is now. `is_current` ends with the first change."""

    __slots__ = ("answers", "is_current", "nbytes")

    def __init__(self) -> None:
        self.answers: OrderedDict[bytes, KeptAnswer] = OrderedDict()
        self.nbytes = RESOURCE_OVERHEAD_BYTES
        self.is_current = True


@dataclass(frozen=True, slots=True)
class AnswerCacheStats:
    """State of the cache."""

    answers: int
    bytes: int
    hits: int


class AnswerCache:
    """Least recently used resources are dropped first. Thread-safe; every method is quick."""

    def __init__(self, bytes_max: int) -> None:
        """`bytes_max`: memory of all answers; 0 keeps none."""
        self._bytes_max = bytes_max
        self._lock = threading.Lock()
        self._resources: OrderedDict[str, ResourceAnswers] = OrderedDict()
        self._bytes = 0
        self._hits = 0

    def get(self, resource_id: str, key: bytes) -> KeptAnswer | None:
        """The answer to a request, if it would be the same now."""
        with self._lock:
            known = self._resources.get(resource_id)
            answer = None if known is None else known.answers.get(key)
            if known is None or answer is None:
                return None
            self._resources.move_to_end(resource_id)
            known.answers.move_to_end(key)
            self._hits += 1
            return answer

    def has(self, resource_id: str, key: bytes) -> bool:
        """Whether `get` would give an answer now."""
        with self._lock:
            known = self._resources.get(resource_id)
            return known is not None and key in known.answers

    def begin(self, resource_id: str) -> ResourceAnswers:
        """Where an answer belongs that is begun now; taken before the record is read."""
        with self._lock:
            known = self._resources.get(resource_id)
            if known is None:
                known = self._resources[resource_id] = ResourceAnswers()
                self._bytes += known.nbytes
                self._make_room()
            return known

    def put(self, place: ResourceAnswers, key: bytes, answer: KeptAnswer) -> None:
        """Keep an answer, unless its resource has changed since `begin`."""
        size = answer.nbytes()
        if size > self._bytes_max // SHARE_OF_ONE_ANSWER:
            return
        with self._lock:
            if not place.is_current:
                return
            before = place.nbytes
            replaced = place.answers.pop(key, None)
            place.answers[key] = answer
            place.nbytes += size - (0 if replaced is None else replaced.nbytes())
            if len(place.answers) > ANSWERS_OF_A_RESOURCE_MAX:
                place.nbytes -= place.answers.popitem(last=False)[1].nbytes()
            self._bytes += place.nbytes - before
            self._make_room()

    def resource_changed(self, resource_id: str) -> None:
        """No answer of this resource begun before now is given any more."""
        with self._lock:
            known = self._resources.pop(resource_id, None)
            if known is not None:
                self._drop(known)

    def everything_changed(self) -> None:
        """No answer begun before now is given any more."""
        with self._lock:
            known, self._resources = self._resources, OrderedDict()
            for resource in known.values():
                self._drop(resource)

    def stats(self) -> AnswerCacheStats:
        """State now, and hits since the start."""
        with self._lock:
            answers = sum(len(known.answers) for known in self._resources.values())
            return AnswerCacheStats(answers, self._bytes, self._hits)

    def _make_room(self) -> None:
        while self._bytes > self._bytes_max and self._resources:
            self._drop(self._resources.popitem(last=False)[1])

    def _drop(self, known: ResourceAnswers) -> None:
        known.is_current = False
        self._bytes -= known.nbytes
        known.answers.clear()


def request_key(request: recall_pb2.RecallRequest) -> bytes:
    """Identity of what is asked: the same key, the same answer for the same record.

    The id, the time and the read token of a request say nothing about its answer. The request is
    as it was when this returns.
    """
    request_id, timeout_ms, read_token = request.request_id, request.timeout_ms, request.read_token
    if request_id:
        request.request_id = ""
    if timeout_ms:
        request.timeout_ms = 0
    if read_token:
        request.read_token = ""
    encoded = request.SerializeToString(deterministic=True)
    if request_id:
        request.request_id = request_id
    if timeout_ms:
        request.timeout_ms = timeout_ms
    if read_token:
        request.read_token = read_token
    return hashlib.blake2b(encoded, digest_size=_DIGEST_BYTES).digest()
