"""Operations on one resource in stores of several sizes: the run, and that it spares the stores."""

from __future__ import annotations

from pathlib import Path

import pytest

from support import smoke_runs

CALLS, IMPORTS, IMPORT_MESSAGES = 6, 2, 10
SIZES = {
    80: ("crowded-80-in-1-largest-80-seed-7", 1),
    400: ("crowded-400-in-20-largest-80-seed-7", 20),
}
EVERY_CALL = {
    "new query",
    "asked again",
    "turn, searchable",
    "turn, durable",
    "ListMessages, a page",
    "GetStats of the resource",
    "GetStats of the store",
}
FEW = {"import of a thread", "Forget of a thread"}


@pytest.mark.slow
def test_every_operation_is_measured_at_every_size(tmp_path: Path) -> None:
    stores = tmp_path / "stores"
    stores.mkdir()
    result, printed = smoke_runs.run(
        "growth_curve", tmp_path / "result.json", "--smoke", "--data-dir", str(stores)
    )
    assert f"answers {result['answers_digest']}" in printed
    smoke_runs.assert_charts_can_be_drawn(result)
    rows = {(row["operation"], row["messages"]): row for row in result["tables"]["latency"]}
    assert rows.keys() == {(name, size) for name in EVERY_CALL | FEW for size in SIZES}
    for (name, size), row in rows.items():
        latency = result["latencies_ms"][f"{name}, {size} messages"]
        assert latency["count"] == row["calls"] == (IMPORTS if name in FEW else CALLS)
        assert row["p50_ms"] == pytest.approx(latency["p50_ms"])
        smallest = result["latencies_ms"][f"{name}, 80 messages"]["p50_ms"]
        assert row["p50_to_smallest_store"] == pytest.approx(latency["p50_ms"] / smallest)
    rates = {(row["operation"], row["messages"]): row for row in result["tables"]["rates"]}
    assert len(rates) == 2 * len(SIZES)
    for size in SIZES:
        p50_ms = result["latencies_ms"][f"import of a thread, {size} messages"]["p50_ms"]
        row = rates[f"messages of an import of {IMPORT_MESSAGES}", size]
        assert row["per_second"] == pytest.approx(IMPORT_MESSAGES / (p50_ms / 1000))
        recalls = rates["recalls of new queries, 8 in flight", size]
        smallest = rates["recalls of new queries, 8 in flight", 80]["per_second"]
        assert recalls["to_smallest_store"] == pytest.approx(recalls["per_second"] / smallest)
    # What was written went into copies, and these are gone.
    assert {path.name for path in stores.iterdir()} == {name for name, _ in SIZES.values()}
    for size, (name, resources) in SIZES.items():
        smoke_runs.assert_store_is_as_built(stores / name, size, resources)
