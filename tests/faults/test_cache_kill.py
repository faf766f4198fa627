"""kill -9 of a process that writes its vector cache: what is found afterwards is right."""

from __future__ import annotations

from pathlib import Path

from structlog.testing import capture_logs

from support.cache_files import FiledCache
from support.killed_writer import killed_writer

KILLS = 6
FORGET_EACH = 10

# Puts, and forgets each tenth text again; says so after each, as a caller of Forget would hear it.
WRITER = """
import sys
from pathlib import Path
from support.cache_files import FiledCache
from support.killed_writer import killed_writer
filed = FiledCache(Path(sys.argv[1]), disk=2 << 20)
for n in range(10**9):
    text = f"{sys.argv[2]}-{n}"
    filed.put(text)
    if n % 7 == 0:
        filed.behind._write(with_uses=False)
    if n % 10 == 0:
        filed.forget(text)
        sys.stdout.write(f"forgot {text}\\n")
    else:
        sys.stdout.write(f"put {text}\\n")
    sys.stdout.flush()
"""


def test_what_a_killed_process_wrote_is_right_and_what_it_forgot_is_gone(tmp_path: Path) -> None:
    found = 0
    forgotten: set[str] = set()
    for cycle in range(KILLS):
        lines = killed_writer(WRITER, tmp_path, cycle, lines=100 + 37 * cycle)
        with capture_logs() as logs:
            filed = FiledCache(tmp_path, disk=2 << 20)
        assert logs == []
        told = dict(reversed(line.split()) for line in lines if line.count(" ") == 1)
        forgotten |= {text for text, what in told.items() if what == "forgot"}
        written = [text for text, what in told.items() if what == "put"]
        # All but the last few, which had not been written.
        assert all(filed.find(text) for text in written[:-8])
        found += len(written) - 8
        assert not any(filed.find(text) for text in forgotten)
        assert filed.cache.stats().disk_damaged == 0
        filed.close()
    assert found > 300
    assert len(forgotten) > 40
