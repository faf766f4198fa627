"""Encryption at rest: the data key of a directory, and how it is wrapped under the user's key."""

from .data_key import KEY_FILE, DataKey, Purpose, UserKeys, unlocked, user_key

__all__ = ["KEY_FILE", "DataKey", "Purpose", "UserKeys", "unlocked", "user_key"]
