"""MANIFEST.json: what a snapshot is, and what its files must be.

Format: one JSON object in ASCII, keys sorted, indented by two blanks, a newline at the end. There
is one way to write it, and a file that is written otherwise is damaged: every byte counts.

  snapshot_format   1. Others are of a later version.
  name              that of the folder.
  create_time       RFC 3339, UTC, with nanoseconds.
  program_version   of the program that made it.
  store_id          of the store that it was made of, 32 hexadecimal digits.
  revision          it holds all changes up to this one, and none after.
  record_format     format of the tables (messages/schema.py).
  last_seq          no message in it has a higher seq.
  messages, vectors rows.
  origins           [store_id, first seq, last seq, shift] of rows that the store had taken from
                    snapshots of others: seqs of this one are those of the other, raised by `shift`.
  index_identity    what made the vectors.
  encrypted         true: its files can be read with the key of that store only.
  files             name -> {"bytes", "sha256"} of recall.db. KEY guards itself, and changes when
                    the user's key does.
  checksum          SHA-256 of the same object without this member, written the same way.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple, cast

from ..types.errors import CorruptDataError, FailedPreconditionError
from ..types.saving import Origin, SavedSnapshot, SavedState

MANIFEST = "MANIFEST.json"
DATABASE = "recall.db"
SNAPSHOT_FORMAT = 1
MANIFEST_BYTES_MAX = 64 << 10
_NANOSECONDS = 1_000_000_000
_TIME = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)\.(\d{9})Z")


class FileEntry(NamedTuple):
    """What a file of a snapshot must be."""

    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """A manifest as values; see the module."""

    name: str
    create_time_ns: int
    program_version: str
    state: SavedState
    index_identity: str
    encrypted: bool
    files: Mapping[str, FileEntry]

    def snapshot(self, forgotten: int) -> SavedSnapshot:
        """As callers are told of it; `forgotten`: see there."""
        return SavedSnapshot(
            name=self.name,
            create_time_ns=self.create_time_ns,
            state=self.state,
            bytes=sum(file.bytes for file in self.files.values()),
            digest=self.files[DATABASE].sha256,
            index_identity=self.index_identity,
            program_version=self.program_version,
            encrypted=self.encrypted,
            forgotten=forgotten,
        )


def encoded(manifest: Manifest) -> bytes:
    """The file."""
    state = manifest.state
    content: dict[str, Any] = {
        "snapshot_format": SNAPSHOT_FORMAT,
        "name": manifest.name,
        "create_time": _time_text(manifest.create_time_ns),
        "program_version": manifest.program_version,
        "store_id": state.store_id,
        "revision": state.revision,
        "record_format": state.record_format,
        "last_seq": state.last_seq,
        "messages": state.messages,
        "vectors": state.vectors,
        "origins": [list(origin) for origin in state.origins],
        "index_identity": manifest.index_identity,
        "encrypted": manifest.encrypted,
        "files": {name: file._asdict() for name, file in manifest.files.items()},
    }
    content["checksum"] = hashlib.sha256(_written(content)).hexdigest()
    return _written(content)


def decoded(content: bytes) -> Manifest:
    """What a file says.

    Raises:
        CorruptDataError: it is not as `encoded` writes one.
        FailedPreconditionError: a later version wrote it.
    """
    try:
        parsed: Any = json.loads(content.decode("ascii"))
        rest = {key: value for key, value in parsed.items() if key != "checksum"}
        is_whole = (
            _written(parsed) == content
            and hashlib.sha256(_written(rest)).hexdigest() == parsed["checksum"]
        )
        if is_whole and parsed["snapshot_format"] > SNAPSHOT_FORMAT:
            raise FailedPreconditionError(
                "a later version made this snapshot; restore it with that one",
                reason="FORMAT_UNKNOWN",
            )
        if is_whole:
            return _read(parsed)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        pass
    raise CorruptDataError("the manifest of the snapshot is damaged")


def _read(parsed: Any) -> Manifest:
    files = cast("dict[str, dict[str, Any]]", parsed["files"])
    state = SavedState(
        store_id=str(parsed["store_id"]),
        revision=int(parsed["revision"]),
        record_format=int(parsed["record_format"]),
        last_seq=int(parsed["last_seq"]),
        messages=int(parsed["messages"]),
        vectors=int(parsed["vectors"]),
        origins=tuple(Origin(*origin) for origin in parsed["origins"]),
    )
    manifest = Manifest(
        name=str(parsed["name"]),
        create_time_ns=_time_ns(parsed["create_time"]),
        program_version=str(parsed["program_version"]),
        state=state,
        index_identity=str(parsed["index_identity"]),
        encrypted=bool(parsed["encrypted"]),
        files={
            name: FileEntry(int(file["bytes"]), str(file["sha256"])) for name, file in files.items()
        },
    )
    if DATABASE not in files or any("/" in name or name.startswith(".") for name in files):
        raise ValueError("files that no snapshot has")
    return manifest


def _written(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, indent=2, sort_keys=True, ensure_ascii=True).encode("ascii") + b"\n"


def _time_text(time_ns: int) -> str:
    seconds, nanos = divmod(time_ns, _NANOSECONDS)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{nanos:09d}Z"


def _time_ns(text: str) -> int:
    found = _TIME.fullmatch(text)
    if found is None:
        raise ValueError("no time")
    seconds = datetime.fromisoformat(found.group(1)).replace(tzinfo=UTC)
    return int(seconds.timestamp()) * _NANOSECONDS + int(found.group(2))
