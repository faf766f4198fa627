"""Messages that can be told from all others by every trace they leave, and a search for those.

A trace is a run of at least eight bytes that nothing else has: each unique word as UTF-8 and as
UTF-16, every 16 bytes of every vector as float32 and as code, and runs of the analysis. The search
reads every byte of every file.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from semanticrecall.v1 import types_pb2
from semanticrecall_core.lexical.analysis import Analyser
from semanticrecall_core.vectors.codes import Coder
from semanticrecall_server.engine_assembly import SCALE_CLIP
from support.fake_embedder import FakeEmbedder
from support.wire_memory import said

PREFIX_BYTES = 8
RUN_BYTES = 16
FILTER_BITS = 24
LONG_WORDS = 2_600
"""A text of so many words needs several overflow pages."""

LONG_EVERY = 40
EDITED_EVERY = 4
PLAIN_WORDS = ("the", "we", "said", "that", "about", "later", "again", "dinner", "train")


@dataclass(frozen=True)
class Canary:
    """One message, what it said before it was edited, and its words that nothing else has."""

    message: types_pb2.Message
    before: types_pb2.Message | None
    words: tuple[str, ...]

    @property
    def texts(self) -> tuple[str, ...]:
        """What was embedded."""
        return (self.message.text, *(() if self.before is None else (self.before.text,)))


class Flock:
    """Makes messages, each with words of its own."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._made = 0

    def word(self, kind: str) -> str:
        """A word that nothing else has."""
        return f"{self._random.getrandbits(56):014x}{kind}"

    def make(self, thread: str, author: str, at: int) -> Canary:
        """A message with a unique word in every field that has one."""
        self._made += 1
        words = [self.word(kind) for kind in ("id", "metadata", "payload", "group")]
        identity, metadata, payload, group = words
        text, spoken = self._text(long=self._made % LONG_EVERY == 0)
        message = said(
            identity,
            text,
            at=at,
            thread_id=thread,
            author=author,
            group_id=group,
            metadata={"topic": metadata},
            payload=payload.encode() * 3,
            payload_type="text/plain",
        )
        before = None
        if self._made % EDITED_EVERY == 0:
            former, former_words = self._text(long=False)
            before = types_pb2.Message()
            before.CopyFrom(message)
            before.text = former
            spoken += former_words
        return Canary(message, before, (*words, *spoken))

    def _text(self, *, long: bool) -> tuple[str, list[str]]:
        own = [self.word("text") for _ in range(5)]
        count = LONG_WORDS if long else 8
        plain = self._random.choices((*PLAIN_WORDS, own[0]) if long else PLAIN_WORDS, k=count)
        return " ".join([*own, *plain]), own


@dataclass
class Traces:
    """What to look for: the kind of each trace, by its bytes."""

    kinds: dict[bytes, str] = field(default_factory=dict)

    def add_words(self, kind: str, words: Iterable[str]) -> None:
        """Words as they are written in UTF-8 and in UTF-16."""
        for word in words:
            self.kinds[word.encode()] = kind
            self.kinds[word.encode("utf-16-le")] = f"{kind}, UTF-16"

    def add_canary(self, canary: Canary, embedder: FakeEmbedder) -> None:
        """Its words, its vectors and their codes, and what its words are analysed into."""
        self.add_words("words", canary.words)
        coder = Coder(embedder.dimensions, SCALE_CLIP)
        for text in canary.texts:
            vectors = embedder.window_vectors(text)
            for kind, rows in (("vectors", vectors), ("codes", coder.encode(vectors)[0])):
                for row in rows:
                    data = np.ascontiguousarray(row).tobytes()
                    for start in range(0, len(data) - RUN_BYTES + 1, RUN_BYTES):
                        self.kinds[data[start : start + RUN_BYTES]] = kind
            analysed = Analyser().analyse(text, canary.message.author)
            self.kinds[analysed[4:16]] = "analysis"  # checksum, length, number of terms

    def leave_out(self, data: Iterable[bytes]) -> None:
        """Forget traces that something else has too."""
        for trace in data:
            self.kinds.pop(trace, None)


def files_below(folders: Iterable[Path]) -> Iterator[Path]:
    """Every file, in any folder."""
    for folder in folders:
        yield from sorted(path for path in folder.rglob("*") if path.is_file())


def found_in(folders: Iterable[Path], traces: Traces) -> Counter[tuple[str, str]]:
    """How often traces are in the files: (kind, name of the file) -> number."""
    search = _Search(traces)
    found: Counter[tuple[str, str]] = Counter()
    for path in files_below(folders):
        for kind in search(path.read_bytes()):
            found[kind, path.name] += 1
    return found


class _Search:
    """Finds many byte strings at once: by their first eight bytes, at every offset."""

    def __init__(self, traces: Traces) -> None:
        assert all(len(trace) >= PREFIX_BYTES for trace in traces.kinds)
        self._by_prefix: dict[bytes, list[tuple[bytes, str]]] = {}
        for trace, kind in traces.kinds.items():
            self._by_prefix.setdefault(trace[:PREFIX_BYTES], []).append((trace, kind))
        prefixes = np.frombuffer(b"".join(self._by_prefix), "<u8")
        self._filter = np.zeros(1 << FILTER_BITS, bool)
        self._filter[_slots(prefixes)] = True

    def __call__(self, data: bytes) -> Iterator[str]:
        for offset in range(PREFIX_BYTES):
            numbers = (len(data) - offset) // PREFIX_BYTES
            if numbers <= 0:
                continue
            words = np.frombuffer(data, "<u8", count=numbers, offset=offset)
            for position in np.flatnonzero(self._filter[_slots(words)]).tolist():
                start = offset + position * PREFIX_BYTES
                for trace, kind in self._by_prefix.get(data[start : start + PREFIX_BYTES], ()):
                    if data.startswith(trace, start):
                        yield kind


def _slots(words: np.ndarray) -> np.ndarray:
    return (words * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(64 - FILTER_BITS)
