"""Puts store, embedder and indexes together into one engine.

Apart from `assembly`, which binds addresses before FAISS and the rest are imported.
"""

from __future__ import annotations

from semanticrecall_core.embedding.threads import worker_threads
from semanticrecall_core.encryption import Purpose
from semanticrecall_core.engine import Engine, EngineLimits, PurgePlan, RetentionPlan
from semanticrecall_core.engine.partition_loading import ImageForm, PartitionLoader
from semanticrecall_core.engine.snapshotting import SnapshotPlan, Snapshotting
from semanticrecall_core.lexical.analysis import Analyser
from semanticrecall_core.lexical.index import InMemoryLexicalIndex
from semanticrecall_core.messages import SqliteMessageStore, StoreOptions
from semanticrecall_core.messages.connection import READER_CACHE_KIB
from semanticrecall_core.messages.directory import DataDirectory
from semanticrecall_core.snapshots import FileSnapshotStore
from semanticrecall_core.types.ports import Embedder, MessageStore
from semanticrecall_core.vectors import FaissVectorIndex

from .assembly import SNAPSHOTS
from .config import Settings
from .config_storage import DAY_MS
from .encryption_keys import data_key
from .memory_limit import cache_bytes, lexical_bytes, partitions_bytes_default
from .message_codec import ProtobufMessages
from .setting_kinds import Memory

SCALE_CLIP = 0.30
"""Measured for the default model: docs/decisions/0003."""

ROWS_MIN = 256
"""Fewer rows are read from the record as quickly: docs/decisions/0008."""

QUIET_INTERVALS = 5


def open_store(settings: Settings, claim: DataDirectory, embedder: Embedder) -> SqliteMessageStore:
    """The record of a claimed directory, for this embedder's vectors; it takes the claim over."""
    found = data_key(settings)
    options = StoreOptions(
        allow_shared_file_system=settings.allow_network_filesystem,
        accept_loss=settings.accept_loss,
        reader_cache_kib=cache_bytes(settings, READER_CACHE_KIB),
        key=None if found is None else found.subkey(Purpose.RECORD),
    )
    return SqliteMessageStore(
        claim,
        generation=embedder.generation,
        codec=ProtobufMessages(),
        analyser=Analyser(),
        options=options,
    )


def make_engine(settings: Settings, store: MessageStore, embedder: Embedder) -> Engine:
    """An engine that is not started yet; its `stop` closes store and embedder."""
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
    words_bytes_max = lexical_bytes(settings)
    lexical = InMemoryLexicalIndex(store.load_lexical, bytes_max=words_bytes_max)
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
        lexical_bytes_max=words_bytes_max,
        cores=worker_threads(),
        purging=PurgePlan(settings.purge_interval_ms / 1000),
        retention=RetentionPlan(
            age_ns=round(settings.retention_age_days_max * DAY_MS) * 10**6,
            messages_max=settings.retention_messages_max,
            interval_s=settings.retention_interval_ms / 1000,
        ),
    )
    return Engine(store, embedder, index, limits, snapshotting, lexical)
