"""Ids that are mistaken for one another, and marks that show whose a piece of data is.

A canary is a word of its own: "zq", eight hexadecimal digits, "qz". It is put into every field of a
message. Whoever is shown one that is not theirs has been shown what is somebody else's.
"""

from __future__ import annotations

import re
import threading

ID_BYTES_MAX = 512

HOSTILE_IDS = (
    # Beginnings of each other.
    *("acme", "acm", "acme-corp", "acme/", "acme:1", "acme:", "aacme", "acme\u00a0", "acme."),
    # Patterns of SQL, of globs and of regular expressions.
    *(
        "%",
        "_",
        "%%",
        "__",
        "john_doe",
        "john%doe",
        "johnXdoe",
        "*",
        "?",
        ".*",
        "[a-z]",
        "\\%",
        "\\",
    ),
    # Quotes and statements.
    *("o'neil", "o''neil", "' OR '1'='1", "x'; DROP TABLE messages; --", '"', "`"),
    # Paths.
    *("../acme", "..", "/", "/etc/passwd", "acme/../acm", "C:\\acme", "CON", "file:///acme"),
    # Separators: pairs of these read the same when they are put side by side.
    *("a:b", "a", "a::b", "a|b", "a#b", "a\u00a7b", "a b", "a,b"),
    # Case, and letters that are one letter or two, or only look alike.
    *("Acme", "ACME", "jos\u00e9", "jose\u0301", "jos\u0435", "jose", "JOS\u00c9", "stra\u00dfe"),
    *("strasse", "\u0130", "i", "\u0131", "\ufb01", "fi", "\u212b", "\u00c5", "A\u030a"),
    # What is not seen.
    *(
        "ac\u200bme",
        "\u200bacme",
        "acme\u200b",
        "acme\ufeff",
        "\u202eacme",
        "acme ",
        " acme",
        "\u2060",
    ),
    # Numbers and words that mean something elsewhere.
    *("1", "01", "1.0", "1e0", "+1", "0x1", "null", "None", "true", "-1", "NaN"),
    # As long as an id may be.
    *("r" * 512, "r" * 511, "r" * 510 + "s", "\u00e9" * 256, "\U0001f600" * 128),
)
"""All different, all allowed."""

COMMON_IDS = ("t", "t1", "m1", "%", "_", "a:b", "a", "..", "T", "\u200bt", "0", "m" * 512)
"""Ids of threads and messages that everybody has."""

_CANARY = re.compile(rb"zq[0-9a-f]{8}qz", re.IGNORECASE)


def canary(number: int) -> str:
    """The canary of a number below 2^32."""
    return f"zq{number:08x}qz"


def canaries_in(data: bytes) -> set[str]:
    """The canaries that can be read in bytes, in either case."""
    return {found.decode().lower() for found in _CANARY.findall(data)}


class Holders:
    """Who may see which canary. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holder: dict[str, str] = {}

    def give(self, mark: str, resource: str) -> str:
        """This resource, and no other, may see it from now on. Returns the mark."""
        with self._lock:
            self._holder[mark] = resource
        return mark

    def take(self, mark: str) -> None:
        """Nobody may see it any more: what carried it was forgotten or replaced."""
        with self._lock:
            self._holder.pop(mark, None)

    def foreign(self, data: bytes, reader: str, sent: bytes = b"") -> set[str]:
        """Canaries in `data` that the reader neither holds nor has sent."""
        found = canaries_in(data)
        if not found:
            return found
        with self._lock:
            strange = {mark for mark in found if self._holder.get(mark) != reader}
        return strange - canaries_in(sent) if strange else strange
