"""Fills a data directory without embedding anything: a million messages in minutes.

Usage: python -m benchmarks.store_builder --data-dir DIR [--resources 10000] [--messages 1000000]

Messages are those of the synthetic chat and go through the store's own `append`, which analyses
their words, and `put_vectors`. Their vectors are synthetic unit vectors: each lies near the
embedding of one of 256 sentences, drawn from a seed, so that the model's own query vectors find
near and far neighbours as in real data. They carry the installed model's generation, so a sidecar
takes them for its own.

A directory holds `data` (what `--data-dir` of the sidecar takes) and `built.json` (what it was
built of). It is built once: a later call with the same plan, model, format of the record and
analysis finds it and returns.
"""

from __future__ import annotations

import itertools
import json
import random
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks import corpus
from benchmarks.raw_parts import RawEmbed
from benchmarks.report import Result, flag, run_script
from semanticrecall_core.embedding.encoder_model import EncoderModel
from semanticrecall_core.embedding.provision import find_model
from semanticrecall_core.lexical.analysis import Analyser
from semanticrecall_core.lexical.analysis_format import VERSION as ANALYSIS_VERSION
from semanticrecall_core.messages import SqliteMessageStore, StoreOptions
from semanticrecall_core.messages.schema import FORMAT as RECORD_FORMAT
from semanticrecall_core.types.values import (
    CallBudget,
    MessageDraft,
    Role,
    VectorRecord,
)
from semanticrecall_server.message_codec import ProtobufMessages

FORMAT = 2  # of what is built; a directory of another one is built anew
BATCH_MESSAGES = 2_000
CENTRES = 256
CENTRES_SEED = 1
NEIGHBOUR_WEIGHT = 0.35
NOISE_WEIGHT = 0.6
FIRST_TIME_NS = 1_700_000_000 * 10**9
SECOND_NS = 10**9
BATCH_SECONDS_MAX = 600.0


@contextmanager
def stores_in(data_dir: Path | None) -> Iterator[Path]:
    """Where stores are built: a directory to find them in again, or None for one that goes."""
    if data_dir is not None:
        yield data_dir.resolve()
        return
    with tempfile.TemporaryDirectory(prefix="semanticrecall-bench-") as name:
        yield Path(name)


@dataclass(frozen=True, slots=True)
class ResourcePlan:
    """One resource to build."""

    resource_id: str
    messages: int
    seed: int


def many(resources: int, messages: int, *, seed: int) -> list[ResourcePlan]:
    """`messages` messages, spread evenly over resources `user-0`, `user-1`, ..."""
    each, more = divmod(messages, resources)
    return [
        ResourcePlan(f"user-{number}", each + (number < more), seed + number)
        for number in range(resources)
    ]


def crowd(measured: ResourcePlan, resources: int, messages: int) -> list[ResourcePlan]:
    """A resource among many: `messages` and `resources` are those of the store, it included.

    It comes last, so that it is the one that was written most recently.
    """
    others = many(resources - 1, messages - measured.messages, seed=measured.seed + 1)
    return [*others, measured]


def build(directory: Path, plan: Sequence[ResourcePlan]) -> bool:
    """Fill `directory`/data, unless it is filled like this already.

    Returns:
        Whether anything was built.
    """
    generation = EncoderModel.of_files(find_model()).generation
    account = {
        "format": FORMAT,
        "record_format": RECORD_FORMAT,
        "analysis": ANALYSIS_VERSION,
        "generation": generation,
        "resources": [asdict(resource) for resource in plan],
    }
    built = directory / "built.json"
    if built.exists() and json.loads(built.read_text()) == account:
        return False
    built.unlink(missing_ok=True)
    shutil.rmtree(directory / "data", ignore_errors=True)
    directory.mkdir(parents=True, exist_ok=True)
    store = open_store(directory / "data", generation)
    try:
        _fill(store, plan)
    finally:
        store.close()
    built.write_text(json.dumps(account))
    return True


class Vectors:
    """Synthetic unit vectors around embeddings of sentences."""

    def __init__(self) -> None:
        rng = random.Random(CENTRES_SEED)
        embed = RawEmbed()
        self._centres = np.stack([embed(corpus.sentence(rng)) for _ in range(CENTRES)])

    def draw(self, rng: np.random.Generator, count: int) -> NDArray[np.float32]:
        """Shape (count, dimensions)."""
        dimensions = self._centres.shape[1]
        near, far = rng.integers(0, CENTRES, (2, count))
        noise = rng.standard_normal((count, dimensions), dtype=np.float32)
        vectors: NDArray[np.float32] = self._centres[near] + NEIGHBOUR_WEIGHT * self._centres[far]
        vectors += noise * np.float32(NOISE_WEIGHT / dimensions**0.5)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        return vectors


def open_store(
    directory: Path, generation: str, options: StoreOptions | None = None
) -> SqliteMessageStore:
    """The store of a data directory, as the sidecar opens it."""
    return SqliteMessageStore(
        directory,
        generation=generation,
        codec=ProtobufMessages(),
        analyser=Analyser(),
        options=options,
    )


def _drafts(resource: ResourcePlan, first: int) -> Iterator[MessageDraft]:
    """`first` is how many messages came before: time goes on from resource to resource."""
    for number, message in enumerate(corpus.chat(resource.messages, seed=resource.seed)):
        yield MessageDraft(
            id=message.id,
            thread_id=message.thread_id,
            role=Role.USER if message.from_user else Role.ASSISTANT,
            text=message.text,
            create_time_ns=FIRST_TIME_NS + (first + number) * SECOND_NS,
        )


def append(
    store: SqliteMessageStore,
    resource_id: str,
    drafts: Sequence[MessageDraft],
    vectors: NDArray[np.float32],
) -> list[VectorRecord]:
    """Commit messages of a resource; returns what `put_vectors` takes for them.

    Args:
        vectors: one of each message, shape (len(drafts), dimensions).
    """
    budget = CallBudget.of_seconds(BATCH_SECONDS_MAX)
    outcomes = store.append(resource_id, drafts, budget)
    return [
        VectorRecord(resource_id, outcome.seq, outcome.revision, vectors[i : i + 1])
        for i, outcome in enumerate(outcomes)
    ]


def put_vectors(store: SqliteMessageStore, records: Sequence[VectorRecord]) -> None:
    """Commit vectors of messages that were appended.

    Raises:
        RuntimeError: one of them was changed in between.
    """
    if not all(store.put_vectors(records)):
        raise RuntimeError("a vector was not stored")


def _fill(store: SqliteMessageStore, plan: Sequence[ResourcePlan]) -> None:
    """A resource's texts and vectors depend on its own seed only, whatever else is in the store."""
    vectors = Vectors()
    waiting: list[VectorRecord] = []
    messages = 0
    for resource in plan:
        rng = np.random.default_rng(resource.seed)
        drafts = _drafts(resource, messages)
        messages += resource.messages
        while batch := list(itertools.islice(drafts, BATCH_MESSAGES)):
            drawn = vectors.draw(rng, len(batch))
            waiting += append(store, resource.resource_id, batch, drawn)
            if len(waiting) >= BATCH_MESSAGES:
                put_vectors(store, waiting)
                waiting = []
    put_vectors(store, waiting)


@dataclass(frozen=True, slots=True)
class Config:
    """What is built."""

    data_dir: Path = flag(  # noqa: RUF009
        Path("bench-store"), "directory to fill", Path
    )
    resources: int = flag(10_000, "resources")
    messages: int = flag(1_000_000, "messages of all resources together")
    seed: int = flag(7, "of texts and vectors")


def measure(config: Config) -> Result:
    """Build, and say how fast."""
    started = time.perf_counter()
    built = build(config.data_dir, many(config.resources, config.messages, seed=config.seed))
    seconds = time.perf_counter() - started
    figures: dict[str, float] = {"built": built, "seconds": seconds}
    if built:  # else the seconds are those of looking
        figures["messages/s"] = config.messages / seconds
    return Result(figures=figures)


if __name__ == "__main__":
    run_script(__doc__, Config, measure)
