"""The settings: one typed class.

A field is a flag (`--top-k-max`), an environment variable (`SEMANTICRECALL_TOP_K_MAX`), a key of
the TOML file named by `--config` (`top_k_max`), and a row of `docs/settings.md`. A flag wins over
the environment, the environment over the file, the file over the default.
"""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

from pydantic import SecretStr, field_validator, model_validator
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from .config_collections import CollectionSettings
from .config_storage import StorageSettings
from .listen import Address, TcpAddress, parse_address
from .setting_kinds import (
    Device,
    Group,
    LogFormat,
    LogLevel,
    Memory,
    Strings,
    expanded,
    setting,
)
from .settings_faults import settings_faults

ENVIRONMENT_PREFIX = "SEMANTICRECALL_"


class SettingsError(ValueError):
    """Raised when the settings cannot be used; each line names a setting and its fault."""


class Settings(StorageSettings, CollectionSettings):
    """Everything that can be set. Sizes are in bytes, durations in milliseconds."""

    model_config = SettingsConfigDict(
        env_prefix=ENVIRONMENT_PREFIX,
        env_ignore_empty=True,
        extra="forbid",
        frozen=True,
        hide_input_in_errors=True,
        validate_default=True,
        protected_namespaces=(),
    )

    listen: Strings = setting(
        Group.LISTEN,
        "Address to serve gRPC on: host:port, [v6]:port or unix:/path. May be given several "
        "times. Anything but loopback and Unix sockets needs TLS and tokens.",
        default=("127.0.0.1:7650",),
        min_length=1,
        max_length=16,
    )
    health_listen: str = setting(
        Group.LISTEN,
        "TCP address of a small HTTP port with /metrics, /healthz and /readyz. It shows counts "
        "and the model's name, never ids or text. It has neither TLS nor tokens: whoever reaches "
        "the address reads it, so keep it on loopback or behind a network policy; anything else "
        "is warned about at start. Off by default.",
        default="",
    )
    tls_cert_file: Path | None = setting(
        Group.SECURITY, "PEM file with the server's certificate chain.", default=None
    )
    tls_key_file: Path | None = setting(
        Group.SECURITY, "PEM file with the certificate's private key.", default=None
    )
    tokens_file: Path | None = setting(
        Group.SECURITY,
        "File with bearer tokens, one a line of at least 16 characters; # begins a comment. "
        "Every call then needs one, reflection (grpcurl) too; only gRPC health stays open. "
        "Read at start.",
        default=None,
    )
    tokens: SecretStr = setting(
        Group.SECURITY,
        "Bearer tokens, separated by commas. Meant for the environment: a flag shows in the "
        "list of processes.",
        default=SecretStr(""),
    )
    model_dir: Path | None = setting(
        Group.MODEL,
        "Folder of an embedding model in the Hugging Face layout. Default: the installed "
        "all-MiniLM-L6-v2.",
        default=None,
    )
    model_cache_dir: Path | None = setting(
        Group.MODEL,
        "Where installed models and the graphs made of them are kept. Default: the user's "
        "cache directory.",
        default=None,
    )
    device: Device = setting(
        Group.MODEL,
        "Where the model runs. cuda without a usable GPU is an error at start; auto says what "
        "it chose.",
        default=Device.CPU,
    )
    recall_threads: int = setting(
        Group.CAPACITY,
        "Threads that answer recalls. 0: as many as the CPU quota allows. Give a GPU more: 32.",
        default=0,
        ge=0,
        le=256,
    )
    index_threads: int = setting(
        Group.CAPACITY,
        "Index calls worked on at once. They mostly wait for the disk and for embeddings.",
        default=32,
        ge=1,
        le=512,
    )
    backlog_threads: int = setting(
        Group.CAPACITY,
        "Threads of low priority that embed messages. 0: as many as keep the model busy.",
        default=0,
        ge=0,
        le=256,
    )
    recalls_in_flight_max: int = setting(
        Group.CAPACITY,
        "Recalls and reads waiting or worked on; one resource may take as many as are still free, "
        "but 8 in any case. More are RESOURCE_EXHAUSTED at once.",
        default=256,
        ge=1,
        le=100_000,
    )
    queue_wait_ms_max: int = setting(
        Group.CAPACITY,
        "Longest time that an accepted recall or read is expected to wait for a thread; what would "
        "wait longer is RESOURCE_EXHAUSTED at once. 0: no bound but its own deadline.",
        default=2_000,
        ge=0,
        le=600_000,
    )
    refusal_hold_ms_max: int = setting(
        Group.CAPACITY,
        "Longest time that the refusal of a call is held back in a flood, where its caller is told "
        "to come back a second later or more: so that callers who do not wait keep nobody else "
        "waiting. At most half of a call's deadline. 0: every refusal is told at once.",
        default=5_000,
        ge=0,
        le=60_000,
    )
    index_in_flight_max: int = setting(
        Group.CAPACITY,
        "Index, Forget and TransferThread calls, and changes of vector collections, waiting or "
        "worked on; one resource may take as many as are still free, but 8 in any case. More are "
        "RESOURCE_EXHAUSTED at once.",
        default=256,
        ge=1,
        le=100_000,
    )
    admin_in_flight_max: int = setting(
        Group.CAPACITY,
        "Embed and GetStats calls waiting or worked on, and Export and Verify calls open. More "
        "are RESOURCE_EXHAUSTED at once.",
        default=64,
        ge=1,
        le=10_000,
    )
    calls_in_flight_max: int = setting(
        Group.CAPACITY,
        "Calls at once, beside open streams, Export and Verify. More are RESOURCE_EXHAUSTED at "
        "once. At least twice --recalls-in-flight-max and --index-in-flight-max, since as many "
        "again may wait for embeddings, and --admin-in-flight-max and "
        "--collection-reads-in-flight-max.",
        default=2_000,
        ge=8,
        le=1_000_000,
    )
    streams_open_max: int = setting(
        Group.CAPACITY,
        "RecallStream and IndexStream calls open at once. More are RESOURCE_EXHAUSTED at once.",
        default=512,
        ge=1,
        le=100_000,
    )
    bytes_in_flight_max: int = setting(
        Group.CAPACITY,
        "Bytes of requests waiting or worked on, for each of the three kinds; and of answers on "
        "streams that wait for their clients to read.",
        default=256 * 1024 * 1024,
        ge=1024 * 1024,
    )
    embed_queue_texts_max: int = setting(
        Group.CAPACITY,
        "Queries and messages, each, that may wait for the model; more are refused at once.",
        default=1_024,
        ge=64,
    )
    embed_queue_tokens_max: int = setting(
        Group.CAPACITY,
        "Tokens of the queries and messages, each, that may wait for the model.",
        default=262_144,
        ge=65_536,
    )
    embed_batch_tokens_max: int = setting(
        Group.CAPACITY,
        "Tokens, padding too, in one run of an fp32 model. 0: 256 on the processor, 8192 on CUDA.",
        default=0,
        ge=0,
        le=1_000_000,
    )
    cache_bytes_max: int = setting(
        Group.CAPACITY,
        "Bytes of cached embeddings in memory. 0: none are cached, on disk neither.",
        default=64 * 1024 * 1024,
        ge=0,
    )
    cache_disk_bytes_max: int = setting(
        Group.CAPACITY,
        "Bytes of cached embeddings on disk, in embeddings.db of the data directory: they outlive "
        "a restart. No text is in it. 0: no file, and one that is there is deleted.",
        default=256 * 1024 * 1024,
        ge=0,
    )
    answer_cache_bytes_max: int = setting(
        Group.CAPACITY,
        "Bytes of answers kept to be given again to the same recall while nothing of its resource "
        "has changed: an agent recalls before each model call of a turn. 0 keeps none.",
        default=16 * 1024 * 1024,
        ge=0,
    )
    partitions_bytes_max: int = setting(
        Group.CAPACITY,
        "Bytes of partitions (vectors of one resource) kept in memory; the least recently used "
        "are read again when they are asked. 0: half of the memory there is, at most 4 GiB, which "
        "is enough for two million messages.",
        default=0,
        ge=0,
    )
    lexical_bytes_max: int = setting(
        Group.CAPACITY,
        "Bytes of the words of partitions kept in memory, for recalls that look for words; the "
        "least recently used are read again when they are asked. 0: an eighth of the memory there "
        "is, at most 1 GiB. With --memory low a quarter of either.",
        default=0,
        ge=0,
    )
    memory: Memory = setting(
        Group.CAPACITY,
        "default: partitions are in memory whole. low: their full vectors stay in the snapshots' "
        "files, mapped, and a quarter of the memory is enough; a recall reads a few of them. "
        "Caches grow to a quarter of their settings then, and queries and messages share the "
        "model.",
        default=Memory.DEFAULT,
    )
    request_bytes_max: int = setting(
        Group.REQUEST,
        "Bytes of one request on the wire. Must hold the largest message and the longest "
        "list of ids.",
        default=8 * 1024 * 1024,
        ge=64 * 1024,
        le=512 * 1024 * 1024,
    )
    answer_bytes_max: int = setting(
        Group.REQUEST,
        "Bytes of one answer on the wire, below the 4 MiB that gRPC clients take. A page is cut "
        "to it, a recall drops neighbours and then its lowest hits, a query of vectors its last "
        "matches.",
        default=3 * 1024 * 1024,
        ge=64 * 1024,
        le=512 * 1024 * 1024,
    )
    text_bytes_max: int = setting(
        Group.REQUEST, "Bytes of one message's or text's UTF-8.", default=262_144, ge=1
    )
    query_bytes_max: int = setting(
        Group.REQUEST, "Bytes of a query's UTF-8.", default=1_048_576, ge=1
    )
    metadata_bytes_max: int = setting(
        Group.REQUEST, "Bytes of one message's or vector's metadata as JSON.", default=65_536, ge=2
    )
    payload_bytes_max: int = setting(
        Group.REQUEST, "Bytes of one message's payload.", default=1_048_576, ge=0
    )
    index_messages_max: int = setting(
        Group.REQUEST, "Messages in one Index request.", default=1_000, ge=1, le=10_000
    )
    top_k_max: int = setting(
        Group.REQUEST, "Largest top_k of a recall.", default=1_000, ge=1, le=10_000
    )
    message_range_max: int = setting(
        Group.REQUEST, "Most neighbours on each side of a hit.", default=50, ge=0, le=1_000
    )
    exclude_ids_max: int = setting(
        Group.REQUEST,
        "Message ids in exclude_message_ids and in Forget.",
        default=10_000,
        ge=1,
        le=100_000,
    )
    page_size_max: int = setting(
        Group.REQUEST, "Entries on one page and ids of GetMessages.", default=1_000, ge=1, le=10_000
    )
    embed_texts_max: int = setting(
        Group.REQUEST, "Texts in one Embed request.", default=256, ge=1, le=4_096
    )
    alternative_queries_max: int = setting(
        Group.REQUEST,
        "Other phrasings of one recall's query. All are embedded, and looked for, together.",
        default=16,
        ge=0,
        le=64,
    )
    filter_keys: Strings = setting(
        Group.REQUEST,
        "The only metadata keys a filter may name. May be given several times. Default: all.",
        default=(),
        max_length=1_024,
    )
    deadline_default_ms: int = setting(
        Group.TIME,
        "Deadline of a call that brings none.",
        default=30_000,
        ge=10,
        le=600_000,
    )
    deadline_max_ms: int = setting(
        Group.TIME,
        "Longest deadline of a call; a later one is cut. Export and Verify may take an hour.",
        default=600_000,
        ge=10,
        le=3_600_000,
    )
    stream_idle_timeout_ms: int = setting(
        Group.TIME,
        "How long a stream stays open while nothing moves on it: the client sends nothing, or "
        "does not read. It then ends with UNAVAILABLE and the reason STREAM_IDLE.",
        default=600_000,
        ge=10,
        le=86_400_000,
    )
    drain_grace_ms: int = setting(
        Group.TIME,
        "How long calls in flight may go on after SIGTERM.",
        default=10_000,
        ge=0,
        le=600_000,
    )
    log_level: LogLevel = setting(
        Group.OPERATION, "Least severity that is logged.", default=LogLevel.INFO
    )
    log_format: LogFormat = setting(
        Group.OPERATION, "json: one object a line. console: for people.", default=LogFormat.JSON
    )
    config: Path | None = setting(
        Group.OPERATION, "TOML file with any of these settings.", default=None
    )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Flags, then the environment, then the TOML file that either of them names."""
        del dotenv_settings, file_secret_settings
        named = init_settings().get("config") or env_settings().get("config")
        if not named:
            return init_settings, env_settings
        path = Path(os.path.expanduser(named))
        if not path.is_file():
            raise SettingsError(f"--config: {path} is not a file")
        try:
            file = TomlConfigSettingsSource(settings_cls, toml_file=path)
        except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
            raise SettingsError(f"--config: {path} cannot be read as TOML: {error}") from None
        return init_settings, env_settings, file

    @field_validator("listen", "filter_keys", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        if isinstance(value, str):
            return tuple(part.strip() for part in value.split(",") if part.strip())
        return value

    @field_validator(
        "tls_cert_file",
        "tls_key_file",
        "tokens_file",
        "data_dir",
        "snapshots_dir",
        "encryption_key_file",
        "encryption_old_key_file",
        "model_dir",
        "next_model_dir",
        "model_cache_dir",
        "config",
    )
    @classmethod
    def _expand_home(cls, value: Path | None) -> Path | None:
        return expanded(value)

    @field_validator("listen")
    @classmethod
    def _readable_addresses(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        addresses = [parse_address(text) for text in value]
        if len(set(addresses)) != len(addresses):
            raise ValueError("an address is given twice")
        return value

    @field_validator("health_listen")
    @classmethod
    def _readable_health_address(cls, value: str) -> str:
        if value and not isinstance(parse_address(value), TcpAddress):
            raise ValueError("must be a TCP address, host:port")
        return value

    @model_validator(mode="after")
    def _agree(self) -> Settings:
        faults = settings_faults(self)
        if faults:
            raise ValueError("\n".join(faults))
        return self

    def addresses(self) -> tuple[Address, ...]:
        """Where to serve gRPC."""
        return tuple(parse_address(text) for text in self.listen)

    def health_address(self) -> TcpAddress | None:
        """Where to serve metrics and probes over HTTP, if anywhere."""
        address = parse_address(self.health_listen) if self.health_listen else None
        return address if isinstance(address, TcpAddress) else None

    @property
    def saved_dir(self) -> Path:
        """Where CreateSnapshot saves the store to."""
        return self.snapshots_dir or self.data_dir / "saved"

    @property
    def is_encrypted(self) -> bool:
        """There is a key for what is kept."""
        given = bool(self.encryption_key.get_secret_value())
        return given or self.encryption_key_file is not None

    @property
    def has_tls(self) -> bool:
        """TCP addresses speak TLS."""
        return self.tls_cert_file is not None

    @property
    def has_tokens(self) -> bool:
        """Calls need a bearer token."""
        return self.tokens_file is not None or bool(self.tokens.get_secret_value())
