"""Read tokens: what Index hands out so that a later Recall can be sure to see it.

A token is `1.<store id>.<resource digest>.<revision>`. It names the store and, by a digest, the
resource it belongs to, so that a token of somewhere else is refused instead of waited for.
"""

from __future__ import annotations

import hashlib

from semanticrecall_core.types.errors import FailedPreconditionError, InvalidArgumentError

_VERSION = "1"
_REVISION_DIGITS_MAX = 19


def _resource_digest(resource_id: str) -> str:
    return hashlib.blake2b(resource_id.encode(), digest_size=8).hexdigest()


def make_read_token(store_id: str, resource_id: str, revision: int) -> str:
    """The token for everything up to `revision`."""
    return f"{_VERSION}.{store_id}.{_resource_digest(resource_id)}.{revision}"


def read_revision(token: str, store_id: str, resource_id: str) -> int:
    """The revision a token stands for.

    Raises:
        InvalidArgumentError: it is no token, or another resource's.
        FailedPreconditionError: it is another store's.
    """
    parts = token.split(".")
    if (
        len(parts) != 4
        or parts[0] != _VERSION
        or not (parts[3].isascii() and parts[3].isdigit())
        or len(parts[3]) > _REVISION_DIGITS_MAX
    ):
        raise InvalidArgumentError.of(
            "read_token", "is not a read token; send back what an Index answer gave"
        )
    if parts[1] != store_id:
        raise FailedPreconditionError(
            "read_token: it was given by another store; index again or leave it out",
            reason="READ_TOKEN_FOREIGN",
        )
    if parts[2] != _resource_digest(resource_id):
        raise InvalidArgumentError.of("read_token", "was given for another resource_id")
    return int(parts[3])
