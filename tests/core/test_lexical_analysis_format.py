"""What a message is analysed into: to the byte, for ever of one version."""

from __future__ import annotations

import os
import random
import struct
import subprocess
import sys
from zlib import crc32

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semanticrecall_core.lexical.analysis import Analyser, unpack
from semanticrecall_core.lexical.analysis_format import TERMS_MAX, VERSION, pack
from support.analysed_blobs import read_blob, terms

ANALYSER = Analyser()
TEXT, AUTHOR = "Dogs bark. The DOG's bone: ZX-8841?", "Anna Lee"
GOLDEN = bytes.fromhex(
    "0101010213b0b4480700000007000000b7be5c2163e1de9ba1b3ca2777bf4635e66d453c27e2173e7d392c81"
    "8d7ad7cab74857d401000100010001000200010001000000"
)


def test_a_message_has_the_bytes_that_it_always_had() -> None:
    assert ANALYSER.analyse(TEXT, AUTHOR) == GOLDEN


def test_the_bytes_are_those_that_the_format_says() -> None:
    words = {"dog": 2, "bark": 1, "the": 1, "bone": 1, "zx": 1, "8841": 1, "zx8841": 1}
    counts = sorted((crc32(word.encode()), count) for word, count in words.items())
    body = struct.pack("<2I", *sorted(terms("anna", "lee")))
    body += struct.pack("<7I", *(term for term, _ in counts))
    body += struct.pack("<8H", *(count for _, count in counts), 0)
    english, asks, authors, words_in_all = 1, 1, 2, 7
    head = bytes((VERSION, english, asks, authors))
    lengths = struct.pack("<II", words_in_all, 7)
    checksum = crc32(head + lengths + body)
    assert head + struct.pack("<I", checksum) + lengths + body == GOLDEN


def test_another_process_gives_the_same_bytes() -> None:
    script = (
        "import sys; from semanticrecall_core.lexical.analysis import Analyser;"
        f"sys.stdout.write(Analyser().analyse({TEXT!r}, {AUTHOR!r}).hex())"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONHASHSEED": "12345"},
        capture_output=True,
        check=True,
        text=True,
        timeout=60,
    )
    assert bytes.fromhex(done.stdout) == GOLDEN


def test_every_damaged_byte_and_every_missing_one_is_noticed() -> None:
    assert ANALYSER.is_current(GOLDEN)
    for i in range(len(GOLDEN)):
        for bit in (0x01, 0x80):
            damaged = bytearray(GOLDEN)
            damaged[i] ^= bit
            assert not ANALYSER.is_current(bytes(damaged)), i
        assert not ANALYSER.is_current(GOLDEN[:i])
    assert not ANALYSER.is_current(GOLDEN + b"\0")


@pytest.mark.parametrize("version", [0, VERSION - 1, VERSION + 1, 255])
def test_another_version_is_not_current(version: int) -> None:
    of_version = bytearray(GOLDEN)
    of_version[0] = version
    whole = bytes(of_version[:4] + of_version[8:])
    of_version[4:8] = struct.pack("<I", crc32(whole))
    assert not ANALYSER.is_current(bytes(of_version))


@given(st.binary(max_size=64))
@settings(deadline=None)
def test_bytes_that_are_no_blob_are_not_current(data: bytes) -> None:
    assert not ANALYSER.is_current(data)


def test_columns_have_what_each_blob_has() -> None:
    texts = [TEXT, "", "Wo ist das Haus? Wir sehen nichts.", "猫が好き", "one", "a a a a a b"]
    authors = ["Anna Lee", "", "Jörg", "田中", "x" * 300, " ".join(f"n{i}a" for i in range(40))]
    blobs = [ANALYSER.analyse(t, a) for t, a in zip(texts, authors, strict=True)]
    columns = unpack(blobs)
    assert len(columns.lengths) == len(blobs)
    for i, blob in enumerate(map(read_blob, blobs)):
        start, end = columns.term_starts[i : i + 2]
        found = dict(
            zip(columns.terms[start:end].tolist(), columns.counts[start:end].tolist(), strict=True)
        )
        assert found == blob.counts
        start, end = columns.author_starts[i : i + 2]
        assert set(columns.author_terms[start:end].tolist()) == blob.authors
        assert columns.lengths[i] == blob.length
        assert columns.languages[i] == blob.language
        assert bool(columns.asks[i]) == blob.asks
    assert columns.term_starts[-1] == len(columns.terms) == len(columns.counts)
    assert columns.author_starts[-1] == len(columns.author_terms)
    assert columns.terms.dtype == np.uint32
    assert columns.counts.dtype == np.uint16
    assert len(read_blob(blobs[5]).authors) == 16


def test_no_blobs_are_empty_columns() -> None:
    columns = unpack([])
    assert columns.term_starts.tolist() == [0]
    assert columns.author_starts.tolist() == [0]
    assert len(columns.lengths) == len(columns.terms) == len(columns.author_terms) == 0


def test_counts_stop_at_what_sixteen_bits_hold() -> None:
    blob = read_blob(ANALYSER.analyse("dog " * 70_000, ""))
    assert blob.counts == dict.fromkeys(terms("dog"), 65_535)
    assert blob.length == 70_000


def test_of_too_many_terms_those_with_the_smallest_numbers_stay() -> None:
    numbers = random.Random(5).sample(range(2**32), TERMS_MAX + 1_000)
    blob = read_blob(pack(dict.fromkeys(numbers, 1), len(numbers), [], language=0, asks=False))
    assert list(blob.counts) == sorted(numbers)[:TERMS_MAX]
    assert blob.length == TERMS_MAX + 1_000
