"""Which snapshot files are rewritten into the next one, so that neither their number nor the
bytes of replaced blocks grow without limit.

Small files are merged first, and as long as the next is not larger than all that are merged
already: merged files at least double in size, so a block is copied a logarithmic number of times,
and a large old file is left alone by many small writes. A file of which more than half is dead is
rewritten by itself: what is copied is then less than what is won. A file that has become large is
not merged again: whoever waits for a write waits for one such file and not for all that there is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

FILES_MAX = 8  # that are not large
LARGE_BYTES = 128 << 20


@dataclass(frozen=True, slots=True)
class FileLoad:
    """How much of a file is used.

    Attributes:
        live_bytes: blocks that are the newest of their resource.
        dead_bytes: blocks that were replaced, erased, or found damaged.
    """

    live_bytes: int
    dead_bytes: int


def files_to_rewrite(loads: Sequence[FileLoad], new_bytes: int) -> list[int]:
    """Positions of the files to be rewritten into a new one that has `new_bytes` already."""
    chosen = [at for at, load in enumerate(loads) if load.dead_bytes > load.live_bytes]
    taken = new_bytes + sum(loads[at].live_bytes for at in chosen)
    small = {at for at, load in enumerate(loads) if load.live_bytes < LARGE_BYTES}
    rest = sorted(small.difference(chosen), key=lambda at: loads[at].live_bytes)
    if len(rest) + 1 <= FILES_MAX:
        return chosen
    for count, at in enumerate(rest):
        enough = taken >= LARGE_BYTES or loads[at].live_bytes > taken
        if enough and len(rest) - count + 1 <= FILES_MAX:
            break
        chosen.append(at)
        taken += loads[at].live_bytes
    return chosen
