"""A message as the record gives it: what finds it as plain values, the rest as it is stored.

The record keeps what an answer sends as one encoded message (see `MessageCodec` in ports.py).
Whoever answers with it passes those bytes on; author, text and payload are decoded only where
somebody asks for them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from .values import Role


class MessageBody(Protocol):
    """What of a message is only in its encoded form, and the names by which it is mended."""

    @property
    def resource_id(self) -> str:
        """Whose it is. Believed only where the checksum of its row confirms it."""
        ...

    @property
    def thread_id(self) -> str:
        """Its thread; believed as `resource_id`."""
        ...

    @property
    def author(self) -> str:
        """Name of the writer; "" for none."""
        ...

    @property
    def text(self) -> str:
        """What is searched."""
        ...

    @property
    def payload(self) -> bytes:
        """The caller's own form of the message."""
        ...

    @property
    def payload_type(self) -> str:
        """What `payload` is, for the caller."""
        ...


DecodeMessage = Callable[[bytes], MessageBody]
"""`MessageCodec.decode`."""


@dataclass(slots=True)
class StoredMessage:
    """A message read from the record, its checksum verified. Nobody changes its attributes.

    Equal where everything is equal that it holds.

    Attributes:
        seq: see values.py.
        metadata_json: compact JSON object with sorted keys; "" for none.
        revision: the record's when it was last changed.
        encoded: the whole message as an answer sends it.
        decode: reads `encoded`; it must be of the codec that wrote it.
    """

    seq: int
    resource_id: str
    thread_id: str
    id: str
    role: Role
    create_time_ns: int
    metadata_json: str
    group_id: str
    revision: int
    encoded: bytes = field(repr=False)
    decode: DecodeMessage = field(repr=False, compare=False)
    _body: MessageBody | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def body(self) -> MessageBody:
        """The decoded message.

        Raises:
            CorruptDataError: `encoded` is not what the codec writes.
        """
        body = self._body
        if body is None:
            body = self._body = self.decode(self.encoded)
        return body

    @property
    def author(self) -> str:
        """Name of the writer; "" for none."""
        return self.body.author

    @property
    def text(self) -> str:
        """What is searched."""
        return self.body.text

    @property
    def payload(self) -> bytes:
        """The caller's own form of the message."""
        return self.body.payload

    @property
    def payload_type(self) -> str:
        """What `payload` is, for the caller."""
        return self.body.payload_type
