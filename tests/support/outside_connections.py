"""What a process tries to reach outside this machine, seen by strace where it may be used."""

from __future__ import annotations

import functools
import re
import shutil
import subprocess
from pathlib import Path

_ADDRESS = re.compile(r'sin6?_addr=inet_(?:addr|pton)\((?:AF_INET6, )?"([^"]+)"')


@functools.cache
def can_trace() -> bool:
    """Whether strace is there and the kernel lets it look."""
    if shutil.which("strace") is None:
        return False
    tried = subprocess.run(["strace", "-o", "/dev/null", "true"], capture_output=True, timeout=60)
    return tried.returncode == 0


def tracing(report: Path) -> tuple[str, ...]:
    """Put before a command: every address it connects or sends to is written to `report`."""
    if not can_trace():
        return ()
    calls = "trace=connect,sendto,sendmsg,sendmmsg"
    return ("strace", "-f", "-qq", "-s", "64", "-e", calls, "-o", str(report))


def outside_addresses(report: Path) -> list[str]:
    """Addresses of other machines in a report; empty where nothing could be traced."""
    if not can_trace():
        return []
    found = _ADDRESS.findall(report.read_text(errors="replace"))
    return [address for address in found if not address.startswith("127.") and address != "::1"]
