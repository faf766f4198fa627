"""Start-up, memory and disk by store size: the run, its tables, and what is counted."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.sized_stores import crowded, measured_resource, sizes_of, with_small_resources
from benchmarks.store_size import disk_bytes
from support import smoke_runs

SIZES = (120, 600)
EVEN, CROWDED = (
    "even-120-in-6-seed-7",
    "crowded-600-in-30-largest-60-seed-7",
)


@pytest.mark.slow
def test_every_size_is_started_loaded_and_weighed(tmp_path: Path) -> None:
    stores = tmp_path / "stores"
    result, printed = smoke_runs.run(
        "store_size", tmp_path / "result.json", "--smoke", "--data-dir", str(stores)
    )
    assert result["smoke"] is True
    assert result["command"].startswith("python -m benchmarks.store_size --data-dir")
    assert f"answers {result['answers_digest']}" in printed
    smoke_runs.assert_charts_can_be_drawn(result)
    starts, memory, disk = (result["tables"][name] for name in ("starts", "memory", "disk"))
    assert [(row["messages"], row["resources"], row["snapshots"]) for row in starts] == [
        (120, 6, "there"),
        (120, 6, "missing"),
        (600, 30, "there"),
        (600, 30, "missing"),
    ]
    for row in starts:
        series = f"{row['messages']} messages, snapshots {row['snapshots']}"
        for name, column in (("first", "first_p50_ms"), ("new query", "new_query_p50_ms")):
            latency = result["latencies_ms"][f"{series}: {name}"]
            assert row[column] == pytest.approx(latency["p50_ms"])
        assert result["latencies_ms"][f"{series}: first"]["count"] == 4
        assert result["latencies_ms"][f"{series}: asked again"]["count"] == 12
        assert row["start_s"] > 0
        assert 0 <= row["in_memory"] <= row["resources"]
    assert [(row["messages"], row["mode"]) for row in memory] == [
        (size, mode) for size in SIZES for mode in ("default", "low")
    ]
    for row in memory:
        assert row["bytes_a_message"] * row["messages"] == pytest.approx(row["resident_mb"] * 1e6)
        assert row["resident_mb"] >= row["at_start_mb"] - 20 > 0
    for size, name, resources in ((120, EVEN, 6), (600, CROWDED, 30)):
        kinds = {row["files"]: row["mb"] * 1e6 for row in disk if row["messages"] == size}
        assert set(kinds) == {"recall.db", "embeddings.db", "snapshots", "other"}
        # The record and the snapshots are on disk as they were weighed: with the vectors twice.
        data = stores / "smoke" / name / "data"
        there = sum(path.stat().st_size for path in (data / "snapshots").iterdir())
        assert kinds["snapshots"] == pytest.approx(there)
        assert kinds["recall.db"] == pytest.approx((data / "recall.db").stat().st_size)
        assert min(kinds["snapshots"], kinds["recall.db"]) > size * 384 * 4
        smoke_runs.assert_store_is_as_built(stores / "smoke" / name, size, resources)
    assert {path.name for path in (stores / "smoke").iterdir()} == {EVEN, CROWDED}


def test_bytes_are_counted_by_kind_of_file(tmp_path: Path) -> None:
    for name, size in {
        "recall.db": 1000,
        "recall.db-wal": 200,
        "embeddings.db": 30,
        "embeddings.db-wal": 4,
        "LOCK": 5,
        "snapshots/1.snapshot": 60_000,
        "snapshots/2.snapshot": 7_000,
    }.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(bytes(size))
    assert disk_bytes(tmp_path) == {
        "recall.db": 1200,
        "embeddings.db": 34,
        "snapshots": 67_000,
        "other": 5,
    }


def test_the_largest_store_is_the_one_that_other_scripts_build() -> None:
    store = crowded(1_000_000, measured_resource(10_000, 7), 100)
    assert store.name == "crowded"
    assert len(store.plan) == 10_000
    assert sum(resource.messages for resource in store.plan) == 1_000_000
    assert store.plan[-1].resource_id == "measured"
    assert store.plan[-1].messages == 10_000
    # Another plan must not take its place on disk.
    for other in (
        crowded(1_000_000, measured_resource(10_000, 8), 100),
        crowded(1_000_000, measured_resource(10_000, 7), 50),
        crowded(1_000_000, measured_resource(5_000, 7), 100),
    ):
        assert other.name != "crowded"


def test_small_stores_have_no_resource_that_outweighs_the_others() -> None:
    stores = with_small_resources((10_000, 99_999, 100_000), measured_resource(10_000, 7), 100)
    assert [max(resource.messages for resource in store.plan) for store in stores] == [
        100,
        # 999 resources share 99,999 messages.
        101,
        10_000,
    ]
    assert [sum(resource.messages for resource in store.plan) for store in stores] == [
        10_000,
        99_999,
        100_000,
    ]
    assert len({store.name for store in stores}) == 3


def test_the_resource_is_alone_in_a_store_of_its_size() -> None:
    store = crowded(80, measured_resource(80, 7), 20)
    assert [resource.messages for resource in store.plan] == [80]
    with pytest.raises(ValueError, match="holds no resource"):
        crowded(79, measured_resource(80, 7), 20)


@pytest.mark.parametrize("text", ["0", "-5", "20000001", "1,2,3,4,5,6,7,8,9"])
def test_sizes_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="--sizes"):
        sizes_of(text)


def test_sizes_are_ascending_and_come_once() -> None:
    assert sizes_of("300,20,300") == (20, 300)
