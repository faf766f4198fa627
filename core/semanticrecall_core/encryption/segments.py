"""Pieces of a file, encrypted and authenticated one by one: AES-256-GCM.

Each file has a key of its own, made of the directory's by HKDF-SHA256 with what the file is begun
with as salt (which must hold 96 random bits), so that the place of a piece in its file is a nonce
that nothing else has. Whoever writes a piece writes its place once: two contents at one place of
one file would give both away.

A piece opens at its own place of its own file, for its own purpose, and nowhere else.
"""

from __future__ import annotations

import struct

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from ..types.errors import CorruptDataError

TAG_BYTES = 16
SALT_BYTES = 12

_INFO = b"semanticrecall file"
_NONCE = struct.Struct("<QI")


class FileCipher:
    """Encrypts the pieces of one file. Thread-safe."""

    __slots__ = ("_cipher",)

    def __init__(self, key: bytes, head: bytes) -> None:
        """Make the file's key.

        Args:
            key: 32 bytes, of all such files.
            head: what the file is begun with, SALT_BYTES random bytes in it.
        """
        own = HKDF(hashes.SHA256(), len(key), salt=head, info=_INFO).derive(key)
        self._cipher = AESGCM(own)

    def sealed(self, content: bytes, place: tuple[int, int], context: bytes) -> bytes:
        """The content encrypted, then its tag.

        Args:
            content: any bytes.
            place: (offset, purpose), used once in the file.
            context: what opening it must be given again.
        """
        return self._cipher.encrypt(_NONCE.pack(*place), content, context)

    def opened(self, sealed: bytes, place: tuple[int, int], context: bytes) -> bytes:
        """What was sealed at this place.

        Raises:
            CorruptDataError: it was not, or not with this context or key, or has changed since.
        """
        try:
            return self._cipher.decrypt(_NONCE.pack(*place), sealed, context)
        except InvalidTag:
            raise CorruptDataError("a piece of an encrypted file does not match its tag") from None
