"""The database file `recall.db`: its format, and how it is made and recognised.

Invariants first:
  - A row of `messages` is the message. Everything else is derived from it or names it.
  - Ids are compared by equality only (binary collation, no LIKE, no prefix).
  - A `seq`, a `thread_key` and a `resource_key` are positive, grow, and are never used twice
    (AUTOINCREMENT). A resource or thread without messages has no row; when it comes back it gets
    a new key.
  - `record.revision` counts operations that changed something. It grows with every such commit and
    never goes back; a message's `revision` is the count at which it last changed.
  - `vectors` rows of a message, of whatever generation, all carry that message's current revision,
    thread, time and role: whoever changes the message changes or deletes them in the same commit.
  - `pending` holds exactly the messages that are embeddable and have no vectors of the generation
    in `record.generation_key`.

  - `analyses` rows of a message carry its current revision, thread, time and role, and are gone
    when it has nothing to embed. A missing one is no damage.

Format 4 (PRAGMA application_id 0x53524D53, "SRMS"; PRAGMA user_version 4):

  record       one row: store_id (32 hex digits, random, made once), revision, generation_key (of
               the vectors that are searched), codec (the form of `messages.encoded`; a record of
               another is not opened); and
               snapshot_seq: no snapshot of this store holds a message of a higher seq; 2^63 - 1
               while one is being made.
               forgotten_revision: that of the last change that removed messages; erased_revision:
               all that was removed up to there has left the files as well.
               retention_time_ns: how far the clock of the retention has come; 0 before the first.
  generations  generation_key -> the embedder's generation text, and the readable identity of its
               model ("" where that is not known). Vectors are searched (the key in `record`), made
               anew, or of no use any more: their text is then replaced by "dropped" and the key
               until all have been deleted (generations.py).
  resources    resource_key -> resource_id.
  threads      thread_key -> (resource_key, thread_id).
  messages     numbers first, then hashes, ids, metadata and the long column, so that scans read
               no overflow pages. `role` is the number of `Role`; `embeddable` 0 or 1; `metadata`
               compact JSON or NULL for none; `encoded` the whole message as an answer sends it,
               in the form that `record.codec` names: author, text and payload are only there.
               `content_hash` and `text_hash`: see rows.py. `checksum`: crc32 of the row, rows.py.
  vectors      one row a chunk: `vector` is float32 little endian, `checksum` 64 bits over all
               numbers and the vector, vector_rows.py. A rowid table with an index, since an
               index-organised table spills long rows to overflow pages. The index holds the
               checksums, so that what is current can be told without reading the vectors. There
               is one row for a (resource_key, seq, chunk, generation_key): whoever puts deletes
               before.
  analyses     what the words of an embeddable message were analysed into: at most one row a
               message, analysis_rows.py. Index-organised by (resource_key, seq), so that a
               resource is one range; rows are short (docs/decisions/0020).
  pending      see above.
  forgotten    seq -> revision of its removal, for messages that snapshots may hold: seqs up to
               `record.snapshot_seq` at that time. Who restores a snapshot leaves them out.
  origins      which rows came from a snapshot, and of which store: seqs of this store from
               first_seq to last_seq are those of store_id that are smaller by `shift`. A Forget of
               one of them counts for the snapshots of that store as well (saving.py).

Format 3 is the same without `forgotten`, `origins`, the last four columns of `record` and the last
of `generations`, format 2 without `analyses` too; neither has page checksums. Both become format 4
when they are opened.

Pages are 8,192 bytes: five 384-dimension vectors to a page with 6 % lost, where 4,096-byte pages
hold two with 20 % lost. The last 8 bytes of each are its checksum (page_checksums.py) or, where the
directory is encrypted, 64 are its nonce and tag (encryption/pages.py).
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass

import apsw

from ..types.errors import CorruptDataError, FailedPreconditionError

APPLICATION_ID = 0x53524D53
FORMAT = 4
_FORMAT_WITHOUT_ANALYSES = 2
_FORMAT_WITHOUT_FORGOTTEN = 3
PAGE_BYTES = 8192

_ANALYSES = """
CREATE TABLE analyses(
  resource_key INTEGER NOT NULL,
  seq INTEGER NOT NULL,
  thread_key INTEGER NOT NULL,
  create_time_ns INTEGER NOT NULL,
  role INTEGER NOT NULL,
  revision INTEGER NOT NULL,
  checksum INTEGER NOT NULL,
  analysed BLOB NOT NULL,
  PRIMARY KEY (resource_key, seq)
) STRICT, WITHOUT ROWID;
"""
_FORGOTTEN = """
ALTER TABLE generations ADD COLUMN identity TEXT NOT NULL DEFAULT '';
ALTER TABLE record ADD COLUMN snapshot_seq INTEGER NOT NULL DEFAULT 0;
ALTER TABLE record ADD COLUMN forgotten_revision INTEGER NOT NULL DEFAULT 0;
ALTER TABLE record ADD COLUMN erased_revision INTEGER NOT NULL DEFAULT 0;
ALTER TABLE record ADD COLUMN retention_time_ns INTEGER NOT NULL DEFAULT 0;
CREATE TABLE forgotten(
  seq INTEGER PRIMARY KEY,
  revision INTEGER NOT NULL
) STRICT;
CREATE TABLE origins(
  store_id TEXT NOT NULL,
  first_seq INTEGER NOT NULL,
  last_seq INTEGER NOT NULL,
  shift INTEGER NOT NULL
) STRICT;
"""
_TABLES = """
CREATE TABLE record(
  one INTEGER PRIMARY KEY CHECK (one = 1),
  store_id TEXT NOT NULL,
  revision INTEGER NOT NULL,
  generation_key INTEGER NOT NULL,
  codec TEXT NOT NULL
) STRICT;
CREATE TABLE generations(
  generation_key INTEGER PRIMARY KEY AUTOINCREMENT,
  generation TEXT NOT NULL UNIQUE
) STRICT;
CREATE TABLE resources(
  resource_key INTEGER PRIMARY KEY AUTOINCREMENT,
  resource_id TEXT NOT NULL UNIQUE
) STRICT;
CREATE TABLE threads(
  thread_key INTEGER PRIMARY KEY AUTOINCREMENT,
  resource_key INTEGER NOT NULL,
  thread_id TEXT NOT NULL,
  UNIQUE (resource_key, thread_id)
) STRICT;
CREATE TABLE messages(
  seq INTEGER PRIMARY KEY AUTOINCREMENT,
  resource_key INTEGER NOT NULL,
  thread_key INTEGER NOT NULL,
  role INTEGER NOT NULL,
  create_time_ns INTEGER NOT NULL,
  revision INTEGER NOT NULL,
  embeddable INTEGER NOT NULL,
  checksum INTEGER NOT NULL,
  content_hash BLOB NOT NULL,
  text_hash BLOB NOT NULL,
  id TEXT NOT NULL,
  group_id TEXT NOT NULL,
  metadata TEXT,
  encoded BLOB NOT NULL,
  UNIQUE (resource_key, id)
) STRICT;
CREATE INDEX messages_by_thread ON messages(thread_key, create_time_ns, seq);
CREATE INDEX messages_by_time ON messages(resource_key, create_time_ns, seq);
CREATE INDEX messages_by_group ON messages(thread_key, group_id, create_time_ns, seq)
  WHERE group_id <> '';
CREATE TABLE vectors(
  vector_key INTEGER PRIMARY KEY,
  resource_key INTEGER NOT NULL,
  seq INTEGER NOT NULL,
  chunk INTEGER NOT NULL,
  thread_key INTEGER NOT NULL,
  create_time_ns INTEGER NOT NULL,
  role INTEGER NOT NULL,
  revision INTEGER NOT NULL,
  generation_key INTEGER NOT NULL,
  checksum INTEGER NOT NULL,
  text_hash BLOB NOT NULL,
  vector BLOB NOT NULL
) STRICT;
CREATE INDEX vectors_by_message
  ON vectors(resource_key, seq, chunk, generation_key, checksum);
CREATE TABLE pending(
  seq INTEGER PRIMARY KEY,
  resource_key INTEGER NOT NULL
) STRICT;
CREATE INDEX pending_by_resource ON pending(resource_key);
"""


@dataclass(frozen=True, slots=True)
class RecordState:
    """The one row of `record`."""

    store_id: str
    revision: int


def ensure_schema(connection: apsw.Connection, codec: str) -> RecordState:
    """Make the tables in an empty database, or check that they are ours and not newer.

    A database of an older format that can be read is left as it is; see `upgrade`.

    Args:
        codec: the form in which messages are encoded.

    Raises:
        FailedPreconditionError: another program's database, a newer format, or another codec's.
        CorruptDataError: the one row of `record` is gone.
    """
    application_id = connection.pragma("application_id")
    version = connection.pragma("user_version")
    if application_id == 0 and version == 0 and _is_empty(connection):
        _create(connection, codec)
    elif application_id != APPLICATION_ID:
        raise FailedPreconditionError(
            "recall.db is not a database of this program; choose another data directory",
            reason="FOREIGN_DATABASE",
        )
    elif version not in (FORMAT, _FORMAT_WITHOUT_FORGOTTEN, _FORMAT_WITHOUT_ANALYSES):
        way_out = (
            "start the version that wrote it, or a newer one"
            if version > FORMAT
            else "export it with the version that wrote it, and import it into a new directory"
        )
        raise FailedPreconditionError(
            f"recall.db has format {version}; this version reads format {FORMAT}: {way_out}",
            reason="FORMAT_UNKNOWN",
        )
    state = read_record(connection)
    if connection.execute("SELECT codec FROM record").get != codec:
        raise FailedPreconditionError(
            f"recall.db keeps its messages in another form than {codec!r}; "
            "start the version that wrote it",
            reason="CODEC_UNKNOWN",
        )
    return state


def upgrade(connection: apsw.Connection) -> int | None:
    """Give a database that `ensure_schema` accepted the current format, in one transaction.

    Tables and columns are added, whatever is in the others.

    Returns:
        The format it had, None where it is the current one.
    """
    version = int(connection.pragma("user_version"))
    if version == FORMAT:
        return None
    connection.execute("BEGIN IMMEDIATE")
    if version == _FORMAT_WITHOUT_ANALYSES:
        connection.execute(_ANALYSES)
    connection.execute(_FORGOTTEN)
    connection.pragma("user_version", FORMAT)
    connection.execute("COMMIT")
    return version


def read_record(connection: apsw.Connection) -> RecordState:
    """The identity and the revision of the record.

    Raises:
        CorruptDataError: the row is gone.
    """
    row = connection.execute("SELECT store_id, revision FROM record WHERE one = 1").fetchone()
    if row is None:
        raise CorruptDataError("recall.db has lost its record row")
    return RecordState(store_id=str(row[0]), revision=int(row[1]))


def _is_empty(connection: apsw.Connection) -> bool:
    return not connection.execute("SELECT EXISTS (SELECT 1 FROM sqlite_schema)").get


def _create(connection: apsw.Connection, codec: str) -> None:
    connection.execute("BEGIN IMMEDIATE")
    connection.execute(_TABLES + _ANALYSES + _FORGOTTEN)
    connection.execute(
        "INSERT INTO record(one, store_id, revision, generation_key, codec) VALUES (1, ?, 0, 0, ?)",
        (secrets.token_hex(16), codec),
    )
    connection.pragma("application_id", APPLICATION_ID)
    connection.pragma("user_version", FORMAT)
    connection.execute("COMMIT")
