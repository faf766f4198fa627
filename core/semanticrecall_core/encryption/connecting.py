"""Connections to SQLite files whose pages have checksums or are encrypted."""

from __future__ import annotations

import apsw

from . import checksum_layer, pages

_STATEMENTS_CACHED = 100


def open_database(
    name: str,
    flags: int,
    base: str,
    key: bytes | None,
    *,
    busy_timeout_ms: int,
    statements_cached: int = _STATEMENTS_CACHED,
) -> apsw.Connection:
    """A connection to a file, its log open. It trusts no schema, and maps nothing.

    Args:
        name: a path, or with SQLITE_OPEN_URI a URI.
        flags: SQLite's, how it is opened.
        base: SQLite's operating system layer, below that of the pages.
        key: of the pages, 32 bytes; None: they are plain and have checksums.
        busy_timeout_ms: how long it waits for others that hold the file.
        statements_cached: how many it keeps compiled.

    Raises:
        UnsafeEnvironmentError: see `checksum_layer.layer_over`.
        apsw.Error: it cannot be opened, or not with this key.
    """
    if key is None:
        with checksum_layer.layer_over(base) as layer:
            connection = _connected(name, flags, layer, statements_cached)
            return _prepared(connection, None, busy_timeout_ms)
    connection = _connected(name, flags, pages.layer_over(base), statements_cached)
    return _prepared(connection, key, busy_timeout_ms)


def _connected(name: str, flags: int, layer: str, statements_cached: int) -> apsw.Connection:
    return apsw.Connection(
        name,
        flags=flags | apsw.SQLITE_OPEN_NOMUTEX,
        vfs=layer,
        statementcachesize=statements_cached,
    )


def _prepared(
    connection: apsw.Connection, key: bytes | None, busy_timeout_ms: int
) -> apsw.Connection:
    try:
        if key is not None:
            pages.unlock(connection, key)
        connection.set_busy_timeout(busy_timeout_ms)
        connection.pragma("trusted_schema", "OFF")
        connection.pragma("cell_size_check", "ON")
        connection.pragma("mmap_size", 0)  # a truncated map would kill the process
        connection.pragma("temp_store", "MEMORY")
        connection.pragma("schema_version")  # opens the log
    except BaseException:
        connection.close()
        raise
    return connection
