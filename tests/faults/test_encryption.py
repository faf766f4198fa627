"""F29: nothing that is kept can be read without the key, and a key is changed without a loss."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import secrets
import shutil
import signal
from collections import Counter
from pathlib import Path

import pytest

from semanticrecall.v1 import admin_pb2
from semanticrecall_core.encryption import DataKey, Purpose, data_key
from semanticrecall_core.types.errors import FailedPreconditionError
from semanticrecall_server import encryption_keys
from semanticrecall_server.assembly import default_parts
from semanticrecall_server.config import Settings
from support.canaries import Canary, Flock, Traces, found_in
from support.disk_cached_embedder import DiskCachedEmbedder
from support.fault_report import FaultRun, seeded
from support.fault_sidecar import FaultSidecar
from support.fault_sizes import COLUMNS, size
from support.running_server import running
from support.wire_memory import ALONE, INDEXED, REPLACED, Sidecar, hit_ids, ids, said

RESOURCE, AT_ONCE, CALL_SECONDS = "resource", 40, 120.0
FIRST_NS = 1_700_000_000 * 10**9
FOREIGN = ("Straßenübergänge", "東京の天気は晴れです", "naïveté\u2028façade")
PLAIN_CANARIES = 20
KILLS = 5
PROCESS_FLAGS = ("--snapshot-interval-ms", "0")


def new_key(path: Path) -> Path:
    path.write_text(f"{secrets.token_hex(32)}\n")
    path.chmod(0o600)
    return path


def search(folder: Path, traces: Traces, log: str) -> Counter[tuple[str, str]]:
    """What is in a copy of all files and the log, made without locks on them."""
    copy = folder / "copy"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(folder / "data", copy)
    (copy / "log").write_text(log)
    return found_in([copy], traces)


def traces_of(canaries: list[Canary], embedder: DiskCachedEmbedder) -> Traces:
    traces = Traces()
    traces.add_words("names", ["thread-of-canaries", "author-of-canaries"])
    for canary in canaries:
        traces.add_canary(canary, embedder)
    for text in FOREIGN:
        traces.kinds[text.encode()] = "UTF-8"
        traces.kinds[json.dumps(text)[1:-1].encode()] = "JSON"
    return traces


def fill_and_search(home: Path, key_file: Path | None, run: FaultRun, number: int) -> None:
    """Index, embed, save, and look into every file: while it runs, and after its end."""
    flock = Flock(run.seed)
    made = [
        flock.make("thread-of-canaries", "author-of-canaries", FIRST_NS + n) for n in range(number)
    ]
    embedders: list[DiskCachedEmbedder] = []

    def load(settings: Settings) -> DiskCachedEmbedder:
        found: DataKey | None = encryption_keys.data_key(settings)
        key = None if found is None else found.subkey(Purpose.EMBEDDINGS)
        embedders.append(DiskCachedEmbedder(home / "data" / "embeddings.db", key=key))
        return embedders[-1]

    flags = {} if key_file is None else {"encryption_key_file": key_file}
    with running(home, default_parts(load), purge_interval_ms=0, **flags) as server:
        sidecar = Sidecar(server.sidecar.addresses[0].target)
        memory = sidecar.memory(RESOURCE)
        for start in range(0, number, AT_ONCE):
            part = made[start : start + AT_ONCE]
            given = [c.before or c.message for c in part]
            assert set(memory.index(given, thread="")) == {INDEXED}
            edited = [c.message for c in part if c.before]
            assert set(memory.index(edited, thread="")) == {REPLACED}
        foreign = [said(f"foreign{n}", text) for n, text in enumerate(FOREIGN)]
        assert set(sidecar.memory("others").index(foreign)) == {INDEXED}
        for partitions_only in (True, False):
            request = admin_pb2.CreateSnapshotRequest(partitions_only=partitions_only)
            sidecar.admin.CreateSnapshot(request, timeout=CALL_SECONDS)
        embedders[0].flush()
        for canary in made[:: max(1, number // 10)]:
            found = memory.recall(canary.message.text, top_k=1, message_range=ALONE)
            assert hit_ids(found) == [canary.message.id]
        assert sidecar.stats().encrypted is (key_file is not None)
        traces = traces_of(made, embedders[0])
        run.count("traces looked for", len(traces.kinds))
        while_running = search(home, traces, "\n".join(map(str, server.log_lines)))
        sidecar.close()
    afterwards = search(home, traces, "")
    if key_file is not None:
        assert while_running == Counter(), "while it runs"
        assert afterwards == Counter(), "after its end"
        return
    kinds = {kind for kind, _ in while_running}
    assert kinds >= {"words", "vectors", "codes", "analysis", "UTF-8", "names"}
    files = {name for _, name in while_running}
    assert files >= {"recall.db", "recall.db-wal", "embeddings.db"}
    assert any(name.endswith(".snapshot") for name in files)


@pytest.mark.parametrize("column", COLUMNS)
def test_nothing_of_what_is_kept_is_in_any_byte_without_the_key(
    column: str, tmp_path: Path
) -> None:
    with seeded("F29", tmp_path / "data") as run:
        number = run.fitted(size("F29_CANARIES", column), 200, a_second=20)
        run.count("canaries", number)
        fill_and_search(tmp_path, new_key(tmp_path / "key"), run, number)


def test_the_search_finds_everything_where_there_is_no_key(tmp_path: Path) -> None:
    with seeded("F29", tmp_path / "data") as run:
        fill_and_search(tmp_path, None, run, PLAIN_CANARIES)


# -- keys that do not fit ---------------------------------------------------------------------


def digests(folder: Path) -> dict[str, str]:
    """Every file by its content; LOCK has the number of the process that held it last."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != "LOCK"
    }


def store_with(home: Path, *flags: str, number: int = 3) -> list[str]:
    """A directory with some messages, its process stopped."""
    with FaultSidecar(home, *PROCESS_FLAGS, *flags) as sidecar:
        memory = Sidecar(f"unix:{sidecar.socket}").memory(RESOURCE)
        memory.index([said(f"m{n}", f"number {n}") for n in range(number)])
        request = admin_pb2.CreateSnapshotRequest()
        sidecar.stubs.admin.CreateSnapshot(request, timeout=CALL_SECONDS)
        assert sidecar.stop() == 0
    return [f"m{n}" for n in range(number)]


def refused(home: Path, *flags: str) -> str:
    """Start with these flags, which must not serve; what it said."""
    before = digests(home / "data")
    sidecar = FaultSidecar(home, *PROCESS_FLAGS, *flags)
    sidecar.start(wait=False)
    assert sidecar.wait() == 2
    assert digests(home / "data") == before
    return "\n".join(sidecar.said)


def serves(home: Path, expected: list[str], *flags: str) -> None:
    with FaultSidecar(home, *PROCESS_FLAGS, *flags) as sidecar:
        memory = Sidecar(f"unix:{sidecar.socket}").memory(RESOURCE)
        assert ids(memory.listed()) == expected
        assert sidecar.stop() == 0


def test_a_directory_is_opened_with_its_own_key_and_no_other(tmp_path: Path) -> None:
    right, wrong = new_key(tmp_path / "right"), new_key(tmp_path / "wrong")
    expected = store_with(tmp_path, "--encryption-key-file", str(right))
    said_so = refused(tmp_path, "--encryption-key-file", str(wrong))
    assert "is not that of" in said_so
    assert "nothing was changed" in said_so
    assert "--encryption-key-file" in refused(tmp_path)
    short = tmp_path / "short"
    short.write_text("0123")
    assert "64 hexadecimal digits" in refused(tmp_path, "--encryption-key-file", str(short))
    assert "cannot be read" in refused(tmp_path, "--encryption-key-file", str(tmp_path / "none"))
    serves(tmp_path, expected, "--encryption-key-file", str(right))


def test_a_directory_that_was_begun_without_a_key_is_not_opened_with_one(tmp_path: Path) -> None:
    expected = store_with(tmp_path)
    key = new_key(tmp_path / "key")
    assert "begun without a key" in refused(tmp_path, "--encryption-key-file", str(key))
    serves(tmp_path, expected)


def test_what_was_acknowledged_survives_kills_of_an_encrypted_store(tmp_path: Path) -> None:
    flags = ("--encryption-key-file", str(new_key(tmp_path / "key")))
    acknowledged: list[str] = []
    with FaultSidecar(tmp_path, *PROCESS_FLAGS, *flags) as sidecar:
        for cycle in range(KILLS):
            client = Sidecar(f"unix:{sidecar.socket}")
            memory = client.memory(RESOURCE)
            assert ids(memory.listed()) == acknowledged
            texts = {f"m{cycle}-{n}": f"goose{cycle}x{n} was counted" for n in range(4)}
            for identity, text in texts.items():
                assert memory.index([said(identity, text)]) == [INDEXED]
                acknowledged.append(identity)
            for identity, text in texts.items():
                found = memory.recall(text, top_k=1, message_range=ALONE)
                assert hit_ids(found) == [identity]
            client.close()
            sidecar.kill()
            sidecar.start()
        assert sidecar.stop() == 0
    serves(tmp_path, acknowledged, *flags)


# -- changing the key -------------------------------------------------------------------------


def changing(old: Path, new: Path) -> tuple[str, ...]:
    return ("--encryption-key-file", str(new), "--encryption-old-key-file", str(old))


def test_a_key_is_changed_for_the_store_and_its_snapshots(tmp_path: Path) -> None:
    old, new = new_key(tmp_path / "old"), new_key(tmp_path / "new")
    expected = store_with(tmp_path, "--encryption-key-file", str(old))
    serves(tmp_path, expected, *changing(old, new))
    refused(tmp_path, "--encryption-key-file", str(old))
    serves(tmp_path, expected, "--encryption-key-file", str(new))
    (saved,) = (tmp_path / "data" / "saved").glob("*/KEY")
    assert not opens(saved.parent, key_in(old))
    assert opens(saved.parent, key_in(new))


def key_in(path: Path) -> bytes:
    return bytes.fromhex(path.read_text())


class KillingOs:
    """Stands for `os` in the module that writes KEY; ends the process at one of its calls."""

    def __init__(self, at: int) -> None:
        self._at = at
        self._calls = 0

    def __getattr__(self, name: str) -> object:
        real = getattr(os, name)
        if name not in {"open", "pwrite", "fsync", "rename", "close", "unlink"}:
            return real

        def call(*arguments: object) -> object:
            if self._calls == self._at:
                os.kill(os.getpid(), signal.SIGKILL)
            self._calls += 1
            return real(*arguments)

        return call


def kill_at(call: int) -> None:
    data_key.os = KillingOs(call)  # type: ignore[assignment]


def test_a_process_that_is_killed_while_the_key_is_changed_loses_nothing(tmp_path: Path) -> None:
    old, new = new_key(tmp_path / "old"), new_key(tmp_path / "new")
    expected = store_with(tmp_path, "--encryption-key-file", str(old))
    opened_by = Counter[str]()
    for call in range(40):
        home = tmp_path / str(call)
        home.mkdir()
        shutil.copytree(tmp_path / "data", home / "data")
        sidecar = FaultSidecar(
            home, *PROCESS_FLAGS, *changing(old, new), prepare=functools.partial(kill_at, call)
        )
        sidecar.start(wait=False)
        assert sidecar.wait() == -signal.SIGKILL
        folder = home / "data"
        keys = {"old": key_in(old), "new": key_in(new)}
        opening = [name for name, key in keys.items() if opens(folder, key)]
        assert len(opening) == 1, f"killed at call {call}"
        opened_by.update(opening)
        if call in (3, 6):
            serves(home, expected, *changing(old, new))
            serves(home, expected, "--encryption-key-file", str(new))
        if opened_by["new"] == 2:
            break
    assert set(opened_by) == {"old", "new"}


def opens(folder: Path, key: bytes) -> bool:
    try:
        return data_key.unlocked(folder, data_key.UserKeys(key)) is not None
    except FailedPreconditionError as error:
        if error.reason != "ENCRYPTION_KEY_WRONG":
            raise
        return False
