"""The snapshot store over a directory of files. The format is in `layout`.

A file is never changed, but for blocks that are forgotten: those are overwritten in place, so that
a Forget costs what it forgets. Where a block is mapped and somebody still looks at it, and where it
cannot be overwritten, its file is rewritten without it, and removed.
"""

from __future__ import annotations

import os
import re
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import structlog

from ..types.errors import CorruptDataError, SemanticRecallError, UnavailableError
from ..types.stats import SnapshotStats
from ..types.verifying import ImageCheck
from . import layout
from .compaction import FileLoad, files_to_rewrite
from .new_file import NewFile, erase, error_of, remove_files, sync_directory
from .sealed_file import ForeignFileError, SealedFile, UnreadableFileError

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator, Sequence
    from pathlib import Path

    from ..types.values import IntColumn, PartitionImage

VIEW_WAIT_SECONDS = 0.25
"""How long a forget waits for searches that look at what it forgets."""
VIEW_CHECK_SECONDS = 0.002
_NAME = re.compile(r"(\d{16})\.(snapshot|tmp)", re.ASCII)
_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Live:
    """How much of a file counts."""

    bytes: int = 0
    rows: int = 0


class FileSnapshotStore:
    """`SnapshotStore` over files. One process at a time; that is its caller's to see to."""

    def __init__(
        self, directory: Path, *, store_id: str, mapped: bool, key: bytes | None = None
    ) -> None:
        """Verify what is there, and remove what is certainly ours and of no use.

        A directory that cannot be made or read is logged, and an empty one: writes raise then.

        Args:
            directory: nobody else's; made if it is not there.
            store_id: the record's; images of another record are never given.
            mapped: what an image has that is large or seldom read (`rows.vectors`, `times_ns`,
                `checksums`, `roles`, and `errors`) are read-only views of its file, which cost no
                memory of their own; False: arrays in memory. All else is always in memory.
            key: files are encrypted with it, 32 bytes, and cannot be mapped; None: they are plain.
        """
        if mapped and key is not None:
            raise ValueError("encrypted files cannot be mapped")
        self._directory = directory
        self._owner = layout.owner_of(store_id)
        self._key = key
        self._mapped = mapped
        self._writer = threading.Lock()  # held while files come and go; taken before _state
        self._state = threading.Lock()
        self._files: list[SealedFile] = []  # oldest first
        self._newest: dict[str, SealedFile] = {}  # where the block of a resource is that counts
        self._live: dict[SealedFile, _Live] = {}
        self._doomed: set[Path] = set()  # to be removed; tried again until it works
        self._unknown: list[Path] = []  # named like ours, but it cannot be told whose they are
        self._moved: set[str] = set()
        self._next_number = 1
        self._damaged = 0
        self._closed = False
        try:
            self._open()
        except OSError as problem:
            _log.warning("snapshot_directory_not_readable", errno=problem.errno)

    def read(self, resource_id: str) -> PartitionImage | None:
        """See `SnapshotStore.read`. An older block is never given in place of a damaged one."""
        file = self._newest.get(resource_id)  # one atomic step; the file is readable for good
        if file is None:
            return None
        try:
            return file.read(resource_id, mapped=self._mapped)
        except CorruptDataError:
            self._give_up(resource_id, file)
        except OSError as problem:  # it may be readable another time
            _log.warning("snapshot_not_readable", file=file.path.name, errno=problem.errno)
        return None

    def write(self, images: Iterable[PartitionImage]) -> int:
        """See `SnapshotStore.write`; may merge older files, too.

        Images are taken one at a time, while no other write or forget runs: given a generator,
        nothing that it reads can be older than a forget that has returned.

        Raises:
            ResourceExhaustedError: DISK_FULL.
            UnavailableError: any other failure of the disk, or the store is closed.
            InvalidArgumentError: an image whose arrays do not fit each other.
        """
        with self._writer:
            self._check_open()
            try:
                return self._write(images)
            except OSError as problem:
                raise error_of(problem) from None

    def withdraw(self, resource_ids: Sequence[str]) -> None:
        """See `SnapshotStore.withdraw`."""
        with self._state:
            for resource_id in resource_ids:
                if resource_id in self._newest:
                    self._drop(resource_id)

    def forget(self, resource_ids: Sequence[str]) -> None:
        """See `SnapshotStore.forget`. Files that cannot be rewritten are removed as a whole.

        So a full disk, where nothing can be written, does not keep what was forgotten.

        Raises:
            UnavailableError: a file cannot be removed, or the store is closed.
        """
        gone = frozenset(resource_ids)
        if self._mapped:
            self._wait_for_views(gone)
        with self._writer:
            self._check_open()
            self.withdraw(resource_ids)
            self._erase(gone)
            # What nobody can read, nobody can forget from.
            self._doomed.update(self._unknown)
            self._unknown.clear()
            try:
                self._remove_doomed()
            except OSError as problem:
                raise error_of(problem) from None

    def seqs_of(self, resource_id: str) -> IntColumn:
        """See `SnapshotStore.seqs_of`."""
        with self._state:
            files = [file for file in self._files if resource_id in file.index]
        found = [np.empty(0, np.int64)]
        for file in files:
            try:
                found += file.seqs_of(resource_id)
            except (CorruptDataError, OSError):  # it is found when it is read, or forgotten
                continue
        return np.unique(np.concatenate(found))

    def resources(self) -> dict[str, int]:
        """See `SnapshotStore.resources`."""
        with self._state:
            return {name: file.rows_of(name) for name, file in self._newest.items()}

    def examine(self, resource_id: str | None) -> Iterator[ImageCheck]:
        """See `SnapshotStore.examine`."""
        with self._state:
            last = {name: file for file in self._files for name in file.index}
            unreadable = [path.name for path in self._unknown if resource_id is None]
        for name in sorted(last) if resource_id is None else [resource_id]:
            file = last.get(name)
            if file is None:
                continue
            try:
                yield ImageCheck(name, file.read(name, mapped=False))
            except CorruptDataError:
                # One that was forgotten meanwhile, or when the process ended, is none.
                if name in file.index and not _is_erased(file, name):
                    yield ImageCheck(name, None)
            except OSError as problem:
                _log.warning("snapshot_not_readable", file=file.path.name, errno=problem.errno)
        for file_name in unreadable:
            yield ImageCheck("", None, file_name)

    def take_moved(self) -> list[str]:
        """See `SnapshotStore.take_moved`."""
        with self._writer:
            moved, self._moved = self._moved, set()
        return list(moved)

    def rows_of(self, resource_id: str) -> int | None:
        """See `SnapshotStore.rows_of`. A damaged or replaced block is there until it is forgotten.

        So may be what a file holds that cannot be read, or could not be removed.
        """
        with self._state:
            file = self._newest.get(resource_id)
            if file is not None:
                return file.rows_of(resource_id)
            unsure = self._unknown or self._doomed
            return 0 if unsure or any(resource_id in file.index for file in self._files) else None

    def stats(self) -> SnapshotStats:
        """See `SnapshotStore.stats`."""
        with self._state:
            return SnapshotStats(
                files=len(self._files),
                bytes=sum(file.bytes for file in self._files),
                partitions=len(self._newest),
                rows=sum(live.rows for live in self._live.values()),
                damaged=self._damaged,
            )

    def close(self) -> None:
        """See `SnapshotStore.close`. Nothing is read afterwards; safe to call twice."""
        with self._writer, self._state:
            self._closed = True
            self._files = []
            self._newest = {}
            self._live = {}

    def _check_open(self) -> None:
        if self._closed:
            raise UnavailableError("the snapshots are closed", reason="SNAPSHOTS_CLOSED")

    # --- start ----------------------------------------------------------------------------------

    def _open(self) -> None:
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name in sorted(os.listdir(self._directory)):
            named = _NAME.fullmatch(name)
            if named is None:
                continue
            self._next_number = max(self._next_number, int(named[1]) + 1)
            path = self._directory / name
            if named[2] == "tmp":
                self._doomed.add(path)
            else:
                self._open_file(path)
        self._try_remove_doomed()

    def _open_file(self, path: Path) -> None:
        try:
            self._adopt(SealedFile(path, self._owner, self._key))
        except ForeignFileError:
            _log.warning("snapshot_of_another_store", file=path.name)
        except UnreadableFileError as problem:
            self._damaged += 1
            _log.warning("snapshot_file_not_used", file=path.name, why=problem.why)
            if problem.ours:
                self._doomed.add(path)
            else:
                self._unknown.append(path)

    # --- changes of the directory; the writer's lock is held ------------------------------------

    @contextmanager
    def _new_file(self) -> Generator[tuple[NewFile, Path]]:
        """A file that is not there yet and the name it will have; removed if it does not get it."""
        number, self._next_number = self._next_number, self._next_number + 1
        path = self._directory / f"{number:016d}.snapshot"
        temporary = path.with_suffix(".tmp")
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        new = NewFile(temporary, self._owner, self._key)
        try:
            yield new, path
        except BaseException:
            self._doomed.update((temporary, path))
            raise
        finally:
            new.close()

    def _write(self, images: Iterable[PartitionImage]) -> int:
        with self._new_file() as (new, path):
            for image in images:
                new.add(image)
            count = len(new.resource_ids)
            if not count:
                return 0
            victims = self._victims(new)
            self._copy_live(victims, new, frozenset(new.resource_ids))
            self._adopt(new.seal(path))
        self._retire(victims)
        self._try_remove_doomed()
        return count

    def _victims(self, new: NewFile) -> list[SealedFile]:
        """Files whose live blocks move into the new one."""
        live_bytes = {file: self._live[file].bytes for file in self._files}
        for resource_id in set(new.resource_ids):
            file = self._newest.get(resource_id)
            if file is not None:
                live_bytes[file] -= file.length_of(resource_id)
        loads = [FileLoad(live, file.block_bytes - live) for file, live in live_bytes.items()]
        return [self._files[at] for at in files_to_rewrite(loads, new.block_bytes)]

    def _copy_live(
        self, sources: Sequence[SealedFile], new: NewFile, left_out: frozenset[str]
    ) -> None:
        for file in sources:
            for resource_id in file.index:
                if resource_id in left_out or self._newest.get(resource_id) is not file:
                    continue
                if not new.copy(file, resource_id):
                    self._give_up(resource_id, file)
                elif self._mapped:
                    self._moved.add(resource_id)

    def _rewrite_without(self, gone: frozenset[str], holders: list[SealedFile]) -> None:
        """Put the other live blocks of these files into a new one; without it where that fails."""
        try:
            with self._new_file() as (new, path):
                self._copy_live(holders, new, gone)
                if new.resource_ids:
                    self._adopt(new.seal(path))
        except (OSError, SemanticRecallError):
            _log.warning("snapshot_files_dropped", files=len(holders))
        self._retire(holders)

    def _wait_for_views(self, gone: frozenset[str]) -> None:
        """A search takes milliseconds, and no other can begin on what was withdrawn."""
        with self._state:
            files = list(self._files)
        until = time.monotonic() + VIEW_WAIT_SECONDS
        while time.monotonic() < until:
            if not any(file.is_viewed(name) for file in files for name in gone):
                return
            time.sleep(VIEW_CHECK_SECONDS)

    def _erase(self, gone: frozenset[str]) -> None:
        """Overwrite the blocks of these resources; rewrite the files of which it cannot be done.

        Oldest first: a crash in between brings no older block of a resource back.
        """
        holders = [file for file in self._files if not file.index.keys().isdisjoint(gone)]
        for at, file in enumerate(holders):
            if not self._overwritten([name for name in gone if name in file.index], file):
                self._rewrite_without(gone, holders[at:])
                holders = holders[:at]
                break
        self._retire([file for file in holders if not self._live[file].bytes])

    def _overwritten(self, held: Sequence[str], file: SealedFile) -> bool:
        with self._state:
            blocks = file.take_out(held)
        if blocks is None:
            self._moved.update(held)  # whoever looks at them keeps the removed file's bytes
            return False
        try:
            erase(file.path, file.bytes, blocks)
        except OSError as problem:
            _log.warning("snapshot_block_not_erased", file=file.path.name, errno=problem.errno)
            return False
        return True

    def _try_remove_doomed(self) -> None:
        try:
            self._remove_doomed()
        except OSError as problem:
            _log.warning("snapshot_leftovers_stay", errno=problem.errno)

    def _remove_doomed(self) -> None:
        if self._doomed:
            # Oldest first: a crash in between brings no older block of a resource back.
            remove_files(sorted(self._doomed))
            sync_directory(self._directory)
            self._doomed.clear()

    # --- which block counts ---------------------------------------------------------------------

    def _adopt(self, file: SealedFile) -> None:
        """Its blocks count from now on."""
        with self._state:
            self._files.append(file)
            live = self._live[file] = _Live()
            for resource_id in file.index:
                self._uncount(resource_id)
                self._newest[resource_id] = file  # one step: no reader finds nothing in between
                live.bytes += file.length_of(resource_id)
                live.rows += file.rows_of(resource_id)

    def _retire(self, files: Sequence[SealedFile]) -> None:
        """None of their blocks counts any more, and they are to be removed."""
        with self._state:
            for file in files:
                for resource_id in file.index:
                    if self._newest.get(resource_id) is file:
                        self._drop(resource_id)
                self._files.remove(file)
                del self._live[file]
                self._doomed.add(file.path)

    def _give_up(self, resource_id: str, file: SealedFile) -> None:
        """A block was found damaged, or erased: it does not count any more."""
        with self._state:
            if self._newest.get(resource_id) is not file:  # it was forgotten meanwhile, or replaced
                return
            self._drop(resource_id)
            if _is_erased(file, resource_id):
                return
            self._damaged += 1
        _log.warning("snapshot_block_damaged", file=file.path.name)

    def _drop(self, resource_id: str) -> None:
        self._uncount(resource_id)
        del self._newest[resource_id]

    def _uncount(self, resource_id: str) -> None:
        file = self._newest.get(resource_id)
        if file is not None:
            live = self._live[file]
            live.bytes -= file.length_of(resource_id)
            live.rows -= file.rows_of(resource_id)


def _is_erased(file: SealedFile, resource_id: str) -> bool:
    """Whether a forget was cut off between this block and its name."""
    try:
        return file.is_erased(resource_id)
    except (CorruptDataError, OSError):
        return False
