"""The record of the tests, and its messages: in the form that the server keeps them in."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from semanticrecall_core import messages
from semanticrecall_core.messages import SqliteMessageStore, StoreOptions
from semanticrecall_core.messages.rows import draft_of
from semanticrecall_core.types.lexical import TextAnalyser
from semanticrecall_core.types.values import MessageDraft, StoredMessage
from semanticrecall_server.message_codec import ProtobufMessages

CODEC = ProtobufMessages()


def open_store(
    directory: Path,
    *,
    generation: str,
    analyser: TextAnalyser | None = None,
    options: StoreOptions | None = None,
) -> SqliteMessageStore:
    """A store of the server's form."""
    return messages.open_store(
        directory, generation=generation, codec=CODEC, analyser=analyser, options=options
    )


def stored(
    draft: MessageDraft,
    create_time_ns: int,
    *,
    seq: int = 1,
    resource: str = "u",
    revision: int = 1,
) -> StoredMessage:
    """What the record gives of a draft that it took."""
    return StoredMessage(
        seq=seq,
        resource_id=resource,
        thread_id=draft.thread_id,
        id=draft.id,
        role=draft.role,
        create_time_ns=create_time_ns,
        metadata_json=draft.metadata_json,
        group_id=draft.group_id,
        revision=revision,
        encoded=CODEC.encode(resource, draft, create_time_ns),
        decode=CODEC.decode,
    )


def changed(message: StoredMessage, **fields: object) -> StoredMessage:
    """The message with other `seq`, `create_time_ns` or fields of its draft."""
    seq = fields.pop("seq", message.seq)
    time_ns = fields.pop("create_time_ns", message.create_time_ns)
    return stored(
        replace(draft_of(message), **fields),
        time_ns,
        seq=seq,
        resource=message.resource_id,
        revision=message.revision,
    )
