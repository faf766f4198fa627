"""The settings of what is kept: where, for how long, encrypted or not."""

from __future__ import annotations

from pathlib import Path

from pydantic import SecretStr
from pydantic_settings import BaseSettings

from .setting_kinds import Device, Group, setting

DAY_MS = 86_400_000


class StorageSettings(BaseSettings):
    """Part of `Settings`; see there."""

    data_dir: Path = setting(
        Group.STORAGE,
        "Directory of the record. Made if it is missing. One server at a time.",
        default=Path("~/.local/share/semanticrecall"),
    )
    allow_network_filesystem: bool = setting(
        Group.STORAGE,
        "Start although the directory is on a network or shared file system, where the "
        "database can be damaged without an error.",
        default=False,
    )
    snapshots_dir: Path | None = setting(
        Group.STORAGE,
        "Folder that CreateSnapshot saves the store to. Put it on another disk. Default: `saved` "
        "in the data directory.",
        default=None,
    )
    snapshot_interval_ms: int = setting(
        Group.STORAGE,
        "How often partitions of which much has changed are written to images, from which a "
        "start reads them quicker. 0: never; those that are there are still used.",
        default=60_000,
        ge=0,
        le=DAY_MS,
    )
    accept_loss: bool = setting(
        Group.STORAGE,
        "Start although the record is shorter than what was acknowledged, e.g. after an older "
        "copy was put back; or although a page that every start reads is damaged: what is sound "
        "is then written into a new database.",
        default=False,
    )
    purge_interval_ms: int = setting(
        Group.STORAGE,
        "At the latest so long after a Forget its bytes leave all files, logs and free pages "
        "included, and the snapshots in --snapshots-dir are rewritten without them. 0: only when "
        "a call asks for it.",
        default=DAY_MS,
        ge=0,
        le=30 * DAY_MS,
    )
    retention_age_days_max: float = setting(
        Group.STORAGE,
        "Messages whose create_time is longer ago are forgotten. 0: none are.",
        default=0.0,
        ge=0,
        le=36_500,
        allow_inf_nan=False,
    )
    retention_messages_max: int = setting(
        Group.STORAGE,
        "Messages that a resource keeps; beyond that the oldest are forgotten. 0: any number.",
        default=0,
        ge=0,
        le=100_000_000,
    )
    retention_interval_ms: int = setting(
        Group.STORAGE,
        "How often messages are looked for that the two settings above no longer allow.",
        default=60_000,
        ge=1_000,
        le=DAY_MS,
    )
    encryption_key_file: Path | None = setting(
        Group.SECURITY,
        "File with the key that encrypts all that is kept: 64 hexadecimal digits, as "
        "`semanticrecall key new` prints. A directory that was begun without a key is not opened "
        "with one, nor the other way round.",
        default=None,
    )
    encryption_key: SecretStr = setting(
        Group.SECURITY,
        "The key itself. Meant for the environment: a flag shows in the list of processes.",
        default=SecretStr(""),
    )
    encryption_old_key_file: Path | None = setting(
        Group.SECURITY,
        "File with the key so far. Given beside another --encryption-key-file the directory is "
        "opened with either, and from then on with the new key only.",
        default=None,
    )
    next_model_dir: Path | None = setting(
        Group.MODEL,
        "Folder of the model that Reembed makes all vectors anew with, while that of --model-dir "
        "serves. Once all are made it serves, and --model-dir should name it.",
        default=None,
    )
    next_device: Device = setting(Group.MODEL, "Where the next model runs.", default=Device.CPU)
