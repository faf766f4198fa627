"""What a recall costs here, and with what a user would pick instead: same texts, vectors, filter.

Usage: python -m benchmarks.side_by_side [--data-dir DIR] [--sizes 1000,10000,100000] [--json FILE]

A store holds a history of each size of `--sizes`, each of one user, beside a crowd of others.
Every system of `benchmarks.competitors` is loaded with it in a process of its own, is closed and
opened again in another, and is then asked for the 10 nearest messages of one user. All processes
stay up, and the systems are asked in turns, one question at a time, in an order that changes with
every round: noise of the machine falls on all alike, and a question finds the processor's caches
as a turn of an agent does, after other work. What is compared is storage and search, not models:
the vectors are those of our model for all. Each library has as many threads as it takes by default.

  recall     from a `text`: embedding the query, searching, the texts of what was found. For the
             others the process that asks embeds it, with our model and one thread, as our sidecar
             does. From a `vector`: the same without embedding. Questions are new each time.
             SemanticRecall is asked over gRPC, by its Python client, and so pays for a second
             process, as "Chroma, server" does over HTTP; the others are libraries in the process
             that asks. "with neighbours" is the default answer of SemanticRecall: a message before
             and after each hit, and a text for the prompt. The others have no such thing.
             recall_share: of the exact top 10, by brute force in float32, how many were found.
             ratio: p50 / that of SemanticRecall. The others may get fewer calls: `--seconds-max`.
  index      a turn of two messages, until it is found. `text`: embedding included, both at once on
             as many cores as the sidecar does it; `vector`: it brings its vectors, which
             SemanticRecall does not take; `durable`: until it is on disk, which is as long as an
             agent has to wait. Their promises differ: see `setups`.
             found_share: of the turns, how many were found by their own vector by the next
             question; of `durable`, within 5 s.
  footprint  resident: the process that holds the index, after all questions: the sidecar or
             the server, and not its client. anonymous: the part of it that is no mapped file,
             which the kernel could drop. model_in_it: whether the model is in that process, too;
             of "Chroma, server" it is in the client's. load: with the vectors given, to
             SemanticRecall through its store, since its contract takes texts. disk: blocks of all
             files, after the load. restart: from starting a process, the server's too, to its
             first answer to a text, model loaded; files are in the system's cache.
             same_after_restart: of the ids of 20 answers for each size, how many are the same.

The system with the lowest p50 is named whatever its recall share. A system whose package is not
installed is not measured, and `setups` says so; so it does if one fails, and the exit status is 1.

With `--data-dir` vectors are kept in DIR/side-by-side; without it all texts are embedded first.
"""

from __future__ import annotations

import random
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measure import Latency
from benchmarks.raw_parts import RawEmbed
from benchmarks.report import Chart, Digest, Result, flag, run_script
from benchmarks.side_by_side_data import Plan, prepare
from benchmarks.side_by_side_run import (
    FAILED,
    MEGABYTE,
    OURS,
    Contender,
    Run,
    Series,
    ask_in_turns,
    index_in_turns,
    load,
    restart,
)
from benchmarks.store_builder import stores_in
from semanticrecall_core.embedding.encoder_model import EncoderModel
from semanticrecall_core.embedding.provision import find_model

SYSTEMS = (OURS, "plain_faiss", "sqlite_vec", "chroma", "chroma_server", "qdrant_edge", "lance")
KINDS = ("vector", "text")
SIZES_MAX = 10
COUNT_MAX = 100_000


def _sizes(given: str) -> str:
    numbers = [int(size) for size in given.split(",")]
    if min(numbers) < 1 or len(set(numbers)) < len(numbers) or len(numbers) > SIZES_MAX:
        raise ValueError("sizes are positive, different and at most 10")
    return given


def _count(given: str) -> int:
    if not 1 <= int(given) <= COUNT_MAX:
        raise ValueError(f"1 to {COUNT_MAX}")
    return int(given)


def _systems(given: str) -> str:
    names = given.split(",")
    if not set(names) <= set(SYSTEMS) or OURS not in names:
        raise ValueError(f"of {', '.join(SYSTEMS)}; {OURS} must be one")
    return given


@dataclass(frozen=True, slots=True)
class Config:
    """What is measured."""

    data_dir: Path | None = flag(  # noqa: RUF009
        None, "where vectors are kept and found again", Path
    )
    sizes: str = flag("1000,10000,100000", "messages of each user who is asked", _sizes)
    systems: str = flag(",".join(SYSTEMS), "which systems", _systems)
    crowd_users: int = flag(50, "other users of the store", _count)
    crowd_messages: int = flag(200, "messages of each of them", _count)
    top_k: int = flag(10, "messages to find", _count)
    calls: int = flag(200, "questions of each kind to each system and user", _count)
    seconds_max: int = flag(6, "of questions to each of the others at one point", _count)
    turns: int = flag(100, "turns of each kind that are indexed", _count)
    seed: int = flag(7, "of texts, questions and turns")


SMOKE = {
    "sizes": "20,60",
    "crowd_users": 3,
    "crowd_messages": 5,
    "calls": 3,
    "turns": 2,
}


def _recall_rows(series: list[Series]) -> list[dict[str, Any]]:
    """Rows of the table of recalls, of one size and kind; the first is ours."""
    ours_ms = series[0].p50_ms
    rows: list[dict[str, Any]] = []
    for one in series:
        latency = Latency.of_seconds(one.seconds)
        rows.append(
            {
                "system": one.name,
                "user_messages": one.size,
                "kind": one.kind,
                "calls": latency.count,
                "p50_ms": latency.p50_ms,
                "p95_ms": latency.p95_ms,
                "p99_ms": latency.p99_ms,
                "recall_share": float(np.mean(one.shares)),
                "ratio": latency.p50_ms / ours_ms,
            }
        )
    return rows


def _best_other(series: list[Series]) -> dict[str, Any]:
    """A figure: the quickest of the others / ours."""
    others = [one for one in series if one.contender.module != OURS]
    if not others:
        return {}
    best = min(others, key=lambda one: one.p50_ms)
    point = f"{best.size} messages, {best.kind}"
    return {
        f"{point}: best other": best.name,
        f"{point}: best other / ours, p50": best.p50_ms / series[0].p50_ms,
    }


def _footprint(contender: Contender) -> dict[str, Any]:
    return {
        "system": contender.name,
        "resident_mb": contender.resident_bytes / MEGABYTE,
        "anonymous_mb": contender.anonymous_bytes / MEGABYTE,
        "model_in_it": contender.model_in_it,
        "disk_mb": contender.disk_bytes / MEGABYTE,
        "load_messages_per_s": contender.load_messages_per_s,
        "restart_s": contender.restart_s,
        "same_after_restart": contender.same_after_restart,
    }


def _setup(contender: Contender) -> dict[str, Any]:
    setup = contender.setup
    versions = ", ".join(f"{k} {v}" for k, v in setup.get("versions", {}).items())
    words = {name: setup.get(name, "") for name in ("tenants", "index", "durability", "advice")}
    status = contender.problem or "measured"
    return {"system": contender.name, "status": status, "versions": versions, **words}


def _charts() -> list[Chart]:
    """Latency by history size: from a text, and from a vector."""
    names = {"text": "latency_by_history", "vector": "latency_by_history_from_vector"}
    titles = {
        "text": "One recall from a text, embedding included",
        "vector": "One recall from a vector, search alone",
    }
    return [
        Chart(
            name=name,
            title=titles[kind],
            table="recall",
            x="user_messages",
            y="p50_ms",
            by=("system",),
            x_label="messages in the user's history",
            y_label="p50, milliseconds",
            x_log=True,
            y_log=True,
            only={"kind": kind},
        )
        for kind, name in names.items()
    ]


def _measure_all(run: Run, directory: Path) -> Result:
    """Load, restart, ask, index; the processes of the restart stay up."""
    result = Result(charts=_charts())
    rng = random.Random(run.data.plan.seed)
    digest = Digest()
    for contender in run.contenders:
        with contender.measured():
            load(run, contender, directory / contender.module)
    for contender in run.alive():
        with contender.measured():
            restart(run, contender, directory / contender.module)
    for size in run.exact:
        for kind in KINDS:
            print(f"asking from a {kind}, {size} messages", flush=True)
            series = ask_in_turns(run, size, kind, rng)
            if not series or series[0].contender.module != OURS:
                raise RuntimeError("nothing to compare with: the sidecar failed; see above")
            result.tables.setdefault("recall", []).extend(_recall_rows(series))
            result.figures |= _best_other(series)
            for ids in series[0].ids:
                digest.add(ids)
    for contender in run.alive():
        with contender.measured():
            memory = contender.ask("memory")
            contender.resident_bytes = memory["bytes"]
            contender.anonymous_bytes = memory["anonymous_bytes"]
            contender.model_in_it = memory["model_in_it"]
    print("indexing turns", flush=True)
    result.tables["index"] = index_in_turns(run, rng)
    result.tables["footprint"] = [_footprint(contender) for contender in run.alive()]
    result.tables["setups"] = [_setup(contender) for contender in run.contenders]
    result.digest = digest.text()
    return result


def _plan(config: Config) -> Plan:
    return Plan(
        sizes=tuple(sorted(int(size) for size in config.sizes.split(","))),
        crowd_users=config.crowd_users,
        crowd_messages=config.crowd_messages,
        questions=config.calls,
        turns=config.turns,
        seed=config.seed,
    )


def _measure_in(directory: Path, config: Config) -> Result:
    generation = EncoderModel.of_files(find_model()).generation
    made = prepare(directory / "side-by-side", _plan(config), generation, RawEmbed())
    data = made.data
    exact = {user.messages: data.exact(user, config.top_k) for user in data.plan.asked()}
    contenders = [
        Contender(module) for module in sorted(config.systems.split(","), key=SYSTEMS.index)
    ]
    with tempfile.TemporaryDirectory(dir=directory, prefix="stores-") as stores:
        try:
            result = _measure_all(
                Run(data, exact, contenders, config.top_k, config.seconds_max), Path(stores)
            )
        finally:
            for contender in contenders:
                contender.end()
    result.figures |= {
        "texts embedded in this run": made.embedded_texts,
        "seconds for that": made.seconds,
        "model": generation,
    }
    return result


def measure(config: Config) -> Result:
    """Embed what is not there, load every system, ask them in turns."""
    with stores_in(config.data_dir) as directory:
        return _measure_in(directory, config)


def main() -> int:
    """Command line; returns the exit status."""
    failed: list[str] = []

    def measured(config: Config) -> Result:
        result = measure(config)
        failed.extend(
            row["system"] for row in result.tables["setups"] if row["status"].startswith(FAILED)
        )
        return result

    run_script(__doc__, Config, measured, smoke=SMOKE)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
