"""What `import semanticrecall` gives, pinned: a name that goes, or comes, is a decision."""

from __future__ import annotations

import dataclasses
import inspect
from pathlib import Path

import pytest

import semanticrecall as sr
from semanticrecall.connection import connection
from semanticrecall.v1 import recall_pb2, types_pb2

NAMES = """
AlreadyExistsError AsyncRecallClient AsyncRecallSession CacheStats CancelledError ClientOptions
ContextFormat DataLossError DeadlineExceededError EmbedResult EmbedRole Embedding ExcludedCandidate
ExcludedReason Explain ExportedMessage FailedPreconditionError FieldViolation Finding
ForgetConditions ForgetResult GroupState IndexBatch IndexOptions IndexResult InternalError
InvalidArgumentError ListOptions Message MessageFields MessageOutcome MessageVectors Mode
NotFoundError PermissionDeniedError PurgeResult RecallClient RecallInfo RecallOptions RecallResult
RecallSession RecallTimings RecalledMessage ReembedProgress ResourceExhaustedError RestoreResult
Role Scope SemanticRecallError Snapshot SnapshotList SnapshotStats Stats Status ThreadSummary Tls
UnauthenticatedError UnavailableError UnimplementedError VerifyProgress VerifySummary Wait WhyEmpty
assistant system tool user
"""

METHODS = """
address close create_snapshot delete_snapshot embed export export_with_vectors forget forget_before
forget_everything forget_messages forget_thread get_messages index index_stream is_serving
list_messages list_snapshots list_threads purge recall recall_stream reembed restore_snapshot stats
transfer_thread verify wait_until_reachable
"""


def test_the_public_names() -> None:
    assert sr.__all__ == NAMES.split()
    assert all(hasattr(sr, name) for name in sr.__all__)


@pytest.mark.parametrize("client", [sr.RecallClient, sr.AsyncRecallClient])
def test_both_clients_have_the_same_methods(client: type) -> None:
    assert sorted(name for name in dir(client) if not name.startswith("_")) == METHODS.split()


@pytest.mark.parametrize("name", [name for name in METHODS.split() if name != "address"])
def test_both_clients_take_the_same_arguments(name: str) -> None:
    def arguments(client: type) -> list[tuple[str, object]]:
        parameters = inspect.signature(getattr(client, name)).parameters.values()
        return [(p.name, p.default) for p in parameters]

    assert arguments(sr.RecallClient) == arguments(sr.AsyncRecallClient)


def test_results_are_frozen() -> None:
    for name in sr.__all__:
        kind = getattr(sr, name)
        if dataclasses.is_dataclass(kind):
            assert kind.__dataclass_params__.frozen, name  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("mine", "wire", "prefix"),
    [
        (sr.Role, types_pb2.Role, "ROLE_"),
        (sr.Scope, types_pb2.Scope, "SCOPE_"),
        (sr.Mode, types_pb2.Mode, "MODE_"),
        (sr.Wait, types_pb2.Wait, "WAIT_"),
        (sr.Status, types_pb2.Status, "STATUS_"),
        (sr.GroupState, types_pb2.GroupState, "GROUP_STATE_"),
        (sr.WhyEmpty, recall_pb2.WhyEmpty, "WHY_EMPTY_"),
        (sr.ExcludedReason, recall_pb2.ExcludedReason, "EXCLUDED_REASON_"),
        (sr.EmbedRole, recall_pb2.EmbedRole, "EMBED_ROLE_"),
        (sr.ContextFormat, types_pb2.ContextFormat, "CONTEXT_"),
    ],
)
def test_enums_are_those_of_the_wire(mine: type[sr.Role], wire: object, prefix: str) -> None:
    numbers = {
        name.removeprefix(prefix).removeprefix("FORMAT_"): number
        for name, number in wire.items()  # type: ignore[attr-defined]
    }
    assert {member.name: member.value for member in mine} == numbers


def test_a_value_of_a_newer_server_reads_as_unspecified() -> None:
    assert sr.Status(99) is sr.Status.UNSPECIFIED
    with pytest.raises(ValueError, match="user"):
        sr.Role("user")


@pytest.mark.parametrize(
    ("address", "target"),
    [
        (None, "127.0.0.1:7650"),
        ("localhost:1", "localhost:1"),
        ("[::1]:7650", "[::1]:7650"),
        ("unix:/run/s.sock", "unix:/run/s.sock"),
        ("unix:///run/s.sock", "unix:/run/s.sock"),
        ("unix:s.sock", "unix:s.sock"),
    ],
)
def test_addresses(address: str | None, target: str) -> None:
    assert connection(address, {}).target == target


@pytest.mark.parametrize(
    "address", ["7650", "host", "host:", ":1", "host:0", "host:99999", "unix:"]
)
def test_addresses_that_are_none(address: str) -> None:
    with pytest.raises(sr.InvalidArgumentError, match="address"):
        sr.RecallClient(address)


def test_the_address_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEMANTICRECALL_ADDRESS", "unix:/run/env.sock")
    assert connection(None, {}).target == "unix:/run/env.sock"
    assert connection("localhost:1", {}).target == "localhost:1"


def test_a_token_never_travels_in_plain_text_to_another_machine() -> None:
    with pytest.raises(sr.InvalidArgumentError, match="plain text"):
        connection("memory.example:7650", {"token": "t0ken"})
    for address in ("127.0.0.1:1", "localhost:1", "[::1]:1", "unix:/s"):
        assert connection(address, {"token": "t0ken"}).metadata
    assert connection("memory.example:7650", {"token": "t0ken", "tls": sr.Tls()}).metadata


@pytest.mark.parametrize("token", ["two words", "line\nbreak", "café"])
def test_a_token_that_no_header_can_carry(token: str) -> None:
    with pytest.raises(sr.InvalidArgumentError, match="token") as caught:
        connection(None, {"token": token})
    assert token not in str(caught.value)


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf")])
def test_timeouts_that_make_no_sense(seconds: float) -> None:
    for name in ("timeout", "connect_timeout"):
        with pytest.raises(sr.InvalidArgumentError, match=name):
            connection(None, {name: seconds})  # type: ignore[misc]


def test_a_misspelt_keyword_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="failopen"):
        sr.RecallClient(failopen=True)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("no certificate", "is not a PEM file"),
        ("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "no certificate that"),
    ],
)
def test_authorities_are_checked_before_anything_is_connected(
    tmp_path: Path, content: str, told: str
) -> None:
    (tmp_path / "ca.pem").write_text(content)
    with pytest.raises(sr.InvalidArgumentError, match=f"ca.pem.*{told}"):
        sr.RecallClient("localhost:1", tls=sr.Tls(ca_file=tmp_path / "ca.pem"))


def test_a_certificate_needs_its_key() -> None:
    certificate = Path(__file__).resolve().parents[1] / "fixtures/tls/cert.pem"
    with pytest.raises(sr.InvalidArgumentError, match="go together"):
        sr.RecallClient("localhost:1", tls=sr.Tls(cert_file=certificate))


def test_a_certificate_that_cannot_be_read() -> None:
    with pytest.raises(sr.InvalidArgumentError, match="/nowhere"):
        sr.RecallClient("localhost:1", tls=sr.Tls(ca_file="/nowhere"))
