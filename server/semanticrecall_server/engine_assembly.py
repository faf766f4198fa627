"""Puts store, embedder and indexes together into one engine.

Apart from `assembly`, which binds addresses before FAISS and the rest are imported.
"""

from __future__ import annotations

from semanticrecall_core.embedding.threads import worker_threads
from semanticrecall_core.encryption import Purpose
from semanticrecall_core.engine import Engine, EngineLimits, PurgePlan, RetentionPlan
from semanticrecall_core.engine.generations import NextModel
from semanticrecall_core.engine.partition_loading import ImageForm, PartitionLoader
from semanticrecall_core.engine.serving import ServedModel
from semanticrecall_core.engine.snapshotting import SnapshotPlan, Snapshotting
from semanticrecall_core.lexical.analysis import Analyser
from semanticrecall_core.lexical.index import InMemoryLexicalIndex
from semanticrecall_core.messages import SqliteMessageStore, StoreOptions
from semanticrecall_core.messages.connection import READER_CACHE_KIB
from semanticrecall_core.messages.directory import DataDirectory
from semanticrecall_core.snapshots import FileSnapshotStore
from semanticrecall_core.types.generations import ModelIdentity, RecordedVectors
from semanticrecall_core.types.ports import Embedder, MessageStore
from semanticrecall_core.vectors import FaissVectorIndex

from .assembly import SNAPSHOTS
from .config import Settings
from .config_storage import DAY_MS
from .encryption_keys import data_key
from .memory_limit import cache_bytes, lexical_bytes, partitions_bytes_default
from .message_codec import ProtobufMessages
from .model_choice import Models, discard_cache_file
from .setting_kinds import Memory

SCALE_CLIP = 0.30
"""Measured for the default model: docs/decisions/0003."""

ROWS_MIN = 256
"""Fewer rows are read from the record as quickly: docs/decisions/0008."""

QUIET_INTERVALS = 5


def open_store(settings: Settings, claim: DataDirectory, models: Models) -> SqliteMessageStore:
    """The record of a claimed directory, which it takes over, for the vectors of one of these."""
    embedder, following = models.embedder, models.following
    found = data_key(settings)
    options = StoreOptions(
        index_identity=embedder.index_identity,
        next_model=None if following is None else identity_of(following),
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


class ModelAssembly:
    """Makes what belongs to a model: its partitions, and images of them in the same folder."""

    def __init__(self, settings: Settings, store: MessageStore) -> None:
        """`store`: the record that all its models are of."""
        low = settings.memory is Memory.LOW
        self._settings = settings
        self._mapped = low
        self.partitions_bytes_max = settings.partitions_bytes_max or partitions_bytes_default()
        self._snapshots = snapshot_store(settings, store)
        interval_s = settings.snapshot_interval_ms / 1000
        self._plan = SnapshotPlan(
            interval_s=interval_s,
            quiet_s=QUIET_INTERVALS * interval_s,
            rows_min=1 if low else ROWS_MIN,
            mapped=low,
        )

    def served(self, vectors: RecordedVectors, embedder: Embedder) -> ServedModel:
        """A model over its vectors; nothing of it is started."""
        form = ImageForm(embedder.generation, embedder.dimensions, SCALE_CLIP, mapped=self._mapped)
        loader = PartitionLoader(vectors, self._snapshots, form)
        index = FaissVectorIndex(
            embedder.dimensions,
            loader,
            scale_clip=SCALE_CLIP,
            partitions_bytes_max=self.partitions_bytes_max,
            scan_threads=worker_threads(),
        )
        snapshotting = Snapshotting(
            vectors, self._snapshots, index, embedder.generation, self._plan
        )
        loader.tell_rows_read(snapshotting.rows_read)
        return ServedModel(embedder, index, snapshotting)

    def following(self, embedder: Embedder, served: ServedModel) -> NextModel:
        """The model that is to take the place of one that serves."""
        room = 0.9 * self.partitions_bytes_max
        return NextModel(
            embedder,
            lambda vectors: self.served(vectors, embedder),
            lambda own_bytes: own_bytes + served.index.memory_bytes() < room,
            lambda: discard_cache_file(self._settings),
        )


def snapshot_store(settings: Settings, store: MessageStore) -> FileSnapshotStore:
    """Images of partitions in the data directory."""
    found = data_key(settings)
    return FileSnapshotStore(
        settings.data_dir / SNAPSHOTS,
        store_id=store.store_id,
        mapped=settings.memory is Memory.LOW,
        key=None if found is None else found.subkey(Purpose.IMAGES),
    )


def make_engine(settings: Settings, store: MessageStore, models: Models) -> Engine:
    """An engine that is not started yet; its `stop` closes store and embedders.

    Args:
        settings: how large it may grow, and what it does by itself.
        store: the record.
        models: as chosen for the record.
    """
    embedder = models.embedder
    assembly = ModelAssembly(settings, store)
    served = assembly.served(store.vectors_of(identity_of(embedder)), embedder)
    words_bytes_max = lexical_bytes(settings)
    lexical = InMemoryLexicalIndex(store.load_lexical, bytes_max=words_bytes_max)
    limits = EngineLimits(
        embed_threads=settings.backlog_threads or embedder.passages_at_once,
        answer_bytes_max=settings.answer_bytes_max,
        filter_keys=frozenset(settings.filter_keys),
        partitions_bytes_max=assembly.partitions_bytes_max,
        lexical_bytes_max=words_bytes_max,
        cores=worker_threads(),
        purging=PurgePlan(settings.purge_interval_ms / 1000),
        retention=RetentionPlan(
            age_ns=round(settings.retention_age_days_max * DAY_MS) * 10**6,
            messages_max=settings.retention_messages_max,
            interval_s=settings.retention_interval_ms / 1000,
        ),
    )
    engine = Engine(store, embedder, served.index, limits, served.snapshotting, lexical)
    if models.following is not None:
        engine.exchange.offer(assembly.following(models.following, served))
    elif models.former:
        engine.exchange.has_switched_from(models.former)
    elif models.next_is_same:
        engine.exchange.has_no_other()
    return engine


def identity_of(embedder: Embedder) -> ModelIdentity:
    """A model as the record knows it."""
    return ModelIdentity(embedder.generation, embedder.index_identity)
