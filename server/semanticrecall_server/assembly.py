"""Makes the engine of the settings: SQLite record, ONNX model, FAISS partitions.

The data directory is claimed before addresses are bound, but the record can be opened only when
the model is known, since its vectors belong to one model. So the claim is held from the first, and
the store takes it over. What only the engine needs is imported after the addresses are bound, so
that probes meet an open port as soon as can be.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

from semanticrecall_core.embedding.cache_file import CacheFileOptions
from semanticrecall_core.embedding.cache_format import delete_cache_file
from semanticrecall_core.embedding.scheduler import Scheduling
from semanticrecall_core.messages.directory import DataDirectory
from semanticrecall_core.types.ports import Embedder
from semanticrecall_core.types.values import CallBudget

from . import guards
from .config import Settings
from .lifecycle import Parts
from .memory_limit import cache_bytes
from .setting_kinds import Memory

if TYPE_CHECKING:
    from semanticrecall_core.engine import Engine

WARM_UP_TEXT = "what did we talk about?"
WARM_UP_SECONDS = 60.0
SNAPSHOTS = "snapshots"
"""Folder in the data directory."""


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
    with guards.importing():
        from semanticrecall_core.embedding.embedder import load_embedder
    return load_embedder(
        settings.model_dir,
        settings.model_cache_dir,
        settings.device.value,
        cache_bytes(settings, settings.cache_bytes_max),
        cache_file=cache_file_of(settings),
        scheduling=Scheduling(
            queue_texts_max=settings.embed_queue_texts_max,
            queue_tokens_max=settings.embed_queue_tokens_max,
            batch_tokens_max=settings.embed_batch_tokens_max,
            one_session=settings.memory is Memory.LOW,
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
    with guards.importing():
        from .engine_assembly import make_engine, open_store
    embedder = load_model(settings)
    with ExitStack() as undo:
        undo.callback(embedder.close)
        store = open_store(settings, claim, embedder)
        undo.callback(store.close)
        engine = make_engine(settings, store, embedder)
        undo.pop_all()
        undo.callback(engine.stop)
        engine.start()
        # The embedder has compared its known vectors; this warms the path that a recall takes.
        engine.warm_up(WARM_UP_TEXT, CallBudget.of_seconds(WARM_UP_SECONDS))
        undo.pop_all()
    # What the start made stays for good. Left to the collector, every full collection would walk
    # it: with the imports 58 ms of a recall's time, against 5 us afterwards.
    gc.collect()
    gc.freeze()
    return engine
