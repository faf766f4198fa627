"""A small analyser: what the record is given where the tests are not about words."""

from __future__ import annotations

import hashlib
import threading
import zlib

SUM_BYTES = 4


class WordAnalyser:
    """A checksum, the version, and a hash of each word, the author's first.

    Attributes:
        threads: names of the threads that it ran on, a call each.
    """

    def __init__(self, version: int = 1) -> None:
        self._version = version
        self.threads: list[str] = []

    def analyse(self, text: str, author: str) -> bytes:
        self.threads.append(threading.current_thread().name)
        words = [author.casefold(), *text.casefold().split()]
        body = bytes([self._version]) + b"".join(map(word_hash, words))
        return zlib.crc32(body).to_bytes(SUM_BYTES, "little") + body

    def is_current(self, analysed: bytes) -> bool:
        total, body = analysed[:SUM_BYTES], analysed[SUM_BYTES:]
        is_whole = zlib.crc32(body).to_bytes(SUM_BYTES, "little") == total
        return is_whole and body[:1] == bytes([self._version])


def word_hash(word: str) -> bytes:
    """Eight bytes that no other word of a test has."""
    return hashlib.blake2b(word.encode(), digest_size=8).digest()
