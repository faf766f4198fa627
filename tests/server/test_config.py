"""The settings: sources, their order, cross-field limits, secrets, and the docs made of them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from semanticrecall_server.command_line import (
    options,
    parse_flags,
    parser,
    settings_document,
)
from semanticrecall_server.config import Settings, SettingsError
from semanticrecall_server.settings_loading import load_settings, unknown_variables

ROOT = Path(__file__).resolve().parents[2]
TOKEN = "correct-horse-battery-staple"


def test_docs_are_those_of_the_class() -> None:
    assert (ROOT / "docs/settings.md").read_text("utf-8") == settings_document()


def test_every_setting_has_a_topic_and_a_description() -> None:
    assert [o.name for o in options() if not o.help.endswith(".")] == []
    assert len({o.name for o in options()}) == len(Settings.model_fields)
    help_text = parser().format_help()
    for option in options():
        assert f"--{option.name.replace('_', '-')}" in help_text


def test_defaults_serve_loopback_only() -> None:
    settings = load_settings()
    assert settings.listen == ("127.0.0.1:7650",)
    assert settings.health_address() is None
    assert settings.deadline_default_ms == 30_000
    assert settings.index_messages_max == 1_000
    assert settings.text_bytes_max == 262_144
    assert settings.payload_bytes_max == 1_048_576


def test_flag_wins_over_environment_over_file_over_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "recall.toml"
    file.write_text('top_k_max = 3\npage_size_max = 4\nlisten = ["unix:/a", "127.0.0.1:1"]\n')
    monkeypatch.setenv("SEMANTICRECALL_CONFIG", str(file))
    monkeypatch.setenv("SEMANTICRECALL_TOP_K_MAX", "5")
    monkeypatch.setenv("SEMANTICRECALL_FILTER_KEYS", "project, user.name")
    settings = load_settings(**parse_flags(["--top-k-max", "6", "--listen", "unix:/b"]))
    assert settings.top_k_max == 6
    assert settings.page_size_max == 4
    assert settings.listen == ("unix:/b",)
    assert settings.filter_keys == ("project", "user.name")
    assert load_settings().top_k_max == 5
    assert load_settings().listen == ("unix:/a", "127.0.0.1:1")


def test_flags_repeat_and_negate() -> None:
    flags = parse_flags(
        ["--listen", "unix:/a", "--listen", "unix:/b", "--no-accept-loss", "--device", "auto"]
    )
    assert flags == {"listen": ["unix:/a", "unix:/b"], "accept_loss": False, "device": "auto"}


def test_an_empty_variable_sets_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEMANTICRECALL_MODEL_DIR", "")
    assert load_settings().model_dir is None


@pytest.mark.parametrize("value", ["", "  "])
@pytest.mark.parametrize("name", ["SEMANTICRECALL_TOKENS", "SEMANTICRECALL_TOKENS_FILE"])
def test_a_secret_that_did_not_arrive_is_not_no_secret(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An empty variable of a deployment would leave the server open to all."""
    monkeypatch.setenv(name, value)
    with pytest.raises(SettingsError, match=f"{name}: is set but empty"):
        load_settings()


def test_tokens_given_empty_are_refused_wherever_they_come_from(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="--tokens: is given but empty"):
        load_settings(tokens="")
    file = tmp_path / "recall.toml"
    file.write_text('tokens = ""\n')
    with pytest.raises(SettingsError, match="--tokens: is given but empty"):
        load_settings(config=file)


def test_unknown_names_are_not_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "recall.toml"
    file.write_text("top_k_maximum = 3\n")
    with pytest.raises(SettingsError, match="top_k_maximum: there is no such setting"):
        load_settings(config=file)
    with pytest.raises(SystemExit) as unknown_flag:
        parse_flags(["--top-k-maximum", "3"])
    assert unknown_flag.value.code == 2


def test_a_misspelt_variable_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A misspelt TOKENS_FILE would leave the server open to all."""
    monkeypatch.setenv("SEMANTICRECALL_TOKEN_FILES", "/etc/tokens")
    monkeypatch.setenv("SEMANTICRECALL_XYZZY", "1")
    with pytest.raises(SettingsError) as refused:
        load_settings()
    assert str(refused.value).splitlines() == [
        "SEMANTICRECALL_TOKEN_FILES: there is no such setting; did you mean "
        "SEMANTICRECALL_TOKENS_FILE?",
        "SEMANTICRECALL_XYZZY: there is no such setting",
    ]


def test_the_variables_of_the_clients_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    sources = (ROOT / "clients/python/semanticrecall").rglob("*.py")
    words = re.findall(r"SEMANTICRECALL_[A-Z_]*[A-Z]\b", "\n".join(map(_text, sources)))
    assert set(words) >= {"SEMANTICRECALL_ADDRESS", "SEMANTICRECALL_TOKEN_FILE"}
    for name in words:
        monkeypatch.setenv(name, "cpu" if name == "SEMANTICRECALL_DEVICE" else "x")
    assert unknown_variables() == []


def _text(path: Path) -> str:
    return path.read_text("utf-8")


@pytest.mark.parametrize("service", ["SEMANTICRECALL", "SEMANTICRECALL_GRPC"])
def test_what_kubernetes_sets_for_a_service_is_let_be(
    monkeypatch: pytest.MonkeyPatch, service: str
) -> None:
    """https://kubernetes.io/docs/concepts/services-networking/service/#environment-variables"""
    for end in (
        "SERVICE_HOST SERVICE_PORT SERVICE_PORT_GRPC PORT PORT_7650_TCP PORT_7650_TCP_PROTO "
        "PORT_7650_TCP_PORT PORT_7650_TCP_ADDR"
    ).split():
        monkeypatch.setenv(f"{service}_{end}", "tcp://10.0.0.11:7650")
    assert load_settings().listen == ("127.0.0.1:7650",)


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"top_k_max": "abc"}, "--top-k-max: must be an integer, 1 to 10,000"),
        ({"top_k_max": 1.5}, "--top-k-max: must be an integer, 1 to 10,000"),
        ({"text_bytes_max": 0}, "--text-bytes-max: must be an integer, 1 or more"),
        (
            {"retention_age_days_max": "thirty"},
            "--retention-age-days-max: must be a number, 0 to 36,500",
        ),
        ({"tokens": 7}, "--tokens: must be a secret string"),
        ({"device": "tpu"}, "--device: must be one of cpu, cuda, auto"),
        ({"accept_loss": "maybe"}, "--accept-loss: must be true or false"),
        ({"data_dir": 7}, "--data-dir: must be a path"),
        ({"filter_keys": 7}, "--filter-keys: must be a list of strings"),
        ({"listen": ()}, "--listen: at least 1 must be given"),
        ({"filter_keys": ("a",) * 1_025}, "--filter-keys: at most 1,024 may be given"),
        ({"top_k_maxx": 3}, "top_k_maxx: there is no such setting; did you mean top_k_max?"),
    ],
)
def test_a_value_that_is_none_is_said_in_our_words(settings: dict[str, Any], line: str) -> None:
    with pytest.raises(SettingsError) as refused:
        load_settings(**settings)
    assert str(refused.value) == line


def test_the_docs_say_what_is_open() -> None:
    told = {option.name: option.help for option in options()}
    assert "neither TLS nor tokens" in told["health_listen"]
    assert "reflection" in told["tokens_file"]
    assert "no telemetry" in settings_document()


def test_a_missing_or_damaged_file_is_said(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="is not a file"):
        load_settings(config=tmp_path / "none.toml")
    file = tmp_path / "bad.toml"
    file.write_text("top_k_max = \n")
    with pytest.raises(SettingsError, match="--config"):
        load_settings(config=file)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"listen": ("0.0.0.0:7650",)}, "can be reached from other machines"),
        ({"listen": ("192.168.1.4:7650",)}, "can be reached from other machines"),
        ({"listen": ("[::]:7650",)}, "can be reached from other machines"),
        ({"listen": ("host.example:7650",), "tokens": TOKEN}, "can be reached from other"),
        ({"listen": ()}, "--listen"),
        ({"listen": ("7650",)}, "host:port"),
        ({"listen": ("127.0.0.1:",)}, "port"),
        ({"listen": ("127.0.0.1:70000",)}, "port"),
        ({"listen": ("::1:7650",)}, "host:port"),
        ({"listen": ("unix:relative.sock",)}, "absolute"),
        ({"listen": ("unix:/" + "x" * 107,)}, "107"),
        ({"listen": ("unix:/a", "unix:///a")}, "twice"),
        ({"health_listen": "unix:/a"}, "TCP"),
        ({"tls_cert_file": "/a"}, "go together"),
        ({"request_bytes_max": 1_000_000}, "less than one message"),
        ({"request_bytes_max": 6_000_000}, "longest query"),
        ({"answer_bytes_max": 1_000_000}, "less than one of the largest"),
        ({"bytes_in_flight_max": 2_000_000}, "less than one request"),
        ({"calls_in_flight_max": 1_151}, "less than twice"),
        ({"index_threads": 64, "index_in_flight_max": 8}, "some would never work"),
        ({"deadline_default_ms": 20_000, "deadline_max_ms": 10_000}, "--deadline-max-ms"),
        ({"top_k_max": 0}, "--top-k-max"),
        ({"device": "tpu"}, "--device"),
        ({"log_format": "xml"}, "--log-format"),
    ],
)
def test_what_does_not_fit_together_is_refused_with_the_reason(
    settings: dict[str, Any], reason: str
) -> None:
    with pytest.raises(SettingsError) as refused:
        load_settings(**settings)
    assert reason in str(refused.value)


@pytest.mark.parametrize("address", ["127.0.0.1:0", "localhost:1", "[::1]:7", "127.8.9.1:2"])
def test_loopback_needs_neither_tls_nor_tokens(address: str) -> None:
    assert load_settings(listen=(address,)).listen == (address,)


def test_other_machines_are_served_with_tls_and_tokens() -> None:
    settings = load_settings(
        listen=("0.0.0.0:7650",), tls_cert_file="/c", tls_key_file="/k", tokens=TOKEN
    )
    assert settings.has_tls
    assert settings.has_tokens


def test_secrets_are_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEMANTICRECALL_TOKENS", TOKEN)
    settings = load_settings()
    assert settings.tokens.get_secret_value() == TOKEN
    assert TOKEN not in repr(settings)
    assert TOKEN not in str(settings.model_dump())
    with pytest.raises(SettingsError) as refused:
        load_settings(tokens=TOKEN, listen=("0.0.0.0:1",), top_k_max=TOKEN)
    assert TOKEN not in str(refused.value)
