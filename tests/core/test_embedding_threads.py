"""Cores from the affinity mask and from both generations of control groups."""

from __future__ import annotations

from pathlib import Path

import pytest

from semanticrecall_core.embedding.threads import WORKERS_MAX, cpu_quota, worker_threads


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def quota(tmp_path: Path, of_self: str, affinity: int = 8) -> float:
    write(tmp_path / "self", of_self)
    return cpu_quota(
        cgroup_root=tmp_path / "cg", cgroup_of_self=tmp_path / "self", affinity=affinity
    )


def test_without_control_groups_the_affinity_mask_decides(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    assert cpu_quota(cgroup_root=missing, cgroup_of_self=missing, affinity=3) == 3.0


@pytest.mark.parametrize(
    ("cpu_max", "cores"),
    [("50000 100000\n", 0.5), ("250000 100000\n", 2.5), ("max 100000\n", 8.0), ("", 8.0)],
)
def test_version_2_quota(tmp_path: Path, cpu_max: str, cores: float) -> None:
    write(tmp_path / "cg/a/b/cpu.max", cpu_max)
    assert quota(tmp_path, "0::/a/b\n") == cores


def test_version_2_tightest_ancestor_wins(tmp_path: Path) -> None:
    write(tmp_path / "cg/a/b/cpu.max", "400000 100000")
    write(tmp_path / "cg/a/cpu.max", "150000 100000")
    assert quota(tmp_path, "0::/a/b\n") == 1.5


def test_version_2_root_counts_when_the_path_is_the_hosts(tmp_path: Path) -> None:
    write(tmp_path / "cg/cpu.max", "200000 100000")
    assert quota(tmp_path, "0::/docker/0123\n") == 2.0


@pytest.mark.parametrize(("of_self", "folder"), [("4:cpu,cpuacct:/x", "cpu"), ("4:cpu:/x", "cpu")])
def test_version_1_quota(tmp_path: Path, of_self: str, folder: str) -> None:
    write(tmp_path / f"cg/{folder}/x/cpu.cfs_quota_us", "150000\n")
    write(tmp_path / f"cg/{folder}/x/cpu.cfs_period_us", "100000\n")
    assert quota(tmp_path, f"1:cpuset:/y\n{of_self}\n") == 1.5


def test_version_1_quota_of_minus_one_is_none(tmp_path: Path) -> None:
    write(tmp_path / "cg/cpu,cpuacct/cpu.cfs_quota_us", "-1\n")
    write(tmp_path / "cg/cpu,cpuacct/cpu.cfs_period_us", "100000\n")
    assert quota(tmp_path, "4:cpu,cpuacct:/\n") == 8.0


@pytest.mark.parametrize("garbage", ["x y", "100000", "0 100000", "100000 0", "-5 100000", "\xff"])
def test_garbage_is_no_limit(tmp_path: Path, garbage: str) -> None:
    write(tmp_path / "cg/cpu.max", garbage)
    assert quota(tmp_path, "0::/\n") == 8.0


def test_affinity_below_the_quota_wins(tmp_path: Path) -> None:
    write(tmp_path / "cg/cpu.max", "400000 100000")
    assert quota(tmp_path, "0::/\n", affinity=1) == 1.0


@pytest.mark.parametrize(
    ("cores", "threads"), [(0.1, 1), (1.0, 1), (1.5, 2), (8.0, 8), (500.0, WORKERS_MAX)]
)
def test_worker_threads(cores: float, threads: int) -> None:
    assert worker_threads(cores) == threads


def test_this_machine_has_some() -> None:
    assert 0 < cpu_quota() <= 4096
