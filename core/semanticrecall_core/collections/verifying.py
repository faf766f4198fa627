"""Reading all of `collections.db` and saying what does not agree; nothing mends it.

PAGE_DAMAGED         SQLite cannot read the file, or finds it inconsistent.
COLLECTION_DAMAGED   a collection's row does not match its checksum, or it has not as many vectors
                     as it says; or rows belong to no collection.
VECTOR_ROW_DAMAGED   a vector's row does not match its checksum.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import apsw

from ..types.errors import CorruptDataError
from ..types.values import CallBudget, Finding
from .storage import CollectionRow, CollectionStorage

_DAMAGES_MAX: Final = 100
_SOUND: Final = [("ok",)]


def findings(
    storage: CollectionStorage, resource_id: str | None, budget: CallBudget
) -> Iterator[Finding]:
    """What does not agree; see the module.

    Each collection is read in a transaction of its own, so that nothing waits for the whole.
    """
    if resource_id is None:
        yield from _of_file(storage, budget)
    try:
        with storage.read(budget) as connection:
            rows, damaged = storage.sound_and_damaged(connection, resource_id)
    except CorruptDataError as error:
        yield Finding("PAGE_DAMAGED", resource_id or "", "", f"collections.db: {error.message}")
        return
    for whose in damaged:
        what = "the row of a collection does not match its checksum"
        yield Finding("COLLECTION_DAMAGED", whose, "", what)
    for row in rows:
        budget.check()
        yield from _of_collection(storage, row, budget)


def _of_file(storage: CollectionStorage, budget: CallBudget) -> Iterator[Finding]:
    try:
        with storage.read(budget) as connection:
            said = connection.execute(f"PRAGMA integrity_check({_DAMAGES_MAX})").fetchall()
            orphans = _orphans(connection)
    except CorruptDataError as error:
        yield Finding("PAGE_DAMAGED", "", "", f"collections.db: {error.message}")
        return
    if said != _SOUND:
        what = f"collections.db: SQLite finds {len(said)} inconsistencies"
        yield Finding("PAGE_DAMAGED", "", "", what)
    if orphans:
        what = f"collections.db: {orphans} vectors belong to no collection"
        yield Finding("COLLECTION_DAMAGED", "", "", what)


def _orphans(connection: apsw.Connection) -> int:
    return int(
        connection.execute(
            "SELECT count(*) FROM vectors WHERE"
            " collection_key NOT IN (SELECT collection_key FROM collections) AND"
            " collection_key NOT IN (SELECT collection_key FROM dropped)"
        ).get
    )


def _of_collection(
    storage: CollectionStorage, row: CollectionRow, budget: CallBudget
) -> Iterator[Finding]:
    try:
        with storage.read(budget) as connection:
            now = storage.find(connection, row.resource_id, row.name)
            if now is None or now.key != row.key:
                return  # removed meanwhile
            damaged = list(storage.damaged_vectors(connection, now, budget))
    except CorruptDataError as error:
        what = f"collection {row.name!r} cannot be read: {error.message}"
        yield Finding("PAGE_DAMAGED", row.resource_id, "", what)
        return
    for id in damaged:
        if id:
            what = f"collection {row.name!r}: a row does not match its checksum"
            yield Finding("VECTOR_ROW_DAMAGED", row.resource_id, id, what)
        else:
            what = f"collection {row.name!r} has not as many vectors as it should"
            yield Finding("COLLECTION_DAMAGED", row.resource_id, "", what)
