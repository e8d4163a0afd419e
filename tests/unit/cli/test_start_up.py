"""What a start of the everyday commands costs in imports, and that the short cuts taken for it agree with the rules."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tenure.agent.environment import from_caller
from tenure.cli.main import COMMANDS
from tenure.paths import layout
from tenure.sdk import caller, lean, locate

HEAVY = {
    "typer",
    "click",
    "rich",
    "httpx",
    "pydantic",
    "pydantic_settings",
    "fastapi",
    "starlette",
    "uvicorn",
    "uvloop",
    "websockets",
    "sqlalchemy",
    "alembic",
    "structlog",
    "psutil",
    "pynvml",
    "platformdirs",
    "asyncio",
    "concurrent",
    "multiprocessing",
    "http",
    "email",
    "ssl",
    "logging",
    "importlib.metadata",
}
#: Not for the commands whose start is part of a job's time: each of these costs as much as half of what is left.
SLOW = HEAVY | {"dataclasses", "inspect", "typing", "argparse", "pathlib", "subprocess", "tomllib", "base64", "secrets"}
#: These come with the ones above or with one another, and cost a third of a bare start each time.
SLOW |= {"json", "socket", "signal", "re", "enum", "functools", "collections", "selectors", "fnmatch"}
EVERYDAY = [
    "ps",
    "jobs",
    "devices",
    "status",
    "logs",
    "attach",
    "kill",
    "wait",
    "describe",
    "explain",
    "version",
    "run",
]


def imported(code: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys; print(*sys.modules, file=sys.stderr)"],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
        env={**os.environ, "TENURE_HOME": "/nonexistent/home"},
    )
    return set(done.stderr.splitlines()[-1].split())


def tops(modules: set[str]) -> set[str]:
    return {module.split(".")[0] for module in modules} | modules


@pytest.mark.parametrize("name", COMMANDS)
def test_no_command_imports_anything_heavy(name: str) -> None:
    found = tops(imported(f"import tenure.cli.main, tenure.cli.{name}, tenure.sdk.transport")) & HEAVY
    assert not found, f"rc {name} imports {sorted(found)}"


@pytest.mark.parametrize(
    ("words", "status"),
    [(["run", "-d", "x", "--env", "A=1", "--help"], 0), (["ps"], 69), (["devices"], 69), (["wait", "j1"], 69)],
)
def test_the_way_to_the_controller_is_light(words: list[str], status: int) -> None:
    modules = imported(f"from tenure.cli.main import main; assert main({words!r}) == {status}")
    found = tops(modules) & SLOW
    assert not found, f"rc {words[0]} imports {sorted(found)}"
    # From here a first run goes on to the embedded controller, which may take its time; nothing else may.
    assert "tenure.sdk.embedded" not in modules


@pytest.mark.parametrize(
    "environ",
    [
        {"TENURE_HOME": "/var/lib/tenure"},
        {"TENURE_HOME": "/var//lib/./tenure/"},
        {"HOME": "/home/ann"},
        {"HOME": "/home/ann/"},
        {"HOME": "/home/ann", "XDG_DATA_HOME": "/data"},
        {"HOME": "/home/ann", "XDG_DATA_HOME": ""},
        {"TENURE_HOME": "", "HOME": "/home/ann"},
    ],
)
def test_the_short_cut_finds_what_the_rules_of_paths_find(
    environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("TENURE_HOME", "HOME", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert Path(locate.home()) == layout().home
    assert Path(locate.control_socket()) == layout().ctl_sock


def test_the_callers_variables_are_those_of_the_list() -> None:
    environ = {
        "PATH": "/bin",
        "LC_ALL": "C",
        "LC_": "x",
        "CONDA_PREFIX": "/c",
        "CONDA": "no",
        "XPATH": "no",
        "SECRET": "s",
        "TZ": "UTC",
        "VIRTUAL_ENV": "/v",
        "TERM": "\udcff",
    }
    assert caller.variables(environ) == {k: v for k, v in from_caller(environ).items() if k != "TERM"}


JSON_TEXTS = ['{"a":[1,2.5,-3e4,null,true,"\\u00e9\\ud83d\\ude00x"]}', " [ ]\n", '"x"', '{"a":{"b":{}}}', "12", "{}"]


@pytest.mark.parametrize("text", JSON_TEXTS)
def test_the_short_cut_reads_and_writes_what_json_does(text: str) -> None:
    value = json.loads(text)
    assert lean.loads(text) == lean.loads(text.encode()) == value
    assert lean.dumps(value) == json.dumps(value, separators=(",", ":"))


@pytest.mark.parametrize("text", ["", "{", "[1,]", '{"a":1}x', "nul", '"\x01"', b"\xff", '{"a" 1}'])
def test_the_short_cut_refuses_what_json_does(text: str | bytes) -> None:
    for loads in (json.loads, lean.loads):
        with pytest.raises(ValueError):  # noqa: PT011 - what it says is not for users
            loads(text)


def test_without_the_private_module_the_public_one_does() -> None:
    code = (
        "import sys\n"
        "sys.modules['_json'] = None\n"
        "from tenure.sdk import lean\n"
        "assert lean.loads(lean.dumps({'a': [1]})) == {'a': [1]}\n"
    )
    assert "json" in imported(code)


def test_reading_the_mask_leaves_it() -> None:
    before = os.umask(0o027)
    try:
        assert caller.umask() == 0o027
        assert caller.umask() == 0o027
    finally:
        os.umask(before)
