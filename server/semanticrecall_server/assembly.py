"""Makes the engine of the settings: SQLite record, ONNX model, FAISS partitions.

The data directory is claimed before addresses are bound, but the record can be opened only when
the model is known, since its vectors belong to one model. So the claim is held from the first, and
the store takes it over.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from contextlib import ExitStack, suppress

from semanticrecall_core.embedding.cache_file import CacheFileOptions
from semanticrecall_core.embedding.cache_format import delete_cache_file
from semanticrecall_core.embedding.embedder import load_embedder
from semanticrecall_core.embedding.scheduler import Scheduling
from semanticrecall_core.embedding.threads import worker_threads
from semanticrecall_core.engine import Engine, EngineLimits
from semanticrecall_core.engine.partition_loading import ImageForm, PartitionLoader
from semanticrecall_core.engine.snapshotting import SnapshotPlan, Snapshotting
from semanticrecall_core.messages import SqliteMessageStore, StoreOptions
from semanticrecall_core.messages.directory import DataDirectory
from semanticrecall_core.snapshots import FileSnapshotStore
from semanticrecall_core.types.ports import Embedder, MessageStore
from semanticrecall_core.types.values import CallBudget
from semanticrecall_core.vectors import FaissVectorIndex

from .config import Settings
from .lifecycle import Parts
from .memory_limit import partitions_bytes_default
from .message_codec import ProtobufMessages
from .setting_kinds import Memory

WARM_UP_TEXT = "what did we talk about?"
WARM_UP_SECONDS = 60.0
SNAPSHOTS = "snapshots"
"""Folder in the data directory."""

SCALE_CLIP = 0.30
"""Measured for the default model: docs/decisions/0003."""

ROWS_MIN = 256
"""Fewer rows are read from the record as quickly: docs/decisions/0008."""

QUIET_INTERVALS = 5


def default_parts(load: Callable[[Settings], Embedder] | None = None) -> Parts:
    """Parts that serve the data directory of the settings.

    Args:
        load: makes the embedder; None is the model of the settings.
    """
    load_model = load or _load_model
    return Parts(_claim, lambda settings, claim: _load(settings, claim, load_model))


def _claim(settings: Settings) -> DataDirectory:
    return DataDirectory(
        settings.data_dir, allow_shared_file_system=settings.allow_network_filesystem
    )


def _load_model(settings: Settings) -> Embedder:
    return load_embedder(
        settings.model_dir,
        settings.model_cache_dir,
        settings.device.value,
        settings.cache_bytes_max,
        cache_file=cache_file_of(settings),
        scheduling=Scheduling(
            queue_texts_max=settings.embed_queue_texts_max,
            queue_tokens_max=settings.embed_queue_tokens_max,
            batch_tokens_max=settings.embed_batch_tokens_max,
        ),
    )


def cache_file_of(settings: Settings) -> CacheFileOptions:
    """Where the vector cache of a data directory is kept; the directory is claimed.

    Without the record beside it, the file is of a record that is gone, and nobody could ask to
    forget what is in there: it is deleted.
    """
    path = settings.data_dir / "embeddings.db"
    if not (settings.data_dir / "recall.db").exists():
        with suppress(OSError):  # then it is found to be of another record, or unusable
            delete_cache_file(path)
    return CacheFileOptions(path, settings.cache_disk_bytes_max)


def _load(
    settings: Settings, claim: DataDirectory, load_model: Callable[[Settings], Embedder]
) -> Engine:
    embedder = load_model(settings)
    options = StoreOptions(
        allow_shared_file_system=settings.allow_network_filesystem,
        accept_loss=settings.accept_loss,
    )
    with ExitStack() as undo:
        undo.callback(embedder.close)
        store = SqliteMessageStore(
            claim, generation=embedder.generation, codec=ProtobufMessages(), options=options
        )
        undo.callback(store.close)
        engine = _engine(settings, store, embedder)
        undo.pop_all()
        undo.callback(engine.stop)
        engine.start()
        # The embedder has compared its known vectors; this warms the path that a recall takes.
        engine.warm_up(WARM_UP_TEXT, CallBudget.of_seconds(WARM_UP_SECONDS))
        undo.pop_all()
    # What the imports and the start made stays for good. Left to the collector, every full
    # collection would walk it: 58 ms of a recall's time, against 5 us afterwards.
    gc.collect()
    gc.freeze()
    return engine


def _engine(settings: Settings, store: MessageStore, embedder: Embedder) -> Engine:
    low = settings.memory is Memory.LOW
    snapshots = FileSnapshotStore(
        settings.data_dir / SNAPSHOTS, store_id=store.store_id, mapped=low
    )
    bytes_max = settings.partitions_bytes_max or partitions_bytes_default()
    form = ImageForm(embedder.generation, embedder.dimensions, SCALE_CLIP, mapped=low)
    loader = PartitionLoader(store, snapshots, form)
    index = FaissVectorIndex(
        embedder.dimensions,
        loader,
        scale_clip=SCALE_CLIP,
        partitions_bytes_max=bytes_max,
        scan_threads=worker_threads(),
    )
    interval_s = settings.snapshot_interval_ms / 1000
    plan = SnapshotPlan(
        interval_s=interval_s,
        quiet_s=QUIET_INTERVALS * interval_s,
        rows_min=1 if low else ROWS_MIN,
        mapped=low,
    )
    snapshotting = Snapshotting(store, snapshots, index, embedder.generation, plan)
    loader.tell_rows_read(snapshotting.rows_read)
    limits = EngineLimits(
        embed_threads=settings.backlog_threads or embedder.passages_at_once,
        answer_bytes_max=settings.answer_bytes_max,
        filter_keys=frozenset(settings.filter_keys),
        partitions_bytes_max=bytes_max,
    )
    return Engine(store, embedder, index, limits, snapshotting)
