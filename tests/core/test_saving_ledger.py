"""FORGOTTEN: its bytes, torn tails, and damage."""

from __future__ import annotations

import hashlib
import os
import random
import struct
from pathlib import Path

import pytest

from semanticrecall_core.saving.ledger import Ledger, ranges_of
from semanticrecall_core.types.errors import CorruptDataError
from semanticrecall_core.types.saving import ForgottenMessage

STORE = "00112233445566778899aabbccddeeff"
OTHER = "ff" * 16
FLIPS = 200


def record(store_id: str, first: int, last: int, revision: int) -> bytes:
    """A record as the format says, written here by hand."""
    body = bytes.fromhex(store_id) + struct.pack("<qqq", first, last, revision)
    return 2 * (body + hashlib.blake2b(body, digest_size=8).digest())


def filled(folder: Path) -> Ledger:
    ledger = Ledger(folder)
    ledger.add([ForgottenMessage(STORE, seq, 7) for seq in (3, 1, 2, 9, 2)])
    ledger.add([ForgottenMessage(OTHER, 5, 2**63 - 1)])
    return ledger


def test_the_bytes_are_those_of_the_format(tmp_path: Path) -> None:
    filled(tmp_path)
    expected = record(STORE, 1, 3, 7) + record(STORE, 9, 9, 7) + record(OTHER, 5, 5, 2**63 - 1)
    assert (tmp_path / "FORGOTTEN").read_bytes() == expected
    assert (tmp_path / "FORGOTTEN").stat().st_mode & 0o777 == 0o600


def test_each_store_has_its_own(tmp_path: Path) -> None:
    ledger = filled(tmp_path)
    assert [each[1:] for each in ledger.ranges(STORE)] == [(1, 3, 7), (9, 9, 7)]
    assert [each[1:] for each in ledger.ranges(OTHER)] == [(5, 5, 2**63 - 1)]
    assert ledger.ranges("0" * 32) == []
    assert Ledger(tmp_path / "nothing").ranges(STORE) == []


def test_ranges_join_what_one_change_removed_and_nothing_else() -> None:
    messages = [
        ForgottenMessage(STORE, 1, 5),
        ForgottenMessage(STORE, 2, 6),
        ForgottenMessage(STORE, 3, 5),
        ForgottenMessage(OTHER, 2, 5),
    ]
    assert sorted(ranges_of(messages)) == [
        (STORE, 1, 1, 5),
        (STORE, 2, 2, 6),
        (STORE, 3, 3, 5),
        (OTHER, 2, 2, 5),
    ]


@pytest.mark.parametrize("torn", [1, 47, 48, 95])
def test_a_torn_record_is_not_there_and_the_next_takes_its_place(tmp_path: Path, torn: int) -> None:
    ledger = filled(tmp_path)
    path = tmp_path / "FORGOTTEN"
    os.truncate(path, 2 * 96 + torn)
    assert ledger.ranges(OTHER) == []
    ledger.add([ForgottenMessage(OTHER, 8, 9)])
    assert [each[1:] for each in ledger.ranges(OTHER)] == [(8, 8, 9)]
    assert path.stat().st_size == 3 * 96


def test_one_flipped_bit_loses_nothing(tmp_path: Path) -> None:
    ledger = filled(tmp_path)
    path = tmp_path / "FORGOTTEN"
    sound = path.read_bytes()
    seed = 4711
    chosen = random.Random(seed)
    for _ in range(FLIPS):
        damaged = bytearray(sound)
        damaged[chosen.randrange(len(sound))] ^= 1 << chosen.randrange(8)
        path.write_bytes(damaged)
        assert [each[1:] for each in ledger.ranges(STORE)] == [(1, 3, 7), (9, 9, 7)], seed
        assert [each[1:] for each in ledger.ranges(OTHER)] == [(5, 5, 2**63 - 1)], seed


def test_a_record_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    ledger = filled(tmp_path)
    path = tmp_path / "FORGOTTEN"
    damaged = bytearray(path.read_bytes())
    damaged[96] ^= 1
    damaged[96 + 48] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(CorruptDataError) as refused:
        ledger.ranges(OTHER)
    assert refused.value.reason == "LEDGER_DAMAGED"
