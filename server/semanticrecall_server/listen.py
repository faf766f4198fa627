"""Where the server listens: addresses, and binding without taking anything from anybody.

Two facts of gRPC make this module necessary: with its default options two servers bind the same
TCP port without an error, and a newcomer unlinks the Unix socket of a live server.
"""

from __future__ import annotations

import errno
import fcntl
import ipaddress
import os
import socket
import stat
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from semanticrecall_core.types.errors import FailedPreconditionError

UNIX_PATH_BYTES_MAX = 107
"""Longest path of a Unix socket on Linux, without the final NUL."""

_DIRECTORY_LOCK_WAIT_S = 5.0
_PROBE_TIMEOUT_S = 1.0


class ListenError(FailedPreconditionError):
    """Raised at start when an address cannot be listened on; says which and why."""

    default_reason = "LISTEN_FAILED"


@dataclass(frozen=True, slots=True)
class TcpAddress:
    """A host and a port; port 0 lets the system choose."""

    host: str
    port: int

    @property
    def target(self) -> str:
        """As gRPC writes it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """Only this machine reaches it."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


@dataclass(frozen=True, slots=True)
class UnixAddress:
    """An absolute path of a Unix socket."""

    path: Path

    @property
    def target(self) -> str:
        """As gRPC writes it."""
        return f"unix:{self.path}"


Address = TcpAddress | UnixAddress


def parse_address(text: str) -> Address:
    """Read `host:port`, `[v6]:port` or `unix:/path`.

    Raises:
        ValueError: with what is wrong.
    """
    if text.startswith("unix:"):
        path = Path(os.path.expanduser(text.removeprefix("unix:").removeprefix("//")))
        if not path.is_absolute():
            raise ValueError(f"{text!r}: the path of a Unix socket must be absolute")
        if len(os.fsencode(path)) > UNIX_PATH_BYTES_MAX:
            raise ValueError(f"{text!r}: longer than {UNIX_PATH_BYTES_MAX} bytes")
        return UnixAddress(path)
    host, colon, port = text.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if not colon or not host or (":" in host and not bracketed):
        raise ValueError(f"{text!r}: write host:port or [v6]:port, or unix:/path for gRPC")
    if not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"{text!r}: the port must be a number from 0 to 65535")
    return TcpAddress(host[1:-1] if bracketed else host, int(port))


def check_tcp(address: TcpAddress) -> None:
    """Try a TCP address before gRPC does, which says neither what is wrong nor that a part is.

    gRPC is content with one of a name's addresses; here all that this machine has must be free,
    since callers would reach another program on the others.

    Raises:
        ListenError: in use, not allowed, or not an address of this machine.
    """
    try:
        found = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except (OSError, UnicodeError):
        raise _refused(address, "the name is not known") from None
    codes = [_bind_code(family, place) for family, _, _, _, place in found]
    if errno.EADDRINUSE in codes:
        raise _refused(address, "another program listens there; stop it, or choose another port")
    if 0 in codes:
        return
    reasons = {
        errno.EACCES: "not allowed; ports below 1024 need a privilege",
        errno.EADDRNOTAVAIL: "not an address of this machine",
    }
    raise _refused(address, reasons.get(codes[0], os.strerror(codes[0])))


def _bind_code(family: int, place: Any) -> int:
    """0, or the error number of binding."""
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(place)
            probe.listen(1)
    except OSError as error:
        return error.errno or errno.EIO
    return 0


def _refused(address: TcpAddress, why: str) -> ListenError:
    return ListenError(f"cannot listen on {address.target}: {why}")


def remove_stale_socket(path: Path) -> None:
    """Make room for a socket at `path`, unless somebody is there.

    Raises:
        ListenError: a live server answers there, or something else than a socket is there.
    """
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise ListenError(f"cannot listen on unix:{path}: a file that is no socket is there")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_PROBE_TIMEOUT_S)
        code = probe.connect_ex(str(path))
    if code not in (errno.ECONNREFUSED, errno.ENOENT):
        raise ListenError(f"cannot listen on unix:{path}: another server is listening there")
    path.unlink(missing_ok=True)


@contextmanager
def private_socket(path: Path) -> Generator[None]:
    """Bind a Unix socket inside this context: nobody else binds it, mode 0600 from the start.

    The lock is on the directory and leaves no file behind.
    """
    try:
        directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        reason = os.strerror(error.errno or 0)
        raise ListenError(f"cannot listen on unix:{path}: its directory: {reason}") from None
    try:
        _lock(directory, path)
        remove_stale_socket(path)
        before = os.umask(0o077)
        try:
            yield
            if path.exists():
                path.chmod(0o600)
        finally:
            os.umask(before)
    finally:
        os.close(directory)


def _lock(directory: int, path: Path) -> None:
    give_up = time.monotonic() + _DIRECTORY_LOCK_WAIT_S
    while True:
        try:
            fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > give_up:
                raise ListenError(
                    f"cannot listen on unix:{path}: another process holds its directory"
                ) from None
            time.sleep(0.05)
