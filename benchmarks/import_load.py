"""An import of new text that never ends, from a process of its own.

Usage: python -m benchmarks.import_load ADDRESS RESOURCE SEED

Keeps 8 Index calls of 100 messages in flight until SIGTERM. Prints a line when the first 8 were
answered: from then on the sidecar always has some hundreds of messages to embed.
"""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress

import grpc.aio

from benchmarks import corpus, wire_requests
from benchmarks.processes import ROOT
from semanticrecall.v1 import recall_pb2

IN_FLIGHT = 8
MESSAGES_MAX = 100_000_000
STOP_SECONDS_MAX = 30
STARTED_LINE = "importing\n"


@contextmanager
def importing(address: str, resource_id: str, seed: int) -> Iterator[None]:
    """An import in another process, in full swing when the body begins and when it ends.

    Raises:
        RuntimeError: it ended by itself.
    """
    arguments = [address, resource_id, str(seed)]
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.import_load", *arguments],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        if process.stdout is None or process.stdout.readline() != STARTED_LINE:
            raise RuntimeError("the import did not begin")
        yield
        if process.poll() is not None:
            raise RuntimeError("the import ended by itself")
        process.terminate()
        process.communicate(timeout=STOP_SECONDS_MAX)
    finally:
        process.kill()
        process.wait(STOP_SECONDS_MAX)


def _requests(resource_id: str, seed: int) -> Iterator[recall_pb2.IndexRequest]:
    batch = []
    for one in corpus.chat(MESSAGES_MAX, seed=seed):
        batch.append(wire_requests.message(one))
        if len(batch) == wire_requests.BATCH_MESSAGES:
            yield recall_pb2.IndexRequest(resource_id=resource_id, messages=batch)
            batch = []


async def _import(address: str, resource_id: str, seed: int) -> None:
    requests = _requests(resource_id, seed)
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    answered = 0

    async def caller(call: Callable[..., Awaitable[bytes]]) -> None:
        nonlocal answered
        for request in requests:
            await call(request.SerializeToString())
            answered += 1
            if answered == IN_FLIGHT:
                sys.stdout.write(STARTED_LINE)
                sys.stdout.flush()

    async with grpc.aio.insecure_channel(address) as channel:
        call: Callable[..., Awaitable[bytes]] = channel.unary_unary(wire_requests.INDEX)
        callers = [asyncio.create_task(caller(call)) for _ in range(IN_FLIGHT)]
        stopped = asyncio.create_task(stop.wait())
        done, _ = await asyncio.wait([*callers, stopped], return_when=asyncio.FIRST_COMPLETED)
        for task in callers:
            task.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.gather(*callers)
        if stopped not in done:
            raise RuntimeError("the import ended by itself")


if __name__ == "__main__":
    asyncio.run(_import(sys.argv[1], sys.argv[2], int(sys.argv[3])))
