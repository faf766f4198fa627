"""The side by side: its data, its right answers, the processes of its systems, and whole runs."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import NDArray

from benchmarks import corpus, side_by_side
from benchmarks.competitors.port import Rows
from benchmarks.side_by_side_data import (
    BATCH_MESSAGES,
    PURPOSES,
    Data,
    Exact,
    Plan,
    WrongAnswerError,
    prepare,
)
from benchmarks.side_by_side_run import Contender, Run, ask_in_turns
from benchmarks.system_process import SystemFailedError, SystemProcess, _Calls
from semanticrecall_core.embedding.threads import worker_threads
from support import smoke_runs

PLAN = Plan(
    sizes=(30, BATCH_MESSAGES + 10),
    crowd_users=3,
    crowd_messages=4,
    questions=5,
    turns=2,
    seed=7,
)
SIZES = (20, 60)
ALL = ("ours", "plain_faiss", "sqlite_vec", "chroma", "chroma_server", "qdrant_edge", "lance")
SERVER = "Chroma, server"


def counted(text: str) -> NDArray[np.float32]:
    """A unit vector that tells texts apart: what `embed` is in these tests."""
    rng = np.random.default_rng(list(text.encode()))
    vector = rng.standard_normal(8, dtype=np.float32)
    return vector / np.linalg.norm(vector)


def made(directory: Path, plan: Plan = PLAN, generation: str = "g") -> tuple[Data, int]:
    done = prepare(directory, plan, generation, counted)
    return done.data, done.embedded_texts


def test_every_message_is_given_once_with_the_vector_of_its_text(tmp_path: Path) -> None:
    data, _ = made(tmp_path)
    batches = list(data.batches())
    assert [(rows.resource_id, len(rows.ids)) for rows in batches] == [
        ("crowd-0", 4),
        ("crowd-1", 4),
        ("crowd-2", 4),
        ("user-30", 30),
        (f"user-{BATCH_MESSAGES + 10}", BATCH_MESSAGES),
        (f"user-{BATCH_MESSAGES + 10}", 10),
    ]
    ids = [id_ for rows in batches for id_ in rows.ids]
    assert len(set(ids)) == len(ids)
    for rows in batches:
        assert rows.vectors.dtype == np.float32
        np.testing.assert_array_equal(rows.vectors, [counted(text) for text in rows.texts])
        assert len(rows.thread_ids) == len(rows.texts) == len(rows.ids)
    assert len({text for rows in batches for text in rows.texts}) > 0.99 * len(ids)


def test_a_turn_has_the_vectors_of_its_texts_and_goes_to_the_larger_user(tmp_path: Path) -> None:
    data, _ = made(tmp_path)
    turns = [data.turn(number) for number in range(2 * PLAN.turns)]
    assert {rows.resource_id for rows in turns} == {f"user-{BATCH_MESSAGES + 10}"}
    assert len({id_ for rows in turns for id_ in rows.ids}) == 4 * PLAN.turns
    for rows in turns:
        np.testing.assert_array_equal(rows.vectors, [counted(text) for text in rows.texts])


def test_no_question_is_asked_twice(tmp_path: Path) -> None:
    texts = PLAN.question_texts()
    assert len(set(texts)) == len(texts)
    numbers = [
        number
        for size in PLAN.sizes
        for purpose in PURPOSES
        for number in PLAN.question_numbers(size, purpose)
    ]
    assert sorted(numbers) == list(range(len(texts)))
    data, _ = made(tmp_path)
    np.testing.assert_array_equal(data.vectors("questions"), [counted(text) for text in texts])


def test_only_what_is_not_there_is_embedded(tmp_path: Path) -> None:
    data, first = made(tmp_path)
    messages = 3 * 4 + sum(PLAN.sizes)
    assert first == messages + len(PLAN.question_texts()) + 2 * 2 * PLAN.turns
    assert made(tmp_path) == (data, 0)
    fewer = Plan(**{**data.as_json()["plan"], "turns": 1})
    _, of_fewer = made(tmp_path, fewer)
    assert of_fewer == len(fewer.question_texts()) + 2 * 2
    assert made(tmp_path, generation="another model")[1] == first
    # A file that was not written to its end counts as if it were not there.
    Path(data.files["crowd"]).with_suffix(".json").unlink()
    assert made(tmp_path) == (data, 12)
    assert Data.of_json(json.loads(json.dumps(data.as_json()))) == data


def test_vectors_of_other_texts_are_not_used_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(tmp_path)
    chat = corpus.chat

    def reworded(messages: int, *, seed: int) -> Iterator[corpus.ChatMessage]:
        for message in chat(messages, seed=seed):
            yield replace(message, text=f"Well, {message.text}")

    monkeypatch.setattr(corpus, "chat", reworded)
    data, embedded = made(tmp_path)
    assert embedded == 12 + sum(PLAN.sizes)
    for rows in data.batches():
        np.testing.assert_array_equal(rows.vectors, [counted(text) for text in rows.texts])


def test_the_recall_share_is_that_of_the_nearest() -> None:
    vectors = np.eye(6, dtype=np.float32)
    question = np.array([0.9, 0.3, 0.2, 0.2, 0.1, 0.0], np.float32)
    exact = Exact(list("abcdef"), vectors, {4: question}, 3)
    assert exact.share(4, ["a", "b", "c"]) == 1.0
    assert exact.share(4, ["a", "b", "d"]) == 1.0, "as near as c"
    assert exact.share(4, ["b", "e", "f"]) == pytest.approx(1 / 3)
    assert exact.share(4, ["a", "b"]) == pytest.approx(2 / 3)
    assert exact.share(4, ["d", "e", "f", "a", "b"]) == pytest.approx(1 / 3), "only three count"
    assert exact.share(4, []) == 0.0
    assert Exact(["a", "b"], vectors[:2], {0: question}, 3).share(0, ["b", "a"]) == 1.0
    for wrong in (["a", "a", "b"], ["a", "b", "g"]):
        with pytest.raises(WrongAnswerError):
            exact.share(4, wrong)


def asked(process: SystemProcess, user: str, number: int) -> list[str]:
    answer = process.ask("question", user=user, number=number, kind="vector", top_k=10)
    assert answer["seconds"] > 0
    ids: list[str] = answer["ids"]
    return ids


def test_a_system_answers_from_a_process_of_its_own(tmp_path: Path) -> None:
    data, _ = made(tmp_path)
    directory = tmp_path / "system"
    directory.mkdir()
    user = data.plan.asked()[0]
    exact = data.exact(user, 10)
    numbers = data.plan.question_numbers(user.messages, "vector")
    with SystemProcess("plain_faiss", directory, data) as process:
        assert process.open()["name"] == "plain FAISS"
        assert process.ask("load")["messages"] == 12 + sum(PLAN.sizes)
        for number in numbers:
            assert exact.share(number, asked(process, user.resource_id, number)) == 1.0
        assert not process.ask("finds_turn", number=0, seconds_max=0)
        assert process.ask("turn", number=0, kind="vector") > 0
        assert process.ask("finds_turn", number=0, seconds_max=0)
        memory = process.ask("memory")
        assert memory["bytes"] > memory["anonymous_bytes"] > 10_000_000
        with pytest.raises(SystemFailedError, match="IndexError"):
            process.ask("question", user=user.resource_id, number=10**6, kind="text", top_k=1)
        assert asked(process, user.resource_id, numbers[0])
        process.ask("close")
        with pytest.raises(SystemFailedError, match="no system is open"):
            process.ask("load")
    with pytest.raises(SystemFailedError, match="was ended"):
        process.ask("memory")


def test_a_system_that_does_not_answer_is_given_up(tmp_path: Path) -> None:
    data, _ = made(tmp_path)
    with SystemProcess("plain_faiss", tmp_path, data) as process:
        process.open()
        with pytest.raises(SystemFailedError, match="`load` took longer than 0 seconds"):
            process.ask("load", timeout_s=0)


class Embedded:
    """A store that is given vectors."""

    def __init__(self) -> None:
        self.rows: list[Rows] = []

    def add(self, rows: Rows) -> None:
        self.rows.append(rows)


@pytest.mark.skipif(worker_threads() < 2, reason="one core")
def test_both_messages_of_a_turn_are_embedded_at_once_as_our_sidecar_does(tmp_path: Path) -> None:
    data, _ = made(tmp_path)
    both = threading.Barrier(2)

    def embed(text: str) -> NDArray[np.float32]:
        both.wait(30)  # raises where the other text is not embedded meanwhile
        return counted(text)

    system, calls = Embedded(), cast("Any", _Calls())
    calls._system, calls._data, calls._embed = system, data, embed
    assert calls.turn(number=1, kind="text") > 0
    expected = data.turn(1)
    assert system.rows[0].texts == expected.texts
    np.testing.assert_array_equal(system.rows[0].vectors, expected.vectors)


def test_who_embeds_only_does_not_load_faiss() -> None:
    """The memory of the systems that have nothing to do with it is compared."""
    code = "import sys, benchmarks.raw_parts; sys.exit('faiss' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], cwd=smoke_runs.ROOT, check=True, timeout=60)


def of_model_size(text: str) -> NDArray[np.float32]:
    """A unit vector of as many dimensions as the installed model's."""
    rng = np.random.default_rng(list(text.encode()))
    vector = rng.standard_normal(384, dtype=np.float32)
    return vector / np.linalg.norm(vector)


def children(process_id: int) -> list[int]:
    """Processes that it started and that run."""
    found = Path(f"/proc/{process_id}/task").glob("*/children")
    return [int(child) for file in found for child in file.read_text().split()]


def is_running(process_id: int) -> bool:
    """It is there, and no zombie that nobody has waited for."""
    command_line = Path(f"/proc/{process_id}/cmdline")
    return command_line.exists() and command_line.read_bytes() != b""


@pytest.mark.slow
@pytest.mark.parametrize("module", ["ours", "chroma_server"])
def test_a_system_that_is_killed_leaves_no_server_behind(module: str, tmp_path: Path) -> None:
    plan = Plan(sizes=(5,), crowd_users=1, crowd_messages=1, questions=1, turns=1, seed=7)
    data = prepare(tmp_path, plan, "g", of_model_size).data
    directory = tmp_path / "system"
    directory.mkdir()
    process = SystemProcess(module, directory, data)
    with process:
        process.open()
        process.ask("load")
        worker: int = cast("Any", process)._process.pid
        (server,) = children(worker)
        resident = Path(f"/proc/{server}/statm").read_text().split()[1]
        memory = process.ask("memory")["bytes"]
        assert memory == pytest.approx(int(resident) * os.sysconf("SC_PAGE_SIZE"), rel=0.1)
        os.kill(worker, signal.SIGKILL)
        with pytest.raises(SystemFailedError, match="its process ended"):
            process.ask("memory")
    deadline = time.monotonic() + 30
    while is_running(server):
        assert time.monotonic() < deadline


def test_half_an_answer_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, _ = made(tmp_path)
    with SystemProcess("plain_faiss", tmp_path, data) as process:
        read, write = os.pipe()
        os.write(write, b'{"answer": [1, 2')
        os.close(write)
        with os.fdopen(read) as answers, monkeypatch.context() as patched:
            patched.setattr(cast("Any", process)._process, "stdout", answers)
            with pytest.raises(SystemFailedError, match="its process ended in `memory`"):
                process.ask("memory")


def rows_of(result: dict[str, Any], table: str, *key: str) -> dict[tuple[Any, ...], Any]:
    """Rows of a table by their key."""
    rows = {tuple(row[name] for name in key): row for row in result["tables"][table]}
    assert len(rows) == len(result["tables"][table])
    return rows


def assert_figures_agree(result: dict[str, Any], names: list[str]) -> None:
    """The tables of a smoke run of the systems of these names, ours first."""
    smoke_runs.assert_charts_can_be_drawn(result)
    recall = rows_of(result, "recall", "system", "user_messages", "kind")
    series = [names[0], f"{names[0]}, with neighbours", *names[1:]]
    kinds = ("vector", "text")
    assert recall.keys() == {(s, size, kind) for s in series for size in SIZES for kind in kinds}
    for (name, size, kind), row in recall.items():
        assert row["calls"] == 3
        assert 0 < row["p50_ms"] <= row["p95_ms"] <= row["p99_ms"]
        # A store this small is searched exactly by all of them.
        assert row["recall_share"] == 1.0, name
        ours = recall[names[0], size, kind]["p50_ms"]
        assert row["ratio"] == pytest.approx(row["p50_ms"] / ours)
    for size in SIZES:
        for kind in kinds:
            best = min(names[1:], key=lambda name: recall[name, size, kind]["p50_ms"])
            point = f"{size} messages, {kind}: best other"
            ratio = result["figures"][f"{point} / ours, p50"]
            assert ratio == pytest.approx(recall[best, size, kind]["ratio"])
            assert result["figures"][point] == best
    index = rows_of(result, "index", "system", "kind")
    assert index.keys() == {
        (name, kind)
        for name in names
        for kind in (("text", "durable") if name == names[0] else ("text", "vector"))
    }
    for row in index.values():
        assert (row["calls"], row["found_share"]) == (2, 1.0)
        assert 0 < row["p50_ms"] <= row["p99_ms"]
    footprint = rows_of(result, "footprint", "system")
    assert list(footprint) == [(name,) for name in names]
    for row in footprint.values():
        assert row["same_after_restart"] == 1.0
        assert row["resident_mb"] > row["anonymous_mb"] > 10
        assert row["model_in_it"] == (row["system"] != SERVER)
        assert min(row["disk_mb"], row["load_messages_per_s"], row["restart_s"]) > 0


def run_smoke(
    file: Path, *flags: str, status: int = 0, **environment: str
) -> tuple[dict[str, Any], str]:
    """The result of a smoke run that ends with `status`, and what it printed."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.side_by_side", "--smoke", "--json", str(file), *flags],
        cwd=smoke_runs.ROOT,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    assert done.returncode == status, done.stderr
    result: dict[str, Any] = json.loads(file.read_text())
    return result, done.stdout


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_what_is_missing_or_fails_is_said_and_the_others_are_measured(tmp_path: Path) -> None:
    """One package is not installed, another is damaged: both stand first on the path."""
    missing = "raise ModuleNotFoundError(\"No module named 'lancedb'\", name='lancedb')\n"
    (tmp_path / "lancedb.py").write_text(missing)
    (tmp_path / "sqlite_vec.py").write_text("raise RuntimeError('it is damaged')\n")
    file = tmp_path / "result.json"
    systems = "lance,plain_faiss,sqlite_vec,ours"
    path = {"PYTHONPATH": str(tmp_path)}
    flags = ("--systems", systems, "--data-dir", str(tmp_path))
    result, printed = run_smoke(file, *flags, status=1, **path)
    setups = rows_of(result, "setups", "system")
    status = {name: row["status"] for (name,), row in setups.items()}
    assert status == {
        "SemanticRecall": "measured",
        "plain FAISS": "measured",
        "sqlite_vec": "failed: RuntimeError: it is damaged",
        "lance": "not installed: ModuleNotFoundError: No module named 'lancedb'",
    }
    assert all(text in printed for text in status.values())
    assert f"--systems {systems}" in result["command"]
    assert_figures_agree(result, ["SemanticRecall", "plain FAISS"])
    assert not list(tmp_path.rglob("stores-*"))


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_every_system_is_measured(tmp_path: Path) -> None:
    """Fourteen processes and their servers are started; some libraries import for seconds."""
    result, printed = run_smoke(tmp_path / "result.json")
    setups = result["tables"]["setups"]
    assert [row["status"] for row in setups] == ["measured"] * len(ALL)
    assert all(row["versions"] and row["durability"] and row["advice"] for row in setups)
    assert_figures_agree(result, [row["system"] for row in setups])
    assert f"answers {result['answers_digest']}" in printed


@pytest.mark.parametrize(
    "flags",
    [
        ("--sizes", "0,10"),
        ("--sizes", "10,10"),
        ("--sizes", "many"),
        ("--systems", "chroma"),
        ("--calls", "0"),
        ("--top-k", "100001"),
        ("--systems", "ours,oracle"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    flags: tuple[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["side_by_side", *flags])
    with pytest.raises(SystemExit) as ended:
        side_by_side.main()
    assert ended.value.code == 2
    assert flags[0] in capsys.readouterr().err


class Scripted:
    """Stands in for the process of a system: what it is asked is kept, answers are made up."""

    def __init__(self, seconds: float, ids: list[str]) -> None:
        self.seconds = seconds
        self.ids = ids
        self.asked: list[dict[str, Any]] = []
        self.ended = False

    def ask(self, do: str, **arguments: Any) -> dict[str, Any]:
        self.asked.append({"do": do, **arguments})
        return {"seconds": self.seconds, "ids": self.ids}

    def end(self) -> None:
        self.ended = True


def contender(module: str, process: Scripted) -> Contender:
    return Contender(module, setup={"name": module}, process=cast("SystemProcess", process))


@pytest.mark.parametrize("kind", ["vector", "text"])
def test_slow_systems_are_asked_less_and_wrong_ones_no_more(tmp_path: Path, kind: str) -> None:
    data, _ = made(tmp_path)
    user = data.plan.asked()[0]
    size = user.messages
    exact = data.exact(user, 1)
    vectors = data.vectors(user.resource_id)
    # The one message that is nearest to the most questions: some answers are right, some are not.
    numbers = data.plan.question_numbers(size, kind)
    nearest = int(np.argmax(vectors @ data.vectors("questions")[numbers[0]]))
    ids = [f"{user.resource_id}-m{nearest}"]
    # Ours is never cut short: its answers are the digest, the same in every run.
    ours, slow = Scripted(4.0, ids), Scripted(4.0, ids)
    wrong = Scripted(0.1, [f"user-{BATCH_MESSAGES + 10}-m0"])
    scripted = {"ours": ours, "slow": slow, "wrong": wrong}
    contenders = [contender(name, process) for name, process in scripted.items()]
    run = Run(data, {size: exact}, contenders, top_k=1, seconds_max=6.0)
    series = ask_in_turns(run, size, kind, random.Random(1))
    assert [(one.name, len(one.seconds)) for one in series] == [
        ("ours", PLAN.questions),
        ("ours, with neighbours", PLAN.questions),
        ("slow", 2),
    ]
    assert series[0].shares[0] == 1.0
    expected = [float(exact.share(number, ids)) for number in numbers]
    assert series[0].shares == expected
    assert run.alive() == contenders[:2]
    assert contenders[2].problem == "failed: an answer holds a message twice, or another user's"
    assert wrong.ended
    assert not slow.ended
    asked_for = {
        neighbours: [one["number"] for one in ours.asked if one["neighbours"] == neighbours]
        for neighbours in (0, 1)
    }
    warm_up = list(data.plan.question_numbers(size, "warm up"))
    assert asked_for[0] == warm_up + list(numbers)
    assert asked_for[1] == warm_up + list(
        data.plan.question_numbers(size, f"{kind} with neighbours")
    )
    assert [one["number"] for one in slow.asked] == warm_up + list(numbers)[:2]
    for one in ours.asked:
        assert (one["do"], one["user"], one["kind"]) == ("question", user.resource_id, kind)
