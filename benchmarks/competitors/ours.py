"""SemanticRecall as an agent has it: a sidecar beside the process, asked by the Python client.

Vectors that are given with messages are written through the store before a sidecar runs, since its
contract takes texts only. From `loaded` on, or from the first question, a sidecar serves the
directory on a Unix socket, with its default settings, and embeds what is added.

A directory holds `data`, the sidecar's data directory, and its socket.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks import processes, store_builder
from benchmarks.competitors.port import EmbedsTexts, Found, Rows, Setup
from semanticrecall import (
    ContextFormat,
    IndexResult,
    Message,
    Mode,
    RecallClient,
    Status,
    Wait,
    user,
)
from semanticrecall.values import RecallOptions
from semanticrecall_core.embedding.encoder_model import EncoderModel
from semanticrecall_core.embedding.provision import find_model
from semanticrecall_core.messages import SqliteMessageStore
from semanticrecall_core.types.values import MessageDraft, Role

DATA = "data"
INDEX_MESSAGES = 500
CALL_SECONDS_MAX = 600.0
SEARCHABLE = frozenset((Status.INDEXED, Status.REPLACED, Status.UNCHANGED))


class Sidecar:
    """A sidecar's directory: filled first, then served."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._store: SqliteMessageStore | None = None
        self._filled = 0
        if not (directory / DATA).exists():
            generation = EncoderModel.of_files(find_model()).generation
            self._store = store_builder.open_store(directory / DATA, generation)
        self._client: RecallClient | None = None
        self._process_id = 0
        self._open = ExitStack()

    @property
    def setup(self) -> Setup:
        """How it was set up."""
        return Setup(
            name="SemanticRecall",
            versions={"semanticrecall-sidecar": version("semanticrecall-sidecar")},
            tenants="`resource_id`: a partition of its own for each user",
            index="exact: a scan of int8 codes with a proof, then float32; default settings",
            durability="on disk (fsync) and searchable, one commit for all callers at that moment",
            advice="README.md; docs/snapshots.md (`CreateSnapshot`, images only, after an import)",
        )

    @property
    def process_id(self) -> int:
        """Of the sidecar."""
        self._serving()
        return self._process_id

    def add(self, rows: Rows) -> None:
        """Before it serves: with these vectors. Then: as `Index`, which embeds the texts again."""
        if self._store is not None:
            self._fill(self._store, rows)
            return
        client = self._serving()
        messages = [
            user(text, id=id_, thread_id=thread_id)
            for id_, thread_id, text in zip(rows.ids, rows.thread_ids, rows.texts, strict=True)
        ]
        for start in range(0, len(messages), INDEX_MESSAGES):
            batch = messages[start : start + INDEX_MESSAGES]
            _index(client, rows.resource_id, "", batch, Wait.SEARCHABLE)

    def add_texts(
        self, resource_id: str, thread_id: str, texts: dict[str, str], *, found: bool
    ) -> None:
        """One `Index` call."""
        messages = [user(text, id=id_) for id_, text in texts.items()]
        wait = Wait.SEARCHABLE if found else Wait.DURABLE
        _index(self._serving(), resource_id, thread_id, messages, wait)

    def loaded(self) -> None:
        """Serve, and write snapshots of it all."""
        self._serving().create_snapshot(partitions_only=True, timeout=CALL_SECONDS_MAX)

    def search(self, resource_id: str, vector: NDArray[np.float32], top_k: int) -> list[Found]:
        """`Recall` with the query's vector."""
        return self.recall(resource_id, vector, top_k)

    def recall(
        self,
        resource_id: str,
        question: str | NDArray[np.float32],
        top_k: int,
        *,
        neighbours: int = 0,
    ) -> list[Found]:
        """One `Recall` call; with neighbours their text for a prompt too."""
        # By vectors alone, as the others do.
        options = RecallOptions(
            top_k=top_k, message_range=(neighbours, neighbours), mode=Mode.DENSE
        )
        if neighbours == 0:
            options["context_format"] = ContextFormat.NONE
        text = question if isinstance(question, str) else ""
        if not isinstance(question, str):
            options["query_embedding"] = question.tolist()
        answer = self._serving().recall(resource_id, text, **options)
        return [Found(hit.message.id, hit.message.text) for hit in answer.hits]

    def close(self) -> None:
        """Stop the sidecar, which writes what it has still in memory."""
        self._close_store()
        self._open.close()
        self._client = None

    def _serving(self) -> RecallClient:
        """The client; starts the sidecar where none runs."""
        if self._client is None:
            self._close_store()
            started = processes.started(
                self._directory, "semanticrecall_server", "--log-level", "warning"
            )
            serving = self._open.enter_context(started)
            self._process_id = serving.pid
            client = RecallClient(serving.address, fail_open=False)
            self._client = self._open.enter_context(client)
        return self._client

    def _close_store(self) -> None:
        if self._store is not None:
            self._store.close()
            self._store = None

    def _fill(self, store: SqliteMessageStore, rows: Rows) -> None:
        drafts = list(self._drafts(rows))
        for start in range(0, len(drafts), store_builder.BATCH_MESSAGES):
            part = slice(start, start + store_builder.BATCH_MESSAGES)
            records = store_builder.append(
                store, rows.resource_id, drafts[part], rows.vectors[part]
            )
            store_builder.put_vectors(store, records)

    def _drafts(self, rows: Rows) -> Iterator[MessageDraft]:
        for id_, thread_id, text in zip(rows.ids, rows.thread_ids, rows.texts, strict=True):
            time_ns = store_builder.FIRST_TIME_NS + self._filled * store_builder.SECOND_NS
            self._filled += 1
            yield MessageDraft(
                id=id_, thread_id=thread_id, role=Role.USER, text=text, create_time_ns=time_ns
            )


def _index(
    client: RecallClient, resource_id: str, thread_id: str, messages: list[Message], wait: Wait
) -> None:
    """Index messages.

    Raises:
        RuntimeError: one of them is not where `wait` says.
    """
    answer: IndexResult = client.index(
        resource_id, thread_id, messages, wait=wait, timeout=CALL_SECONDS_MAX
    )
    answer.raise_for_rejected()
    statuses = {outcome.status for outcome in answer.outcomes}
    if wait is Wait.SEARCHABLE and not statuses <= SEARCHABLE:
        raise RuntimeError("a message was not made searchable")


def open_system(directory: Path, dimensions: int) -> EmbedsTexts:
    """Open what is in the directory, or begin anew.

    Raises:
        ValueError: the installed model's vectors have other dimensions.
    """
    model = find_model().spec
    if model.dimensions != dimensions:
        raise ValueError(f"the model has {model.dimensions} dimensions, not {dimensions}")
    return Sidecar(directory)
