"""Addresses are tried before gRPC takes them, so that a refusal says why."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from semanticrecall_server.listen import ListenError, TcpAddress, check_tcp


def test_a_name_of_which_an_address_is_taken_is_refused() -> None:
    """gRPC would be content with ::1, and callers of 127.0.0.1 would meet the other program."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for host in ("localhost", "127.0.0.1", "0.0.0.0"):
            with pytest.raises(ListenError, match="another program listens there"):
                check_tcp(TcpAddress(host, port))


@pytest.mark.parametrize(
    ("host", "why"),
    [
        ("192.0.2.1", "not an address of this machine"),
        ("a" * 64 + ".invalid", "the name is not known"),
    ],
)
def test_an_address_that_cannot_be_had_says_why(host: str, why: str) -> None:
    with pytest.raises(ListenError, match=why):
        check_tcp(TcpAddress(host, 7650))


def test_a_taken_port_is_said_in_one_line_of_ours(tmp_path: Path) -> None:
    """The command line has loaded grpc by then, which writes lines of its own to stderr."""
    script = (
        "import sys, grpc; from semanticrecall_server.main import serve_command; "
        "sys.exit(serve_command(sys.argv[1:]))"
    )
    with socket.create_server(("127.0.0.1", 0)) as taken:
        target = f"127.0.0.1:{taken.getsockname()[1]}"
        flags = ["--data-dir", str(tmp_path / "data"), "--listen", target]
        environment = {k: v for k, v in os.environ.items() if k != "GRPC_VERBOSITY"}
        ended = subprocess.run(
            [sys.executable, "-c", script, *flags],
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert ended.returncode == 2
    assert len(ended.stderr.splitlines()) == 1, ended.stderr
    assert f"cannot listen on {target}: another program" in ended.stderr
