"""The file `KEY`: a directory's data key, wrapped under the key that the user holds.

Everything that is kept is encrypted with keys made of one random data key. The user's key encrypts
that data key and nothing else, so that it can be changed without writing anything else anew.
Invariants first:
  - The data key is made once, with the directory, and is nowhere else than in `KEY`. Who loses
    `KEY` or the user's key has lost what is kept; saved snapshots carry a copy of `KEY`.
  - `KEY` is replaced as a whole: temporary file, sync, rename, sync of the directory. Whenever the
    power fails, it opens with the old or with the new user's key, and never with neither.
  - A directory has `KEY` before it has a database, and has none where its database is plain.
  - A key is opened, and found to be the right one, before anything in the directory is changed.

Format 1: two slots of 4,096 bytes with the same content, so that a damaged byte or sector costs
nothing. In each, 112 bytes, little endian, and zeros behind them:
  magic "SRKEY001" (8)
  method (uint32): 1, which is ChaCha20-Poly1305 under a key that HKDF-SHA256 makes of the user's
      (no salt, info "semanticrecall wrap")
  zeros (4)
  nonce (12), random in each slot
  zeros (4)
  wrapped (48): the data key (32) encrypted, and the tag (16); magic and method are authenticated
      with it
  zeros (16)
  checksum (16): BLAKE2b of the 96 bytes before it
A slot whose checksum matches and that does not open was wrapped under another key; one whose
checksum does not match is damaged.

Keys for each purpose are made of the data key by HKDF-SHA256 (RFC 5869): no salt, info
"semanticrecall " and the name of the purpose, 32 bytes.
"""

from __future__ import annotations

import enum
import errno
import hashlib
import os
import re
import secrets
import struct
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import structlog
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from ..types.errors import CorruptDataError, FailedPreconditionError

KEY_FILE: Final = "KEY"
KEY_BYTES: Final = 32

_DATABASE = "recall.db"
_PLAIN_MAGIC = b"SQLite format 3\x00"
_SLOT_BYTES = 4096
_MAGIC = b"SRKEY001"
_METHOD = 1
_HEAD = struct.Struct("<8sI4x")
_BODY = struct.Struct("<16s12s4x48s16x")
_CHECKSUM_BYTES = 16
_PARTIAL = ".partial"
_HEXADECIMAL = re.compile(rf"[0-9A-Fa-f]{{{2 * KEY_BYTES}}}", re.ASCII)
_log = structlog.get_logger(__name__)


class Purpose(enum.StrEnum):
    """What a subkey encrypts."""

    RECORD = "recall.db"
    EMBEDDINGS = "embeddings.db"
    COLLECTIONS = "collections.db"
    IMAGES = "images"


class DataKey:
    """A directory's data key. What is printed of it says nothing."""

    __slots__ = ("_key",)

    def __init__(self, key: bytes) -> None:
        """`key`: KEY_BYTES random bytes."""
        self._key = key

    def subkey(self, purpose: Purpose) -> bytes:
        """The key for one purpose, 32 bytes."""
        return _derived(self._key, f"semanticrecall {purpose}")


@dataclass(frozen=True, slots=True)
class UserKeys:
    """What the user gave.

    Attributes:
        current: 32 bytes, the key from now on; None: the directory is plain.
        old: 32 bytes, the key until now, while it is changed.
    """

    current: bytes | None = field(default=None, repr=False)
    old: bytes | None = field(default=None, repr=False)


def user_key(text: str) -> bytes | None:
    """The key that 64 hexadecimal digits say, blanks around them allowed; None for anything else.

    A key of one and the same byte is none.
    """
    digits = text.strip()
    if _HEXADECIMAL.fullmatch(digits) is None:
        return None
    key = bytes.fromhex(digits)
    return key if len(set(key)) > 1 else None


def unlocked(
    folder: Path, keys: UserKeys, *, begin: bool = False, plain_allowed: bool = False
) -> DataKey | None:
    """The data key of a folder; None where it is a plain one.

    Where only the old key opens it, `KEY` is written anew for the current one.

    Args:
        folder: a data directory, or a saved snapshot; nobody else changes its KEY.
        keys: the user's.
        begin: make a data key where the folder has neither a key nor a database.
        plain_allowed: a plain folder is no fault although there is a key.

    Raises:
        FailedPreconditionError: ENCRYPTION_KEY_MISSING, ENCRYPTION_KEY_WRONG, or
            NOT_ENCRYPTED: there is a key, and the folder was begun without one.
        CorruptDataError: KEY is damaged, or gone.
        OSError: the disk.
    """
    path = folder / KEY_FILE
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return _without_key_file(folder, keys, begin=begin, plain_allowed=plain_allowed)
    if keys.current is None:
        raise FailedPreconditionError(
            f"{folder} is encrypted; give its key by --encryption-key-file",
            reason="ENCRYPTION_KEY_MISSING",
        )
    slots = [_slot(content, at) for at in (0, _SLOT_BYTES)]
    sound = [slot for slot in slots if slot is not None]
    if not sound:
        raise CorruptDataError(
            f"the file KEY of {folder} is damaged; put its copy from a snapshot in its place",
            reason="ENCRYPTION_KEY_DAMAGED",
        )
    for key in filter(None, (keys.current, keys.old)):
        data_key = _opened(sound, key)
        if data_key is None:
            continue
        if key is not keys.current:
            _write(path, data_key, keys.current)
            _log.warning("encryption_key_changed")
        elif len(sound) < len(slots):
            _write(path, data_key, keys.current)
            _log.warning("encryption_key_file_mended")
        return DataKey(data_key)
    raise FailedPreconditionError(
        f"the key given is not that of {folder}; nothing was changed",
        reason="ENCRYPTION_KEY_WRONG",
    )


def _without_key_file(
    folder: Path, keys: UserKeys, *, begin: bool, plain_allowed: bool
) -> DataKey | None:
    head = _head_of(folder / _DATABASE)
    if keys.current is None:
        return None
    if head and head != _PLAIN_MAGIC:
        raise CorruptDataError(
            f"the file KEY of {folder} is gone; put its copy from a snapshot in its place",
            reason="ENCRYPTION_KEY_DAMAGED",
        )
    if not head and begin:
        data_key = secrets.token_bytes(KEY_BYTES)
        _write(folder / KEY_FILE, data_key, keys.current)
        return DataKey(data_key)
    if plain_allowed:
        return None
    raise FailedPreconditionError(
        f"{folder} was begun without a key and is not encrypted; start without one, or save a "
        "snapshot and restore it into a new directory with a key",
        reason="NOT_ENCRYPTED",
    )


def _head_of(database: Path) -> bytes | None:
    """The first bytes of a database; None where there is none."""
    try:
        with database.open("rb") as file:
            return file.read(len(_PLAIN_MAGIC))
    except FileNotFoundError:
        return None


def _slot(content: bytes, at: int) -> tuple[bytes, bytes] | None:
    """Nonce and wrapped key of an undamaged slot; None for any other."""
    raw = content[at : at + _BODY.size + _CHECKSUM_BYTES]
    body, checksum = raw[: _BODY.size], raw[_BODY.size :]
    if len(body) != _BODY.size or checksum != _checksum(body):
        return None
    head, nonce, wrapped = _BODY.unpack(body)
    return (nonce, wrapped) if head == _HEAD.pack(_MAGIC, _METHOD) else None


def _opened(slots: list[tuple[bytes, bytes]], key: bytes) -> bytes | None:
    cipher = _wrapping(key)
    for nonce, wrapped in slots:
        try:
            return cipher.decrypt(nonce, wrapped, _HEAD.pack(_MAGIC, _METHOD))
        except InvalidTag:
            continue
    return None


def _write(path: Path, data_key: bytes, key: bytes) -> None:
    """Put a new KEY in the place of what is there."""
    partial = path.with_name(path.name + _PARTIAL)
    content = b"".join(_encoded(data_key, key) for _ in range(2))
    with suppress(FileNotFoundError):
        os.unlink(partial)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    fd = os.open(partial, flags, 0o600)
    try:
        if os.pwrite(fd, content, 0) != len(content):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.fsync(fd)
    finally:
        os.close(fd)
    os.rename(partial, path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _encoded(data_key: bytes, key: bytes) -> bytes:
    head, nonce = _HEAD.pack(_MAGIC, _METHOD), secrets.token_bytes(12)
    body = _BODY.pack(head, nonce, _wrapping(key).encrypt(nonce, data_key, head))
    return (body + _checksum(body)).ljust(_SLOT_BYTES, b"\0")


def _checksum(body: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=_CHECKSUM_BYTES).digest()


def _wrapping(key: bytes) -> ChaCha20Poly1305:
    return ChaCha20Poly1305(_derived(key, "semanticrecall wrap"))


def _derived(key: bytes, info: str) -> bytes:
    return HKDF(hashes.SHA256(), KEY_BYTES, salt=None, info=info.encode()).derive(key)
