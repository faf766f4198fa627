"""How a client reaches its sidecar: address, credentials, deadlines, retries."""

from __future__ import annotations

import json
import logging
import math
import os
import socket
import ssl
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

import grpc

from .errors import (
    DataLossError,
    InvalidArgumentError,
    SemanticRecallError,
    UnavailableError,
    no_connection,
    unreachable,
)
from .results import IndexResult, RecallResult

DEFAULT_ADDRESS = "127.0.0.1:7650"
DEFAULT_TIMEOUT_SECONDS = 10.0
DEFAULT_CONNECT_TIMEOUT_SECONDS = 3.0
AWAY_SECONDS = 10.0
PROBE_SECONDS = 0.5
STREAM_TIMEOUT_SECONDS = 3600.0
RECEIVE_BYTES_MAX = 256 * 1024 * 1024
HEALTH_CHECK = "/grpc.health.v1.Health/Check"
# A HealthCheckResponse whose only field is `status = SERVING`. The client carries no health stubs,
# so that it needs no package beyond grpcio and protobuf.
SERVING = b"\x08\x01"

log = logging.getLogger("semanticrecall")


@dataclass(frozen=True, slots=True)
class Tls:
    """TLS towards the sidecar.

    Attributes:
        ca_file: PEM file of the authorities to trust. None: the system's.
        cert_file, key_file: PEM files of this client's certificate, for mutual TLS.
        server_name: name to expect in the server's certificate, where it is not the address.
    """

    ca_file: str | Path | None = None
    cert_file: str | Path | None = None
    key_file: str | Path | None = None
    server_name: str = ""


class ClientOptions(TypedDict, total=False):
    """Keywords of `RecallClient` and `AsyncRecallClient`. All are optional.

    Attributes:
        token: sent with every call where the server wants one. Default: the content of
            SEMANTICRECALL_TOKEN. Refused without TLS, except to this machine.
        tls: see `Tls`. Default: no TLS.
        timeout: seconds a call may take, unless the call says otherwise. Default 10.
        connect_timeout: seconds of that which may go by while nothing answers at the address (a
            sidecar that starts or restarts). Default 3. A call that has waited so long in vain
            says that the sidecar is away; for 10 seconds after each such failure the next one
            tries once, without waiting.
        fail_open: what `recall` does when the sidecar cannot be reached, is too late, is
            full or finds damage on its disk. True (default): it returns an empty result with
            `degraded` set, and logs a warning: an agent goes on without memories. False:
            it raises. Mistakes (a bad field, a wrong token) raise always; so do all other
            calls: an `index` that is lost would be lost memory.
    """

    token: str
    tls: Tls
    timeout: float
    connect_timeout: float
    fail_open: bool


@dataclass(frozen=True, slots=True)
class Connection:
    """Checked settings of one client."""

    address: str
    target: str
    tls: Tls | None
    metadata: tuple[tuple[str, str], ...]
    timeout_seconds: float
    connect_timeout_seconds: float
    fail_open: bool

    def deadline(self, timeout: float | None) -> Deadline:
        """When a call that starts now must end."""
        seconds = self.timeout_seconds if timeout is None else _seconds(timeout, "timeout")
        return Deadline(time.monotonic() + seconds)

    def long_deadline(self, timeout: float | None) -> Deadline:
        """When a call ends that reads or writes a whole store, and starts now."""
        return Deadline(time.monotonic() + self.stream_timeout(timeout))

    def stream_timeout(self, timeout: float | None) -> float:
        """Seconds for what moves many messages, a stream say: its default is an hour."""
        return STREAM_TIMEOUT_SECONDS if timeout is None else _seconds(timeout, "timeout")

    def without_memories(self, error: SemanticRecallError) -> RecallResult:
        """The empty answer of a client that fails open; raises if it does not.

        An answer that is too large, say, is no outage but a mistake: asking again is no use.
        """
        damage = isinstance(error, DataLossError)
        if not (self.fail_open and (error.retryable or damage)):
            raise error
        log.warning(
            "recall goes on without memories (%s): %s; fail_open=False raises instead",
            error.reason,
            error.message,
        )
        # Whatever it is that is damaged: a caller looks for one word.
        return RecallResult((), degraded=DataLossError.default_reason if damage else error.reason)

    def away(self) -> UnavailableError:
        """Why nothing answers: nobody listens, or whoever does cannot be talked to.

        Blocks for half a second at most.
        """
        return no_connection(self.address) if _listens(self.target) else unreachable(self.address)


class Absence:
    """When the sidecar was last found away: who has just waited in vain does not wait again."""

    def __init__(self) -> None:
        self._noticed_at = -math.inf

    @property
    def is_recent(self) -> bool:
        """Whether it was found away within the last seconds, and not reached since."""
        return time.monotonic() - self._noticed_at < AWAY_SECONDS

    def notice(self) -> None:
        """It is away."""
        self._noticed_at = time.monotonic()

    def end(self) -> None:
        """It answers."""
        self._noticed_at = -math.inf


@dataclass(frozen=True, slots=True)
class Deadline:
    """The moment (of `time.monotonic()`) at which a call is over."""

    at: float

    def left(self, most: float = math.inf) -> float:
        """Seconds left, not below zero, not above `most`."""
        return max(0.0, min(most, self.at - time.monotonic()))


def connection(address: str | None, options: ClientOptions) -> Connection:
    """Check a client's arguments and fill in the defaults.

    Raises:
        InvalidArgumentError: an address or a timeout makes no sense, or a token would travel
            unencrypted to another machine.
    """
    for name in options:
        if name not in ClientOptions.__annotations__:
            raise TypeError(f"unknown keyword {name!r}")
    address = address or os.environ.get("SEMANTICRECALL_ADDRESS") or DEFAULT_ADDRESS
    token = options.get("token") or os.environ.get("SEMANTICRECALL_TOKEN", "")
    tls = options.get("tls")
    if token and tls is None and not _is_local(address):
        raise InvalidArgumentError.of(
            "token", f"would travel to {address} in plain text; pass tls=Tls(...) (--tls-ca-file)"
        )
    if token and not (token.isascii() and token.isprintable() and " " not in token):
        raise InvalidArgumentError.of("token", "must be visible ASCII without spaces")
    return Connection(
        address=address,
        target=_target(address),
        tls=tls,
        metadata=(("authorization", f"Bearer {token}"),) if token else (),
        timeout_seconds=_seconds(options.get("timeout", DEFAULT_TIMEOUT_SECONDS), "timeout"),
        connect_timeout_seconds=_seconds(
            options.get("connect_timeout", DEFAULT_CONNECT_TIMEOUT_SECONDS), "connect_timeout"
        ),
        fail_open=options.get("fail_open", True),
    )


def _seconds(value: float, name: str) -> float:
    if not (math.isfinite(value) and value > 0):
        raise InvalidArgumentError.of(name, "must be a positive number of seconds")
    return value


def _target(address: str) -> str:
    if address.startswith("unix:"):
        path = address.removeprefix("unix:").removeprefix("//")
        if not path:
            raise InvalidArgumentError.of("address", "`unix:` needs the path of a socket")
        return f"unix:{path}"
    host, colon, port = address.rpartition(":")
    if not (colon and host and port.isdecimal() and 0 < int(port) < 65_536):
        raise InvalidArgumentError.of("address", "must be HOST:PORT or unix:/path/to.sock")
    return address


def _listens(target: str) -> bool:
    """Whether anybody takes connections there."""
    family, place = socket.AF_UNIX, target.removeprefix("unix:")
    try:
        if target.startswith("unix:"):
            with socket.socket(family) as probe:
                probe.settimeout(PROBE_SECONDS)
                probe.connect(place)
        else:
            host, _, port = target.rpartition(":")
            socket.create_connection((host.strip("[]"), int(port)), PROBE_SECONDS).close()
    except OSError:
        return False
    return True


def _is_local(address: str) -> bool:
    host = address.rpartition(":")[0]
    return address.startswith("unix:") or host in {"127.0.0.1", "localhost", "[::1]"}


def credentials(tls: Tls) -> grpc.ChannelCredentials:
    """Read the files and make what grpc wants.

    Raises:
        InvalidArgumentError: a file cannot be read, or is not PEM.
    """

    def content(path: str | Path | None) -> bytes | None:
        try:
            found = None if path is None else Path(path).read_bytes()
        except OSError as error:
            raise InvalidArgumentError.of("tls", f"cannot read {path}: {error.strerror}") from None
        if found is not None and b"-----BEGIN " not in found:
            raise InvalidArgumentError.of("tls", f"{path} is not a PEM file")
        return found

    roots = content(tls.ca_file)
    if tls.ca_file is not None:
        _check_authorities(tls.ca_file)
    if (tls.cert_file is None) != (tls.key_file is None):
        raise InvalidArgumentError.of("tls", "cert_file and key_file go together")
    if roots is None and (system := ssl.get_default_verify_paths().cafile):
        # Else grpc trusts the list of authorities that it carries, not this machine's.
        roots = content(system)
    return grpc.ssl_channel_credentials(roots, content(tls.key_file), content(tls.cert_file))


def _check_authorities(path: str | Path) -> None:
    # grpc itself would only write to stderr, and then find nobody at the address.
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(path)
    except ssl.SSLError:
        raise InvalidArgumentError.of(
            "tls", f"{path} holds no certificate that can be read"
        ) from None


def channel_options(settings: Connection) -> list[tuple[str, Any]]:
    """Options of the channel; see the comments for why each is there."""
    options: list[tuple[str, Any]] = [
        ("grpc.service_config", SERVICE_CONFIG),
        ("grpc.max_receive_message_length", RECEIVE_BYTES_MAX),
        # A sidecar is beside its caller: a proxy of the environment would only hide it.
        ("grpc.enable_http_proxy", 0),
        # A sidecar that restarts is back in moments; grpc's own steps go to two minutes.
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.min_reconnect_backoff_ms", 2_000),
        ("grpc.max_reconnect_backoff_ms", 1_000),
        # Find a peer that vanished without a goodbye. The server allows a ping each 10 s.
        ("grpc.keepalive_time_ms", 30_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        ("grpc.primary_user_agent", "semanticrecall-python"),
    ]
    if settings.tls is not None and settings.tls.server_name:
        options.append(("grpc.ssl_target_name_override", settings.tls.server_name))
    return options


def _retries(names: list[tuple[str, str]], codes: list[str]) -> dict[str, object]:
    return {
        "name": [{"service": f"semanticrecall.v1.{s}", "method": m} for s, m in names],
        "retryPolicy": {
            "maxAttempts": 4,
            "initialBackoff": "0.1s",
            "maxBackoff": "1s",
            "backoffMultiplier": 2,
            "retryableStatusCodes": codes,
        },
    }


# Only calls that may be sent twice. Reading is retried when the sidecar is away; writing that is
# idempotent also when it is full, since giving up would lose memory. TransferThread is not here:
# sent twice it would answer NOT_FOUND. Streams are not here: their callers see where they broke.
SERVICE_CONFIG = json.dumps(
    {
        "methodConfig": [
            _retries(
                [
                    ("RecallService", "Recall"),
                    ("RecallService", "ListMessages"),
                    ("RecallService", "GetMessages"),
                    ("RecallService", "ListThreads"),
                    ("RecallService", "Embed"),
                    ("AdminService", "GetStats"),
                    ("AdminService", "ListSnapshots"),
                ],
                ["UNAVAILABLE"],
            ),
            _retries(
                [("RecallService", "Index"), ("RecallService", "Forget")],
                ["UNAVAILABLE", "RESOURCE_EXHAUSTED"],
            ),
        ],
        # While more than half of the calls fail, retries stop: they would only add to the load.
        "retryThrottling": {"maxTokens": 10, "tokenRatio": 0.5},
    }
)


def warn_rejected(result: IndexResult) -> None:
    """Say in the log that messages were not stored: ids and reasons, never text."""
    for outcome in result.rejected:
        log.warning(
            "message %s was rejected (%s)",
            outcome.message_id,
            outcome.error.message if outcome.error else "no reason given",
        )
