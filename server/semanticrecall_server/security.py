"""Bearer tokens and TLS.

A call carries `authorization: Bearer <token>`. Tokens are compared as SHA-256 digests in constant
time, all of them every time. Health is open, since probes carry no token; everything else,
reflection too, needs one where tokens are configured.
"""

from __future__ import annotations

import functools
import hashlib
import hmac
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

import grpc

from semanticrecall_core.types.errors import UnsafeEnvironmentError

from .config import Settings
from .errors import UnauthenticatedError, abort

TOKEN_CHARS_MIN = 16
TOKEN_CHARS_MAX = 4096
TOKENS_MAX = 1_000
TOKENS_FILE_BYTES_MAX = 8 * 1024 * 1024
OPEN_SERVICES = ("/grpc.health.v1.Health/",)
_SCHEME = "bearer "

NO_TOKEN = "a bearer token is needed"
NO_SCHEME = "the authorization header must read `Bearer TOKEN`"
WRONG_TOKEN = "the token is not one of this server's"


class Tokens:
    """The tokens that let a caller in; only their digests are kept."""

    def __init__(self, tokens: Iterable[str]) -> None:
        self._digests = [_digest(token) for token in tokens]

    def fault(self, authorization: str | bytes | None) -> str | None:
        """Why the header lets nobody in, or None where it carries one of the tokens."""
        if not authorization or not isinstance(authorization, str):
            return NO_TOKEN
        if authorization[: len(_SCHEME)].lower() != _SCHEME:
            return NO_SCHEME
        offered = _digest(authorization[len(_SCHEME) :].strip())
        found = False
        for digest in self._digests:
            found |= hmac.compare_digest(digest, offered)
        return None if found else WRONG_TOKEN


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()


def load_tokens(settings: Settings) -> Tokens | None:
    """The tokens of the settings, None where none are configured.

    Raises:
        UnsafeEnvironmentError: the file cannot be read, is empty, or a token is too short.
    """
    if not settings.has_tokens:
        return None
    found = [part.strip() for part in settings.tokens.get_secret_value().split(",")]
    if settings.tokens_file is not None:
        lines = _read(settings.tokens_file, "--tokens-file").decode("utf-8", "replace").splitlines()
        found += [line.strip() for line in lines if not line.lstrip().startswith("#")]
    tokens = [token for token in found if token]
    if not 1 <= len(tokens) <= TOKENS_MAX:
        raise UnsafeEnvironmentError(f"tokens: 1 to {TOKENS_MAX} are needed; found {len(tokens)}")
    for number, token in enumerate(tokens, 1):
        if not TOKEN_CHARS_MIN <= len(token) <= TOKEN_CHARS_MAX or not token.isascii():
            raise UnsafeEnvironmentError(
                f"tokens: number {number} must be {TOKEN_CHARS_MIN} to {TOKEN_CHARS_MAX} "
                "ASCII characters"
            )
    return Tokens(tokens)


def load_credentials(settings: Settings) -> grpc.ServerCredentials | None:
    """TLS credentials of the settings, None where TLS is not configured.

    Raises:
        UnsafeEnvironmentError: a file cannot be read.
    """
    if settings.tls_cert_file is None or settings.tls_key_file is None:
        return None
    chain = _read(settings.tls_cert_file, "--tls-cert-file")
    key = _read(settings.tls_key_file, "--tls-key-file")
    for flag, content in (("--tls-cert-file", chain), ("--tls-key-file", key)):
        if b"-----BEGIN" not in content:
            raise UnsafeEnvironmentError(f"{flag}: holds no PEM")
    return grpc.ssl_server_credentials([(key, chain)])


def _read(path: Path, flag: str) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(TOKENS_FILE_BYTES_MAX + 1)
    except OSError as error:
        raise UnsafeEnvironmentError(f"{flag}: cannot read it: {error.strerror}") from None
    if len(content) > TOKENS_FILE_BYTES_MAX:
        raise UnsafeEnvironmentError(f"{flag}: larger than {TOKENS_FILE_BYTES_MAX} bytes")
    return content


class TokenInterceptor(grpc.aio.ServerInterceptor):
    """Refuses every call without a good token, whatever its method."""

    def __init__(self, tokens: Tokens, refused: Callable[[], None]) -> None:
        self._tokens = tokens
        self._refused = refused
        # A stream-stream handler answers at once, whatever kind of call the client makes.
        self._refusals: dict[str, Any] = {
            why: grpc.stream_stream_rpc_method_handler(functools.partial(self._refuse, why))
            for why in (NO_TOKEN, NO_SCHEME, WRONG_TOKEN)
        }

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Let the call through, or answer UNAUTHENTICATED."""
        if not handler_call_details.method.startswith(OPEN_SERVICES):
            metadata = dict(handler_call_details.invocation_metadata or ())
            fault = self._tokens.fault(metadata.get("authorization"))
            if fault is not None:
                return self._refusals[fault]
        return await continuation(handler_call_details)

    async def _refuse(self, why: str, requests: object, context: Any) -> None:
        del requests
        self._refused()
        await abort(context, UnauthenticatedError(why))
