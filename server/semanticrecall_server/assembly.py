"""Makes the engine of the settings: SQLite record, ONNX model, FAISS partitions.

The data directory is claimed before addresses are bound, but the record can be opened only when
the model is known, since its vectors belong to one model. So the claim is held from the first, and
the store takes it over. What only the engine needs is imported after the addresses are bound, so
that probes meet an open port as soon as can be.
"""

from __future__ import annotations

import gc
from contextlib import ExitStack
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from semanticrecall_core.embedding.cache_file import CacheFileOptions
from semanticrecall_core.embedding.scheduler import Scheduling
from semanticrecall_core.encryption import Purpose
from semanticrecall_core.messages.directory import DataDirectory
from semanticrecall_core.types.ports import Embedder
from semanticrecall_core.types.values import CallBudget

from . import guards
from .config import Settings
from .encryption_keys import data_key
from .lifecycle import Parts
from .memory_limit import cache_bytes
from .model_choice import CACHE_FILE, Load, discard_cache_file, load_models
from .setting_kinds import Memory

if TYPE_CHECKING:
    from semanticrecall_core.engine import Engine

WARM_UP_TEXT = "what did we talk about?"
WARM_UP_SECONDS = 60.0
SNAPSHOTS = "snapshots"
"""Folder in the data directory."""


def default_parts(load: Load | None = None, load_next: Load | None = None) -> Parts:
    """Parts that serve the data directory of the settings.

    Args:
        load: makes the embedder; None is the model of the settings.
        load_next: makes that of --next-model-dir, where there is one.
    """
    loads = load or _load_model, load_next or _load_next_model
    return Parts(_claim, lambda settings, claim: _load(settings, claim, loads))


def _claim(settings: Settings) -> DataDirectory:
    """Hold the directory, and see at once whether its key is the right one."""
    claim = DataDirectory(
        settings.data_dir, allow_shared_file_system=settings.allow_network_filesystem
    )
    try:
        data_key(settings, begin=True)
    except BaseException:
        claim.close()
        raise
    return claim


def _load_model(settings: Settings) -> Embedder:
    with guards.importing():
        from semanticrecall_core.embedding.embedder import load_embedder
    return load_embedder(
        settings.model_dir,
        settings.model_cache_dir,
        settings.device.value,
        cache_bytes(settings, settings.cache_bytes_max),
        scheduling=_scheduling(settings),
    )


def _load_next_model(settings: Settings) -> Embedder:
    """It keeps no cache on disk: that file is of the model that --model-dir names."""
    with guards.importing():
        from semanticrecall_core.embedding.embedder import load_embedder
    return load_embedder(
        settings.next_model_dir,
        settings.model_cache_dir,
        settings.next_device.value,
        cache_bytes(settings, settings.cache_bytes_max),
        scheduling=_scheduling(settings),
    )


def _scheduling(settings: Settings) -> Scheduling:
    return Scheduling(
        queue_texts_max=settings.embed_queue_texts_max,
        queue_tokens_max=settings.embed_queue_tokens_max,
        batch_tokens_max=settings.embed_batch_tokens_max,
        one_session=settings.memory is Memory.LOW,
    )


@runtime_checkable
class KeepsOnDisk(Protocol):
    """An embedder whose vectors may outlive the process."""

    def keep_on_disk(self, file: CacheFileOptions) -> None:
        """Open or make the file; before the first text is embedded."""
        ...


def cache_file_of(settings: Settings) -> CacheFileOptions:
    """Where the vector cache of a data directory is kept; the directory is claimed."""
    path = settings.data_dir / CACHE_FILE
    found = data_key(settings)
    key = None if found is None else found.subkey(Purpose.EMBEDDINGS)
    return CacheFileOptions(path, settings.cache_disk_bytes_max, key=key)


def _load(settings: Settings, claim: DataDirectory, loads: tuple[Load, Load]) -> Engine:
    with guards.importing():
        from .collections_assembly import open_collections
        from .engine_assembly import make_engine, open_store
        from .saving_assembly import keep_snapshots
    models = load_models(settings, *loads)
    with ExitStack() as undo:
        undo.callback(models.close)
        is_new = not claim.database.exists()
        store = open_store(settings, claim, models)
        undo.callback(store.close)
        chosen = models.chosen(settings, store.generation)
        # Not earlier: what is there is begun anew for another model, and a start may be refused.
        if chosen.embedder is models.embedder and isinstance(chosen.embedder, KeepsOnDisk):
            if is_new:  # vectors of a record that is gone: nobody could ask to forget them
                discard_cache_file(settings)
            chosen.embedder.keep_on_disk(cache_file_of(settings))
        engine = make_engine(settings, store, chosen)
        keep_snapshots(settings, store, engine)
        engine.collections = open_collections(settings)
        undo.callback(engine.collections.close)
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
