"""kill -9 of a writing process: what was acknowledged is there, and the directory is free.

Each message is there with its analysis or not at all.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import apsw
import pytest

from semanticrecall_core.types.errors import StoreLockedError
from semanticrecall_core.types.values import ListQuery, Role
from support.killed_writer import killed_writer
from support.message_stores import append, draft
from support.stored_messages import open_store
from support.word_analyser import WordAnalyser

KILLS = 10
ANALYSE = WordAnalyser().analyse

# Four threads append, embed and replace; each line is written after the store has answered.
WRITER = """
import sys, threading, numpy as np
from pathlib import Path
from semanticrecall_core.messages import open_store
from semanticrecall_core.types.values import CallBudget, MessageDraft, Role, VectorRecord
from semanticrecall_server.message_codec import ProtobufMessages
from support.word_analyser import WordAnalyser
home, forms = Path(sys.argv[1]), {"codec": ProtobufMessages(), "analyser": WordAnalyser()}
store = open_store(home, generation="g", **forms)
mutex = threading.Lock()
def say(line):
    with mutex:
        sys.stdout.write(line + "\\n")
        sys.stdout.flush()
def write(name):
    for n in range(10**9):
        key = f"{sys.argv[2]}-{name}-{n}"
        draft = MessageDraft(key, f"t{name}", Role.USER, text=f"text of {key}")
        (outcome,) = store.append("u", [draft], CallBudget.of_seconds(60))
        say(f"appended {key}")
        vectors = np.full((1, 8), outcome.seq, np.float32)
        store.put_vectors([VectorRecord("u", outcome.seq, outcome.revision, vectors)])
        say(f"embedded {key} {outcome.seq}")
for name in range(4):
    threading.Thread(target=write, args=(name,)).start()
"""


def test_nothing_acknowledged_is_lost_to_kill_9(tmp_path: Path) -> None:
    home = tmp_path / "data"
    appended: set[str] = set()
    embedded: dict[str, int] = {}
    for cycle in range(KILLS):
        for line in killed_writer(WRITER, home, cycle, lines=40 + 17 * cycle):
            match line.split():
                case ["appended", key]:
                    appended.add(key)
                case ["embedded", key, seq]:
                    embedded[key] = int(seq)
        store = open_store(home, generation="g")  # the dead one's lock does not block
        rows = store.list_messages(ListQuery("u", None, limit=10**6))
        found = {row.id: row for row in rows}
        assert appended <= found.keys()
        assert all(found[key].text == f"text of {key}" for key in appended)
        vectors = store.load_partition("u")
        assert set(embedded.values()) <= set(vectors.seqs.tolist())
        assert (vectors.vectors[:, 0] == vectors.seqs).all()
        assert list(store.verify(None)) == []
        store.close()
        assert _analysed(home) == {row.seq: ANALYSE(row.text, row.author) for row in rows}
    assert len(appended) > 40 * KILLS // 2


def _analysed(home: Path) -> dict[int, bytes]:
    """The analyses that are on record; a load would make those that are not."""
    connection = apsw.Connection(str(home / "recall.db"))
    found = dict(connection.execute("SELECT seq, analysed FROM analyses"))
    connection.close()
    return found


def test_another_process_is_refused_by_the_pid_it_must_wait_for(tmp_path: Path) -> None:
    home = tmp_path / "data"
    holder = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(home), "0"],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[1])},
    )
    assert holder.stdout is not None
    assert holder.stdout.readline().startswith(b"appended")
    with pytest.raises(StoreLockedError, match=f"process {holder.pid};"):
        open_store(home, generation="g")
    assert holder.stdout.readline()  # it goes on
    holder.kill()
    holder.communicate(timeout=30)
    store = open_store(home, generation="g")
    (outcome,) = append(store, draft("after", role=Role.TOOL))
    assert outcome.seq > 1
    store.close()
