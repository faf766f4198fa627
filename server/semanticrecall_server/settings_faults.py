"""Faults of settings in words: values that are none, and settings that do not fit together."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from .listen import TcpAddress, parse_address
from .option import Option, flag_of
from .setting_kinds import Memory

if TYPE_CHECKING:
    from pydantic import ValidationError
    from pydantic.fields import FieldInfo

    from .config import Settings

MESSAGE_OVERHEAD_BYTES = 8 * 1024
"""Room for ids, names, times and framing beside a message's text, metadata and payload."""

ID_BYTES_MAX = 512
FLOAT_BYTES = 4


def settings_faults(settings: Settings) -> list[str]:
    """All faults, one line each."""
    return [
        *_security_faults(settings),
        *_encryption_faults(settings),
        *_size_faults(settings),
        *_capacity_faults(settings),
    ]


def described(error: ValidationError, fields: Mapping[str, FieldInfo]) -> str:
    """What pydantic found, one line a fault: the flag and what its value must be.

    Args:
        fields: of the settings class.
    """
    return "\n".join(
        _described(dict(fault), fields)
        for fault in error.errors(include_url=False, include_input=False)
    )


def _described(fault: Mapping[str, Any], fields: Mapping[str, FieldInfo]) -> str:
    if not fault["loc"]:
        return str(fault["msg"]).removeprefix("Value error, ")
    name = str(fault["loc"][0])
    field = fields.get(name)
    if field is None:
        return f"{name}: {no_such(name, fields)}"
    if fault["type"] == "value_error":
        return f"{flag_of(name)}: {fault['msg'].removeprefix('Value error, ')}"
    limits = fault.get("ctx", {})
    if fault["type"] == "too_short":
        return f"{flag_of(name)}: at least {limits['min_length']} must be given"
    if fault["type"] == "too_long":
        return f"{flag_of(name)}: at most {limits['max_length']:,} may be given"
    return f"{flag_of(name)}: must be {Option(name, field).demand}"


def no_such(name: str, known: Iterable[str], prefix: str = "") -> str:
    """Why a name is refused, with the one that was probably meant.

    Args:
        prefix: what all names begin with, which says nothing about their likeness.
    """
    near = difflib.get_close_matches(
        name.removeprefix(prefix), [other.removeprefix(prefix) for other in known], n=1
    )
    hint = f"; did you mean {prefix}{near[0]}?" if near else ""
    return f"there is no such setting{hint}"


def _security_faults(settings: Settings) -> list[str]:
    faults = []
    if (settings.tls_cert_file is None) != (settings.tls_key_file is None):
        faults.append("--tls-cert-file and --tls-key-file go together")
    if "tokens" in settings.model_fields_set and not settings.tokens.get_secret_value().strip():
        faults.append(
            "--tokens: is given but empty; without tokens everybody may call. Give tokens, or "
            "leave it out"
        )
    for text in settings.listen:
        address = parse_address(text)
        outside = isinstance(address, TcpAddress) and not address.is_loopback
        if outside and not (settings.has_tls and settings.has_tokens):
            faults.append(
                f"--listen {text} can be reached from other machines: that needs "
                "--tls-cert-file, --tls-key-file and --tokens-file; "
                "or listen on 127.0.0.1 or unix:/path"
            )
    return faults


def _encryption_faults(settings: Settings) -> list[str]:
    faults = []
    given = bool(settings.encryption_key.get_secret_value())
    if given and settings.encryption_key_file is not None:
        faults.append("--encryption-key and --encryption-key-file: give one of them")
    if settings.encryption_old_key_file is not None and not settings.is_encrypted:
        faults.append("--encryption-old-key-file needs the new key, --encryption-key-file")
    if "encryption_key" in settings.model_fields_set and not given:
        faults.append(
            "--encryption-key: is given but empty; without a key nothing is encrypted. Give one, "
            "or leave it out"
        )
    if settings.is_encrypted and settings.memory is Memory.LOW:
        faults.append(
            "--memory low maps plain files, which an encrypted directory does not have; leave out "
            "the key, or --memory low"
        )
    return faults


def _size_faults(settings: Settings) -> list[str]:
    message = (
        settings.text_bytes_max
        + settings.metadata_bytes_max
        + settings.payload_bytes_max
        + MESSAGE_OVERHEAD_BYTES
    )
    recall = (
        settings.query_bytes_max
        + settings.exclude_ids_max * (ID_BYTES_MAX + 3)
        + settings.metadata_bytes_max
        + MESSAGE_OVERHEAD_BYTES
    )
    faults = []
    if settings.request_bytes_max < message:
        faults.append(
            f"--request-bytes-max {settings.request_bytes_max} is less than one message of "
            f"the largest text, metadata and payload ({message})"
        )
    if settings.request_bytes_max < recall:
        faults.append(
            f"--request-bytes-max {settings.request_bytes_max} is less than a recall with the "
            f"longest query and {settings.exclude_ids_max} excluded ids ({recall})"
        )
    if settings.answer_bytes_max < message:
        faults.append(
            f"--answer-bytes-max {settings.answer_bytes_max} is less than one of the largest "
            f"messages ({message})"
        )
    vector = (
        settings.collection_dimensions_max * FLOAT_BYTES
        + settings.metadata_bytes_max
        + MESSAGE_OVERHEAD_BYTES
    )
    if min(settings.request_bytes_max, settings.answer_bytes_max) < vector:
        faults.append(
            f"--request-bytes-max {settings.request_bytes_max} or --answer-bytes-max "
            f"{settings.answer_bytes_max} is less than one of the largest vectors with its "
            f"metadata ({vector})"
        )
    if settings.bytes_in_flight_max < settings.request_bytes_max:
        faults.append(
            f"--bytes-in-flight-max {settings.bytes_in_flight_max} is less than one request "
            f"({settings.request_bytes_max})"
        )
    return faults


def _capacity_faults(settings: Settings) -> list[str]:
    faults = []
    lanes = (
        2 * settings.recalls_in_flight_max
        + 2 * settings.index_in_flight_max
        + settings.admin_in_flight_max
        + settings.collection_reads_in_flight_max
    )
    if settings.calls_in_flight_max < lanes:
        faults.append(
            f"--calls-in-flight-max {settings.calls_in_flight_max} is less than twice "
            "--recalls-in-flight-max and --index-in-flight-max, and --admin-in-flight-max and "
            f"--collection-reads-in-flight-max ({lanes}), so callers would not be told when to "
            "come back"
        )
    if settings.index_threads > settings.index_in_flight_max:
        faults.append(
            f"--index-threads {settings.index_threads} is more than --index-in-flight-max "
            f"{settings.index_in_flight_max}: some would never work"
        )
    if settings.memory is Memory.LOW and not settings.snapshot_interval_ms:
        faults.append(
            "--memory low needs snapshots, which --snapshot-interval-ms 0 turns off: full vectors "
            "would stay in memory"
        )
    if settings.backlog_threads > settings.embed_queue_texts_max:
        faults.append(
            f"--backlog-threads {settings.backlog_threads} is more than --embed-queue-texts-max "
            f"{settings.embed_queue_texts_max}: some would be refused"
        )
    if settings.deadline_default_ms > settings.deadline_max_ms:
        faults.append(
            f"--deadline-default-ms {settings.deadline_default_ms} is more than "
            f"--deadline-max-ms {settings.deadline_max_ms}"
        )
    return faults
