"""Rows of another resource are not even looked at: no read takes them, none calls them damaged.

A row's checksum covers its owner, so that one that a wrong statement reads is left out as damaged.
That is the second guard: these tests see whether the first one, the statement, still stands.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from semanticrecall_core.messages import SqliteMessageStore
from semanticrecall_core.types.values import ListQuery
from semanticrecall_core.types.windows import WindowQuery
from support.message_stores import BYTES_MAX, append, draft, ids
from support.stored_messages import open_store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteMessageStore]:
    """Two resources with threads of the same names, their messages in turns."""
    made = open_store(tmp_path / "data", generation="g")
    for n in range(6):
        append(made, draft(f"u{n}"), resource="u")
        append(made, draft(f"v{n}"), resource="v")
    yield made
    made.close()


@contextmanager
def quiet() -> Iterator[None]:
    """Nothing is called damaged in the body."""
    with capture_logs() as logs:
        yield
    assert [line["event"] for line in logs] == []


@pytest.mark.parametrize("newest_first", [False, True])
@pytest.mark.parametrize("thread", [None, "t"])
def test_a_listing(store: SqliteMessageStore, newest_first: bool, thread: str | None) -> None:
    query = ListQuery("u", thread, 4, newest_first=newest_first)
    mine = [f"u{n}" for n in range(6)]
    with quiet():
        found = ids(store.list_messages(query))
    assert found == (mine[::-1] if newest_first else mine)[:4]


@pytest.mark.parametrize("steps", [1, 3])
def test_windows_of_foreign_hits(store: SqliteMessageStore, steps: int) -> None:
    rows = {
        m.id: (m.seq, m.revision) for r in "uv" for m in store.list_messages(ListQuery(r, None, 9))
    }
    hits = (rows["v2"], rows["u1"], rows["v5"])
    query = WindowQuery("u", hits, before=steps, after=steps, bytes_max=BYTES_MAX)
    with quiet():
        found = store.windows(query)
    assert ids(found.messages) == [f"u{n}" for n in range(max(0, 1 - steps), 2 + steps)]
    assert not found.dropped
    assert not found.damaged


def test_ids_of_others(store: SqliteMessageStore) -> None:
    with quiet():
        found = store.get("u", ["v1", "u2", "v2"])
    assert ids(found) == ["u2"]
