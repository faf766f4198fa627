"""What callers write is in no log line, no metric and on no terminal, and makes no line of its own.

Every string and bytes field of every request, found by reflection, gets a canary among what would
break a log: line ends, terminal codes, quotes, format marks. Headers and method names too.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from semanticrecall_server.assembly import default_parts
from support.every_rpc import Rpc, every_rpc, filled, string_paths, valid, with_text
from support.fake_embedder import FakeEmbedder
from support.isolation_ids import canaries_in, canary
from support.running_server import InProcessServer, running

FORGED = '{"event":"forged","level":"info"}'
FRAMES = {
    "plain": "{}",
    "line end": "{}\n" + FORGED + "\n",
    "carriage return": "{}\r" + FORGED + "\r\n",
    "terminal": "\x1b[2J\x1b[31m{}\x1b]0;owned\x07",
    "json": '{}"}},"x":{{"',
    "format": "{} %s %n {{0}} ${{x}} {{{{}}}}",
    "separators": "{}\u2028" + FORGED + "\u2029\x85" + FORGED,
    "nul": "{}\x00" + FORGED,
    "exposition": '{}"}} 1\nsemanticrecall_forged 1\n',
    "traceback": "Traceback (most recent call last):\n{}",
}
RPCS = every_rpc()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InProcessServer]:
    """Logs everything; its model fails at one word."""
    embedder = FakeEmbedder()
    with running(
        tmp_path_factory.mktemp("log"), default_parts(lambda settings: embedder)
    ) as serving:
        yield serving


def framed(frame: str, number: int) -> str:
    """Text with a canary."""
    inside = FRAMES[frame].replace(FORGED, FORGED.replace("{", "{{").replace("}", "}}"))
    return inside.format(canary(number))


def requests_of(rpc: Rpc, frame: str) -> Iterator[bytes]:
    """Good requests with one bad field each, and requests that are bad everywhere."""
    for number, path in enumerate(string_paths(rpc.request)):
        yield with_text(valid(rpc), path, framed(frame, number)).SerializeToString()
    for request in filled(rpc.request, lambda path: framed(frame, len(path))):
        yield request.SerializeToString()


def send(server: InProcessServer, rpc: Rpc, raw: bytes, metadata: object = None) -> None:
    """However it ends."""
    try:
        rpc.call(server.channel, raw, metadata=metadata)
    except grpc.RpcError as error:
        code = error.code()  # type: ignore[attr-defined]
        assert code is not grpc.StatusCode.INTERNAL, (rpc.name, raw)
        assert code is not grpc.StatusCode.UNKNOWN, (rpc.name, raw)


def nothing_leaked(server: InProcessServer, written: str) -> None:
    """One JSON object a line, none of them forged; no canary anywhere."""
    log = server.log_text
    assert log
    for line in log.split("\n")[:-1]:
        event = json.loads(line)
        assert event["event"] != "forged"
        assert line == "".join(character for character in line if character.isprintable())
    metrics = server.sidecar.metrics.text()
    assert b"forged" not in metrics
    for data in (log.encode(), metrics, written.encode()):
        assert canaries_in(data) == set()


@pytest.mark.parametrize("frame", FRAMES)
def test_no_field_of_any_request_is_logged(
    server: InProcessServer, frame: str, capfd: pytest.CaptureFixture[str]
) -> None:
    for rpc in RPCS:
        for raw in requests_of(rpc, frame):
            send(server, rpc, raw)
    assert server.raw("RecallService", "Recall", valid(RPCS[0]).SerializeToString()) is not None
    nothing_leaked(server, "".join(capfd.readouterr()))


def test_no_header_and_no_method_name_is_logged(
    server: InProcessServer, capfd: pytest.CaptureFixture[str]
) -> None:
    word = canary(0)
    metadata = (
        ("authorization", f'Bearer {word}"}}'),
        ("x-request-id", f"{word} %s"),
        ("user-agent", word),
        ("x-binary-bin", f"\n{FORGED}\n{word}".encode()),
    )
    for rpc in RPCS:
        send(server, rpc, valid(rpc).SerializeToString(), metadata)
    for path in (f"/semanticrecall.v1.RecallService/{word}", f"/{word}/Recall", f"/{word}"):
        with pytest.raises(grpc.RpcError) as refused:
            server.channel.unary_unary(path)(b"", timeout=30)
        assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED
    nothing_leaked(server, "".join(capfd.readouterr()))


def test_the_text_of_an_unexpected_exception_is_not_logged(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    embedder = FakeEmbedder()
    with running(tmp_path, default_parts(lambda settings: embedder)) as server:
        for frame in FRAMES:
            text = framed(frame, 0)
            embedder.fail_on("*", RuntimeError(text), times=1)
            embed = next(rpc for rpc in RPCS if rpc.name == "Embed")
            request = with_text(embed.request(), "texts", text)
            with pytest.raises(grpc.RpcError) as refused:
                embed.call(server.channel, request.SerializeToString())
            assert refused.value.code() is grpc.StatusCode.INTERNAL
            assert canaries_in((refused.value.details() or "").encode()) == set()
        nothing_leaked(server, "".join(capfd.readouterr()))
        logged = [line for line in server.log_lines if line["event"] == "internal_error"]
        assert len(logged) == len(FRAMES)


def test_the_search_would_find_what_is_logged(tmp_path: Path) -> None:
    assert len(RPCS) >= 18
    assert all(
        string_paths(rpc.request)
        for rpc in RPCS
        if rpc.request.DESCRIPTOR.name
        in ("RecallRequest", "IndexRequest", "ForgetRequest", "RestoreSnapshotRequest")
    )
    message = with_text(valid(RPCS[2]), "messages.metadata.value", canary(7))
    assert canaries_in(message.SerializeToString()) == {canary(7)}
