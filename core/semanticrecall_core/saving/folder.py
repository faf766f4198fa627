"""The folder of saved snapshots: made, listed, verified, rewritten, removed.

  <folder>/FORGOTTEN                     ledger.py
  <folder>/<name>/MANIFEST.json          manifest.py
  <folder>/<name>/recall.db              the whole store (messages/saved_database.py)
  <folder>/<name>/KEY                    where it is encrypted: the data key, wrapped (encryption)
  <folder>/<name>.partial/               being made, or being removed; never looked at

Invariants first:
  - A snapshot is there under its name, whole and synced, or not at all: it is made under another
    name, read back, and renamed. It is renamed before it is removed, too.
  - Names are made here: time, revision and a random part, of [0-9A-Za-z-] only. What callers name
    is compared with the names that are there; no path is ever made of it. Links are not followed.
  - A snapshot is rewritten beside itself: `recall.db.new`, then `MANIFEST.json.new`, each synced,
    then both are renamed. Where a process ends in between, the next one goes on (swapping.py).
  - What cannot be read is logged and left out; nothing removes it (left_out.py).
"""

from __future__ import annotations

import fcntl
import os
import shutil
import threading
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import structlog

from ..types.errors import (
    CorruptDataError,
    NotFoundError,
    ResourceExhaustedError,
    SemanticRecallError,
    UnavailableError,
)
from ..types.saving import (
    ForgottenMessage,
    RestoreCounts,
    SavableStore,
    SavedDatabases,
    SavedSnapshot,
)
from ..types.values import CallBudget
from . import files, locking, manifest, names, reading
from . import left_out as others
from .ledger import LEDGER, Ledger
from .left_out import PARTIAL, printable
from .manifest import DATABASE, MANIFEST, FileEntry, Manifest
from .reading import KEY, KEY_BYTES_MAX
from .swapping import NEW, go_on_rewriting

FREE_BYTES_MIN = 16 << 20
"""Left free on the disk of the snapshots: it may be that of the record."""

_LOCK_STEP_S = 0.1
_OTHER_KEY = frozenset({"ENCRYPTION_KEY_WRONG", "ENCRYPTION_KEY_MISSING"})
_FOREIGN = "FOREIGN_FILE"
_log = structlog.get_logger(__name__)


class SavedSnapshots:
    """The snapshots of one folder. Thread-safe; one is made, rewritten or restored at a time."""

    def __init__(
        self,
        folder: Path,
        databases: SavedDatabases,
        *,
        program_version: str,
        key_file: Path | None = None,
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        """Nothing is read or made yet.

        Args:
            folder: made when it is first needed.
            databases: knows what is in a database.
            program_version: goes into manifests.
            key_file: where the store has it (and is encrypted), it is copied to each snapshot.
            clock: nanoseconds since 1970.
        """
        self._folder = folder
        self._databases = databases
        self._program_version = program_version
        self._key_file = key_file
        self._clock = clock
        self._ledger = Ledger(folder)
        self._may_lack = False  # the ledger, of what the store knew at its start
        self._working = threading.Lock()
        self._swapping = threading.Lock()
        self._damaged: set[str] = set()

    # ---- what is there ----

    def damaged(self) -> dict[str, int]:
        """How many snapshots and ledgers were found damaged since the start, by kind."""
        ledgers = int(LEDGER in self._damaged)
        return {"saved": len(self._damaged) - ledgers, "ledger": ledgers}

    def snapshots(self) -> tuple[SavedSnapshot, ...]:
        """All that can be read, newest first; what is damaged or foreign is logged and left out."""
        found = [each.snapshot(self._forgotten_count(each)) for each in self._manifests()]
        return tuple(sorted(found, key=lambda s: (-s.create_time_ns, s.name)))

    def names(self) -> tuple[str, ...]:
        """Of all folders that should be snapshots, sound or not; sorted."""
        return tuple(name for name in self._names() if names.may_be_snapshot(self._folder / name))

    def verify(self, name: str, budget: CallBudget) -> SavedSnapshot:
        """Read a snapshot, compare digests, SQLite's own check, and the checksum of every row.

        Raises:
            NotFoundError: no such name, or it was removed meanwhile.
            CorruptDataError: something does not agree.
        """
        found: Manifest | None = None
        while True:
            before, found = found, None
            try:
                found = self._named(name)
                reading.verify(self._folder / found.name, found, self._databases, budget)
                return found.snapshot(self._forgotten_count(found))
            except (CorruptDataError, UnavailableError) as error:
                present = self._present(name)
                if found is None or found == before:
                    self._note(present, error)
                    raise  # else it may have been rewritten meanwhile

    def holding(self) -> tuple[str, ...]:
        """Names of snapshots whose files hold messages that were forgotten since, sorted."""
        return tuple(sorted(each.name for each in self.snapshots() if each.forgotten))

    def left_out(self, store: SavableStore) -> tuple[str, ...]:
        """What else is there and may hold messages of this store; see left_out.py."""
        known = {store.store_id, *(message.store_id for message in store.forgotten())}
        present = others.names(self._folder)  # first: what is made meanwhile is none of them
        listed = {each.name for each in self._manifests()}
        return others.left_out(self._folder, [n for n in present if n not in listed], known)

    # ---- making and removing ----

    def create(self, store: SavableStore, index_identity: str, budget: CallBudget) -> SavedSnapshot:
        """Save a store as it is at one revision, while calls go on.

        Raises:
            DeadlineExceededError, CancelledError: what was written is removed.
            ResourceExhaustedError: DISK_FULL; what was written is removed.
            UnavailableError: the disk failed, or the store is closed.
        """
        self._make_folder()
        with self._one_at_a_time(budget):
            self._clean()
            self._require_room(store.size_bytes)
            last_seq = store.expect_snapshot()
            try:
                made = self._create(store, index_identity, budget)
                last_seq = max(last_seq, made.state.last_seq)
            finally:
                _told_of(store, last_seq)
        _log.info("snapshot_saved", snapshot=made.name, messages=made.state.messages)
        return made.snapshot(0)

    def _create(self, store: SavableStore, index_identity: str, budget: CallBudget) -> Manifest:
        time_ns = self._clock()
        suffix = names.new_suffix()
        with self._partial(f"{suffix}{PARTIAL}") as partial:
            encrypted = self._with_key(partial)
            store.save(partial / DATABASE, budget)
            state = self._databases.state(partial / DATABASE)
            found = Manifest(
                name=names.new_name(time_ns, state.revision, suffix),
                create_time_ns=time_ns,
                program_version=self._program_version,
                state=state,
                index_identity=state.index_identity or index_identity,
                encrypted=encrypted,
                files={},
            )
            found = self._sealed(partial, found, budget)
            files.write_new(partial / MANIFEST, manifest.encoded(found))
            files.sync_folder(partial)
            budget.check()
            self._begin_ledger(store)
            partial.rename(self._folder / found.name)
            files.sync_folder(self._folder)
        return found

    def _with_key(self, partial: Path) -> bool:
        """Copy the key, wrapped as it is; whether there is one."""
        if self._key_file is None or not self._key_file.exists():
            return False
        files.write_new(partial / KEY, files.read_small(self._key_file, KEY_BYTES_MAX))
        return True

    def _sealed(self, partial: Path, made: Manifest, budget: CallBudget) -> Manifest:
        """Sync the database and read it back."""
        path = partial / DATABASE
        files.sync_file(path)
        entry = FileEntry(path.stat().st_size, files.digest_of(path, budget))
        return replace(made, files={**made.files, DATABASE: entry})

    def delete(self, name: str, budget: CallBudget) -> None:
        """Remove a snapshot, sound or not; NotFoundError where there is none of this name."""
        with self._one_at_a_time(budget):
            present = self._present(name)
            going = self._folder / f"{present}{PARTIAL}"
            with files.translated_errors():
                with self._swapping:
                    (self._folder / present).rename(going)
                files.sync_folder(self._folder)
                files.remove_folder(going)
        _log.info("snapshot_deleted", snapshot=present)

    def restore(self, name: str, store: SavableStore, budget: CallBudget) -> RestoreCounts:
        """Fill an empty store with a snapshot that was verified; all or nothing.

        Raises:
            NotFoundError: no such name.
            CorruptDataError: it is damaged, or the ledger is.
            FailedPreconditionError: STORE_NOT_EMPTY, and others of `SavableStore.restore`.
        """
        with self._one_at_a_time(budget):
            found = self._named(name)
            store.require_empty()
            without_ledger = self._ledger.is_missing()
            self._complete_ledger(store)
            path = self._folder / found.name
            try:
                reading.verify(path, found, self._databases, budget, rows=False)
            except CorruptDataError as error:
                self._note(found.name, error)
                raise
            left_out = self._forgotten_seqs(found)
            counts = store.restore(path / DATABASE, left_out, budget)
        if without_ledger:
            _log.warning("snapshot_restored_without_ledger", snapshot=found.name)
        return replace(counts, without_ledger=without_ledger)

    # ---- what was forgotten ----

    def start(self, store: SavableStore) -> None:
        """After a start: remove what was left half made, and bring the ledger up to date.

        What fails is logged: a disk that is not there keeps nobody from serving.
        """
        try:
            with locking.others_kept_out(self._folder, None) as alone:
                if alone and self._folder.is_dir():
                    self._clean()
            store.give_up_snapshot()
            self._bring_up_to_date(store.forgotten())
            if foreign := others.of_other_stores(self._folder, store.store_id):
                _log.warning("snapshots_dir_shared", snapshots=foreign)
        except SemanticRecallError as error:
            # Beside a damaged ledger nothing is restored anyway.
            self._may_lack = error.reason != "LEDGER_DAMAGED"
            _log.error("snapshots_not_ready", reason=error.reason)
            self._note(LEDGER, error)

    def complete(self, store: SavableStore) -> None:
        """Make up for a start at which the folder could not be used; raises as `forgotten`."""
        if self._may_lack:
            self._complete_ledger(store)

    def forgotten(self, messages: Iterable[ForgottenMessage]) -> None:
        """Write what was forgotten to the ledger and sync it, before the caller is answered.

        Raises:
            ResourceExhaustedError: DISK_FULL.
            UnavailableError: the folder cannot be written.
        """
        listed = list(messages)
        if listed:
            self._make_folder()
            self._ledger.add(listed)

    def rewrite(self, store: SavableStore, budget: CallBudget) -> tuple[str, ...]:
        """Write those that hold what was forgotten anew without it; returns their names.

        One that fails does not keep the others from being rewritten. What another store saved
        under another key is logged and left to that one.

        Raises:
            CorruptDataError: SNAPSHOT_DAMAGED, or the ledger is damaged.
            DeadlineExceededError, CancelledError: some are not rewritten yet.
            ResourceExhaustedError, UnavailableError, FailedPreconditionError: the same.
        """
        rewritten: list[str] = []
        failures: list[SemanticRecallError] = []
        with self._one_at_a_time(budget):
            if self._folder.is_dir():
                self._clean()
            manifests = self._manifests()
            if manifests:
                self._complete_ledger(store)
            for found in manifests:
                seqs = self._forgotten_seqs(found)
                try:
                    if seqs and self._holds(found, seqs):
                        self._rewrite(found, seqs, budget)
                        rewritten.append(found.name)
                except SemanticRecallError as error:
                    budget.check()
                    _log.error("snapshot_not_rewritten", snapshot=found.name, reason=error.reason)
                    self._note(found.name, error)
                    foreign = found.state.store_id != store.store_id
                    if not (foreign and error.reason in _OTHER_KEY):
                        failures.append(reading.not_rewritten(found.name, error))
        if rewritten:
            _log.info("snapshots_rewritten", snapshots=len(rewritten))
        if failures:
            raise failures[0]
        return tuple(rewritten)

    def _holds(self, found: Manifest, seqs: list[int]) -> bool:
        return self._databases.count_of(self._folder / found.name / DATABASE, seqs) > 0

    def _rewrite(self, found: Manifest, seqs: list[int], budget: CallBudget) -> None:
        folder = self._folder / found.name
        new = folder / f"{DATABASE}{NEW}"
        self._require_room(2 * found.files[DATABASE].bytes)
        try:
            with files.translated_errors():
                state = self._databases.rewrite(folder / DATABASE, new, seqs, budget)
                files.sync_file(new)
                entry = FileEntry(new.stat().st_size, files.digest_of(new, budget))
                again = replace(found, state=state, files={**found.files, DATABASE: entry})
                files.write_new(folder / f"{MANIFEST}{NEW}", manifest.encoded(again))
                files.sync_folder(folder)
        except BaseException:
            go_on_rewriting(folder)
            raise
        with self._swapping:
            go_on_rewriting(folder)

    def _complete_ledger(self, store: SavableStore) -> None:
        """It may be gone, or another, since the start: disks come late, people tidy up."""
        self._bring_up_to_date(store.forgotten())
        self._may_lack = False

    def _begin_ledger(self, store: SavableStore) -> None:
        """Make the file, unless there are others' snapshots: it would hide that it lacks theirs."""
        if self._ledger.is_missing() and not others.of_other_stores(self._folder, store.store_id):
            self._complete_ledger(store)
            self._ledger.begin()

    def _bring_up_to_date(self, messages: Sequence[ForgottenMessage]) -> None:
        """Add what the ledger lacks."""
        store_ids = {message.store_id for message in messages}
        known = {
            (each.store_id, seq): each.revision
            for store_id in store_ids
            for each in self._ledger.ranges(store_id)
            for seq in range(each.first_seq, each.last_seq + 1)
        }
        self.forgotten(m for m in messages if known.get(m[:2], -1) < m.revision)

    def _forgotten_seqs(self, found: Manifest) -> list[int]:
        return reading.forgotten_seqs(self._ledger, found.state)

    def _forgotten_count(self, found: Manifest) -> int:
        """How many of these its files still hold; where that cannot be told, all of them."""
        try:
            seqs = self._forgotten_seqs(found)
        except SemanticRecallError as error:
            _log.error("snapshots_ledger_unreadable", reason=error.reason)
            self._note(LEDGER, error)
            return found.state.messages
        if not seqs:
            return 0
        try:
            return self._databases.count_of(self._folder / found.name / DATABASE, seqs)
        except SemanticRecallError as error:
            if self._is_gone(found.name):
                return 0
            _log.error("snapshot_unreadable", snapshot=found.name, reason=error.reason)
            self._note(found.name, error)
            return len(seqs)

    def _is_gone(self, name: str) -> bool:
        """Whether a snapshot that could not be read was removed meanwhile: that is no damage."""
        return not os.path.lexists(self._folder / name)

    def _note(self, name: str, error: SemanticRecallError) -> None:
        """Count what is damaged, once, and say so when it is first met."""
        if isinstance(error, CorruptDataError) and error.reason != _FOREIGN:
            name = LEDGER if error.reason == "LEDGER_DAMAGED" else name
            if name not in self._damaged:
                _log.error("snapshot_damaged", file=name, reason=error.reason)
            self._damaged.add(name)

    # ---- files ----

    def _manifests(self) -> list[Manifest]:
        """Of all snapshots whose files are there in the right size, by name."""
        found: list[Manifest] = []
        for name in self._names():
            try:
                found.append(self._manifest(name))
            except SemanticRecallError as error:
                if self._is_gone(name):
                    continue
                _log.warning("snapshot_left_out", snapshot=printable(name), reason=error.reason)
                self._note(name, error)
        return found

    def _names(self) -> list[str]:
        """What is in the folder that may be a snapshot, or nothing of ours."""
        with files.translated_errors():
            try:
                listed = sorted(os.listdir(self._folder))
            except FileNotFoundError:
                return []
        return [name for name in listed if name != LEDGER and not name.endswith(PARTIAL)]

    def _manifest(self, name: str) -> Manifest:
        path = self._folder / name
        if not names.may_be_snapshot(path):
            raise CorruptDataError("no snapshot", reason=_FOREIGN)
        with self._swapping:
            return reading.manifest_of(path, name)

    def _named(self, name: str) -> Manifest:
        return self._manifest(self._present(name))

    def _present(self, name: str) -> str:
        """The name of a folder that may be a snapshot, sound or not: found, not made of `name`."""
        for present in self._names():
            path = self._folder / present
            if present == name and names.may_be_snapshot(path):
                return present
        raise NotFoundError("no snapshot has this name; `semanticrecall snapshot list` lists them")

    @contextmanager
    def _partial(self, name: str) -> Generator[Path]:
        """A folder to write to, which is removed where it was not renamed."""
        path = self._folder / name
        with files.translated_errors():
            path.mkdir(mode=0o700)
            held = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                fcntl.flock(held, fcntl.LOCK_SH)  # others that share the folder let it be
                yield path
            finally:
                files.remove_folder(path)
                os.close(held)

    def _clean(self) -> None:
        """Make the folder, remove what processes left that ended, go on with their rewriting."""
        self._make_folder()
        with files.translated_errors():
            for name in os.listdir(self._folder):
                path = self._folder / name
                if others.is_half_made(path):
                    if not locking.is_held(path):
                        files.remove_folder(path)
                        _log.warning("snapshot_leftover_removed")
                elif names.may_be_snapshot(path):
                    with self._swapping:
                        go_on_rewriting(path)

    def _make_folder(self) -> None:
        with files.translated_errors():
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def _require_room(self, size_bytes: int) -> None:
        with files.translated_errors():
            free = shutil.disk_usage(self._folder).free
        if free < size_bytes + FREE_BYTES_MIN:
            raise ResourceExhaustedError(
                "the disk of the snapshots has no room for one more; delete some, or choose another"
                " disk with --snapshots-dir",
                reason="DISK_FULL",
            )

    @contextmanager
    def _one_at_a_time(self, budget: CallBudget) -> Generator[None]:
        while not self._working.acquire(timeout=min(_LOCK_STEP_S, budget.remaining())):
            budget.check()
        try:
            with locking.others_kept_out(self._folder, budget):
                budget.check()
                yield
        finally:
            self._working.release()


def _told_of(store: SavableStore, last_seq: int) -> None:
    """Let the store remember no more than it must; where that fails it remembers too much."""
    try:
        store.snapshot_made(last_seq)
    except SemanticRecallError as error:
        _log.warning("snapshot_seq_not_lowered", reason=error.reason)
