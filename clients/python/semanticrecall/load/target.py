"""Where a load goes: whether that is this machine, how it is reached, and what is there."""

from __future__ import annotations

import ipaddress
from typing import Any

import grpc

from ..care_results import Stats
from ..client import RecallClient
from ..connection import ClientOptions, Connection, channel_options, credentials
from ..errors import PermissionDeniedError, UnimplementedError
from .result import Target


def is_local(address: str) -> bool:
    """Whether an address is this machine: a Unix socket, or loopback."""
    if address.startswith("unix:"):
        return True
    host = address.rpartition(":")[0].strip("[]")
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def client_of(settings: Connection) -> RecallClient:
    """A client for what is not measured: it waits, retries, and never fails open."""
    options: ClientOptions = {
        "timeout": settings.timeout_seconds,
        "connect_timeout": settings.connect_timeout_seconds,
        "fail_open": False,
    }
    if settings.tls is not None:
        options["tls"] = settings.tls
    for _, value in settings.metadata:
        options["token"] = value.removeprefix("Bearer ")
    return RecallClient(settings.address, **options)


def channel_of(settings: Connection) -> grpc.Channel:
    """A channel for what a client has no method for."""
    options = channel_options(settings)
    if settings.tls is None:
        return grpc.insecure_channel(settings.target, options)
    return grpc.secure_channel(settings.target, credentials(settings.tls), options)


def target_of(settings: Connection, memory: RecallClient) -> Target:
    """What the result says of it.

    Raises:
        SemanticRecallError: nothing answers, or the token is wrong. That it may not ask for the
            counts is none: then `server` stays empty.
    """
    try:
        server = _server(memory.stats())
    except (PermissionDeniedError, UnimplementedError):
        server = {}
    return Target(
        address=settings.address,
        transport="unix" if settings.address.startswith("unix:") else "tcp",
        tls=settings.tls is not None,
        token=bool(settings.metadata),
        server=server,
    )


def _server(found: Stats) -> dict[str, Any]:
    return {
        "version": found.server_version,
        "index_identity": found.index_identity,
        "device": found.device,
        "uptime_seconds": found.uptime_seconds,
        "messages": found.messages,
        "vectors": found.vectors,
        "pending": found.pending,
        "threads": found.threads,
        "resources": found.resources,
        "disk_bytes": found.disk_bytes,
        "resident_bytes": found.resident_bytes,
        "partitions_loaded": found.partitions_loaded,
    }
