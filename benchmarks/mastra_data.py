"""What `benchmarks/mastra` gives to every system: texts, their vectors, questions, filled stores.

Usage: python -m benchmarks.mastra_data --data-dir DIR [--sizes 1000,10000,50000]

One synthetic chat, as long as the largest size; the smaller ones are its beginning. It is laid out
twice: "resources" gives each `resource_messages` of it to a user of its own, "one_user" all of it
to one. Vectors are made by the installed model, as the sidecar makes them. What is there for the
same texts and model is used again: 50,000 texts take some minutes. A directory holds

  texts-<digest>/messages.jsonl   {id, threadId, role, text, createTimeMs}, in order
                 vectors.f32      little-endian float32, a row for each of them
                 queries.jsonl    questions, a JSON string a line, each of them once
                 made.json        what it was made of; written last
  ours-<digest>/<layout>-<size>   `data`: what the sidecar takes as `--data-dir`; `made.json`

Standard output is one JSON object: `texts` and `dimensions`, `stores` by `<layout>-<size>`.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import corpus, store_builder
from benchmarks.raw_parts import DIMENSIONS, RawEmbed
from semanticrecall_core.embedding.encoder_model import EncoderModel
from semanticrecall_core.embedding.provision import find_model
from semanticrecall_core.lexical.analysis_format import VERSION as ANALYSIS_VERSION
from semanticrecall_core.messages.schema import FORMAT as RECORD_FORMAT
from semanticrecall_core.types.values import MessageDraft, Role

FORMAT = 1
LAYOUTS = ("resources", "one_user")
THREAD_MESSAGES = 50
"""Divides what a user has, so that no thread is of two users."""
SECOND_MS = 1_000
MS_NS = 10**6
PROGRESS_TEXTS = 10_000
SIZES_MAX = 10
MESSAGES_MAX = 200_000
QUERIES_MAX = 100_000


@dataclass(frozen=True, slots=True)
class Plan:
    """What is made.

    Attributes:
        sizes: messages of each store, smallest first.
        resource_messages: of each user in the layout "resources".
        queries: how many questions.
    """

    sizes: tuple[int, ...]
    resource_messages: int
    queries: int
    seed: int

    def messages(self) -> Iterator[corpus.ChatMessage]:
        """As many as the largest store has."""
        return corpus.chat(max(self.sizes), seed=self.seed, thread_messages=THREAD_MESSAGES)

    def owner(self, layout: str, number: int) -> str:
        """The resource that a message of this number is of."""
        return f"user-{number // self.resource_messages}" if layout == "resources" else "user-0"


def create_time_ms(number: int) -> int:
    """Of the message of this number."""
    return store_builder.FIRST_TIME_NS // MS_NS + number * SECOND_MS


def make_texts(directory: Path, plan: Plan, generation: str) -> Path:
    """Write texts, vectors and questions, unless they are there; returns where they are."""
    texts = [message.text for message in plan.messages()]
    account = {
        "format": FORMAT,
        "generation": generation,
        "seed": plan.seed,
        "queries": plan.queries,
        "thread_messages": THREAD_MESSAGES,
        "texts": hashlib.sha256(json.dumps(texts).encode()).hexdigest(),
    }
    found = directory / f"texts-{digest(account)}"
    if (found / "made.json").exists():
        return found
    found.mkdir(parents=True, exist_ok=True)
    with (found / "messages.jsonl").open("w", encoding="utf-8") as file:
        for number, message in enumerate(plan.messages()):
            line = {
                "id": message.id,
                "threadId": message.thread_id,
                "role": "user" if message.from_user else "assistant",
                "text": message.text,
                "createTimeMs": create_time_ms(number),
            }
            file.write(json.dumps(line) + "\n")
    queries = corpus.queries(plan.queries, seed=plan.seed)
    (found / "queries.jsonl").write_text("".join(json.dumps(one) + "\n" for one in queries))
    embed_all(texts).astype("<f4").tofile(found / "vectors.f32")
    (found / "made.json").write_text(json.dumps(account) + "\n")
    return found


def embed_all(texts: Sequence[str]) -> NDArray[np.float32]:
    """Shape (len(texts), DIMENSIONS); runs of the model let go of the interpreter's lock."""
    embed = RawEmbed()
    rows: list[NDArray[np.float32]] = []
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        for start in range(0, len(texts), PROGRESS_TEXTS):
            rows += threads.map(embed, texts[start : start + PROGRESS_TEXTS])
            print(f"embedded {len(rows)} of {len(texts)} texts", file=sys.stderr, flush=True)
    return np.stack(rows)


def load_vectors(texts: Path) -> NDArray[np.float32]:
    """As `make_texts` wrote them; read from the file as they are used."""
    return np.memmap(texts / "vectors.f32", dtype="<f4", mode="r").reshape(-1, DIMENSIONS)


def make_store(directory: Path, plan: Plan, layout: str, size: int, texts: Path) -> None:
    """Fill a sidecar's data directory with the first `size` messages, unless it is there."""
    made = directory / "made.json"
    if made.exists():
        return
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    vectors = load_vectors(texts)
    generation = EncoderModel.of_files(find_model()).generation
    store = store_builder.open_store(directory / "data", generation)
    try:
        numbered = enumerate(itertools.islice(plan.messages(), size))
        for owner, group in itertools.groupby(numbered, lambda one: plan.owner(layout, one[0])):
            while batch := list(itertools.islice(group, store_builder.BATCH_MESSAGES)):
                rows = np.array(vectors[batch[0][0] : batch[-1][0] + 1])
                drafts = [draft(number, message) for number, message in batch]
                records = store_builder.append(store, owner, drafts, rows)
                store_builder.put_vectors(store, records)
    finally:
        store.close()
    made.write_text("{}\n")


def draft(number: int, message: corpus.ChatMessage) -> MessageDraft:
    """A message as the store takes it."""
    return MessageDraft(
        id=message.id,
        thread_id=message.thread_id,
        role=Role.USER if message.from_user else Role.ASSISTANT,
        text=message.text,
        create_time_ns=create_time_ms(number) * MS_NS,
    )


def digest(account: dict[str, Any]) -> str:
    """Names what was made of this."""
    return hashlib.sha256(json.dumps(account, sort_keys=True).encode()).hexdigest()[:16]


def make(directory: Path, plan: Plan) -> dict[str, Any]:
    """Make what is not there; what standard output says."""
    generation = EncoderModel.of_files(find_model()).generation
    texts = make_texts(directory, plan, generation)
    account = {**asdict(plan), "texts": texts.name, "formats": [RECORD_FORMAT, ANALYSIS_VERSION]}
    ours = directory / f"ours-{digest(account)}"
    stores: dict[str, str] = {}
    for layout, size in itertools.product(LAYOUTS, plan.sizes):
        name = f"{layout}-{size}"
        make_store(ours / name, plan, layout, size, texts)
        stores[name] = str(ours / name / "data")
    return {"texts": str(texts), "dimensions": DIMENSIONS, "stores": stores}


def plan_of(arguments: Sequence[str] | None = None) -> tuple[Path, Plan]:
    """Read the command line; ends the process where it is wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data-dir", type=Path, required=True, help="where all of it is kept")
    parser.add_argument("--sizes", default="1000,10000,50000", help="messages of the stores")
    parser.add_argument("--resource-messages", type=int, default=500, help="of each user")
    parser.add_argument("--queries", type=int, default=20_000, help="how many questions")
    parser.add_argument("--seed", type=int, default=7, help="of texts and questions")
    given = parser.parse_args(arguments)
    sizes = tuple(sorted({int(size) for size in given.sizes.split(",")}))
    if not (len(sizes) <= SIZES_MAX and sizes[0] >= 1 and sizes[-1] <= MESSAGES_MAX):
        parser.error(f"--sizes: 1 to {SIZES_MAX} sizes, each 1 to {MESSAGES_MAX:,}")
    if given.resource_messages < 1 or given.resource_messages % THREAD_MESSAGES:
        parser.error(f"--resource-messages: a multiple of {THREAD_MESSAGES}")
    if not 1 <= given.queries <= QUERIES_MAX:
        parser.error(f"--queries: 1 to {QUERIES_MAX:,}")
    return given.data_dir.resolve(), Plan(sizes, given.resource_messages, given.queries, given.seed)


def main() -> None:
    """The command line."""
    directory, plan = plan_of()
    print(json.dumps(make(directory, plan)))


if __name__ == "__main__":
    main()
