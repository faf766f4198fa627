"""The data directory: who holds it, and whether it is a safe place for a database.

Files (all mode 0600 in a directory of mode 0700; what is wider from elsewhere is made so again):

  LOCK       flock held while the directory is open; its text is the holder's pid and a newline.
             The kernel frees the lock with the process, so a file left behind never blocks.
  recall.db  the record (schema.py), with `recall.db-wal` and `recall.db-shm`. Opened by SQLite
             alone: closing any other descriptor of it would drop SQLite's own POSIX locks.
  MARK       the high-water mark (high_water_mark.py).
  KEY        where the directory is encrypted: its data key (encryption/data_key.py).
  embeddings.db  vectors of texts that came before (embedding/cache_format.py). Derived.
  collections.db  named collections of the callers' own vectors (collections/file_format.py), with
             MARK.collections, a high-water mark of its own.
  snapshots  files of partitions (docs/snapshots.md). Derived: nothing is lost with them, and they
             are not watched.
  BALLAST    zeros that are given up when the disk is full, so that forgetting still works.

A file that is deleted or replaced while it is open goes on to be written, and nobody will ever read
it again: whoever acknowledges writes asks `lost_file` before.
"""

from __future__ import annotations

import fcntl
import os
import re
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import structlog

from ..types.errors import StoreLockedError, UnsafeEnvironmentError

BALLAST_BYTES = 1 << 20
_log = structlog.get_logger(__name__)
_FREE_BYTES_FOR_BALLAST = 4 * BALLAST_BYTES
_HOLDER_READS = 100
_HOLDER_READ_S = 0.005
_WATCHED_FILES = ("recall.db", "recall.db-wal", "recall.db-shm", "MARK")
_FOR_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_OWN_FILE = re.compile(
    r"(LOCK|MARK|BALLAST|KEY|(recall|embeddings|collections)\.db)([.-][a-z]+)?", re.ASCII
)
_OWN_FOLDERS = ("snapshots", "saved")
# One regular expression of whole names; every type under FUSE is refused as well.
_SHARED_FILE_SYSTEM = re.compile(
    "9p|afs|beegfs|ceph|cifs|coda|fuse.*|gfs2|glusterfs|gpfs|lustre|ncpfs|nfs4?|ocfs2|orangefs"
    "|prl_fs|smb3|smbfs|vboxsf|virtiofs|vmhgfs"
)


def file_system_of(path: str, mountinfo: str) -> str:
    """The type of the file system that holds an absolute, resolved path; "" where unknown.

    Args:
        path: e.g. "/var/lib/recall".
        mountinfo: text of /proc/self/mountinfo (proc(5)); a later mount on one point hides the
            earlier.
    """
    found_point, found_type = "", ""
    for line in mountinfo.splitlines():
        left, separator, right = line.partition(" - ")
        fields, types = left.split(), right.split()
        if not separator or len(fields) < 5 or not types:
            continue
        point = _unescaped(fields[4])
        inside = path == point or path.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(found_point):
            found_point, found_type = point, types[0]
    return found_type


def is_shared_file_system(name: str) -> bool:
    """Whether SQLite's log is known to break, or cannot be trusted, on this type."""
    return _SHARED_FILE_SYSTEM.fullmatch(name) is not None


def _unescaped(field: str) -> str:
    """mountinfo writes blanks and backslashes as three octal digits."""
    for escape, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        field = field.replace(escape, character)
    return field


class DataDirectory:
    """A data directory that this process holds until `close`."""

    def __init__(self, path: Path, *, allow_shared_file_system: bool = False) -> None:
        """Make the directory if need be, and lock it before anything else in it is opened.

        Raises:
            StoreLockedError: another store holds it; names its pid.
            UnsafeEnvironmentError: network or shared file system, or not writable.
        """
        self._lock_fd = -1
        self._watched: dict[str, tuple[int, int] | None] = {}
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.path = path.resolve(strict=True)
            self.on_shared_file_system = self._check_file_system(allow_shared_file_system)
            is_ours = _is_ours(self.path)
            self._lock_fd = _locked(self.path / "LOCK")
            if is_ours:
                _tighten(self.path)
            elif stat.S_IMODE(self.path.stat().st_mode) & _FOR_OTHERS:
                _log.warning("data_directory_open_to_others", why="NOT_OURS")
        except OSError as error:
            raise UnsafeEnvironmentError(
                f"the data directory {path} cannot be used: {_why_not(path, error)}",
                reason="DATA_DIRECTORY_UNUSABLE",
            ) from error

    @property
    def database(self) -> Path:
        """`recall.db`."""
        return self.path / "recall.db"

    @property
    def lock(self) -> Path:
        """`LOCK`."""
        return self.path / "LOCK"

    @property
    def mark(self) -> Path:
        """`MARK`."""
        return self.path / "MARK"

    def watch_files(self) -> None:
        """Remember which files are in use, once all of them are open. There may be no map."""
        paths = [str(self.path / name) for name in _WATCHED_FILES]
        there = {path: _identity(path) for path in paths}
        self._watched = {path: identity for path, identity in there.items() if identity}
        self._watched[str(self.lock)] = _identity(self._lock_fd)

    def lost_file(self) -> str | None:
        """The name of a file in use that is gone or has become another one; None for all well.

        As long as they are open no other file can have their numbers.
        """
        for path, identity in self._watched.items():
            if _identity(path) != identity:
                return os.path.basename(path)
        return None

    def disk_bytes(self) -> int:
        """Bytes of the database and its log."""
        total = 0
        for suffix in ("", "-wal"):
            try:
                total += os.stat(f"{self.database}{suffix}").st_size
            except FileNotFoundError:
                continue
        return total

    def has_ballast(self) -> bool:
        """Whether BALLAST is there in full."""
        try:
            return (self.path / "BALLAST").stat().st_size == BALLAST_BYTES
        except FileNotFoundError:
            return False

    def release_ballast(self) -> bool:
        """Give BALLAST's blocks back to the file system; False where there were none to give.

        Raises nothing: what a failing disk keeps of it is a reason to do without.
        """
        try:
            (self.path / "BALLAST").unlink()
        except OSError:
            return False
        return True

    def restore_ballast(self) -> bool:
        """Make BALLAST anew if the disk has room to spare; returns whether it is there.

        Raises nothing: a store without it goes on, and tries again later.
        """
        try:
            if self.has_ballast():
                return True
            space = os.statvfs(self.path)
            if space.f_bavail * space.f_frsize < _FREE_BYTES_FOR_BALLAST:
                return False
            self._make_ballast()
        except OSError:
            self.release_ballast()
            return False
        return True

    def _make_ballast(self) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        fd = os.open(self.path / "BALLAST", flags, 0o600)
        try:
            os.posix_fallocate(fd, 0, BALLAST_BYTES)
        finally:
            os.close(fd)

    def sync(self) -> None:
        """Make new names in the directory survive a power cut."""
        fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def close(self) -> None:
        """Let go of the directory. Safe to call twice."""
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1

    def _check_file_system(self, allow: bool) -> bool:
        try:
            mountinfo = Path("/proc/self/mountinfo").read_text(errors="replace")
        except OSError:
            return False  # not Linux: nothing is known, nothing is refused
        name = file_system_of(str(self.path), mountinfo)
        shared = is_shared_file_system(name)
        if shared and not allow:
            raise UnsafeEnvironmentError(
                f"the data directory is on {name}, where the database's log can be damaged without "
                "an error; use a local disk, or start with --allow-network-filesystem",
                reason="SHARED_FILE_SYSTEM",
            )
        return shared


def _is_ours(directory: Path) -> bool:
    """Whether it is a store's already, or empty, and nobody's common folder."""
    if directory.stat().st_mode & stat.S_ISVTX:
        return False
    names = os.listdir(directory)
    return not names or "LOCK" in names


def _tighten(directory: Path) -> None:
    """Take from others what they may do with the directory and the files that stores make in it.

    What is another user's, and what the file system does not let us change, is logged and stays.
    """
    wide = stuck = 0
    for path in (directory, *_own_paths(directory)):
        try:
            status = path.lstat()
            if stat.S_ISLNK(status.st_mode) or not status.st_mode & _FOR_OTHERS:
                continue
            os.chmod(path, stat.S_IMODE(status.st_mode) & ~_FOR_OTHERS)
            wide += 1
        except FileNotFoundError:
            continue
        except OSError:
            stuck += 1
    if wide:
        _log.warning("data_directory_was_open_to_others", files=wide)
    if stuck:
        _log.warning("data_directory_open_to_others", why="NOT_PERMITTED", files=stuck)


def _own_paths(directory: Path) -> Iterator[Path]:
    for path in directory.iterdir():
        if _OWN_FILE.fullmatch(path.name):
            yield path
        elif path.name in _OWN_FOLDERS and not path.is_symlink() and path.is_dir():
            yield path
            yield from path.glob("*")
            yield from path.glob("*/*")


def _why_not(path: Path, error: OSError) -> str:
    if isinstance(error, (FileExistsError, NotADirectoryError)):
        return "it is not a directory"
    return os.strerror(error.errno or 0)


def _identity(file: str | int) -> tuple[int, int] | None:
    """Device and inode of a path or descriptor; None where there is nothing. Opens nothing."""
    try:
        status = os.stat(file)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _holder(fd: int) -> str:
    """The pid in LOCK; "" where none comes. Who has just locked it may not have written it yet."""
    for _ in range(_HOLDER_READS):
        holder = os.pread(fd, 32, 0).decode(errors="replace")
        if holder.endswith("\n"):
            return holder.strip()
        time.sleep(_HOLDER_READ_S)
    return ""


def _locked(path: Path) -> int:
    """A descriptor of LOCK with the lock held."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
    except BlockingIOError:
        holder = _holder(fd)
        os.close(fd)
        raise StoreLockedError(
            f"the data directory is in use by process {holder or 'unknown'}; "
            "stop it, or choose another directory"
        ) from None
    except OSError:
        os.close(fd)
        raise
    return fd
