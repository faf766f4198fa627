"""What a caller waits for as the store grows: the same resource in stores of several sizes.

Usage: python -m benchmarks.growth_curve [--data-dir DIR] [--sizes 10000,100000,1000000]
                                         [--calls 300] [--json FILE]

The resource has 10,000 messages: all of the smallest store, one of 10,000 resources in the largest
(`sized_stores`; stores are shared with `growth` and `store_size`). All sidecars are up at once and
are asked in turns, which one first changes with every turn; every answer must be the same from all
of them. One caller, Unix sockets, grpcio's synchronous client. `growth_operations` says what
exactly each operation is; `growth` holds the first two to a bar.

Nothing is written to the stores that are kept: the sidecars run on copies, snapshots included,
beside them on the same disk (as much room again), and the copies are removed at the end.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
import time
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks import corpus, growth_operations, processes, wire_requests
from benchmarks.derived_files import forget_cached_vectors, make_snapshots
from benchmarks.growth_operations import Operation
from benchmarks.load_client import Load, run_load
from benchmarks.raw_client import Client, SyncClient
from benchmarks.report import Chart, Digest, Result, flag, run_script
from benchmarks.sized_stores import SizedStore, crowded, measured_resource, sizes_of
from benchmarks.store_builder import stores_in
from semanticrecall.v1 import recall_pb2

NEW_QUERY, ASKED_AGAIN = "new query", "asked again"
TURN, DURABLE = "turn, searchable", "turn, durable"
IMPORT, FORGET = "import of a thread", "Forget of a thread"
PAGE = "ListMessages, a page"
RESOURCE_STATS, STORE_STATS = "GetStats of the resource", "GetStats of the store"
OPERATIONS = (
    *(NEW_QUERY, ASKED_AGAIN, TURN, DURABLE, IMPORT, FORGET),
    *(PAGE, RESOURCE_STATS, STORE_STATS),
)
IN_FLIGHT = 8
ROUNDS = 3
WARM_UP_CALLS = 30
QUIET = ("--log-level", "warning")

CHARTS = [
    Chart(
        name="latency_by_store_size",
        title="What a caller waits for as the store grows",
        table="latency",
        x="messages",
        y="p50_ms",
        by=("operation",),
        x_label="messages in the store; the resource that is asked is the same",
        y_label="p50, ms",
        x_log=True,
        y_log=True,
    ),
    Chart(
        name="rates_by_store_size",
        title="Rates as the store grows",
        table="rates",
        x="messages",
        y="per_second",
        by=("operation",),
        x_label="messages in the store; the resource that is asked is the same",
        y_label="per second",
        x_log=True,
        y_log=True,
    ),
]


@dataclass(frozen=True, slots=True)
class Config:
    """What is measured."""

    data_dir: Path | None = flag(  # noqa: RUF009
        None, "where the stores are built and found again", Path
    )
    sizes: str = flag("10000,100000,1000000", "messages of each store", str)
    messages: int = flag(10_000, "messages of the resource that is asked")
    resource_messages: int = flag(100, "messages for each resource of a store")
    calls: int = flag(300, "calls of each operation but import and Forget")
    imports: int = flag(10, "threads that are imported and forgotten")
    import_messages: int = flag(100, "messages of such a thread")
    seed: int = flag(7, "of texts and vectors")


@dataclass(frozen=True, slots=True)
class Side:
    """A sidecar that is up."""

    messages: int
    address: str
    client: Client


def _series(operation: str, messages: int) -> str:
    return f"{operation}, {messages} messages"


class Turns:
    """One operation after the other, on all sides in turns."""

    def __init__(self, sides: list[Side], result: Result) -> None:
        self._sides = sides
        self._result = result
        self.digest = Digest()

    async def run(self, operations: Sequence[Operation], calls: int) -> None:
        """`calls` turns; in each, one call of every operation on every side.

        Raises:
            RuntimeError: two sides gave different answers.
        """
        print(f"{calls} times: {', '.join(one.name for one in operations)}", flush=True)
        for number in range(calls):
            for operation in operations:
                answers = [await self._timed(side, operation, number) for side in self._sides]
                if any(answer != answers[0] for answer in answers):
                    raise RuntimeError(f"{operation.name}: the answers depend on the store's size")
                self.digest.add(answers[0])
            self._sides.append(self._sides.pop(0))

    async def _timed(self, side: Side, operation: Operation, number: int) -> list[str]:
        request = operation.request(number)
        if operation.before is not None:
            await operation.before(side.client, number)
        started = time.perf_counter()
        answer = await side.client.unary(operation.method, request)
        seconds = time.perf_counter() - started
        series = _series(operation.name, side.messages)
        self._result.seconds.setdefault(series, []).append(seconds)
        if operation.after is not None:
            await operation.after(side.client, answer)
        return operation.ids(answer)


async def _measure_operations(config: Config, sides: list[Side], result: Result) -> Digest:
    """Recalls come first: they see the resource as it was built."""
    operations = growth_operations
    resource = measured_resource(config.messages, config.seed).resource_id
    texts = corpus.queries(3 * config.calls + WARM_UP_CALLS, seed=config.seed)
    warm_up, rest = texts[:WARM_UP_CALLS], texts[WARM_UP_CALLS:]
    queries, said, noted = (rest[at::3] for at in range(3))
    for side in sides:
        for query in warm_up:
            request = wire_requests.recall(resource, query).SerializeToString()
            await side.client.unary(wire_requests.RECALL, request)
    turns = Turns(sides, result)
    new_query = operations.recall(NEW_QUERY, resource, queries)
    again = operations.recall(ASKED_AGAIN, resource, queries)
    await turns.run((new_query, again), config.calls)
    await turns.run((operations.list_messages(PAGE, resource, config.messages),), config.calls)
    await turns.run((operations.get_stats(RESOURCE_STATS, resource),), config.calls)
    await turns.run((operations.get_stats(STORE_STATS, ""),), config.calls)
    await turns.run((operations.searchable_turn(TURN, resource, said),), config.calls)
    durable = operations.durable_turn(DURABLE, resource, noted, config.calls)
    await turns.run((durable,), config.calls)
    size = config.import_messages
    thread = operations.import_of_thread(IMPORT, resource, size, config.seed + 1)
    await turns.run((thread,), config.imports)
    await turns.run((operations.forget_thread(FORGET, resource, size),), config.imports)
    return turns.digest


def _measure_recalls_per_second(
    config: Config, sides: list[Side], result: Result
) -> dict[int, float]:
    """New queries, so many in flight: medians of rounds, by messages in the store."""
    print(f"{ROUNDS} rounds of {config.calls} new queries, {IN_FLIGHT} in flight", flush=True)
    resource = measured_resource(config.messages, config.seed).resource_id
    texts = corpus.queries(ROUNDS * config.calls, seed=config.seed + 2)
    rates: dict[int, list[float]] = {side.messages: [] for side in sides}
    for number in range(ROUNDS):
        queries = texts[number * config.calls : (number + 1) * config.calls]
        requests = [wire_requests.recall(resource, one).SerializeToString() for one in queries]
        first = number % len(sides)
        for side in (*sides[first:], *sides[:first]):
            done = run_load(side.address, Load(wire_requests.RECALL, "unary", IN_FLIGHT), requests)
            for answer in done.answers:
                wire_requests.recalled_ids(recall_pb2.RecallResponse.FromString(answer))
            rates[side.messages].append(len(requests) / done.seconds)
    return {messages: median(found) for messages, found in rates.items()}


def _fill_tables(
    config: Config, sizes: Sequence[int], recalls: dict[int, float], r: Result
) -> None:
    """Every operation at every size, beside the smallest store's."""
    imports = {n: config.import_messages / r.p50_s(_series(IMPORT, n)) for n in sizes}
    rates = {
        f"recalls of new queries, {IN_FLIGHT} in flight": recalls,
        f"messages of an import of {config.import_messages}": imports,
    }
    r.tables["rates"] = [
        {
            "messages": messages,
            "operation": name,
            "per_second": found[messages],
            "to_smallest_store": found[messages] / found[sizes[0]],
        }
        for name, found in rates.items()
        for messages in sizes
    ]
    r.tables["latency"] = [
        {
            "messages": messages,
            "operation": name,
            "calls": len(r.seconds[_series(name, messages)]),
            "p50_ms": 1000 * r.p50_s(_series(name, messages)),
            "p99_ms": 1000 * r.p99_s(_series(name, messages)),
            "p50_to_smallest_store": r.p50_s(_series(name, messages))
            / r.p50_s(_series(name, sizes[0])),
        }
        for name in OPERATIONS
        for messages in sizes
    ]


@contextmanager
def _copies(stores: Sequence[Path], beside: Path) -> Generator[list[Path], None, None]:
    """Copies of whole stores in a directory that goes; no text is known to their sidecars."""
    with tempfile.TemporaryDirectory(prefix="copies-", dir=beside) as name:
        for store in stores:
            print(f"copying {store.name}", flush=True)
            shutil.copytree(store / "data", Path(name, store.name, "data"))
            forget_cached_vectors(Path(name, store.name))
        os.sync()  # else the first commits would wait for the copies
        yield [Path(name, store.name) for store in stores]


def _measure_in(directory: Path, config: Config) -> Result:
    measured = measured_resource(config.messages, config.seed)
    sized: list[SizedStore] = [
        crowded(size, measured, config.resource_messages) for size in sizes_of(config.sizes)
    ]
    stores = [one.build_in(directory) for one in sized]
    for store in stores:
        make_snapshots(store)
    result = Result(charts=CHARTS)
    with ExitStack() as up:
        copies = up.enter_context(_copies(stores, directory))
        sides = []
        for one, copy in zip(sized, copies, strict=True):
            address, _ = up.enter_context(processes.sidecar(copy, *QUIET))
            sides.append(Side(one.messages, address, SyncClient(address)))
        digest = asyncio.run(_measure_operations(config, list(sides), result))
        recalls = _measure_recalls_per_second(config, sides, result)
        for side in sides:
            asyncio.run(side.client.close())
    _fill_tables(config, [one.messages for one in sized], recalls, result)
    result.digest = digest.text()
    return result


def measure(config: Config) -> Result:
    """Build the stores that are not there, run sidecars on copies of them, measure."""
    with stores_in(config.data_dir) as directory:
        return _measure_in(directory, config)


SMOKE = {
    "sizes": "80,400",
    "messages": 80,
    "resource_messages": 20,
    "calls": 6,
    "imports": 2,
    "import_messages": 10,
}

if __name__ == "__main__":
    run_script(__doc__, Config, measure, smoke=SMOKE)
