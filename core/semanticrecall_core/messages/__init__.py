"""Keeps every message durably and answers windows, history and rows that wait to be embedded."""

from __future__ import annotations

from pathlib import Path

from ..types.lexical import TextAnalyser
from ..types.ports import MessageCodec
from .commit import QueueLimits
from .sqlite_store import SqliteMessageStore, StoreOptions

__all__ = ["QueueLimits", "SqliteMessageStore", "StoreOptions", "open_store"]


def open_store(
    directory: Path,
    *,
    generation: str,
    codec: MessageCodec,
    analyser: TextAnalyser | None = None,
    options: StoreOptions | None = None,
) -> SqliteMessageStore:
    """Open or make the embedded store of a data directory; see SqliteMessageStore."""
    return SqliteMessageStore(
        directory, generation=generation, codec=codec, analyser=analyser, options=options
    )
