"""What every system of the side by side must do, against brute force over the same vectors.

Each runs in a process of its own; what is not installed is skipped.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray

from benchmarks import corpus, processes
from benchmarks.competitors.port import Found, Rows
from benchmarks.raw_parts import RawEmbed
from semanticrecall import RecallClient
from support.system_worker import WorkerSystem, new_worker

pytestmark = pytest.mark.model

SYSTEMS = ("ours", "plain_faiss", "sqlite_vec", "chroma", "chroma_server", "qdrant_edge", "lance")
DIMENSIONS = 384
MESSAGES = 150
TOP_K = 10
APPROXIMATE_SHARE = 0.9
TOLERANCE = 1e-5

HOSTILE_USERS = (
    "user",
    "user ",
    "user1",
    "User",
    "us%",
    "use_",
    "user' OR '1'='1",
    'user"; --',
    "user\\",
    "*",
    "üser/ユーザー 🐝",
    "u\u0308ser/ユーザー 🐝",
)


class History(NamedTuple):
    """A user's messages as a dictionary-and-brute-force model keeps them."""

    rows: Rows

    def scores(self, question: NDArray[np.float32]) -> dict[str, float]:
        """The cosine of every message."""
        return dict(zip(self.rows.ids, (self.rows.vectors @ question).tolist(), strict=True))

    def texts(self) -> dict[str, str]:
        """By id."""
        return dict(zip(self.rows.ids, self.rows.texts, strict=True))

    def first(self, count: int) -> History:
        """The oldest messages."""
        return self.part(slice(None, count))

    def part(self, which: slice) -> History:
        """Some of the messages."""
        rows = self.rows
        return History(
            Rows(
                rows.resource_id,
                rows.ids[which],
                rows.thread_ids[which],
                rows.texts[which],
                rows.vectors[which],
            )
        )


@pytest.fixture(scope="module")
def embed() -> RawEmbed:
    return RawEmbed()


def history(embed: RawEmbed, user: str, texts: list[str]) -> History:
    """Messages of these texts; their ids are the same for every user."""
    count = len(texts)
    return History(
        Rows(
            resource_id=user,
            ids=[f"m{number}" for number in range(count)],
            thread_ids=[f"thread-{number // 20}" for number in range(count)],
            texts=texts,
            vectors=np.stack([embed(text) for text in texts]),
        )
    )


@pytest.fixture(scope="module")
def long_history(embed: RawEmbed) -> History:
    return history(embed, "ann", [one.text for one in corpus.chat(MESSAGES, seed=3)])


@pytest.fixture(scope="module")
def questions(embed: RawEmbed) -> list[NDArray[np.float32]]:
    return [embed(text) for text in corpus.queries(20, seed=5)]


@pytest.fixture(scope="module", params=SYSTEMS)
def worker(request: pytest.FixtureRequest) -> Iterator[tuple[ProcessPoolExecutor, str]]:
    module: str = request.param
    with new_worker() as process:
        yield process, module


@pytest.fixture
def system(worker: tuple[ProcessPoolExecutor, str], tmp_path: Path) -> Iterator[WorkerSystem]:
    """A system, open in an empty directory."""
    one = WorkerSystem(*worker)
    one.open(tmp_path, DIMENSIONS)
    yield one
    one.close()


def right_share(known: History, question: NDArray[np.float32], found: list[Found]) -> float:
    """How many of the nearest were found, the rest of the answer being sound."""
    scores, texts = known.scores(question), known.texts()
    wanted = min(TOP_K, len(scores))
    assert len(found) == wanted
    assert len({one.id for one in found}) == wanted
    got = [scores[one.id] for one in found]
    assert [one.text.encode() for one in found] == [texts[one.id].encode() for one in found]
    assert all(a >= b - TOLERANCE for a, b in itertools.pairwise(got)), "best first"
    least = sorted(scores.values(), reverse=True)[wanted - 1]
    return sum(score >= least - TOLERANCE for score in got) / wanted


def assert_finds(
    system: WorkerSystem, known: History, questions: list[NDArray[np.float32]]
) -> None:
    """The right ids where the system says it is exact, and nearly all where it does not."""
    user = known.rows.resource_id
    shares = [
        right_share(known, question, system.search(user, question, TOP_K)) for question in questions
    ]
    index = system.setup.index
    assert index.startswith(("exact", "approximate")), index
    if index.startswith("exact"):
        assert set(shares) == {1.0}
    assert np.mean(shares) >= APPROXIMATE_SHARE


def test_it_says_how_it_was_set_up(system: WorkerSystem) -> None:
    setup = system.setup
    for said in (setup.name, setup.tenants, setup.index, setup.durability, setup.advice):
        assert len(said) > 3
    assert setup.versions
    assert all(version[0].isdigit() for version in setup.versions.values())


def test_the_nearest_are_found_before_and_after_loading_and_after_a_restart(
    system: WorkerSystem,
    long_history: History,
    questions: list[NDArray[np.float32]],
    tmp_path: Path,
) -> None:
    system.add(long_history.first(100).rows)
    assert_finds(system, long_history.first(100), questions[:5])
    system.add(long_history.part(slice(100, 140)).rows)
    system.loaded()
    assert_finds(system, long_history.first(140), questions)
    system.add(long_history.part(slice(140, None)).rows)
    assert_finds(system, long_history, questions)
    last = long_history.rows
    found = system.search("ann", last.vectors[-1], 1)
    assert found == [Found(last.ids[-1], last.texts[-1])]
    system.close()
    system.open(tmp_path, DIMENSIONS)
    assert_finds(system, long_history, questions)


def test_users_never_mix(
    system: WorkerSystem, embed: RawEmbed, questions: list[NDArray[np.float32]]
) -> None:
    """Each has the same ids, and the nearest messages of all are another's."""
    texts = [one.text for one in corpus.chat(5 * len(HOSTILE_USERS), seed=11)]
    histories = [
        history(embed, user, texts[5 * number : 5 * number + 5])
        for number, user in enumerate(HOSTILE_USERS)
    ]
    for known in histories[:-2]:
        system.add(known.rows)
    system.loaded()
    for known in histories[-2:]:
        system.add(known.rows)
    for known, other in zip(histories, histories[1:] + histories[:1], strict=True):
        assert_finds(system, known, [questions[0], other.rows.vectors[2]])
    for stranger in ("use", "user2", "USER", "%", "user' OR '1'='2"):
        assert system.search(stranger, questions[0], TOP_K) == []


def test_texts_come_back_as_they_were(system: WorkerSystem, embed: RawEmbed) -> None:
    texts = [
        'Tom\'s "quoted" text; -- DROP TABLE messages',
        "line\nbreak\r\n\ttab \u2028 separator",
        "ünïcödé, 日本語, 🐝🏳️‍🌈, e\u0301",
        '{"user": "ann"} %s {0} \\n \\u0000',
        " leading and trailing ",
        "x" * 20_000,
    ]
    known = history(embed, "ann", texts)
    system.add(known.rows)
    system.loaded()
    for vector in known.rows.vectors:
        assert right_share(known, vector, system.search("ann", vector, TOP_K)) == 1.0


def test_an_empty_store_finds_nothing(
    system: WorkerSystem, questions: list[NDArray[np.float32]]
) -> None:
    assert system.search("nobody", questions[0], TOP_K) == []
    system.loaded()
    assert system.search("nobody", questions[0], TOP_K) == []


@pytest.fixture
def sidecar(tmp_path: Path) -> Iterator[WorkerSystem]:
    """Our own, which does more than the others."""
    with new_worker() as process:
        one = WorkerSystem(process, "ours")
        one.open(tmp_path, DIMENSIONS)
        yield one
        one.close()


def test_the_sidecar_recalls_from_texts_what_brute_force_finds(
    sidecar: WorkerSystem, embed: RawEmbed, long_history: History
) -> None:
    sidecar.add(long_history.rows)
    sidecar.loaded()
    for text in corpus.queries(10, seed=6):
        found = sidecar.call("recall", "ann", text, TOP_K)
        assert right_share(long_history, embed(text), found) == 1.0
        assert sidecar.call("recall", "ann", text, TOP_K, neighbours=1) == found
    said = {"a": "The spare key is under the blue flower pot.", "b": "I noted that."}
    for number, found_too in enumerate((True, False)):
        texts = {f"{id_}{number}": f"{text} ({number})" for id_, text in said.items()}
        sidecar.call("add_texts", "bob", "thread", texts, found=found_too)
        if found_too:
            found = sidecar.search("bob", embed(texts["a0"]), 1)
            assert found == [Found("a0", texts["a0"])]


def test_the_sidecar_makes_the_vectors_that_the_others_are_given(
    embed: RawEmbed, tmp_path: Path
) -> None:
    texts = [one.text for one in corpus.chat(20, seed=8)] + corpus.queries(20, seed=8)
    with (
        processes.sidecar(tmp_path, "--log-level", "error") as (address, _),
        RecallClient(address) as client,
    ):
        made = client.embed(texts).embeddings
    given = np.stack([embed(text) for text in texts])
    assert np.abs(np.array([one.values for one in made]) - given).max() < 1e-6


def test_what_a_crash_left_of_a_plain_add_is_cut_off(
    long_history: History, questions: list[NDArray[np.float32]], tmp_path: Path
) -> None:
    with new_worker() as process:
        system = WorkerSystem(process, "plain_faiss")
        system.open(tmp_path, DIMENSIONS)
        system.add(long_history.first(30).rows)
        system.close()
        with (tmp_path / "vectors.f32").open("ab") as file:
            file.write(bytes(4 * DIMENSIONS + 5))
        with (tmp_path / "messages.jsonl").open("ab") as file:
            file.write(b'{"user": "ann", "id": "m30", "th')
        system.open(tmp_path, DIMENSIONS)
        assert_finds(system, long_history.first(30), questions)
        system.add(long_history.part(slice(30, 60)).rows)
        system.close()
        system.open(tmp_path, DIMENSIONS)
        assert_finds(system, long_history.first(60), questions)
        system.close()
