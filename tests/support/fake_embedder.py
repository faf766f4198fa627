"""A deterministic embedder for tests: shared words make near vectors, and faults on demand.

A text's vector is the sum of one pseudo-random unit vector per word (drawn from the word's
BLAKE2b digest), brought to unit length. Texts are NFC-normalised and case-folded first. Windows
are counted in words, so that a test can force many chunks with a short text.
"""

from __future__ import annotations

import hashlib
import re
import threading
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from semanticrecall_core.types.errors import EmbeddingFailedError, InvalidArgumentError
from semanticrecall_core.types.stats import (
    CacheStats,
    SchedulerStats,
)
from semanticrecall_core.types.values import (
    CallBudget,
    EmbeddedText,
    EmbedRole,
)

FloatRows = NDArray[np.float32]

_WORD = re.compile(r"\w+|[^\w\s]")
_POLL_SECONDS = 0.005


@lru_cache(maxsize=20_000)
def word_vector(word: str, dimensions: int) -> NDArray[np.float64]:
    """The unit vector of one word; float64, shape (dimensions,), read-only."""
    seed = int.from_bytes(hashlib.blake2b(word.encode(), digest_size=8).digest(), "little")
    vector = np.random.Generator(np.random.PCG64(seed)).standard_normal(dimensions)
    vector /= np.linalg.norm(vector)
    vector.flags.writeable = False
    return vector


def words_of(text: str) -> list[str]:
    """The words a text counts as, in order."""
    visible = "".join(c for c in text if unicodedata.category(c) not in ("Cc", "Cf") or c.isspace())
    return _WORD.findall(unicodedata.normalize("NFC", visible).casefold())


def text_vector(text: str, dimensions: int) -> FloatRows:
    """The vector that `FakeEmbedder` gives a text that fits one window."""
    rows = np.stack([word_vector(word, dimensions) for word in words_of(text)])
    total: NDArray[np.float64] = rows.sum(axis=0)
    return (total / np.linalg.norm(total)).astype(np.float32)


@dataclass(slots=True)
class Gate:
    """Holds a run up: `entered` is set when the run has begun, and it ends after `release`."""

    entered: threading.Event = field(default_factory=threading.Event)
    release: threading.Event = field(default_factory=threading.Event)


class FakeEmbedder:
    """Implements the `Embedder` port.

    Attributes:
        healthy: as the port's; nothing follows from it here.
        runs: how often a window was computed.
        texts_run: the windows computed, in order.
    """

    def __init__(
        self,
        dimensions: int = 64,
        *,
        generation: str = "fake-words@1",
        window_words: int = 64,
        overlap_words: int = 8,
    ) -> None:
        assert 0 <= overlap_words < window_words
        self.dimensions = dimensions
        self.generation = f"{generation}/{dimensions}"
        self.index_identity = self.generation
        self.device = "cpu"
        self.healthy = True
        self.passages_at_once = 2
        self.runs = 0
        self.texts_run: list[str] = []
        self._window = window_words
        self._step = window_words - overlap_words
        self._lock = threading.Lock()
        self._cache: dict[tuple[str, str], FloatRows] = {}
        self._flights: dict[tuple[str, str], threading.Event] = {}
        self._failures: dict[str, tuple[Exception, int | None]] = {}
        self._bad: dict[str, float] = {}
        self._gates: dict[str, Gate] = {}
        self._hits = 0
        self._misses = 0

    # Faults on demand ---------------------------------------------------------------------------

    def fail_on(
        self, text: str, error: Exception | None = None, *, times: int | None = None
    ) -> None:
        """Raise for this text (EmbeddingFailedError by default), always or so many times."""
        self._failures[text] = (error or EmbeddingFailedError("the model failed"), times)

    def fail_everything(self, error: Exception | None = None) -> None:
        """Raise for every text until `heal`: the embedder is down."""
        self.fail_on("*", error)

    def return_nan_on(self, text: str) -> None:
        """Break the port's promise: give this text a vector of NaN."""
        self._bad[text] = float("nan")

    def return_zeros_on(self, text: str) -> None:
        """Break the port's promise: give this text a vector of zeros."""
        self._bad[text] = 0.0

    def block_on(self, text: str) -> Gate:
        """Hold runs of this text up until the gate is released or their budget ends."""
        return self._gates.setdefault(text, Gate())

    def heal(self) -> None:
        """End every fault; release every gate."""
        self._failures.clear()
        self._bad.clear()
        for gate in self._gates.values():
            gate.release.set()
        self._gates = {}

    # The port -----------------------------------------------------------------------------------

    def embed_query(self, text: str, budget: CallBudget, owner: str = "") -> EmbeddedText:
        """One vector; words past the window are cut."""
        return self.embed_window(text, EmbedRole.QUERY, budget, owner)

    def embed_queries(
        self, texts: Sequence[str], budget: CallBudget, owner: str = ""
    ) -> list[EmbeddedText]:
        """One after the other."""
        return [self.embed_query(text, budget, owner) for text in texts]

    def queries_to_compute(self, texts: Sequence[str], owner: str = "") -> int:
        """Those of one window that are cached are known."""
        return sum((owner, text) not in self._cache for text in texts)

    def count_tokens(self, texts: Sequence[str]) -> list[int]:
        """A word is a token."""
        return [len(words_of(text)) for text in texts]

    def cut_to_tokens(self, text: str, tokens_max: int) -> str:
        """Up to the end of the last word that has room."""
        if len(words_of(text)) <= tokens_max:
            return text
        ends = [found.end() for found in _WORD.finditer(text)]
        beginnings = [text[:end] for end in ends if len(words_of(text[:end])) <= tokens_max]
        return beginnings[-1] if beginnings else ""

    def embed_window(
        self, text: str, role: EmbedRole, budget: CallBudget, owner: str = ""
    ) -> EmbeddedText:
        """The first window's vector; both roles are alike."""
        del role
        words = self._checked_words(text)
        cut = len(words) > self._window
        window = " ".join(words[: self._window]) if cut else text
        row, computed = self._row(window, text, budget, owner)
        tokens = min(len(words), self._window) + 2
        return EmbeddedText(row[np.newaxis], tokens, cut, int(computed), int(not computed))

    def embed_passage(self, text: str, budget: CallBudget, owner: str = "") -> EmbeddedText:
        """One vector per window of words."""
        windows = self._windows(text)
        rows, computed = [], 0
        for window in windows:
            row, fresh = self._row(window, text, budget, owner)
            rows.append(row)
            computed += fresh
        tokens = sum(len(words_of(window)) + 2 for window in windows)
        return EmbeddedText(np.stack(rows), tokens, False, computed, len(rows) - computed)

    def forget_texts(self, texts: Sequence[str], owner: str = "") -> int:
        """Drop the owner's cached windows of these texts."""
        with self._lock:
            gone = {w for text in texts if words_of(text) for w in (text, *self._windows(text))}
            return sum(self._cache.pop((owner, window), None) is not None for window in gone)

    def forget_owner(self, owner: str) -> int:
        """Drop all of the owner's cached windows."""
        with self._lock:
            gone = [key for key in self._cache if key[0] == owner]
            for key in gone:
                del self._cache[key]
            return len(gone)

    def erase_forgotten(self) -> bool:
        """There are no files."""
        return True

    def close(self) -> None:
        """There is nothing to let go of."""

    def cache_stats(self) -> CacheStats:
        """Counters so far; bytes are those of the vectors."""
        with self._lock:
            size = sum(row.nbytes for row in self._cache.values())
            return CacheStats(len(self._cache), size, self._hits, self._misses, 0)

    def scheduler_stats(self) -> SchedulerStats:
        """Nothing ever waits."""
        with self._lock:
            return SchedulerStats(batches=self.runs, batched_texts=self.runs)

    # Inside -------------------------------------------------------------------------------------

    @staticmethod
    def _checked_words(text: str) -> list[str]:
        words = words_of(text)
        if not words:
            raise InvalidArgumentError.of("text", "has nothing to embed")
        return words

    def _windows(self, text: str) -> list[str]:
        words = self._checked_words(text)
        if len(words) <= self._window:
            return [text]
        starts = range(0, len(words) - self._window + self._step, self._step)
        return [" ".join(words[start : start + self._window]) for start in starts]

    def window_vectors(self, text: str) -> FloatRows:
        """The vectors of a passage, computed and not kept; nothing is counted."""
        return np.stack([text_vector(window, self.dimensions) for window in self._windows(text)])

    def _row(
        self, window: str, text: str, budget: CallBudget, owner: str
    ) -> tuple[FloatRows, bool]:
        key = (owner, window)
        while True:
            budget.check()
            with self._lock:
                if (row := self._cache.get(key)) is not None:
                    self._hits += 1
                    return row, False
                flight = self._flights.get(key)
                if flight is None:
                    own = self._flights[key] = threading.Event()
                    self._misses += 1
                    break
            flight.wait(_POLL_SECONDS)
        try:
            row = self._run(window, text, budget)
            if text not in self._bad:
                with self._lock:
                    self._cache[key] = row
            return row, True
        finally:
            with self._lock:
                del self._flights[key]
            own.set()

    def _run(self, window: str, text: str, budget: CallBudget) -> FloatRows:
        with self._lock:
            self.runs += 1
            self.texts_run.append(window)
            gate = self._gates.get(text)
        if gate is not None:
            gate.entered.set()
            while not gate.release.wait(_POLL_SECONDS):
                budget.check()
        self._raise_if_told(text)
        if text in self._bad:
            return np.full(self.dimensions, self._bad[text], dtype=np.float32)
        row = text_vector(window, self.dimensions)
        row.flags.writeable = False
        return row

    def _raise_if_told(self, text: str) -> None:
        with self._lock:
            for key in (text, "*"):
                error, times = self._failures.get(key, (None, None))
                if error is None:
                    continue
                if times is not None and times <= 1:
                    del self._failures[key]
                elif times is not None:
                    self._failures[key] = (error, times - 1)
                raise error
