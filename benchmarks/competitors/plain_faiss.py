"""What a developer writes in an afternoon: one exact FAISS index a user, files to begin from again.

The honest floor. Everything of all users is in memory, and read at every start. There is no filter
but the user, no neighbours, no edit and no removal; one process, one writer.

A directory holds two files that only grow:

  vectors.f32      float32, little-endian, one row after another
  messages.jsonl   a line of JSON for each of those rows: {"user", "id", "thread", "text"}

Vectors are written and synced first: a line stands for a whole message. What a crash leaves beyond
the last whole line is cut off at the next start.
"""

from __future__ import annotations

import json
import os
from importlib.metadata import version
from pathlib import Path
from typing import BinaryIO

import faiss
import numpy as np
from numpy.typing import NDArray

from benchmarks.competitors.port import Found, Rows, Setup, System


class _User:
    """One user's index, and the messages at its positions."""

    def __init__(self, dimensions: int) -> None:
        self.index = faiss.IndexFlatIP(dimensions)
        self.messages: list[Found] = []


class PlainFaiss:
    """Indexes by user, and two files."""

    def __init__(self, directory: Path, dimensions: int) -> None:
        self._dimensions = dimensions
        self._users: dict[str, _User] = {}
        self._vectors = (directory / "vectors.f32").open("a+b")
        self._messages = (directory / "messages.jsonl").open("a+b")
        self._read()

    @property
    def setup(self) -> Setup:
        """How it was set up."""
        return Setup(
            name="plain FAISS",
            versions={"faiss-cpu": version("faiss-cpu")},
            tenants="a dictionary of indexes, one for each user",
            index="exact: IndexFlatIP, float32, all in memory",
            durability="two files, each synced (fsync) once per add",
            advice="https://github.com/facebookresearch/faiss/wiki/Getting-started",
        )

    def add(self, rows: Rows) -> None:
        """Append to the files, then to the index."""
        vectors = np.ascontiguousarray(rows.vectors, dtype="<f4")
        self._vectors.write(vectors.tobytes())
        _sync(self._vectors)
        for id_, thread, text in zip(rows.ids, rows.thread_ids, rows.texts, strict=True):
            line = {"user": rows.resource_id, "id": id_, "thread": thread, "text": text}
            self._messages.write(json.dumps(line).encode() + b"\n")
        _sync(self._messages)
        found = [Found(id_, text) for id_, text in zip(rows.ids, rows.texts, strict=True)]
        self._keep(rows.resource_id, found, vectors)

    def loaded(self) -> None:
        """Nothing is left to do."""

    def search(self, resource_id: str, vector: NDArray[np.float32], top_k: int) -> list[Found]:
        """One scan of the user's index."""
        user = self._users.get(resource_id)
        if user is None:
            return []
        positions = user.index.search(vector[np.newaxis], top_k)[1][0]
        return [user.messages[position] for position in positions.tolist() if position >= 0]

    def close(self) -> None:
        """Close both files."""
        self._vectors.close()
        self._messages.close()

    def _keep(self, resource_id: str, messages: list[Found], vectors: NDArray[np.float32]) -> None:
        user = self._users.setdefault(resource_id, _User(self._dimensions))
        user.index.add(vectors)
        user.messages += messages

    def _read(self) -> None:
        """Fill the indexes from the files, a user at a time."""
        self._messages.seek(0)
        content = self._messages.read()
        whole = content[: content.rfind(b"\n") + 1]
        lines = [json.loads(line) for line in whole.splitlines()]
        row_bytes = 4 * self._dimensions
        self._messages.truncate(len(whole))
        self._vectors.truncate(len(lines) * row_bytes)
        self._vectors.seek(0)
        flat = np.frombuffer(self._vectors.read(), dtype="<f4")
        vectors = flat.reshape(len(lines), self._dimensions)
        rows: dict[str, list[int]] = {}
        for row, line in enumerate(lines):
            rows.setdefault(line["user"], []).append(row)
        for resource_id, of_user in rows.items():
            messages = [Found(lines[row]["id"], lines[row]["text"]) for row in of_user]
            self._keep(resource_id, messages, vectors[of_user])


def _sync(file: BinaryIO) -> None:
    """What was written is on disk."""
    file.flush()
    os.fsync(file.fileno())


def open_system(directory: Path, dimensions: int) -> System:
    """Open what is in the directory, or begin anew."""
    return PlainFaiss(directory, dimensions)
