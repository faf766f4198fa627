"""Tokens, TLS, and what can be reached without them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from semanticrecall.v1 import admin_pb2, recall_pb2
from semanticrecall_core.types.errors import UnsafeEnvironmentError
from semanticrecall_server.config import Settings
from semanticrecall_server.security import Tokens, load_credentials, load_tokens
from support.every_rpc import every_rpc, valid
from support.fake_engine import FakeEngine
from support.running_server import InProcessServer, Stubs, error_detail, parts_of, running

GOOD_TOKEN = "first-token-0123456789"
OTHER_TOKEN = "second-token-0123456789"
TLS = Path(__file__).resolve().parents[1] / "fixtures/tls"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InProcessServer]:
    """A server that wants a token."""
    directory = tmp_path_factory.mktemp("tokens")
    file = directory / "tokens"
    file.write_text(f"# who: the agent\n{GOOD_TOKEN}\n\n{OTHER_TOKEN}\n")
    with running(directory, parts_of(FakeEngine()), tokens_file=file) as serving:
        yield serving


WRONG_HEADERS = {
    "none": (),
    "empty": (("authorization", ""),),
    "no scheme": (("authorization", GOOD_TOKEN),),
    "wrong scheme": (("authorization", f"Basic {GOOD_TOKEN}"),),
    "wrong token": (("authorization", "Bearer wrong-token-0123456789"),),
    "beginning of a token": (("authorization", f"Bearer {GOOD_TOKEN[:-1]}"),),
    "empty token": (("authorization", "Bearer "),),
    "comment": (("authorization", "Bearer # who: the agent"),),
    "wrong header": (("x-token", f"Bearer {GOOD_TOKEN}"),),
}
NO_SCHEME = "the authorization header must read `Bearer TOKEN`"
WRONG_TOKEN = "the token is not one of this server's"
TOLD = {
    "no scheme": NO_SCHEME,
    "wrong scheme": NO_SCHEME,
    "wrong token": WRONG_TOKEN,
    "beginning of a token": WRONG_TOKEN,
    "empty token": WRONG_TOKEN,
    "comment": WRONG_TOKEN,
}


def all_calls(server: InProcessServer, metadata: Any) -> Iterator[tuple[str, Any]]:
    """Every method of the contract and of the services beside it, and a way to begin it."""
    for rpc in every_rpc():
        requests = () if rpc.sends_many else (valid(rpc).SerializeToString(),)
        yield rpc.name, lambda r=rpc, q=requests: r.call(server.channel, *q, metadata=metadata)
    reflection = reflection_pb2_grpc.ServerReflectionStub(server.channel)
    question = reflection_pb2.ServerReflectionRequest(list_services="")
    yield (
        "Reflection",
        lambda: list(
            reflection.ServerReflectionInfo(iter([question]), timeout=20, metadata=metadata)
        ),
    )
    yield (
        "unknown method",
        lambda: server.channel.unary_unary("/no.such.Service/Method")(
            b"", timeout=20, metadata=metadata
        ),
    )


@pytest.mark.parametrize("header", sorted(WRONG_HEADERS))
def test_no_method_is_reached_without_a_good_token(guarded: InProcessServer, header: str) -> None:
    for name, call in all_calls(guarded, WRONG_HEADERS[header]):
        with pytest.raises(grpc.RpcError) as refused:
            call()
        assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED, name
        assert refused.value.details() == TOLD.get(header, "a bearer token is needed")
        assert error_detail(refused.value).reason == "UNAUTHENTICATED"


@pytest.mark.parametrize("token", [GOOD_TOKEN, OTHER_TOKEN])
@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
def test_a_good_token_lets_every_call_in(guarded: InProcessServer, token: str, scheme: str) -> None:
    codes = set()
    for name, call in all_calls(guarded, (("authorization", f"{scheme} {token}"),)):
        try:
            call()
        except grpc.RpcError as error:
            codes.add((name, error.code()))
    assert codes == {
        ("CreateSnapshot", grpc.StatusCode.UNAVAILABLE),  # this engine keeps none
        ("DeleteSnapshot", grpc.StatusCode.INVALID_ARGUMENT),
        ("ListSnapshots", grpc.StatusCode.UNAVAILABLE),
        ("RestoreSnapshot", grpc.StatusCode.INVALID_ARGUMENT),
        ("unknown method", grpc.StatusCode.UNIMPLEMENTED),
    }


def test_health_needs_no_token(guarded: InProcessServer) -> None:
    answer = guarded.health.Check(health_pb2.HealthCheckRequest(), timeout=20)
    assert answer.status == health_pb2.HealthCheckResponse.SERVING


def refusals(server: InProcessServer) -> float:
    """How often the server counted a call without a good token."""
    for line in server.sidecar.metrics.text().decode().splitlines():
        if line.startswith("semanticrecall_unauthenticated_total "):
            return float(line.split()[1])
    raise AssertionError("it does not count them")


def test_tokens_are_counted_not_logged(guarded: InProcessServer) -> None:
    before = refusals(guarded)
    with pytest.raises(grpc.RpcError):
        guarded.recall.Recall(
            recall_pb2.RecallRequest(resource_id="a"),
            metadata=(("authorization", "Bearer leaked-token-0123456789"),),
            timeout=20,
        )
    assert "token-0123456789" not in guarded.log_text
    assert refusals(guarded) == before + 1


def test_only_digests_are_kept() -> None:
    tokens = Tokens([GOOD_TOKEN])
    assert GOOD_TOKEN not in repr(vars(tokens))
    assert tokens.fault(f"Bearer {GOOD_TOKEN}") is None
    assert tokens.fault(f"Bearer {GOOD_TOKEN}".encode()) == "a bearer token is needed"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("", "found 0"),
        ("# only a comment\n", "found 0"),
        ("short\n", "16 to"),
        ("tokén-0123456789abcdef\n", "ASCII"),
        ("x" * 5_000, "16 to"),
        ("token-0123456789-x\n" * 1_001, "found 1001"),
    ],
)
def test_tokens_that_protect_nothing_are_refused(tmp_path: Path, content: str, reason: str) -> None:
    file = tmp_path / "tokens"
    file.write_text(content, "utf-8")
    with pytest.raises(UnsafeEnvironmentError) as refused:
        load_tokens(Settings(tokens_file=file))
    assert reason in refused.value.message


def test_a_tokens_file_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(UnsafeEnvironmentError, match="--tokens-file: cannot read it: No such"):
        load_tokens(Settings(tokens_file=tmp_path / "none"))


def test_tokens_come_from_the_environment_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEMANTICRECALL_TOKENS", f"{GOOD_TOKEN}, {OTHER_TOKEN}")
    with running(tmp_path, parts_of(FakeEngine())) as server:
        stubs = Stubs(server.sidecar.addresses[0].target, token=OTHER_TOKEN)
        assert stubs.admin.GetStats(admin_pb2.GetStatsRequest(), timeout=20).messages == 1
        stubs.close()
        assert OTHER_TOKEN not in json.dumps(server.log_lines)


def test_tls_serves_those_who_trust_it_and_nobody_in_the_clear(tmp_path: Path) -> None:
    cert, key = TLS / "cert.pem", TLS / "key.pem"
    with running(
        tmp_path,
        parts_of(FakeEngine()),
        listen=("localhost:0",),
        tls_cert_file=cert,
        tls_key_file=key,
    ) as server:
        target = server.sidecar.addresses[0].target
        credentials = grpc.ssl_channel_credentials(cert.read_bytes())
        with grpc.secure_channel(target, credentials) as channel:
            raw = channel.unary_unary("/semanticrecall.v1.AdminService/GetStats")(b"", timeout=20)
            assert admin_pb2.GetStatsResponse.FromString(raw).messages == 1
        with pytest.raises(grpc.RpcError) as refused:
            server.admin.GetStats(admin_pb2.GetStatsRequest(), timeout=20)
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE


@pytest.mark.parametrize("content", [None, "no certificate"])
def test_tls_files_that_hold_nothing_are_said(tmp_path: Path, content: str | None) -> None:
    file = tmp_path / "cert.pem"
    if content is not None:
        file.write_text(content)
    settings = Settings(tls_cert_file=file, tls_key_file=TLS / "key.pem")
    with pytest.raises(UnsafeEnvironmentError, match="--tls-cert-file"):
        load_credentials(settings)
