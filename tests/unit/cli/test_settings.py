"""Settings: option over environment over file, and errors that name the file and the key."""

from __future__ import annotations

from pathlib import Path

import pytest

from tenure.cli import settings
from tenure.errors import TenureError


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TENURE_HOME", str(tmp_path))
    for key in settings.KEYS:
        monkeypatch.delenv(f"TENURE_{key.upper()}", raising=False)
    return tmp_path / "config.toml"


def test_an_option_wins_over_the_environment_and_that_over_the_file(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert settings.load({}) == {}
    config.write_text('color = "never"\n[window]\ngrace = 1\nsamples = 3\n')
    assert settings.load({}) == {"color": "never", "window": {"grace_s": 1.0, "samples": 3.0}}
    monkeypatch.setenv("TENURE_WINDOW", "span=9")
    assert settings.load({"color": None})["window"] == {"span_s": 9.0}
    assert settings.load({"window": {"period_s": 0.5}}) == {"color": "never", "window": {"period_s": 0.5}}


@pytest.mark.parametrize(
    ("content", "key"),
    [
        (b"color = 'pink'", "color"),
        (b"window = 'length=3'", "window"),
        (b"window = 3", "window"),
        (b"colour = 'never'", "colour"),
        (b"color = ", None),
        (b"color = '\xff'", None),
        (b"a=" + b"[" * 100_000, None),
    ],
)
def test_errors_name_the_file_and_the_key(config: Path, content: bytes, key: str | None) -> None:
    config.write_bytes(content)
    with pytest.raises(TenureError) as raised:
        settings.load({})
    assert raised.value.code == "invalid_configuration"
    assert str(config) in raised.value.message
    assert raised.value.facts["key"] == key
    assert key is None or key in raised.value.message


def test_a_file_that_is_a_folder_is_named(config: Path) -> None:
    config.mkdir()
    with pytest.raises(TenureError, match=r"config\.toml") as raised:
        settings.load({})
    assert raised.value.code == "not_configured"


def test_a_variable_that_cannot_be_used_is_named(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENURE_COLOR", "pink")
    with pytest.raises(TenureError, match="TENURE_COLOR"):
        settings.load({})


@pytest.mark.parametrize("text", ["grace", "grace=", "grace=-1", "grace=nan", "grace=1;span=2", "depth=1"])
def test_windows_that_are_none(text: str) -> None:
    with pytest.raises(ValueError, match=r"is none of|no number"):
        settings.window(text)


@pytest.mark.parametrize("text", ["span=0", "samples=1", "samples=2.5", "period=0.05", "period=61"])
def test_limits_that_no_agent_takes(text: str) -> None:
    with pytest.raises(ValueError, match=text.partition("=")[0]):
        settings.window(text)


def test_a_window_as_typed() -> None:
    typed = "grace=0,span=3,samples=3,period=0.5s"
    assert settings.window(typed) == {"grace_s": 0.0, "span_s": 3.0, "samples": 3.0, "period_s": 0.5}
