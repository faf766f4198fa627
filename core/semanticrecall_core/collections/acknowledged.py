"""How far changes of `collections.db` were acknowledged, kept outside of it.

SQLite cannot tell a damaged end of its log from a torn one: after a crash it opens with a shorter
history and says nothing. So the file counts its changes (`revision`), and the count is written
beside it after each. A file whose count is lower than that has lost what was acknowledged: it is an
older copy, or its log was damaged.

The mark is never ahead of the file. It is exact after a kill, and may be `SYNC_INTERVAL_S` of
changes behind after a power cut, or more where nothing was changed since.
"""

from __future__ import annotations

import time
from typing import Final, Protocol

import structlog

from ..types.errors import CorruptDataError

SYNC_INTERVAL_S: Final = 1.0
LOST: Final = "ACKNOWLEDGED_CHANGES_MISSING"
_log = structlog.get_logger(__name__)


class CommitMark(Protocol):
    """A small file that holds the identity and the count of a database. Raises OSError.

    Used by one thread at a time.
    """

    def last(self) -> tuple[str, int] | None:
        """(identity, revision) as written last; None where there is nothing that can be read."""
        ...

    def start(self, identity: str, revision: int) -> None:
        """Write the first one, with room for all others, and sync it."""
        ...

    def move(self, identity: str, revision: int) -> None:
        """Write the next one; it survives the process at once, a power cut after `sync`."""
        ...

    def sync(self) -> None:
        """Make what was written survive a power cut."""
        ...

    def close(self) -> None:
        """Close the file. Safe to call twice."""
        ...


class Acknowledged:
    """The mark of an open file. Used by one thread at a time."""

    def __init__(
        self, mark: CommitMark, identity: str, revision: int, *, accept_loss: bool
    ) -> None:
        """Hold the file against its mark.

        Args:
            mark: taken over; closed where this raises.
            identity, revision: of the file.
            accept_loss: go on with a file that has lost changes.

        Raises:
            CorruptDataError: ACKNOWLEDGED_CHANGES_MISSING.
            OSError: the mark cannot be written.
        """
        self._mark = mark
        self._identity = identity
        self._synced = time.monotonic()
        try:
            found, count = mark.last() or (identity, 0)
            missing = count - revision if found == identity else count
            if missing > 0:
                _log.critical("collections_acknowledged_changes_missing", missing=missing)
                if not accept_loss:
                    raise CorruptDataError(
                        f"{missing} acknowledged changes are missing from collections.db (an older "
                        "copy, or a damaged log); put the newest copy in its place, or start with "
                        "--accept-loss",
                        reason=LOST,
                    )
            mark.start(identity, revision)
        except BaseException:
            mark.close()
            raise

    def moved(self, revision: int) -> None:
        """A change is on disk."""
        try:
            self._mark.move(self._identity, revision)
            if time.monotonic() - self._synced >= SYNC_INTERVAL_S:
                self._mark.sync()
                self._synced = time.monotonic()
        except OSError as error:  # the change stands; only the guard beside it is weaker
            _log.error("collections_mark_not_written", errno=error.errno)

    def close(self) -> None:
        """Sync and close the mark."""
        try:
            self._mark.sync()
        except OSError as error:
            _log.error("collections_mark_not_synced", errno=error.errno)
        self._mark.close()
