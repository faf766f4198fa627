"""A start that is refused changes nothing: every file of the directory stays as it is, to the byte.

Real processes with real models. LOCK is left out, which has the number of the process that held it
last, and so is SQLite's index of the log, which is made anew from the log by whoever opens it.
"""

from __future__ import annotations

import hashlib
import shutil
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import apsw
import pytest

from semanticrecall.v1 import admin_pb2
from semanticrecall_server.assembly import default_parts
from semanticrecall_server.lifecycle import Parts
from support import fault_serving, format_3
from support.fault_sidecar import FaultSidecar
from support.wire_memory import INDEXED, Sidecar, hit_ids, ids, said
from support.word_models import WordModel

WORDS = tuple(f"word{i}" for i in range(50))
TEXTS = {f"m{n}": f"word{n} word{n + 1}" for n in range(6)}
FORMER, OTHER = WordModel(WORDS, 64, seed=1), WordModel(WORDS, 64, seed=2)
KEY, WRONG_KEY = "0123456789abcdef" * 4, "fedcba9876543210" * 4
RESOURCE, CALL_SECONDS = "resource", 60.0
NEVER = ("--snapshot-interval-ms", "0", "--purge-interval-ms", "0")


def real_parts(_load: object) -> Parts:
    return default_parts()


def with_real_models() -> None:
    """In the process that is forked: the models of its flags, as in `semanticrecall serve`."""
    vars(fault_serving)["default_parts"] = real_parts


@dataclass(frozen=True)
class Home:
    """A data directory, and the flags it was made with."""

    path: Path
    flags: tuple[str, ...]

    @property
    def data(self) -> Path:
        return self.path / "data"

    def sidecar(self, *flags: str) -> FaultSidecar:
        """A process over it that is not started; later flags win."""
        cache = ("--model-cache-dir", str(self.path.parent / "cache"))
        return FaultSidecar(
            self.path, *NEVER, *cache, *self.flags, *flags, prepare=with_real_models
        )

    def digests(self) -> dict[str, str]:
        """Every file by its content, every folder by its name."""
        return {
            str(path.relative_to(self.data)): (
                hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "folder"
            )
            for path in sorted(self.data.rglob("*"))
            if path.name not in ("LOCK", "recall.db-shm", "embeddings.db-shm")
        }

    def is_refused(self, says: str, *flags: str) -> None:
        """A start with these flags ends with 2 and a line that says so, and changes nothing."""
        before = self.digests()
        sidecar = self.sidecar(*flags)
        sidecar.start(wait=False)
        assert sidecar.wait() == 2
        last = sidecar.said[-1]
        assert says in last, sidecar.said
        assert not any("Traceback" in line for line in sidecar.said)
        assert self.digests() == before

    def serves_all(self, *, kept: bool = True) -> None:
        """What is in it, and found by a vector that was kept: nothing is embedded again."""
        with self.sidecar() as sidecar:
            client = Sidecar(f"unix:{sidecar.socket}")
            memory = client.memory(RESOURCE)
            assert ids(memory.listed()) == list(TEXTS)
            for identity, text in TEXTS.items():
                assert identity in hit_ids(memory.recall(text, top_k=2))
            assert not kept or client.stats().cache.disk_entries == len(TEXTS)
            client.close()
            assert sidecar.stop() == 0


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    return {
        "former": FORMER.write(folder / "former"),
        "other": OTHER.write(folder / "other"),
    }


def made(home: Home, *, kill: bool = False) -> Home:
    with home.sidecar() as sidecar:
        client = Sidecar(f"unix:{sidecar.socket}")
        statuses = client.memory(RESOURCE).index([said(i, text) for i, text in TEXTS.items()])
        assert set(statuses) == {INDEXED}
        for partitions_only in (True, False):
            request = admin_pb2.CreateSnapshotRequest(partitions_only=partitions_only)
            client.admin.CreateSnapshot(request, timeout=CALL_SECONDS)
        client.close()
        if kill:
            sidecar.kill()
        else:
            assert sidecar.stop() == 0
    return home


@pytest.fixture(scope="module")
def originals(models: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Home]:
    """One that was stopped, one that was killed with everything in its log, and one with a key."""
    root = tmp_path_factory.mktemp("originals")
    former = ("--model-dir", str(models["former"]))
    (root / "key").write_text(KEY)
    keyed = (*former, "--encryption-key-file", str(root / "key"))
    return {
        "stopped": made(Home(root / "stopped", former)),
        "killed": made(Home(root / "killed", former), kill=True),
        "encrypted": made(Home(root / "encrypted", keyed)),
    }


@pytest.fixture
def copy(originals: dict[str, Home], tmp_path: Path) -> Callable[[str], Home]:
    def copied(kind: str) -> Home:
        shutil.copytree(originals[kind].data, tmp_path / kind / "data")
        return Home(tmp_path / kind, originals[kind].flags)

    return copied


Copy = Callable[[str], Home]


@pytest.mark.parametrize("kind", ["stopped", "killed", "encrypted"])
def test_another_model(kind: str, copy: Copy, models: dict[str, Path]) -> None:
    home = copy(kind)
    if kind == "killed":
        assert (home.data / "recall.db-wal").stat().st_size > 0
    else:
        assert (home.data / "embeddings.db").stat().st_size > 0
    other = str(models["other"])
    home.is_refused("semanticrecall reembed", "--model-dir", other)
    home.is_refused("semanticrecall reembed", "--model-dir", other, "--cache-disk-bytes-max", "0")
    home.is_refused("--next-model-dir", "--model-dir", other, "--next-model-dir", other)
    if kind != "killed":
        home.serves_all()


def test_a_model_that_cannot_be_loaded(copy: Copy, tmp_path: Path) -> None:
    home = copy("stopped")
    home.is_refused("model", "--model-dir", str(tmp_path / "nowhere"))
    home.is_refused("model", "--next-model-dir", str(tmp_path / "nowhere"))
    broken = FORMER.write(tmp_path / "broken")
    (broken / "model.onnx").write_bytes(b"not a graph")
    home.is_refused("the ONNX graph cannot be read", "--model-dir", str(broken))
    home.serves_all()


def test_another_key_none_or_one_too_many(copy: Copy, tmp_path: Path) -> None:
    (tmp_path / "wrong").write_text(WRONG_KEY)
    wrong = ("--encryption-key-file", str(tmp_path / "wrong"))
    home = copy("encrypted")
    home.is_refused("is not that of", *wrong)
    home.is_refused("--memory low", "--memory", "low")
    Home(home.path, home.flags[:2]).is_refused("--encryption-key-file")
    home.serves_all()
    copy("stopped").is_refused("begun without a key", *wrong)


def write_number(home: Home, pragma: str, number: int) -> None:
    connection = apsw.Connection(str(home.data / "recall.db"))
    connection.pragma("journal_mode", "wal")
    connection.pragma(pragma, number)
    connection.close()


def test_a_newer_format_and_another_program(tmp_path: Path, models: dict[str, Path]) -> None:
    for pragma, number, says in (
        ("user_version", 99, "has format 99"),
        ("application_id", 7, "not a database of this program"),
    ):
        folder = tmp_path / pragma
        format_3.unpacked(folder)  # its pages have no checksums that would have to be right
        home = Home(folder, ("--model-dir", str(models["former"])))
        write_number(home, pragma, number)
        home.is_refused(says)


def test_an_older_format_with_another_model_is_not_upgraded(
    tmp_path: Path, models: dict[str, Path]
) -> None:
    format_3.unpacked(tmp_path)
    home = Home(tmp_path, ("--model-dir", str(models["former"])))
    home.is_refused("semanticrecall reembed")


def test_an_older_copy_and_a_log_cut_off_and_no_record_at_all(
    copy: Copy, originals: dict[str, Home]
) -> None:
    older = copy("stopped")
    with older.sidecar() as sidecar:
        memory = Sidecar(f"unix:{sidecar.socket}").memory(RESOURCE)
        memory.index([said("more", "word9")])
        assert sidecar.stop() == 0
    shutil.copy(originals["stopped"].data / "recall.db", older.data / "recall.db")
    older.is_refused("acknowledged changes are missing")
    cut = copy("killed")
    log = (cut.data / "recall.db-wal").read_bytes()
    damaged = bytearray(log)
    damaged[len(log) // 2] ^= 1
    (cut.data / "recall.db-wal").write_bytes(damaged)
    cut.is_refused("acknowledged changes are missing")
    (cut.data / "recall.db-wal").write_bytes(log)  # as if the bit had been mended
    cut.serves_all(kept=False)
    (older.data / "recall.db").unlink()
    older.is_refused("acknowledged changes are missing")


def test_a_damaged_page_and_a_damaged_key(copy: Copy) -> None:
    home = copy("stopped")
    with (home.data / "recall.db").open("r+b") as file:
        file.seek(200)
        file.write(b"\xff")
    home.is_refused("damaged")
    keyed = copy("encrypted")
    (keyed.data / "KEY").write_bytes(bytes(512))
    keyed.is_refused("KEY")


def test_a_directory_in_use_and_an_address_in_use(copy: Copy, tmp_path: Path) -> None:
    home = copy("stopped")
    with home.sidecar() as holder:
        before = home.digests()
        second = Home(home.path, (*home.flags, "--listen", f"unix:{tmp_path}/second"))
        second.is_refused(f"in use by process {holder.pid}")
        assert home.digests() == before
    other = copy("encrypted")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        other.is_refused(address, "--listen", address)
    other.serves_all()
