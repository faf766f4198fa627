"""SQLite's pages, encrypted and authenticated one by one: SQLite3 Multiple Ciphers.

Cipher `aegis` (AEGIS-256): of those that authenticate, the one that costs least here
(docs/decisions/0024). Every page, of the database and of its log, carries its own nonce and tag in
64 reserved bytes, so that a changed byte is found when the page is read: the statement fails with
SQLITE_CORRUPT or SQLITE_NOTADB. In the clear are bytes 16 to 23 of the first page (page size, file
format) and the first 16 bytes, which are random.
"""

from __future__ import annotations

import apsw

CIPHER = "aegis"
_LAYER_PREFIX = "multipleciphers-"


def layer_over(base: str) -> str:
    """The name of the layer that encrypts, over a layer of the operating system."""
    return f"{_LAYER_PREFIX}{base}"


def unlock(connection: apsw.Connection, key: bytes) -> None:
    """Give a connection its key, before anything else is asked of it.

    Args:
        connection: opened through `layer_over`.
        key: 32 bytes, used as they are.
    """
    connection.pragma("cipher", CIPHER)
    connection.pragma("key", f"raw:{key.hex()}")
