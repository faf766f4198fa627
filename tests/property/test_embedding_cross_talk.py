"""Many texts at once, one caller in five gone: whoever stays gets the vector of their own text.

A neighbour that leaves a batch must not move the others' rows. With int8 a text's vector is the one
it has alone, to the bit; in batches of fp32 each number is within 1e-5 of it.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import grpc
import numpy as np
import pytest
from numpy.typing import NDArray

from semanticrecall.v1 import recall_pb2
from semanticrecall_core.embedding.embedder import OnnxEmbedder
from semanticrecall_core.embedding.encoder_model import EncoderModel
from semanticrecall_core.embedding.folder import read_model_folder
from semanticrecall_core.embedding.graph import GraphOptions, build_graph
from semanticrecall_core.embedding.manifest import sha256_hex
from semanticrecall_core.embedding.spec import Quantisation
from semanticrecall_core.embedding.weights import parse_config, parse_weights
from semanticrecall_core.types.errors import CancelledError, ResourceExhaustedError
from semanticrecall_core.types.values import CallBudget, EmbedRole
from semanticrecall_server.assembly import default_parts
from support import tiny_bert
from support.fault_report import FaultRun, seeded
from support.fault_sizes import COLUMNS, size
from support.running_server import InProcessServer, running

FloatRows = NDArray[np.float32]

CALLERS = 48
CALLS_ON_A_SOCKET_AT_ONCE = 32
CALLS_AT_ONCE = 1_000
SHARE_OF_LEAVERS = 0.2
OWNERS = ("alice", "bob", "")
FP32_TOLERANCE = 1e-5
WAIT_SECONDS = 60.0
CANCELLED = grpc.StatusCode.CANCELLED
REFUSED = grpc.StatusCode.RESOURCE_EXHAUSTED
KINDS: tuple[Quantisation, ...] = ("int8", "fp32")


def tiny(folder: Path, kind: Quantisation) -> EncoderModel:
    """The tiny BERT in one arithmetic."""
    tiny_bert.write_tiny_model(folder)
    model = read_model_folder(folder, folder.parent / f"cache-{kind}")
    if kind == "fp32":
        return model
    weights = parse_weights(
        (folder / "model.safetensors").read_bytes(),
        parse_config((folder / "config.json").read_bytes()),
    )
    graph = build_graph(weights, GraphOptions(quantisation="int8"))
    spec = replace(model.spec, quantisation="int8", weights_sha256=sha256_hex(graph))
    return EncoderModel(spec, graph, model.tokenizer_json)


def texts_of(run: FaultRun, count: int) -> list[str]:
    """Distinct texts of 1 to 24 words."""
    words = tiny_bert.WORDS[4:]
    found: dict[str, None] = {}
    while len(found) < count:
        found[" ".join(run.random.choices(words, k=run.random.randint(1, 24)))] = None
    return list(found)


class Alone:
    """Vectors of texts that nothing runs beside, from an embedder of its own without a cache."""

    def __init__(self, model: EncoderModel) -> None:
        self._embedder = OnnxEmbedder(model, device="cpu", cache_bytes_max=0)
        self._known: dict[str, FloatRows] = {}

    def __call__(self, text: str) -> FloatRows:
        if text not in self._known:
            budget = CallBudget.of_seconds(WAIT_SECONDS)
            self._known[text] = self._embedder.embed_query(text, budget).vectors[0]
        return self._known[text]

    def close(self) -> None:
        self._embedder.close()


def is_own(kind: Quantisation, found: FloatRows, alone: FloatRows) -> bool:
    """The vector is that of the text itself, as exactly as its arithmetic promises."""
    if kind == "int8":
        return found.tobytes() == alone.tobytes()
    return bool(np.abs(found - alone).max() <= FP32_TOLERANCE)


class Leaver:
    """A caller that has gone after it was asked so many times; None stays."""

    def __init__(self, asked: int | None) -> None:
        self._left = asked

    def gone(self) -> bool:
        if self._left is None:
            return False
        self._left -= 1
        return self._left < 0


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Quantisation:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def model(tmp_path: Path, kind: Quantisation) -> EncoderModel:
    return tiny(tmp_path / "model", kind)


@pytest.fixture
def alone(model: EncoderModel) -> Iterator[Alone]:
    made = Alone(model)
    yield made
    made.close()


@pytest.mark.timeout(7_200)
@pytest.mark.parametrize("column", COLUMNS)
def test_a_caller_that_leaves_never_moves_its_neighbours_vectors(
    model: EncoderModel, kind: Quantisation, alone: Alone, column: str
) -> None:
    calls = size("F24_EMBEDDINGS", column) // 2
    embedder = OnnxEmbedder(model, device="cpu", cache_bytes_max=64 * 1024)
    with seeded("F24 embedder", None, kind=kind, calls=calls) as run:
        texts = texts_of(run, 2_000)
        expected = {text: alone(text) for text in texts}

        def call(number: int) -> str:
            rng = random.Random(f"{run.seed}/{number}")
            text, owner = rng.choice(texts), rng.choice(OWNERS)
            leaves = rng.random() < SHARE_OF_LEAVERS
            leaver = Leaver(rng.randrange(4) if leaves else None)
            budget = CallBudget(CallBudget.of_seconds(WAIT_SECONDS).deadline, leaver.gone)
            role = rng.choice((EmbedRole.QUERY, EmbedRole.PASSAGE))
            try:
                found = embedder.embed_window(text, role, budget, owner)
            except CancelledError:
                assert leaves, f"{text!r} was cancelled, and its caller was there"
                return "cancelled"
            except ResourceExhaustedError:
                return "refused"
            vector = found.vectors[0]
            assert is_own(kind, vector, expected[text]), (text, vector, expected[text])
            return "equal"

        with ThreadPoolExecutor(CALLERS) as pool:
            for part in run.batches(range(calls), CALLS_AT_ONCE):
                for outcome in pool.map(call, part):
                    run.count(outcome)
        assert run.counts["equal"] >= run.done * (1 - SHARE_OF_LEAVERS) * 0.9, run.counts
        assert run.counts["cancelled"] > 0, run.counts
    embedder.close()


@pytest.mark.timeout(7_200)
@pytest.mark.parametrize("column", COLUMNS)
def test_on_a_socket_too(
    tmp_path: Path, model: EncoderModel, kind: Quantisation, alone: Alone, column: str
) -> None:
    calls = size("F24_EMBEDDINGS", column) // 5
    embedder = OnnxEmbedder(model, device="cpu", cache_bytes_max=64 * 1024)
    with (
        seeded("F24 server", tmp_path / "data", kind=kind, calls=calls) as run,
        running(tmp_path, default_parts(lambda settings: embedder), recall_threads=8) as server,
    ):
        texts = texts_of(run, 500)
        expected = {text: alone(text) for text in texts}
        places = threading.BoundedSemaphore(CALLS_ON_A_SOCKET_AT_ONCE)
        begun = []
        for _ in run.cycles(calls):
            assert places.acquire(timeout=WAIT_SECONDS)
            leaves = run.random.random() < SHARE_OF_LEAVERS
            chosen = run.random.sample(texts, run.random.randint(1, 4))
            begun.append((chosen, leaves, _begin(server, chosen, places.release, run)))
            if leaves:
                begun[-1][2].cancel()
        for chosen, leaves, call in begun:
            _check(run, kind, (chosen, leaves, call), expected)
        taken = run.done - run.counts["refused"]  # a busy machine takes fewer
        assert run.counts["equal"] >= taken * (1 - SHARE_OF_LEAVERS) * 0.9, run.counts
        assert run.counts["refused"] < run.done // 2, run.counts


def _begin(
    server: InProcessServer, texts: list[str], done: Callable[[], None], run: FaultRun
) -> grpc.Future:
    role = run.random.choice((recall_pb2.EMBED_ROLE_QUERY, recall_pb2.EMBED_ROLE_PASSAGE))
    request = recall_pb2.EmbedRequest(texts=texts, role=role)
    call: grpc.Future = server.recall.Embed.future(request, timeout=WAIT_SECONDS)
    call.add_done_callback(lambda ended: done())
    return call


def _check(
    run: FaultRun,
    kind: Quantisation,
    ended: tuple[list[str], bool, grpc.Future],
    expected: dict[str, FloatRows],
) -> None:
    """A call that was not cancelled has the vectors of its own texts, in their order."""
    texts, leaves, call = ended
    error = None if call.cancelled() else call.exception(timeout=WAIT_SECONDS)
    if call.cancelled() or error is not None:
        code = call.code()  # type: ignore[attr-defined]
        assert code is REFUSED or (leaves and code is CANCELLED), (code, error)
        run.count("refused" if code is REFUSED else "cancelled")
        return
    answer = call.result(timeout=WAIT_SECONDS)
    for text, found in zip(texts, answer.embeddings, strict=True):
        vector = np.array(found.values, np.float32)
        assert is_own(kind, vector, expected[text]), (text, vector, expected[text])
    run.count("equal")
