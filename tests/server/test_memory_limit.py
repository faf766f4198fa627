"""How much memory there is: the tightest of the machine's and the control groups' limits."""

from __future__ import annotations

from pathlib import Path

import pytest

from semanticrecall_server.config import Settings
from semanticrecall_server.memory_limit import (
    lexical_bytes,
    memory_limit_bytes,
    partitions_bytes_default,
)
from semanticrecall_server.setting_kinds import Memory

MACHINE = 64 * 2**30


def limit(root: Path, groups: str, files: dict[str, str]) -> int:
    for name, content in files.items():
        path = root / "fs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    of_self = root / "cgroup"
    of_self.write_text(groups)
    return memory_limit_bytes(
        cgroup_root=root / "fs", cgroup_of_self=of_self, physical_bytes=MACHINE
    )


@pytest.mark.parametrize(
    ("groups", "files", "expected"),
    [
        ("0::/\n", {}, MACHINE),
        ("0::/\n", {"memory.max": "max\n"}, MACHINE),
        ("0::/\n", {"memory.max": "1073741824\n"}, 2**30),
        ("0::/a/b\n", {"a/memory.max": "2000000000\n", "a/b/memory.max": "max\n"}, 2_000_000_000),
        ("0::/a/b\n", {"a/memory.max": "7\n", "a/b/memory.max": "9\n"}, 7),
        ("0::/a\n", {"memory.max": "99999999999999\n"}, MACHINE),
        ("0::/host/path\n", {"memory.max": "5\n"}, 5),
        ("0::/a\n", {"a/memory.max": "rubbish\n"}, MACHINE),
        ("4:memory:/d\n2:cpu:/d\n", {"memory/d/memory.limit_in_bytes": "123\n"}, 123),
        ("4:cpu,memory:/d\n", {"memory/memory.limit_in_bytes": "456\n"}, 456),
        ("2:cpu:/d\n", {"memory/d/memory.limit_in_bytes": "123\n"}, MACHINE),
    ],
)
def test_the_tightest_limit_wins(
    tmp_path: Path, groups: str, files: dict[str, str], expected: int
) -> None:
    assert limit(tmp_path, groups, files) == expected


def test_without_control_groups_it_is_the_machines(tmp_path: Path) -> None:
    none = tmp_path / "none"
    found = memory_limit_bytes(cgroup_root=none, cgroup_of_self=none, physical_bytes=MACHINE)
    assert found == MACHINE


def test_partitions_have_half_of_it_and_no_more_than_4_gib() -> None:
    assert 2**27 <= partitions_bytes_default() <= 4 * 2**30
    assert partitions_bytes_default() == min(4 * 2**30, memory_limit_bytes() // 2)


def test_words_have_an_eighth_of_it_and_no_more_than_1_gib() -> None:
    most = min(2**30, memory_limit_bytes() // 8)
    assert lexical_bytes(Settings()) == most
    assert lexical_bytes(Settings(memory=Memory.LOW)) == most // 4
    assert lexical_bytes(Settings(lexical_bytes_max=1_000)) == 1_000
    assert lexical_bytes(Settings(lexical_bytes_max=1_000, memory=Memory.LOW)) == 250
