"""The vector cache and its file against a dictionary, with restarts, kills and evictions.

The model holds what may be found: an entry may be missing at any time (evicted, or not yet written
when the process died), but what is found is right and was not forgotten, and what was written,
is not forgotten and fits, is there.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from support.cache_files import ROOMY, FiledCache, files_of, vector_of

OWNERS = st.sampled_from(("ada", "bob", ""))
TEXTS = st.sampled_from([f"text {n}" for n in range(30)])
ROOM_FOR_FEW = 96 << 10
ENTRY_BYTES = 384 * 4 + 4 + 224


class CacheMachine(RuleBasedStateMachine):
    """Puts, finds, forgets, flushes, restarts, kills."""

    def __init__(self) -> None:
        super().__init__()
        self.home = Path(tempfile.mkdtemp())
        self.lives = 0
        self.may: set[tuple[str, str]] = set()  # may be found
        self.must: set[tuple[str, str]] = set()  # is on disk
        self.unwritten: set[tuple[str, str]] = set()
        self.erased: set[tuple[str, str]] = set()

    @initialize(few=st.booleans(), memory=st.sampled_from((1, 3 * ENTRY_BYTES, 1 << 20)))
    def open(self, few: bool, memory: int) -> None:
        self.disk = ROOM_FOR_FEW if few else ROOMY
        self.memory = memory
        self.filed = self._opened()

    def _opened(self) -> FiledCache:
        folder = self.home / str(self.lives)
        folder.mkdir(exist_ok=True)
        return FiledCache(folder, memory=self.memory, disk=self.disk)

    @rule(owner=OWNERS, text=TEXTS)
    def put(self, owner: str, text: str) -> None:
        self.filed.put(text, owner)
        self.may.add((owner, text))
        self.erased.discard((owner, text))
        if owner and (owner, text) not in self.must:
            self.unwritten.add((owner, text))

    @rule(owner=OWNERS, text=TEXTS)
    def find(self, owner: str, text: str) -> None:
        there = self.filed.find(text, owner)  # compares the vector
        assert not there or (owner, text) in self.may
        if self.disk == ROOMY and (owner, text) in self.must | self.unwritten:
            assert there

    @rule(owner=OWNERS, texts=st.lists(TEXTS, max_size=4))
    def forget(self, owner: str, texts: list[str]) -> None:
        named = {(owner, text) for text in texts}
        gone = self.filed.forget(*texts, owner=owner)
        assert gone <= len(named & self.may)
        if self.disk == ROOMY:
            assert gone >= len(named & (self.must | self.unwritten))
        self._forgotten(named)

    @rule(owner=OWNERS)
    def forget_owner(self, owner: str) -> None:
        named = {entry for entry in self.may if entry[0] == owner}
        gone = self.filed.cache.forget_owner(owner)
        assert gone <= len(named)
        if self.disk == ROOMY:
            assert gone >= len(named & (self.must | self.unwritten))
        self._forgotten(named)

    def _forgotten(self, entries: set[tuple[str, str]]) -> None:
        self.may -= entries
        self.must -= entries
        self.unwritten -= entries
        self.erased |= entries

    @rule()
    def flush(self) -> None:
        self.filed.flush()
        self.must |= self.unwritten
        self.unwritten = set()
        content = self.filed.bytes_on_disk()
        for owner, text in self.erased:
            assert vector_of(owner, text).tobytes()[:64] not in content

    @rule()
    def restart(self) -> None:
        self.filed.close()
        self.must |= self.unwritten
        self.unwritten = set()
        self.may = {entry for entry in self.may if entry[0]}
        self.filed = self._opened()

    @rule()
    def die(self) -> None:
        """The files as a killed process leaves them; the old ones are let go of later."""
        old, dead = self.filed, self.home / str(self.lives)
        self.lives += 1
        shutil.copytree(dead, self.home / str(self.lives))
        self.may -= {entry for entry in self.may if not entry[0]} | self.unwritten
        self.unwritten = set()
        old.close()
        self.filed = self._opened()

    @invariant()
    def within_bounds(self) -> None:
        if not hasattr(self, "filed"):
            return
        stats = self.filed.cache.stats()
        assert stats.bytes <= self.memory
        assert stats.disk_damaged == 0
        if self.disk == ROOMY:
            assert stats.disk_entries == len(self.must)
        else:
            assert stats.disk_entries <= len(self.must)

    def teardown(self) -> None:
        if hasattr(self, "filed"):
            self.filed.close()
            assert len(files_of(self.filed.path)) == 1
        shutil.rmtree(self.home)


TestCacheMachine = CacheMachine.TestCase
TestCacheMachine.settings = settings(max_examples=25, stateful_step_count=40, deadline=None)
