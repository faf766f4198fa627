"""The probe port, the metrics, and logs that hold no texts."""

from __future__ import annotations

import http.client
import io
import json
import logging
import re
import socket
import threading
import warnings
from importlib import metadata
from pathlib import Path
from typing import Any

import grpc
import pytest
import structlog
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from semanticrecall.v1 import recall_pb2
from semanticrecall_server.config import Settings
from semanticrecall_server.lifecycle import Parts
from semanticrecall_server.logs import configure_logs
from semanticrecall_server.observability import HTTP_CONNECTIONS_MAX
from support.fake_engine import FakeEngine
from support.running_server import InProcessServer, NoClaim, parts_of, running

CANARY = "canary-4111-text"


def get(server: InProcessServer, path: str) -> tuple[int, str]:
    address = server.sidecar.probe_address
    assert address is not None
    connection = http.client.HTTPConnection(address.host, address.port, timeout=20)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def test_probes_and_metrics(tmp_path: Path) -> None:
    engine = FakeEngine()
    with running(tmp_path, parts_of(engine), health_listen="127.0.0.1:0") as server:
        assert get(server, "/healthz") == (200, "ok\n")
        assert get(server, "/readyz") == (200, "ok\n")
        assert get(server, "/nothing")[0] == 404
        server.recall.Recall(recall_pb2.RecallRequest(resource_id=CANARY, query=CANARY), timeout=20)
        with pytest.raises(grpc.RpcError):
            server.recall.Recall(recall_pb2.RecallRequest(), timeout=20)
        status, text = get(server, "/metrics")
        assert status == 200
        lines = text.splitlines()
        assert 'semanticrecall_calls_total{code="OK",method="Recall"} 1.0' in lines
        assert 'semanticrecall_calls_total{code="INVALID_ARGUMENT",method="Recall"} 1.0' in lines
        assert 'semanticrecall_recall_stage_seconds_count{stage="total"} 1.0' in lines
        assert 'semanticrecall_recall_stage_seconds_sum{stage="lexical"} 1.4e-05' in lines
        assert 'semanticrecall_recalls_total{mode="hybrid"} 1.0' in lines
        assert 'semanticrecall_recalls_total{mode="dense"} 0.0' in lines
        assert "semanticrecall_lexical_only_hits_total 1.0" in lines
        assert "semanticrecall_pending_messages 3.0" in lines
        assert "semanticrecall_partitions_loaded 9.0" in lines
        assert "semanticrecall_lexical_partitions_loaded 10.0" in lines
        assert "semanticrecall_lexical_bytes 11.0" in lines
        assert CANARY not in text
        engine.is_healthy = False
        assert get(server, "/healthz")[0] == 503
        assert get(server, "/readyz")[0] == 503


def test_metrics_say_what_runs_what_it_holds_and_whether_it_is_ready(tmp_path: Path) -> None:
    release = threading.Event()

    def load(settings: object, claim: object) -> FakeEngine:
        del settings, claim
        assert release.wait(20)
        return FakeEngine()

    data = tmp_path / "data"
    data.mkdir()
    (data / "recall.db").write_bytes(bytes(5_000))
    parts = Parts(lambda settings: NoClaim(), load)
    settings = Settings(
        listen=(f"unix:{tmp_path}/s.sock",), health_listen="127.0.0.1:0", data_dir=data
    )
    server = InProcessServer(settings, parts, 2)
    server.start(wait=False)
    try:
        version = metadata.version("semanticrecall-sidecar")
        starting = get(server, "/metrics")[1].splitlines()
        assert "semanticrecall_ready 0.0" in starting
        assert (
            f'semanticrecall_build_info{{device="",model="",version="{version}"}} 1.0' in starting
        )
        release.set()
        server.wait_serving()
        text = get(server, "/metrics")[1]
        lines = text.splitlines()
        assert "semanticrecall_ready 1.0" in lines
        assert "semanticrecall_disk_bytes 5000.0" in lines
        build = f'{{device="cpu",model="fake@1/4",version="{version}"}} 1.0'
        assert f"semanticrecall_build_info{build}" in lines
        assert re.search(r"^process_resident_memory_bytes [1-9]", text, re.MULTILINE)
        (listening,) = [line for line in server.log_lines if line["event"] == "listening"]
        assert listening["state"] == "starting"
    finally:
        release.set()
        server.stop()


@pytest.mark.parametrize(("host", "warnings_seen"), [("127.0.0.1", 0), ("0.0.0.0", 1)])
def test_an_open_probe_port_is_warned_about(tmp_path: Path, host: str, warnings_seen: int) -> None:
    with running(tmp_path, parts_of(FakeEngine()), health_listen=f"{host}:0") as server:
        seen = [e for e in server.log_lines if e["event"] == "health_port_open_to_others"]
    assert [entry["level"] for entry in seen] == ["warning"] * warnings_seen


def test_silent_connections_do_not_block_the_probes(tmp_path: Path) -> None:
    with running(tmp_path, parts_of(FakeEngine()), health_listen="127.0.0.1:0") as server:
        address = server.sidecar.probe_address
        assert address is not None
        silent = [
            socket.create_connection((address.host, address.port), timeout=20)
            for _ in range(HTTP_CONNECTIONS_MAX - 1)
        ]
        assert get(server, "/healthz") == (200, "ok\n")
        for connection in silent:
            connection.close()


def test_a_taken_probe_port_is_said(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    with running(tmp_path, parts_of(FakeEngine()), health_listen="127.0.0.1:0") as first:
        address = first.sidecar.probe_address
        assert address is not None
        with (
            pytest.raises(Exception, match="cannot listen on --health-listen"),
            running(tmp_path / "b", parts_of(FakeEngine()), health_listen=address.target),
        ):
            pass


def test_reflection_names_the_services(server: InProcessServer) -> None:
    stub = reflection_pb2_grpc.ServerReflectionStub(server.channel)
    question = reflection_pb2.ServerReflectionRequest(list_services="")
    answer = next(iter(stub.ServerReflectionInfo(iter([question]), timeout=20)))
    names = {service.name for service in answer.list_services_response.service}
    assert names >= {
        "semanticrecall.v1.RecallService",
        "semanticrecall.v1.AdminService",
        "semanticrecall.v1.VectorService",
        "grpc.health.v1.Health",
    }


def test_no_string_of_a_request_is_logged(server: InProcessServer) -> None:
    request = recall_pb2.IndexRequest(resource_id=CANARY, thread_id=CANARY)
    request.metadata.update({CANARY: CANARY})
    message: Any = request.messages.add(
        id=CANARY,
        role=1,
        author=CANARY,
        text=f'{CANARY}\n{{"event":"forged"}}\x1b[31m',
        payload=CANARY.encode(),
        payload_type=CANARY,
        group_id=CANARY,
    )
    message.metadata.update({CANARY: CANARY})
    server.recall.Index(request, timeout=20)
    recall = recall_pb2.RecallRequest(
        request_id=CANARY,
        resource_id=CANARY,
        thread_id=CANARY,
        query=CANARY,
        exclude_message_ids=[CANARY],
        read_token=CANARY,
    )
    server.recall.Recall(recall, timeout=20)
    recall.time_zone = CANARY
    with pytest.raises(grpc.RpcError) as refused:
        server.recall.Recall(recall, timeout=20)
    assert CANARY not in str(refused.value.trailing_metadata())
    assert CANARY not in server.log_text
    assert CANARY.encode() not in server.sidecar.metrics.text()


# ---- logs ----


@pytest.fixture
def stream() -> Any:
    """Where the logs of a test go; the process's own set-up comes back afterwards."""
    root, handlers, level = logging.getLogger(), logging.getLogger().handlers, logging.root.level
    yield io.StringIO()
    root.handlers, root.level = handlers, level
    logging.captureWarnings(False)
    structlog.reset_defaults()


def entries(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_records_of_libraries_lose_their_texts(stream: io.StringIO) -> None:
    configure_logs("info", "json", stream)
    try:
        raise KeyError(CANARY)
    except KeyError:
        logging.getLogger("grpc").exception("failed with %s", CANARY)
    logging.getLogger("asyncio").error(CANARY)
    logging.getLogger("grpc").info("quiet")
    written = entries(stream)
    assert [(e["event"], e["library"], e["exception"]) for e in written] == [
        ("library_log", "grpc", "builtins.KeyError"),
        ("library_log", "asyncio", None),
    ]
    assert CANARY not in stream.getvalue()


def test_exceptions_in_fields_lose_their_texts(stream: io.StringIO) -> None:
    log = configure_logs("info", "json", stream)
    try:
        raise KeyError(CANARY)
    except KeyError as error:
        log.error("one", error=error)
        log.error("two", exc_info=True)
        log.error("three", exc_info=error)
    log.error("four", value=object())
    assert [(e["event"], e.get("exception") or e.get("error")) for e in entries(stream)[:3]] == [
        ("one", "<KeyError>"),
        ("two", "<KeyError>"),
        ("three", "<KeyError>"),
    ]
    assert entries(stream)[3]["value"] == "<object>"
    assert CANARY not in stream.getvalue()


def test_levels_and_the_form_for_people(stream: io.StringIO) -> None:
    log = configure_logs("warning", "console", stream)
    log.info("hidden")
    log.warning("shown", count=3)
    assert "hidden" not in stream.getvalue()
    assert "shown" in stream.getvalue()
    assert "count=3" in stream.getvalue()


def test_warnings_are_records_too(stream: io.StringIO) -> None:
    configure_logs("info", "json", stream)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        logging.captureWarnings(True)
        warnings.warn(CANARY, UserWarning, stacklevel=1)
    assert [e["library"] for e in entries(stream)] == ["py.warnings"]
    assert CANARY not in stream.getvalue()
