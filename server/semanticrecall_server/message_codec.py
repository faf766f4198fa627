"""How the record keeps a message: as the `semanticrecall.v1.Message` that answers send.

Every field is set as an answer needs it: the ids of thread and resource, the time the record gave,
the metadata as a Struct. So an answer is put together of stored bytes, and nothing is encoded
twice. Map entries are written in the order of their keys: the same message gives the same bytes.
"""

from __future__ import annotations

from google.protobuf.message import DecodeError

from semanticrecall.v1 import types_pb2
from semanticrecall_core.types.errors import CorruptDataError
from semanticrecall_core.types.stored_message import MessageBody
from semanticrecall_core.types.values import MessageDraft

from .convert import NANOS_PER_SECOND
from .metadata_json import fill_struct

_read = types_pb2.Message.FromString


class ProtobufMessages:
    """See `MessageCodec` in types/ports.py."""

    name = "semanticrecall.v1.Message"

    def encode(self, resource_id: str, draft: MessageDraft, create_time_ns: int) -> bytes:
        """The message as an answer sends it."""
        seconds, nanos = divmod(create_time_ns, NANOS_PER_SECOND)
        message = types_pb2.Message(
            id=draft.id,
            thread_id=draft.thread_id,
            resource_id=resource_id,
            author=draft.author,
            text=draft.text,
            payload=draft.payload,
            payload_type=draft.payload_type,
            group_id=draft.group_id,
        )
        message.role = int(draft.role)  # type: ignore[assignment]
        message.create_time.seconds = seconds
        message.create_time.nanos = nanos
        if draft.metadata_json:
            fill_struct(message.metadata, draft.metadata_json)
        return message.SerializeToString(deterministic=True)

    def decode(self, encoded: bytes) -> MessageBody:
        """Author, text and payload.

        Raises:
            CorruptDataError: the bytes are no message.
        """
        try:
            return _read(encoded)
        except DecodeError:
            raise CorruptDataError("a stored message cannot be decoded") from None
