"""The file KEY: its bytes, who may open it, and that it can be changed without ever being lost."""

from __future__ import annotations

import hashlib
import os
import stat
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from semanticrecall_core.encryption import (
    KEY_FILE,
    DataKey,
    Purpose,
    UserKeys,
    data_key,
    unlocked,
    user_key,
)
from semanticrecall_core.encryption.segments import FileCipher
from semanticrecall_core.types.errors import CorruptDataError, FailedPreconditionError
from support.faulty_os import Crash, FaultyOs, crash_at, fail_at

OLD, NEW, THIRD = (bytes([n, *range(31)]) for n in (1, 2, 3))
DATA_KEY = bytes(range(100, 132))


def derived(key: bytes, info: bytes) -> bytes:
    return HKDF(hashes.SHA256(), 32, salt=None, info=info).derive(key)


def slot(key: bytes, nonce: bytes, data_key: bytes = DATA_KEY) -> bytes:
    """One slot, written by hand from the format's description."""
    head = b"SRKEY001" + struct.pack("<I", 1) + bytes(4)
    wrapped = ChaCha20Poly1305(derived(key, b"semanticrecall wrap")).encrypt(nonce, data_key, head)
    body = head + nonce + bytes(4) + wrapped + bytes(16)
    return (body + hashlib.blake2b(body, digest_size=16).digest()).ljust(4096, b"\0")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A directory whose KEY was written by hand for OLD."""
    (tmp_path / KEY_FILE).write_bytes(slot(OLD, b"n" * 12) + slot(OLD, b"m" * 12))
    return tmp_path


@pytest.fixture
def faulty(monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyOs]:
    stand_in = FaultyOs()
    monkeypatch.setattr(data_key, "os", stand_in)
    return stand_in


def subkeys(key: DataKey | None) -> list[bytes]:
    assert key is not None
    return [key.subkey(purpose) for purpose in Purpose]


def reason(folder: Path, keys: UserKeys) -> str:
    with pytest.raises((FailedPreconditionError, CorruptDataError)) as refused:
        unlocked(folder, keys)
    return refused.value.reason


def test_a_key_file_is_read_as_its_format_says(folder: Path) -> None:
    expected = [
        derived(DATA_KEY, b"semanticrecall " + name)
        for name in (b"recall.db", b"embeddings.db", b"collections.db", b"images")
    ]
    assert subkeys(unlocked(folder, UserKeys(OLD))) == expected
    assert len(set(expected)) == 4


def test_a_key_file_that_is_made_is_one_that_can_be_read_by_its_format(tmp_path: Path) -> None:
    made = subkeys(unlocked(tmp_path, UserKeys(OLD), begin=True))
    content = (tmp_path / KEY_FILE).read_bytes()
    assert len(content) == 8192
    assert stat.S_IMODE((tmp_path / KEY_FILE).stat().st_mode) == 0o600
    for at in (0, 4096):
        body, checksum = content[at : at + 96], content[at + 96 : at + 112]
        assert checksum == hashlib.blake2b(body, digest_size=16).digest()
        assert not any(content[at + 112 : at + 4096])
        cipher = ChaCha20Poly1305(derived(OLD, b"semanticrecall wrap"))
        found = cipher.decrypt(body[16:28], body[32:80], body[:16])
        assert derived(found, b"semanticrecall recall.db") == made[0]
    assert content[16:28] != content[4096 + 16 : 4096 + 28]  # a nonce serves once
    assert subkeys(unlocked(tmp_path, UserKeys(OLD))) == made


def test_two_directories_have_two_data_keys(tmp_path: Path) -> None:
    keys = []
    for name in "ab":
        (tmp_path / name).mkdir()
        keys.append(subkeys(unlocked(tmp_path / name, UserKeys(OLD), begin=True)))
    assert not set(keys[0]) & set(keys[1])


def test_every_single_flipped_bit_in_a_slot_is_survived_and_mended(
    folder: Path, faulty: FaultyOs
) -> None:
    assert not faulty.calls  # it waits for no disk
    sound = (folder / KEY_FILE).read_bytes()
    expected = subkeys(unlocked(folder, UserKeys(OLD)))
    for at in range(0, 112 * 8, 5):
        for start in (0, 4096):
            hurt = bytearray(sound)
            hurt[start + at // 8] ^= 1 << at % 8
            (folder / KEY_FILE).write_bytes(hurt)
            assert subkeys(unlocked(folder, UserKeys(OLD))) == expected
            mended = (folder / KEY_FILE).read_bytes()
            (folder / KEY_FILE).write_bytes(mended[:4096] + bytes(4096))
            assert subkeys(unlocked(folder, UserKeys(OLD))) == expected


@pytest.mark.parametrize("content", [b"", bytes(8192), b"x" * 8192, b"SRKEY001" * 1024])
def test_a_key_file_that_is_damaged_all_over_is_refused_and_left(
    folder: Path, content: bytes
) -> None:
    (folder / KEY_FILE).write_bytes(content)
    assert reason(folder, UserKeys(OLD)) == "ENCRYPTION_KEY_DAMAGED"
    assert (folder / KEY_FILE).read_bytes() == content


def test_a_wrong_or_missing_key_is_refused_and_changes_nothing(folder: Path) -> None:
    before = (folder / KEY_FILE).read_bytes()
    assert reason(folder, UserKeys(NEW)) == "ENCRYPTION_KEY_WRONG"
    assert reason(folder, UserKeys(NEW, THIRD)) == "ENCRYPTION_KEY_WRONG"
    assert reason(folder, UserKeys()) == "ENCRYPTION_KEY_MISSING"
    assert (folder / KEY_FILE).read_bytes() == before
    assert os.listdir(folder) == [KEY_FILE]


def test_a_plain_directory_stays_plain(tmp_path: Path) -> None:
    (tmp_path / "recall.db").write_bytes(b"SQLite format 3\0" + bytes(100))
    assert unlocked(tmp_path, UserKeys(), begin=True) is None
    assert reason(tmp_path, UserKeys(OLD)) == "NOT_ENCRYPTED"
    assert unlocked(tmp_path, UserKeys(OLD), plain_allowed=True) is None
    assert os.listdir(tmp_path) == ["recall.db"]


def test_an_encrypted_directory_that_has_lost_its_key_file_says_so(tmp_path: Path) -> None:
    (tmp_path / "recall.db").write_bytes(os.urandom(8192))
    with pytest.raises(CorruptDataError) as lost:
        unlocked(tmp_path, UserKeys(OLD), begin=True)
    assert lost.value.reason == "ENCRYPTION_KEY_DAMAGED"
    assert os.listdir(tmp_path) == ["recall.db"]


def test_a_changed_key_opens_and_the_old_one_no_longer_does(folder: Path) -> None:
    expected = subkeys(unlocked(folder, UserKeys(OLD)))
    assert subkeys(unlocked(folder, UserKeys(NEW, OLD))) == expected
    changed = (folder / KEY_FILE).read_bytes()
    assert subkeys(unlocked(folder, UserKeys(NEW, OLD))) == expected
    assert (folder / KEY_FILE).read_bytes() == changed  # it was done already
    assert subkeys(unlocked(folder, UserKeys(NEW))) == expected
    assert reason(folder, UserKeys(OLD)) == "ENCRYPTION_KEY_WRONG"


def test_a_change_that_is_cut_off_anywhere_leaves_the_old_or_the_new_key(
    folder: Path, faulty: FaultyOs
) -> None:
    sound = (folder / KEY_FILE).read_bytes()
    outcomes = set()
    for target in range(100):
        (folder / KEY_FILE).write_bytes(sound)
        faulty.fault, faulty.calls = crash_at(target), 0
        finished = False
        try:
            unlocked(folder, UserKeys(NEW, OLD))
            finished = True
        except Crash:
            pass
        faulty.mend()
        opens = [key for key in (OLD, NEW) if _opens(folder, key)]
        assert len(opens) == 1, f"cut off at call {target}"
        outcomes.add(opens[0])
        assert subkeys(unlocked(folder, UserKeys(NEW, OLD)))[0] == derived(
            DATA_KEY, b"semanticrecall recall.db"
        )
        if finished:
            break
    assert outcomes == {OLD, NEW}
    assert target >= 5


def test_a_change_that_fails_leaves_the_old_or_the_new_key(folder: Path, faulty: FaultyOs) -> None:
    sound = (folder / KEY_FILE).read_bytes()
    failed = 0
    for target in range(8):
        (folder / KEY_FILE).write_bytes(sound)
        faulty.fault, faulty.calls, faulty.raised = fail_at(target), 0, 0
        try:
            unlocked(folder, UserKeys(NEW, OLD))
        except OSError:
            failed += 1
        faulty.mend()
        assert [_opens(folder, OLD), _opens(folder, NEW)].count(True) == 1
    assert failed >= 5


def _opens(folder: Path, key: bytes) -> bool:
    try:
        return unlocked(folder, UserKeys(key)) is not None
    except FailedPreconditionError:
        return False


@pytest.mark.parametrize(
    ("text", "is_key"),
    [
        ("0123456789abcdef" * 4, True),
        ("\n0123456789ABCDEF" + "0123456789abcdef" * 3 + "  \n", True),
        ("0123456789abcdef" * 3, False),
        ("0123456789abcdef" * 4 + "0", False),
        ("g123456789abcdef" * 4, False),
        ("٠" * 64, False),
        ("0" * 64, False),
        ("ff" * 32, False),
        ("", False),
    ],
)
def test_a_key_is_64_hexadecimal_digits(text: str, is_key: bool) -> None:
    key = user_key(text)
    assert key == (bytes.fromhex(text.strip()) if is_key else None)


def test_no_key_is_shown_when_it_is_printed() -> None:
    shown = f"{UserKeys(OLD, NEW)!r} {DataKey(DATA_KEY)!r} {DataKey(DATA_KEY)}"
    for key in (OLD, NEW, DATA_KEY):
        assert key.hex() not in shown
        assert repr(key)[2:-1] not in shown


def test_a_piece_of_a_file_opens_at_its_place_of_its_file_only() -> None:
    head, other_head = b"head" * 16, b"HEAD" * 16
    cipher = FileCipher(OLD, head)
    sealed = cipher.sealed(b"content", (64, 1), b"context")
    assert cipher.opened(sealed, (64, 1), b"context") == b"content"
    assert FileCipher(OLD, head).opened(sealed, (64, 1), b"context") == b"content"
    others = [
        (cipher, sealed, (65, 1), b"context"),
        (cipher, sealed, (64, 2), b"context"),
        (cipher, sealed, (64, 1), b"Context"),
        (cipher, sealed[:-1], (64, 1), b"context"),
        (cipher, bytes([sealed[0] ^ 1]) + sealed[1:], (64, 1), b"context"),
        (FileCipher(OLD, other_head), sealed, (64, 1), b"context"),
        (FileCipher(NEW, head), sealed, (64, 1), b"context"),
    ]
    for other, content, place, context in others:
        with pytest.raises(CorruptDataError):
            other.opened(content, place, context)
