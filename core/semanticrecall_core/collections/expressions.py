"""Regular expressions that no text can make slow: RE2, in time that grows with the text alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, cast

import re2  # type: ignore[import-untyped]

MEMORY_BYTES_MAX: Final = 1 << 20
"""Of one expression: how large it may be, and what it remembers of texts."""


def compiled(pattern: str) -> Callable[[str], bool] | None:
    """Whether an expression is found in a text; None where it is not in RE2's syntax, or too large.

    Args:
        pattern: https://github.com/google/re2/wiki/Syntax
    """
    library = cast("Any", re2)
    options = library.Options()
    options.log_errors = False  # they would show the pattern
    options.never_capture = True
    options.max_mem = MEMORY_BYTES_MAX
    try:
        # As bytes, or every text would be decoded again for the place of what is found.
        search = library.compile(pattern.encode(), options).search
    except library.error:
        return None
    return lambda text: search(text.encode()) is not None
