"""LIFE-1: a store made with one model and started with another, with real models and processes.

Never a mixture and never a crash: a refusal that names the way out, then Reembed while the former
model answers, killed in the middle, and at last the new one alone.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import grpc
import numpy as np
import pytest

from semanticrecall.v1 import admin_pb2, recall_pb2
from support.running_server import ServerProcess, error_detail
from support.wire_memory import ALONE, BY_COSINE, INDEXED, REPLACED, Sidecar, said
from support.word_models import WordModel

WAIT_S = 60.0
MESSAGES = 400
WORDS = tuple(f"word{i}" for i in range(200))
TOLERANCE = 1e-4
QUERIES = ("word1 word2", "word50 word51 word52", "word199")


@dataclass(frozen=True)
class Models:
    """Two models, and their folders."""

    former: WordModel
    following: WordModel
    former_folder: Path
    following_folder: Path


@pytest.fixture
def models(tmp_path: Path) -> Models:
    former = WordModel(WORDS, 384, seed=1)
    following = WordModel(WORDS, 768, seed=2, work=4)
    return Models(
        former,
        following,
        former.write(tmp_path / "former"),
        following.write(tmp_path / "following"),
    )


@contextmanager
def serving(home: Path, *arguments: str) -> Iterator[tuple[ServerProcess, Sidecar]]:
    socket = f"unix:{home}/s.sock"
    options = ("--listen", socket, "--data-dir", f"{home}/data", *arguments)
    with ServerProcess(options, {"XDG_CACHE_HOME": str(home / "cache")}) as process:
        process.wait_for("serving")
        sidecar = Sidecar(socket)
        yield process, sidecar
        sidecar.close()


def stopped(process: ServerProcess) -> None:
    process.signal(signal.SIGTERM)
    status, log = process.wait()
    assert status == 0, log


def refusal(home: Path, *arguments: str) -> str:
    """What a start says that must fail."""
    options = ("--listen", f"unix:{home}/s.sock", "--data-dir", f"{home}/data", *arguments)
    with ServerProcess(options, {"XDG_CACHE_HOME": str(home / "cache")}) as process:
        status, log = process.wait(WAIT_S)
    assert status == 2, log
    assert "Traceback" not in log
    return log.strip().splitlines()[-1]


def texts_of(numbers: Sequence[int]) -> dict[str, str]:
    return {
        f"m{n}": f"word{n % 200} word{(7 * n + 1) % 200} word{(3 * n + 2) % 200} unknown{n}"
        for n in numbers
    }


def index(sidecar: Sidecar, texts: Mapping[str, str], resource: str = "u") -> None:
    request = recall_pb2.IndexRequest(
        resource_id=resource, messages=[said(n, text, thread_id="t") for n, text in texts.items()]
    )
    answer = sidecar.service.Index(request, timeout=WAIT_S)
    assert {result.status for result in answer.results} <= {INDEXED, REPLACED}


def found(sidecar: Sidecar, query: str, resource: str = "u") -> list[tuple[str, float]]:
    """(id, cosine) of the best."""
    request = recall_pb2.RecallRequest(
        resource_id=resource, query=query, top_k=5, message_range=ALONE, ranking=BY_COSINE
    )
    answer = sidecar.service.Recall(request, timeout=WAIT_S)
    hits = sorted((m for m in answer.messages if m.rank), key=lambda m: m.rank)
    return [(hit.message.id, hit.score) for hit in hits]


def is_of(
    answer: Sequence[tuple[str, float]], texts: Mapping[str, str], query: str, model: WordModel
) -> bool:
    """Whether it is what brute force finds with that model."""
    asked = model.vector_of(query).astype(np.float64)
    scores = {name: float(model.vector_of(text) @ asked) for name, text in texts.items()}
    best = sorted(scores.values(), reverse=True)[: len(answer)]
    return len(answer) == min(5, len(texts)) and all(
        abs(score - wanted) < TOLERANCE and abs(scores.get(name, 9.0) - score) < TOLERANCE
        for (name, score), wanted in zip(answer, best, strict=True)
    )


def progress(sidecar: Sidecar) -> Iterator[admin_pb2.ReembedResponse]:
    yield from sidecar.admin.Reembed(admin_pb2.ReembedRequest(), timeout=WAIT_S)


def test_the_model_is_exchanged_through_refusal_kill_and_restart(
    models: Models, tmp_path: Path
) -> None:
    texts = texts_of(range(MESSAGES))
    former = ("--model-dir", str(models.former_folder))
    following = ("--model-dir", str(models.following_folder))
    both = (*former, "--next-model-dir", str(models.following_folder))

    with serving(tmp_path, *former) as (process, sidecar):
        index(sidecar, texts)
        identity = sidecar.stats().index_identity
        assert sidecar.stats().next_index_identity == ""
        with pytest.raises(grpc.RpcError) as refused:
            list(progress(sidecar))
        assert error_detail(refused.value).reason == "NO_NEXT_MODEL"
        stopped(process)
    said_why = refusal(tmp_path, *following)
    for part in (identity, "following@", "--next-model-dir", "semanticrecall reembed"):
        assert part in said_why, said_why

    with serving(tmp_path, *both) as (process, sidecar):
        for query in QUERIES:
            assert is_of(found(sidecar, query), texts, query, models.former)
        assert sidecar.stats().next_embedded == 0
        events = progress(sidecar)
        seen = next(e.done for e in events if e.done >= MESSAGES // 8)
        assert is_of(found(sidecar, QUERIES[0]), texts, QUERIES[0], models.former)
        process.signal(signal.SIGKILL)
        process.wait()
    assert seen < MESSAGES

    with serving(tmp_path, *both) as (process, sidecar):
        for query in QUERIES:
            assert is_of(found(sidecar, query), texts, query, models.former)
        assert sidecar.stats().next_embedded >= seen
        changed = exchanged(sidecar, models, texts)
        process.signal(signal.SIGKILL)
        process.wait()

    for arguments in (both, following):
        with serving(tmp_path, *arguments) as (process, sidecar):
            assert sidecar.stats().index_identity.startswith("following@")
            for query in QUERIES:
                assert is_of(found(sidecar, query), changed, query, models.following)
            assert (sidecar.stats().messages, sidecar.stats().pending) == (len(changed), 0)
            stopped(process)
    assert identity in refusal(tmp_path, *former)


def test_another_model_of_the_same_dimension_is_refused_too(tmp_path: Path) -> None:
    """Also in the same folder: the files were swapped."""
    folder = WordModel(WORDS, 384, seed=1).write(tmp_path / "model")
    with serving(tmp_path, "--model-dir", str(folder)) as (process, sidecar):
        index(sidecar, texts_of(range(5)))
        identity = sidecar.stats().index_identity
        stopped(process)
    WordModel(WORDS, 384, seed=2).write(folder)
    assert identity in refusal(tmp_path, "--model-dir", str(folder))


def exchanged(sidecar: Sidecar, models: Models, texts: dict[str, str]) -> dict[str, str]:
    """Reembed with recalls, edits and a Forget beside it; returns the texts as they are then.

    Every answer of a resource that stays as it is is one model's, and none of the former's is
    begun after one of the next one's has been seen.
    """
    still = texts_of(range(1000, 1040))
    index(sidecar, still, "still")
    over = threading.Event()

    def ask(query: str) -> list[str]:
        answers: list[str] = []
        while True:
            last = over.is_set()
            answer = found(sidecar, query, "still")
            is_former = is_of(answer, still, query, models.former)
            is_following = is_of(answer, still, query, models.following)
            assert is_former != is_following, answer
            answers.append("former" if is_former else "following")
            if last:
                return answers

    changes = texts_of(range(2000, 2020)) | {"m3": "word5 word6", "m4": "word7"}
    with ThreadPoolExecutor(len(QUERIES)) as threads:
        askers = [threads.submit(ask, query) for query in QUERIES]
        try:
            events = progress(sidecar)
            seen = [next(events)]
            index(sidecar, changes)
            target = recall_pb2.ForgetRequest(resource_id="u")
            target.message_ids.ids.extend(["m1", "m2"])
            sidecar.service.Forget(target, timeout=WAIT_S)
            seen += events
        finally:
            over.set()
        for asker in askers:
            answers = asker.result(WAIT_S)
            assert answers == sorted(answers, key=["former", "following"].index)
            assert {answers[0], answers[-1]} == {"former", "following"}
    assert [event.complete for event in seen] == [False] * (len(seen) - 1) + [True]
    # Four messages are edited or forgotten, which takes their new vectors too.
    assert all(after.done >= before.done - 4 for before, after in pairwise(seen))
    assert seen[-1].done == seen[-1].total
    left = {name: text for name, text in (texts | changes).items() if name not in ("m1", "m2")}
    assert seen[-1].total == len(left) + len(still)
    for query in QUERIES:
        assert is_of(found(sidecar, query), left, query, models.following)
    forget = recall_pb2.ForgetRequest(resource_id="still", everything=True)
    sidecar.service.Forget(forget, timeout=WAIT_S)
    return left
