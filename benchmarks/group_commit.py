"""Many writers, few syncs: durable turns a second of 32 writers against one, and one writer's wait.

Usage: python -m benchmarks.group_commit [--turns 2000] [--fsync-ms 2] [--json FILE]

At the wire: Index calls of two-message turns with WAIT_DURABLE, each writer in its own resource,
from a client process on a Unix socket. Measured on this disk as it is, and with an fsync that takes
longer, injected under SQLite (`slow_disk_sidecar`), as cloud disks have it.

Two kinds of turns: of a user and an assistant, which are embedded in the background meanwhile at
the lowest priority and whose vectors are commits of their own; and of a tool (`plain`), stored
only. The bars are those of the first kind. One writer's wait is measured in turns (fdatasync of as
many bytes in the same directory, echo, turn); before each the turn before is searchable, as with an
agent. The floor of the slower disk has the injected time in its fdatasync.

Beside it, without bars, the store by itself: the same turns appended by one thread and by 32.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import Awaitable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks import corpus, echo_server, processes, wire_requests
from benchmarks.load_client import Load, run_load
from benchmarks.raw_client import Client, connected
from benchmarks.report import Bar, Digest, Result, flag, run_script
from benchmarks.slow_disk_sidecar import FSYNC_MS_VARIABLE, SlowDisk
from benchmarks.store_builder import open_store
from semanticrecall.v1 import recall_pb2, types_pb2
from semanticrecall_core.messages import StoreOptions
from semanticrecall_core.types.values import CallBudget, MessageDraft, Role

WRITERS = 32
SLOW_BAR, FAST_BAR, WAIT_BAR = 8.0, 1.2, 2.0
ANSWER_BYTES = 100


@dataclass(frozen=True, slots=True)
class Config:
    """What is measured."""

    turns: int = flag(2_000, "turns of 32 writers in each round; one writer does an eighth")
    rounds: int = flag(3, "rounds; their medians are judged")
    waits: int = flag(200, "turns of one writer that are timed one by one")
    fsync_ms: float = flag(2.0, "what a sync takes longer on the slower disk", float)
    seed: int = flag(7, "of texts")


class _Turns:
    """Turns of texts never used before."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._number = 0

    def take(self, count: int, *, plain: bool) -> list[bytes]:
        """Requests of so many turns, spread over the writers' resources."""
        self._seed += 1
        texts = corpus.queries(count, seed=self._seed)
        requests = []
        for text in texts:
            self._number += 1
            resource = f"writer-{self._number % WRITERS}"
            turn = wire_requests.turn(
                resource, self._number, text, types_pb2.WAIT_DURABLE, plain=plain
            )
            requests.append(turn.SerializeToString())
        return requests


def _turns_per_second(address: str, writers: int, requests: list[bytes], digest: Digest) -> float:
    done = run_load(address, Load(wire_requests.INDEX, "unary", writers), requests)
    for raw in done.answers:
        _check_durable(raw, digest)
    return len(requests) / done.seconds


def _check_durable(raw: bytes, digest: Digest) -> str:
    """Every message was stored; returns the read token."""
    answer = recall_pb2.IndexResponse.FromString(raw)
    digest.add(wire_requests.stored_ids(answer))
    return answer.read_token


def _measure_rates(
    config: Config, address: str, turns: _Turns, digest: Digest, *, plain: bool
) -> tuple[float, float]:
    """Turns a second of one writer and of many: the medians of rounds, one after the other."""
    one: list[float] = []
    many: list[float] = []
    for _ in range(config.rounds):
        few = turns.take(max(1, config.turns // 8), plain=plain)
        one.append(_turns_per_second(address, 1, few, digest))
        more = turns.take(config.turns, plain=plain)
        many.append(_turns_per_second(address, WRITERS, more, digest))
    return median(one), median(many)


def _measure_store(config: Config, fsync_ms: float) -> tuple[float, float]:
    """Turns a second that the store itself takes of one thread and of many, without a wire."""
    disk = SlowDisk(fsync_ms / 1000, default=False) if fsync_ms else None
    options = StoreOptions(vfs=disk.vfs_name if disk else "")
    texts = corpus.queries(config.turns, seed=config.seed)
    with tempfile.TemporaryDirectory(prefix="semanticrecall-bench-") as name:
        store = open_store(Path(name), "none", options)

        def append(number: int) -> None:
            said = (texts[number], f"I noted that {texts[number]}")
            drafts = [
                MessageDraft(f"{side}{number}", f"turns-{number // 20}", Role.USER, text=text)
                for side, text in zip("ua", said, strict=True)
            ]
            store.append(f"writer-{number % WRITERS}", drafts, CallBudget.of_seconds(60))

        rates: list[float] = []
        split = config.turns // 8
        try:
            for writers, numbers in ((1, range(split)), (WRITERS, range(split, config.turns))):
                with ThreadPoolExecutor(writers) as threads:
                    started = time.perf_counter()
                    list(threads.map(append, numbers))
                    rates.append(len(numbers) / (time.perf_counter() - started))
        finally:
            store.close()
    return rates[0], rates[1]


class _Waits:
    """One writer's turns, beside the parts of their cost."""

    def __init__(self, result: Result, disk: str, fsync_s: float) -> None:
        self._result = result
        self._disk = disk
        self._fsync_s = fsync_s

    async def _timed(self, series: str, call: Awaitable[bytes]) -> bytes:
        started = time.perf_counter()
        answer = await call
        seconds = time.perf_counter() - started
        self._result.seconds.setdefault(f"{self._disk}: {series}", []).append(seconds)
        return answer

    def _sync(self, file: int, data: bytes) -> None:
        started = time.perf_counter()
        os.write(file, data)
        os.fdatasync(file)
        seconds = time.perf_counter() - started + self._fsync_s
        self._result.seconds.setdefault(f"{self._disk}: fdatasync", []).append(seconds)

    async def measure(
        self, clients: tuple[Client, Client], log: Path, requests: list[bytes], digest: Digest
    ) -> None:
        """`clients` are the sidecar's and the echo's."""
        sidecar, echo = clients
        file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            for request in requests:
                self._sync(file, request)
                # The echo's server has been idle for longer than the sidecar: wake it untimed.
                await echo.unary(echo_server.METHOD, request)
                await self._timed("echo", echo.unary(echo_server.METHOD, request))
                answer = await self._timed(
                    "turn of one writer", sidecar.unary(wire_requests.INDEX, request)
                )
                await _wait_searchable(sidecar, request, _check_durable(answer, digest))
        finally:
            os.close(file)

    def ratio(self) -> float:
        """The turn's p50 over that of fdatasync and echo."""
        p50 = self._result.p50_s
        floor = p50(f"{self._disk}: fdatasync") + p50(f"{self._disk}: echo")
        return p50(f"{self._disk}: turn of one writer") / floor


async def _wait_searchable(client: Client, request: bytes, read_token: str) -> None:
    """A recall that waits for the turn's embeddings."""
    resource = recall_pb2.IndexRequest.FromString(request).resource_id
    recall = wire_requests.recall(resource, "anything")
    recall.read_token = read_token
    await client.unary(wire_requests.RECALL, recall.SerializeToString())


def _measure_disk(
    config: Config, result: Result, digest: Digest, fsync_ms: float, module: str
) -> None:
    """Rates and waits on one disk."""
    disk = f"fsync + {fsync_ms:g} ms" if fsync_ms else "this disk"
    turns = _Turns(config.seed)
    waits = _Waits(result, disk, fsync_ms / 1000)
    with tempfile.TemporaryDirectory(prefix="semanticrecall-bench-") as name:
        directory = Path(name)
        quiet = ("--log-level", "warning")
        with (
            processes.started(directory, module, *quiet) as sidecar,
            processes.echo(directory, ANSWER_BYTES) as echo_address,
        ):

            async def wait() -> None:
                async with (
                    connected("sync", sidecar.address) as client,
                    connected("sync", echo_address) as echo,
                ):
                    requests = turns.take(config.waits, plain=False)
                    await waits.measure((client, echo), directory / "log", requests, digest)

            asyncio.run(wait())
            for plain, kind in ((True, "plain turns"), (False, "turns")):
                one, many = _measure_rates(config, sidecar.address, turns, digest, plain=plain)
                result.figures[f"{disk}: {kind}/s of one writer"] = one
                result.figures[f"{disk}: {kind}/s of {WRITERS} writers"] = many
                name = f"{disk}: durable {kind}/s, {WRITERS} writers / one"
                if plain:
                    result.figures[name] = many / one
                else:
                    limit = SLOW_BAR if fsync_ms else FAST_BAR
                    result.bars.append(Bar(name, many / one, limit, at_most=False))
    one, many = _measure_store(config, fsync_ms)
    result.figures[f"{disk}: the store alone, turns/s of one thread"] = one
    result.figures[f"{disk}: the store alone, turns/s of {WRITERS}"] = many
    result.figures[f"{disk}: the store alone, {WRITERS} / one"] = many / one
    result.bars.append(
        Bar(f"{disk}: one writer's p50 / (fdatasync + echo)", waits.ratio(), WAIT_BAR)
    )


def measure(config: Config) -> Result:
    """Run a sidecar on each disk and measure."""
    result, digest = Result(), Digest()
    _measure_disk(config, result, digest, 0.0, "semanticrecall_server")
    os.environ[FSYNC_MS_VARIABLE] = str(config.fsync_ms)
    _measure_disk(config, result, digest, config.fsync_ms, "benchmarks.slow_disk_sidecar")
    result.digest = digest.text()
    return result


if __name__ == "__main__":
    run_script(__doc__, Config, measure, smoke={"turns": 400, "rounds": 1, "waits": 50})
