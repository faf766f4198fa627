"""Page tokens: where a list goes on.

A token is base64url of: format (1 byte, 1), two signed 64-bit big-endian numbers (the position of
the last entry of the page before), and 16 bytes of HMAC-SHA256 over the list's name, resource and
other fields, each with its length before it, and the position. So a token of another resource,
another query or another store is refused, and nothing about it is told.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import struct

from semanticrecall_core.types.errors import InvalidArgumentError

_FORMAT = 1
_POSITION = struct.Struct(">Bqq")
_MAC_BYTES = 16


class PageTokens:
    """Makes and reads tokens of one store."""

    def __init__(self, store_id: str) -> None:
        self._key = hashlib.sha256(b"semanticrecall page token\0" + store_id.encode()).digest()

    def make(self, query: tuple[str, ...], position: tuple[int, int]) -> str:
        """A token for the page behind `position` of the list that `query` describes."""
        head = _POSITION.pack(_FORMAT, *position)
        token = base64.urlsafe_b64encode(head + self._mac(query, head))
        return token.decode().rstrip("=")

    def read(self, query: tuple[str, ...], token: str) -> tuple[int, int] | None:
        """The position of a token; None for an empty one.

        Raises:
            InvalidArgumentError: it was not made for this list.
        """
        if not token:
            return None
        try:
            raw = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))
        except (binascii.Error, ValueError):
            raise _foreign() from None
        head, mac = raw[: _POSITION.size], raw[_POSITION.size :]
        if len(mac) != _MAC_BYTES or not hmac.compare_digest(mac, self._mac(query, head)):
            raise _foreign()
        form, first, second = _POSITION.unpack(head)
        if form != _FORMAT:
            raise _foreign()
        return int(first), int(second)

    def _mac(self, query: tuple[str, ...], head: bytes) -> bytes:
        digest = hmac.new(self._key, digestmod=hashlib.sha256)
        for part in (*(text.encode() for text in query), head):
            digest.update(struct.pack(">Q", len(part)))
            digest.update(part)
        return digest.digest()[:_MAC_BYTES]


def _foreign() -> InvalidArgumentError:
    return InvalidArgumentError.of(
        "page_token", "does not belong to this list; send what the page before gave, or nothing"
    )
