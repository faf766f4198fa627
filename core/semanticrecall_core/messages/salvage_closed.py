"""Salvaging a database that cannot even be opened: where the start itself meets a damaged page.

Asked for by `--accept-loss`. Whose the database is, and how far it was acknowledged, is known from
MARK; which generation its vectors are of is believed only where its text can be read whole, for
vectors of two models must never be mixed. Where it cannot, everything is embedded anew.
"""

from __future__ import annotations

from contextlib import closing

import apsw
import structlog

from ..types.errors import CorruptDataError, UnavailableError
from ..types.stored_message import DecodeMessage
from . import page_checksums
from .connection import DatabaseFile, translated_errors
from .directory import DataDirectory
from .high_water_mark import HighWaterMark, Mark
from .salvage import KnownState, Salvage, Salvaged, remove_beside, write_beside
from .schema import PAGE_BYTES

_log = structlog.get_logger(__name__)
_LOGGED_SEQS_MAX = 100


def salvage_closed(
    directory: DataDirectory, file: DatabaseFile, generation: str, codec: str, decode: DecodeMessage
) -> None:
    """Put what can be believed of a database in its place; nobody has it open.

    Raises:
        CorruptDataError: not even that is possible, and nothing has changed.
        UnavailableError, ResourceExhaustedError: the disk.
    """
    with translated_errors():
        mark = _mark_of(directory)

        def salvage(
            source: apsw.Connection, target: apsw.Connection, store_id: str, revision: int
        ) -> Salvaged:
            known = KnownState(store_id, revision, _generation(source, generation))
            return Salvage(source, target, known, decode)()

        path, salvaged = write_beside(file, salvage, codec, mark.store_id, mark.revision + 1)
        try:
            with closing(file.open_writer()) as writer:
                writer.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
            if file.path.with_name(f"{file.path.name}-wal").exists():
                raise UnavailableError("another program holds the database")
            path.replace(file.path)
            page_checksums.sync(file.path.parent)
        finally:
            remove_beside(file)
    _log.warning(
        "store_database_salvaged",
        messages=salvaged.messages,
        lost=len(salvaged.lost),
        seqs=tuple(one.seq for one in salvaged.lost[:_LOGGED_SEQS_MAX]),
    )


def can_be_salvaged(file: DatabaseFile) -> bool:
    """Whether the first page can be read: nothing says where the tables are but that page."""
    try:
        if file.key is None:
            page_checksums.check_header(file.path, PAGE_BYTES)
        log = file.path.with_name(f"{file.path.name}-wal")
        has_log = log.exists() and log.stat().st_size > 0
        with closing(file.open_reader()) as connection:
            # The start may be refused, and leaves a log as it is then.
            connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, int(has_log))
            connection.execute("SELECT count(*) FROM sqlite_schema").fetchall()
    except (CorruptDataError, apsw.CorruptError, apsw.IOError, apsw.NotADBError):
        return False
    return True


def first_page_damaged() -> CorruptDataError:
    """What is said where it cannot."""
    return CorruptDataError(
        "the first page of recall.db is damaged, and without it nothing in the file can be found; "
        "begin with an empty data directory, and restore a snapshot or import an export into it",
        reason=page_checksums.PAGE_DAMAGED,
    )


def _mark_of(directory: DataDirectory) -> Mark:
    with closing(HighWaterMark(directory.mark)) as file:
        mark = file.read()
    if mark is None:
        raise CorruptDataError(
            "recall.db is damaged and MARK does not say whose it is; restore a snapshot"
        )
    return mark


def _generation(source: apsw.Connection, generation: str) -> tuple[int, str]:
    """The key that vectors of this generation have, or one that none has."""
    try:
        row = source.execute(
            "SELECT generation_key FROM generations WHERE CAST(generation AS BLOB) = ?",
            (generation.encode(),),
        ).fetchone()
    except (apsw.CorruptError, apsw.IOError):
        row = None
    if row is not None and isinstance(row[0], int):
        return row[0], generation
    unused = 1
    for table in ("generations", "vectors"):
        try:
            last = source.execute(f"SELECT max(generation_key) FROM {table}").get
        except (apsw.CorruptError, apsw.IOError):
            last = None
        if isinstance(last, int):
            unused = max(unused, last + 1)
    return unused, generation
