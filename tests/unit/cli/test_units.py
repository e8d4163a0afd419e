"""The units that ``--install-unit`` writes: what they say, where they go, and that systemd can read them."""

from __future__ import annotations

import configparser
import os
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from tenure.cli import units
from tenure.cli.main import main

DEPLOY = Path(__file__).parents[3] / "deploy/systemd"
EXAMPLES = {
    "tenure-serve.service": ("serve", ["--listen", "0.0.0.0:7420"], True),
    "tenure-agent.service": ("agent", [], True),
    "user/tenure-serve.service": ("serve", ["--listen", "0.0.0.0:7420"], False),
    "user/tenure-agent.service": ("agent", [], False),
}


def example(name: str) -> str:
    command, words, system = EXAMPLES[name]
    home = "/var/lib/tenure" if system else "%h/.local/share/tenure"
    program = "/opt/tenure/.venv/bin/rc"
    text = units.unit(command, program, home, words, system=system)
    return text.replace('"TENURE_HOME=%%h', '"TENURE_HOME=%h')  # an example is for any user: %h is that one's folder


def read(text: str) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None, strict=True, delimiters=("=",), comment_prefixes=("#",))
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(text)
    return parser


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_the_examples_are_what_is_written(name: str) -> None:
    assert (DEPLOY / name).read_text() == example(name)


def test_every_example_is_held() -> None:
    assert {str(path.relative_to(DEPLOY)) for path in DEPLOY.rglob("*") if path.is_file()} == set(EXAMPLES)


@pytest.mark.parametrize("system", [True, False])
def test_jobs_outlive_the_unit_of_their_agent(system: bool) -> None:
    agent = read(units.unit("agent", "/x/rc", "/h", [], system=system))
    assert agent["Service"]["KillMode"] == "process"
    assert agent["Service"]["Delegate"] == "yes"
    assert agent["Service"]["Type"] == "exec"
    assert agent["Install"]["WantedBy"] == ("multi-user.target" if system else "default.target")
    assert ("network-online.target" in agent["Unit"].get("After", "")) is system
    # What the command line, the home or the token is at fault for is not tried again and again.
    assert agent["Service"]["RestartPreventExitStatus"].split() == ["64", "73", "77", "78"]


def test_words_with_blanks_quotes_and_percent_signs_survive() -> None:
    hard = ["--cert", '/a b/100%/"$x\\'].copy()
    line = read(units.unit("serve", "/x y/rc", "/h o/m%e", hard, system=True))["Service"]
    written = shlex.split(line["ExecStart"])
    assert [word.replace("%%", "%").replace("$$", "$") for word in written] == ["/x y/rc", "serve", *hard]
    assert shlex.split(line["Environment"]) == ["TENURE_HOME=/h o/m%%e"]


def test_installing_writes_one_file_and_starts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("TENURE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", str(tmp_path))  # nothing could be run
    words = ["serve", "--install-unit", "--user", "--listen", "10.0.0.5", "--address", "gate:443"]
    assert main(words) == 0
    told = capsys.readouterr().out
    path = tmp_path / "config/systemd/user/tenure-serve.service"
    assert str(path) in told
    assert "systemctl --user daemon-reload && systemctl --user enable --now tenure-serve.service" in told
    assert "loginctl enable-linger" in told
    started = shlex.split(read(path.read_text())["Service"]["ExecStart"])
    assert started[1:] == ["serve", "--listen", "10.0.0.5:7420", "--address", "gate:443"]
    assert Path(started[0]).is_absolute()
    assert not (tmp_path / "home").exists()
    assert main(words) == 0, "the same again is no conflict"
    capsys.readouterr()
    path.write_text("mine\n")
    assert main(words) == 65
    assert "mv " in capsys.readouterr().err
    assert path.read_text() == "mine\n"
    assert main(["agent", "--install-unit", "--user", "--join", "x"]) == 64
    assert main(["agent", "--user"]) == 64
    assert main(["agent", "--install-unit", "--user", "--system"]) == 64


def test_the_system_folder_is_roots(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TENURE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(units, "SYSTEM_FOLDER", tmp_path / "etc")
    assert main(["agent", "--install-unit", "--system"]) == 0
    told = capsys.readouterr().out
    assert "systemctl enable" in told
    assert "has joined no controller yet" in told
    assert "--user" not in told
    assert (tmp_path / "etc/tenure-agent.service").exists()
    monkeypatch.setattr(Path, "mkdir", _refuse)
    monkeypatch.setattr(units, "SYSTEM_FOLDER", tmp_path / "other")
    assert main(["agent", "--install-unit", "--system"]) == 77
    assert "--install-unit --user" in capsys.readouterr().err


def _refuse(self: Path, *_: object, **__: object) -> None:
    raise PermissionError(13, "Permission denied", str(self))


def test_systemd_itself_finds_nothing_wrong_where_it_is_installed(tmp_path: Path) -> None:
    """Without systemd the other tests hold what the units say; with it, that it understands them."""
    tool = shutil.which("systemd-analyze")
    for name in EXAMPLES:
        command, words, system = EXAMPLES[name]
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        program = shutil.which("true") or "/bin/true"
        path.write_text(units.unit(command, program, "/var/lib/x", words, system=system))
        assert read(path.read_text())["Service"]["ExecStart"].startswith(f"{program} {command}")
        if tool is not None:
            scope = [] if system else ["--user"]
            env = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)}
            done = subprocess.run(
                [tool, "verify", "--man=no", *scope, str(path)], capture_output=True, text=True, timeout=60, env=env
            )
            mine = [line for line in (done.stdout + done.stderr).splitlines() if path.name in line]
            assert not mine, done
