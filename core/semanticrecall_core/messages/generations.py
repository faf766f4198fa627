"""Vectors of several models in one record: which are searched, and how others take their place.

A generation is searched (`record.generation_key`), is being made beside that one, or is of no use
any more ("dropped"): nothing is put or carried along in its name, and its vectors are deleted a few
at a time. What is dropped keeps its key until none is left; the same model comes back under a new
one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, cast

import apsw

from ..types.errors import FailedPreconditionError
from ..types.generations import ModelIdentity
from . import keys
from .commit import Change

LACKING_TOLD_MAX = 1_000
_DROPPED = "dropped "

# Messages with vectors of ?1 and without any of ?2, told by the index alone.
_LACKING = (
    "SELECT o.seq, o.resource_key FROM vectors o INDEXED BY vectors_by_message"
    " WHERE o.generation_key = ?1 AND o.chunk = 0 AND NOT EXISTS"
    " (SELECT 1 FROM vectors n WHERE n.resource_key = o.resource_key AND n.seq = o.seq"
    " AND n.generation_key = ?2)"
)


def served_key(connection: apsw.Connection) -> int:
    """The generation that is searched."""
    return int(connection.execute("SELECT generation_key FROM record").get)


def kept_keys(connection: apsw.Connection) -> frozenset[int]:
    """Generations that are searched or made."""
    rows = connection.execute(
        "SELECT generation_key FROM generations WHERE substr(generation, 1, 8) <> ?", (_DROPPED,)
    ).fetchall()
    return frozenset(cast("int", row[0]) for row in rows)


def key_of(connection: apsw.Connection, generation: str) -> int | None:
    """The key of a generation; None for one that is unknown or was dropped."""
    row = connection.execute(
        "SELECT generation_key FROM generations WHERE generation = ?", (generation,)
    ).fetchone()
    return None if row is None else cast("int", row[0])


def require_model(
    connection: apsw.Connection, model: ModelIdentity, following: ModelIdentity | None
) -> None:
    """Raise what `choose_generation` would; changes nothing, and reads older formats as well."""
    recorded = _recorded(connection)
    of_ours = (model.generation, None if following is None else following.generation)
    if recorded is None or recorded.generation in of_ours or not _has_vectors(connection):
        return
    raise _changed(recorded, model, following)


def _recorded(connection: apsw.Connection) -> ModelIdentity | None:
    """The model of the generation that is searched; None where there is none yet."""
    row = connection.execute(
        "SELECT * FROM generations WHERE generation_key = (SELECT generation_key FROM record)"
    ).fetchone()
    return None if row is None else ModelIdentity(*map(str, row[1:]))


def choose_generation(
    connection: apsw.Connection, model: ModelIdentity, following: ModelIdentity | None
) -> tuple[int, str]:
    """Which generation is searched: its key and its text.

    That is the one that was searched last, if it is of one of these models. A record without
    vectors, and with nothing that waits for some, takes the first.

    Args:
        connection: of the writer, outside a transaction.
        model: the one to serve with.
        following: the one that is to take its place.

    Raises:
        FailedPreconditionError: MODEL_CHANGED: it has vectors of another model.
    """
    require_model(connection, model, following)
    key, recorded = served_key(connection), _recorded(connection)
    for asked in (model, following):
        if asked is not None and recorded is not None and asked.generation == recorded.generation:
            _note_identity(connection, key, asked)
            # Earlier versions left vectors of models that were replaced.
            _drop(connection, "generation_key < ?2", key)
            return key, asked.generation
    connection.execute("BEGIN IMMEDIATE")
    connection.execute("DELETE FROM generations")
    key = _added(connection, model)
    connection.execute("UPDATE record SET generation_key = ?", (key,))
    connection.execute("COMMIT")
    return key, model.generation


def _changed(
    recorded: ModelIdentity, model: ModelIdentity, following: ModelIdentity | None
) -> FailedPreconditionError:
    given = f"--model-dir gives {model.shown}"
    if following is not None:
        given += f" and --next-model-dir {following.shown}"
    return FailedPreconditionError(
        f"the vectors of this data directory were made by {recorded.shown}, but {given}; vectors "
        "of different models are never mixed. Start with the former model in --model-dir (and "
        "the former --device), and with the new one in --next-model-dir; then run "
        "`semanticrecall reembed`",
        reason="MODEL_CHANGED",
    )


def _has_vectors(connection: apsw.Connection) -> bool:
    return bool(
        connection.execute(
            "SELECT EXISTS (SELECT 1 FROM vectors) OR EXISTS (SELECT 1 FROM pending)"
        ).get
    )


def _note_identity(connection: apsw.Connection, key: int, model: ModelIdentity) -> None:
    if model.index_identity:
        connection.execute(
            "UPDATE generations SET identity = ?1 WHERE generation_key = ?2 AND identity <> ?1",
            (model.index_identity, key),
        )


def _added(connection: apsw.Connection, model: ModelIdentity) -> int:
    connection.execute(
        "INSERT INTO generations(generation, identity) VALUES (?, ?)",
        (model.generation, model.index_identity),
    )
    return int(connection.last_insert_rowid())


def _drop(connection: apsw.Connection, condition: str, key: int) -> None:
    """Give up the generations of a condition on ?2."""
    connection.execute(
        "UPDATE generations SET generation = ?1 || generation_key, identity = ''"
        f" WHERE substr(generation, 1, 8) <> ?1 AND {condition}",
        (_DROPPED, key),
    )


# ---- operations for the writer thread ----


class BeginGeneration:
    """Makes room for a generation beside the one that is searched; others are dropped."""

    def __init__(self, model: ModelIdentity) -> None:
        """Whose."""
        self._model = model

    def __call__(self, connection: apsw.Connection, _revision: int) -> Change[int]:
        """See commit.Operation; the result is its key."""
        known = key_of(connection, self._model.generation)
        served = served_key(connection)
        others = [key for key in kept_keys(connection) if key not in (known, served)]
        if known is not None and not others:
            return Change(known, changed=False)
        for key in others:
            _drop(connection, "generation_key = ?2", key)
        return Change(_added(connection, self._model) if known is None else known)


class ServeGeneration:
    """One call of `GenerationStore.serve`."""

    def __init__(
        self,
        generation: str,
        without: Collection[int],
        switched: Callable[[int], None],
    ) -> None:
        """`switched`: told the key, after the commit."""
        self._generation = generation
        self._without = frozenset(without)
        self._switched = switched

    def __call__(self, connection: apsw.Connection, _revision: int) -> Change[tuple[int, ...]]:
        """See commit.Operation."""
        before, key = served_key(connection), key_of(connection, self._generation)
        if key is None:
            raise FailedPreconditionError(
                "the next model's vectors were dropped; ask for them anew", reason="MODEL_CHANGED"
            )
        if before == key:
            return Change((), changed=False)
        rows = cast("list[tuple[int, int]]", connection.execute(_LACKING, (before, key)).fetchall())
        lacking = [seq for seq, _ in rows if seq not in self._without]
        if lacking:
            return Change(tuple(sorted(lacking)[:LACKING_TOLD_MAX]), changed=False)
        connection.execute(
            "DELETE FROM pending WHERE EXISTS (SELECT 1 FROM vectors v"
            " WHERE v.resource_key = pending.resource_key AND v.seq = pending.seq"
            " AND v.generation_key = ?)",
            (key,),
        )
        connection.executemany(
            "INSERT INTO pending(seq, resource_key) VALUES (?, ?) ON CONFLICT DO NOTHING", rows
        )
        connection.execute("UPDATE record SET generation_key = ?", (key,))
        _drop(connection, "generation_key <> ?2", key)
        return Change((), committed=lambda: self._switched(key))


class DeleteVectors:
    """Deletes vectors by their `vector_key`, as far as they are still of dropped generations."""

    def __init__(self, vector_keys: Sequence[int]) -> None:
        """Which."""
        self._vector_keys = vector_keys

    def __call__(self, connection: apsw.Connection, _revision: int) -> Change[None]:
        """See commit.Operation."""
        connection.execute(
            "DELETE FROM vectors WHERE vector_key IN (SELECT value FROM carray(?))"
            " AND generation_key NOT IN (SELECT value FROM carray(?))",
            (
                keys.seq_array(self._vector_keys),
                keys.seq_array(sorted(kept_keys(connection))),
            ),
        )
        return Change(None, changed=bool(connection.changes()))


class EndDropped:
    """Takes the names of dropped generations away, once none of their vectors is left."""

    def __call__(self, connection: apsw.Connection, _revision: int) -> Change[None]:
        """See commit.Operation."""
        connection.execute(
            "DELETE FROM generations WHERE substr(generation, 1, 8) = ? AND NOT EXISTS"
            " (SELECT 1 FROM vectors v INDEXED BY vectors_by_message"
            " WHERE v.generation_key = generations.generation_key)",
            (_DROPPED,),
        )
        return Change(None, changed=bool(connection.changes()))


# ---- reading ----


def messages_embedded(connection: apsw.Connection, generation: str) -> int:
    """Messages that have vectors of a generation, told by an index alone."""
    return int(
        connection.execute(
            "SELECT count(*) FROM vectors INDEXED BY vectors_by_message WHERE chunk = 0"
            " AND generation_key = (SELECT generation_key FROM generations WHERE generation = ?)",
            (generation,),
        ).get
    )


def has_dropped(connection: apsw.Connection) -> bool:
    """Whether vectors may be left of a generation that is of no use."""
    return bool(
        connection.execute(
            "SELECT EXISTS (SELECT 1 FROM generations WHERE substr(generation, 1, 8) = ?)",
            (_DROPPED,),
        ).get
    )


def dropped_vectors(
    connection: apsw.Connection, after: tuple[int, int], limit: int
) -> list[tuple[Any, ...]]:
    """(vector_key, resource_key, seq) of such vectors, by (resource_key, seq), from a place on."""
    return connection.execute(
        "SELECT v.vector_key, v.resource_key, v.seq FROM vectors v INDEXED BY vectors_by_message"
        " WHERE (v.resource_key, v.seq) >= (?1, ?2)"
        " AND v.generation_key NOT IN (SELECT value FROM carray(?3))"
        " ORDER BY v.resource_key, v.seq LIMIT ?4",
        (*after, keys.seq_array(sorted(kept_keys(connection))), limit),
    ).fetchall()
