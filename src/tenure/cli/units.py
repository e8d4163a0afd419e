"""systemd units for ``rc serve`` and ``rc agent``: written for this installation, and what to type next. Nothing here
starts, stops or enables anything."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tenure.cli.text import say
from tenure.errors import TenureError
from tenure.paths import layout, tenure_home

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from tenure.cli.options import Given

SYSTEM_FOLDER = Path("/etc/systemd/system")
_ABOUT = {"serve": "Tenure controller", "agent": "Tenure agent"}
#: Ends that another start would not change: the command line, the settings, the home or the token are at fault.
_NO_RESTART = "64 73 77 78"


def unit(command: str, program: str, home: str, words: Sequence[str], *, system: bool) -> str:
    """The text of a unit. ``program`` is what ``rc`` is here, ``home`` the folder of all state."""
    line = " ".join(_word(word) for word in (program, command, *words))
    jobs = command == "agent"
    lines = [
        "[Unit]",
        f"Description={_ABOUT[command]}",
        "StartLimitIntervalSec=0",
    ]
    if system:
        lines += ["Wants=network-online.target", "After=network-online.target"]
    lines += [
        "",
        "[Service]",
        "Type=exec",
        f"Environment={_word(f'TENURE_HOME={home}')}",
        f"ExecStart={line}",
        "# Jobs belong to supervisors that outlive the agent: a stop or an upgrade touches the main process alone."
        if jobs
        else "# Only the controller itself is stopped.",
        "KillMode=process",
    ]
    if jobs:
        lines += ["# One cgroup a job, below this unit's own.", "Delegate=yes"]
    lines += [
        "Restart=on-failure",
        "RestartSec=2",
        f"RestartPreventExitStatus={_NO_RESTART}",
        "TimeoutStopSec=30",
        "LimitNOFILE=65536",
        "",
        "[Install]",
        f"WantedBy={'multi-user' if system else 'default'}.target",
        "",
    ]
    return "\n".join(lines)


def _word(word: str) -> str:
    """One word of a unit's line: percent and dollar signs doubled, quoted where it has to be."""
    plain = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{plain}"' if plain != word or any(c.isspace() or c in "';" for c in word) or not word else plain


def install(given: Given, command: str, words: Sequence[str]) -> int:
    """Writes the unit; gives exit status 0. One that is there with another content is not replaced."""
    system = given.flag("system") or (os.geteuid() == 0 and not given.flag("user"))
    if system and given.flag("user"):
        raise TenureError("usage", "--user and --system were both given", do="give one of them")
    folder = SYSTEM_FOLDER if system else _user_folder()
    path = folder / f"tenure-{command}.service"
    text = unit(command, _program(), str(tenure_home()), words, system=system)
    _write(path, text, system)
    ctl = "systemctl" if system else "systemctl --user"
    if given.json:
        from json import dumps

        sys.stdout.write(dumps({"path": str(path), "unit": text}) + "\n")
        return 0
    say(f"wrote {path}; nothing was started")
    if command == "agent" and not (layout().joined.exists() or layout().served.exists()):
        say("first: this home has joined no controller yet: rc agent --join FILE, once, by hand")
    say(f"next:  {ctl} daemon-reload && {ctl} enable --now {path.name}")
    say(f"then:  {ctl} status {path.name}; {'journalctl' if system else 'journalctl --user'} -u {path.name} -f")
    if not system:
        say("a user's services end with the last session, and jobs with them where logind kills what is left")
        say("(KillUserProcesses=yes); so that they stay:  loginctl enable-linger")
    return 0


def _user_folder() -> Path:
    given = os.environ.get("XDG_CONFIG_HOME", "")
    return (Path(given) if given.startswith("/") else Path.home() / ".config") / "systemd/user"


def _program() -> str:
    """This very program: beside its interpreter where it was installed so, else as it was called."""
    beside = Path(sys.executable).with_name("rc")
    return str(beside if beside.exists() else Path(sys.argv[0]).absolute())


def _write(path: Path, text: str, system: bool) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and path.read_text() != text:
            raise TenureError(
                "conflict",
                f"{path} is there already, and says something else",
                do=f"move it aside, then try again: mv {path} {path}.aside",
                facts={"path": str(path)},
            )
        path.write_text(text)
    except PermissionError as error:
        raise TenureError(
            "not_permitted",
            f"{error.filename or path} may not be written by this user",
            do="as root: --install-unit --system; for this user alone: --install-unit --user"
            if system
            else "look at its folder",
            facts={"path": str(path)},
        ) from error
