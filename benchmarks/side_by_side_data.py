"""What every system of `side_by_side` is given: texts, their vectors, questions and turns.

Texts are those of the synthetic chat. Vectors are made by the installed model, one text at a time,
as the sidecar makes them (within 1e-6 of its own), and kept on disk: 120,000 take some minutes.

A directory holds, for each set of texts, `<name>-<digest>.npy` (float32, one row a text, in order)
and, written after it, `<name>-<digest>.json`: what it was made of, of which the digest is taken. A
set that is there for the same texts and model is used again.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import corpus
from benchmarks.competitors.port import Rows

FORMAT = 2
CROWD, QUESTIONS, TURNS = "crowd", "questions", "turns"
BATCH_MESSAGES = 1_000
PROGRESS_TEXTS = 10_000
WARM_UP_QUESTIONS_MAX = 20
CHECKED_QUESTIONS_MAX = 20
PURPOSES = (
    "checked",
    "warm up",
    "vector",
    "vector with neighbours",
    "text",
    "text with neighbours",
)
"""Questions are new to a system each time: those of one purpose are never asked for another."""

Embed = Callable[[str], NDArray[np.float32]]


@dataclass(frozen=True, slots=True)
class User:
    """One user's history."""

    resource_id: str
    messages: int
    seed: int

    def chat(self) -> Iterator[corpus.ChatMessage]:
        """The messages; ids are unique in the whole store."""
        for message in corpus.chat(self.messages, seed=self.seed):
            yield corpus.ChatMessage(
                id=f"{self.resource_id}-{message.id}",
                thread_id=f"{self.resource_id}-{message.thread_id}",
                from_user=message.from_user,
                text=message.text,
            )


@dataclass(frozen=True, slots=True)
class Plan:
    """What is stored and asked.

    Attributes:
        sizes: messages of each user who is asked.
        crowd_users, crowd_messages: other users of the store, and the messages of each.
        questions: of each purpose and user; of those that are not measured at most 20.
        turns: of two messages, of each kind; they go to the user in the middle of `sizes`.
    """

    sizes: tuple[int, ...]
    crowd_users: int
    crowd_messages: int
    questions: int
    turns: int
    seed: int

    def asked(self) -> list[User]:
        """The users whose history is asked, smallest first."""
        return [
            User(f"user-{size}", size, self.seed + number)
            for number, size in enumerate(sorted(self.sizes), 1)
        ]

    def crowd(self) -> list[User]:
        """The others."""
        first = self.seed + len(self.sizes) + 1
        return [
            User(f"crowd-{number}", self.crowd_messages, first + number)
            for number in range(self.crowd_users)
        ]

    def writer(self) -> User:
        """Whose history the turns are added to."""
        users = self.asked()
        return users[len(users) // 2]

    def question_numbers(self, size: int, purpose: str) -> range:
        """Which of all questions a user of this size is asked for this purpose."""
        counts: dict[str, int] = dict.fromkeys(PURPOSES, self.questions)
        counts["checked"] = min(CHECKED_QUESTIONS_MAX, self.questions)
        counts["warm up"] = min(WARM_UP_QUESTIONS_MAX, self.questions)
        before = sorted(self.sizes).index(size) * sum(counts.values())
        before += sum(counts[other] for other in PURPOSES[: PURPOSES.index(purpose)])
        return range(before, before + counts[purpose])

    def question_texts(self) -> list[str]:
        """All questions."""
        last = self.question_numbers(max(self.sizes), PURPOSES[-1])
        return corpus.queries(last.stop, seed=self.seed)

    def turn_texts(self) -> list[str]:
        """Of every turn, of all kinds, what the user said and what was answered."""
        said = corpus.queries(2 * self.turns, seed=self.seed + 1)
        return [text for one in said for text in (f"{one} Do you know?", f"I noted this: {one}")]


@dataclass(frozen=True, slots=True)
class Data:
    """Texts with their vectors, as every process of a run finds them.

    Attributes:
        files: of vectors, by the name of the set.
    """

    plan: Plan
    files: dict[str, str]

    def vectors(self, name: str) -> NDArray[np.float32]:
        """Shape (texts of the set, dimensions); read from the file as it is used."""
        found: NDArray[np.float32] = np.load(self.files[name], mmap_mode="r")
        return found

    @property
    def dimensions(self) -> int:
        """Of every vector."""
        return int(self.vectors(QUESTIONS).shape[1])

    def batches(self) -> Iterator[Rows]:
        """All messages: the crowd first, then those who are asked, 1,000 of one user at a time."""
        crowd, start = self.plan.crowd(), 0
        for user in crowd:
            yield from _batches(user, self.vectors(CROWD)[start : start + user.messages])
            start += user.messages
        for user in self.plan.asked():
            yield from _batches(user, self.vectors(user.resource_id))

    def turn(self, number: int) -> Rows:
        """A turn of two messages."""
        writer = self.plan.writer().resource_id
        rows = slice(2 * number, 2 * number + 2)
        return Rows(
            resource_id=writer,
            ids=[f"{writer}-turn-{number}-{side}" for side in ("user", "assistant")],
            thread_ids=[f"{writer}-turns"] * 2,
            texts=self.plan.turn_texts()[rows],
            vectors=np.array(self.vectors(TURNS)[rows]),
        )

    def exact(self, user: User, top_k: int) -> Exact:
        """The right answers to all questions that a user is asked."""
        questions = self.vectors(QUESTIONS)
        numbers = [self.plan.question_numbers(user.messages, purpose) for purpose in PURPOSES]
        return Exact(
            [message.id for message in user.chat()],
            self.vectors(user.resource_id),
            {number: np.array(questions[number]) for number in itertools.chain(*numbers)},
            top_k,
        )

    def as_json(self) -> dict[str, Any]:
        """What `of_json` takes."""
        return {"plan": asdict(self.plan), "files": self.files}

    @classmethod
    def of_json(cls, written: dict[str, Any]) -> Data:
        """As `as_json` wrote it."""
        plan: dict[str, Any] = written["plan"]
        sizes: list[int] = plan.pop("sizes")
        return cls(Plan(sizes=tuple(sizes), **plan), written["files"])


def _batches(user: User, vectors: NDArray[np.float32]) -> Iterator[Rows]:
    messages, start = user.chat(), 0
    while batch := list(itertools.islice(messages, BATCH_MESSAGES)):
        yield Rows(
            resource_id=user.resource_id,
            ids=[message.id for message in batch],
            thread_ids=[message.thread_id for message in batch],
            texts=[message.text for message in batch],
            vectors=np.array(vectors[start : start + len(batch)]),
        )
        start += len(batch)


@dataclass(frozen=True, slots=True)
class Made:
    """The data, how many texts had to be embedded for it, and how long that took."""

    data: Data
    embedded_texts: int
    seconds: float


def prepare(directory: Path, plan: Plan, generation: str, embed: Embed) -> Made:
    """Embed what is not there.

    Args:
        generation: the identity of `embed`'s vectors.
        embed: a text's vector; called by several threads at once.
    """
    directory.mkdir(parents=True, exist_ok=True)
    crowd = plan.crowd()
    sets: dict[str, tuple[dict[str, Any], Callable[[], list[str]]]] = {
        CROWD: ({"users": [asdict(user) for user in crowd]}, partial(_texts, crowd)),
        QUESTIONS: ({"plan": asdict(plan)}, plan.question_texts),
        TURNS: ({"turns": plan.turns, "seed": plan.seed}, plan.turn_texts),
    }
    for user in plan.asked():
        sets[user.resource_id] = ({"users": [asdict(user)]}, partial(_texts, [user]))
    files: dict[str, str] = {}
    embedded = 0
    started = time.perf_counter()
    for name, (made_of, texts) in sets.items():
        found = texts()
        account = {
            "format": FORMAT,
            "generation": generation,
            "name": name,
            **made_of,
            "texts": hashlib.sha256(json.dumps(found).encode()).hexdigest(),
        }
        written = json.dumps(account, sort_keys=True)
        file = directory / f"{name}-{hashlib.sha256(written.encode()).hexdigest()[:16]}.npy"
        files[name] = str(file)
        if not file.with_suffix(".json").exists():
            np.save(file, _embed_all(name, found, embed))
            file.with_suffix(".json").write_text(written + "\n")
            embedded += len(found)
    return Made(Data(plan, files), embedded, time.perf_counter() - started)


def _texts(users: Sequence[User]) -> list[str]:
    return [message.text for user in users for message in user.chat()]


def _embed_all(name: str, texts: Sequence[str], embed: Embed) -> NDArray[np.float32]:
    """Shape (len(texts), dimensions). Runs of the model let go of the interpreter's lock."""
    rows: list[NDArray[np.float32]] = []
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        for start in range(0, len(texts), PROGRESS_TEXTS):
            rows += threads.map(embed, texts[start : start + PROGRESS_TEXTS])
            print(f"embedding {name}: {len(rows)} of {len(texts)} texts", flush=True)
    return np.stack(rows)


class WrongAnswerError(Exception):
    """An answer that no approximation excuses."""


class Exact:
    """The right answers, by brute force in float32 over the vectors that every system was given.

    Args:
        ids: of one user's messages, in the order of `vectors`.
        vectors: shape (len(ids), dimensions), unit rows.
        questions: by number, shape (dimensions,), of unit length.
    """

    TOLERANCE = 1e-5
    """Cosines this near are equal: other orders of summing may order them either way."""

    def __init__(
        self,
        ids: Sequence[str],
        vectors: NDArray[np.float32],
        questions: Mapping[int, NDArray[np.float32]],
        top_k: int,
    ) -> None:
        self._rows = {id_: row for row, id_ in enumerate(ids)}
        self._vectors = np.array(vectors)
        self._questions = questions
        self._wanted = min(top_k, len(ids))
        self._least: dict[int, float] = {}
        for number, question in questions.items():
            scores = self._vectors @ question
            self._least[number] = float(np.partition(scores, -self._wanted)[-self._wanted])

    def share(self, number: int, ids: Sequence[str]) -> float:
        """Of the `top_k` nearest to a question, how many were found; 1.0 where all were.

        Raises:
            WrongAnswerError: an id twice, or one that is not of this user.
        """
        if len(set(ids)) != len(ids) or not set(ids) <= self._rows.keys():
            raise WrongAnswerError("an answer holds a message twice, or another user's")
        rows = [self._rows[id_] for id_ in ids[: self._wanted]]
        scores = self._vectors[rows] @ self._questions[number]
        right = int(np.count_nonzero(scores >= self._least[number] - self.TOLERANCE))
        return right / self._wanted
