"""``tenure`` and ``rc``: finds the command, imports that one alone, and says in two lines what went wrong.

Start-up is a feature: ``rc run -- true`` is to cost little more than ``true``. So nothing here or in the everyday
commands imports what it does not need; a test holds the list.
"""

from __future__ import annotations

import gc
import io
import os
import sys

from tenure.errors import CODES, TenureError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from tenure.cli.options import Group

#: Each command: its module, and what it does in a line. In the order of the list that ``rc`` shows.
COMMANDS = {
    "run": "lease a device, run a command on it, and say what it did with the GPU",
    "ps": "jobs that wait or run",
    "jobs": "the history of jobs",
    "devices": "devices and their states",
    "status": "the controller and how much of what it has",
    "describe": "one device or job in full",
    "explain": "which devices a selector matches, and why the others do not",
    "logs": "a job's output",
    "attach": "follow a running job as if it had been started here",
    "wait": "wait for a job and exit as it did",
    "kill": "end jobs",
    "verify": "the verdict of a job's use of the GPU, with its evidence",
    "grid": "what units and workers do, and what to do about what runs over its plan",
    "bench": "whether measurements may be compared, and what a window can hold",
    "baseline": "what got worse between two test runs",
    "admin": "an operator's acts: drain, resume, quarantine, clear, retire, clean; tokens of other hosts",
    "serve": "run a controller that other hosts reach, in the foreground",
    "agent": "run this host's agent in the foreground; join a controller elsewhere",
    "up": "start the controller and agent of this machine",
    "down": "stop them",
    "completion": "completions for bash, zsh or fish",
    "version": "versions of this program and of the controller",
}


def main(argv: list[str] | None = None) -> int:
    """Runs one command; gives its exit status. As the program itself (no ``argv``) it ends the process with it.

    Then the interpreter is not taken down piece by piece, which takes as long as talking to the controller: there is
    nothing left to flush or to join, and the memory goes with the process.
    """
    if argv is not None:
        return _guarded(argv)
    # A collection walks everything imported so far and finds nothing; there is little to collect in a short life.
    gc.set_threshold(50_000)
    if sys.stdout.encoding.lower() not in ("utf-8", "utf8") and isinstance(sys.stdout, io.TextIOWrapper):
        # A label or a command line that this terminal has no letters for is shown as escapes, as on standard error.
        sys.stdout.reconfigure(errors="backslashreplace")
    code = _guarded(sys.argv[1:])
    os._exit(code & 0xFF)


def _guarded(arguments: list[str]) -> int:
    try:
        return _dispatch(arguments)
    except TenureError as error:
        return _failed(error, arguments)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        return 141  # whoever read our output has gone
    except OSError as error:
        from tenure.os_errors import told

        return _failed(told(error), arguments)
    except Exception as error:
        if os.environ.get("TENURE_DEBUG"):
            raise
        said = f"a defect of this program: {type(error).__name__}: {error}"
        return _failed(TenureError("internal", said, do="TENURE_DEBUG=1 shows where it happened"), arguments)


def _dispatch(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        if len(arguments) > 1 and arguments[1] in COMMANDS:
            return _dispatch([*arguments[1:], "--help"])
        sys.stdout.write(overview())
        sys.stdout.flush()
        return 0 if arguments else CODES["usage"].exit
    name = "version" if arguments[0] in ("--version", "-V") else arguments[0]
    if name not in COMMANDS:
        from difflib import get_close_matches

        near = get_close_matches(name, COMMANDS, 1)
        hint = f"did you mean rc {near[0]}? " if near else ""
        raise TenureError("usage", f"there is no command {name!r}", do=f"{hint}rc --help lists them")
    module = __import__(f"tenure.cli.{name}", fromlist=["main"])
    from tenure.cli import options, text

    rest = arguments[1:]
    if isinstance(module.COMMAND, options.Group):
        group = module.COMMAND
        if not rest or rest[0] not in group.members:
            return _group(group, rest)
        module = __import__(f"tenure.cli.{name}_{rest[0]}", fromlist=["main"])
        rest = rest[1:]
    given = options.parse(module.COMMAND, rest)
    if given.flag("help"):
        sys.stdout.write(module.COMMAND.help())
        sys.stdout.flush()
        return 0
    text.color_when = given.text("color")
    try:
        code = int(module.main(given))
    except TenureError as error:
        raise options.in_options(error, module.COMMAND) from error
    sys.stdout.flush()
    return code


def _group(group: Group, rest: list[str]) -> int:
    if rest and rest[0] not in ("-h", "--help"):
        from difflib import get_close_matches

        near = get_close_matches(rest[0], group.members, 1)
        hint = f"did you mean rc {group.name} {near[0]}? " if near else ""
        raise TenureError(
            "usage", f"there is no command {group.name} {rest[0]!r}", do=f"{hint}rc {group.name} --help lists them"
        )
    sys.stdout.write(group.help())
    return 0 if rest else CODES["usage"].exit


def overview() -> str:
    """The list of commands."""
    wide = max(map(len, COMMANDS))
    lines = [f"  {name:<{wide}}  {about}" for name, about in COMMANDS.items()]
    begin = "Begin with: rc run -- COMMAND   (it starts what it needs; rc up --sim 4xH100 simulates GPUs)"
    return "\n".join(["usage: rc COMMAND ...   (rc COMMAND --help says more)", "", *lines, "", begin, ""])


def _failed(error: TenureError, arguments: list[str]) -> int:
    from tenure.cli.text import clean

    try:
        sys.stdout.flush()
        if wants_json(arguments):
            import json

            sys.stderr.write(json.dumps({"error": {**error.to_dict(), "exit": error.exit_code}}) + "\n")
        else:
            said = [clean(line) for line in error.message.split("\n")]
            said += [f"  {clean(error.do)}"] if error.do else []
            sys.stderr.write("rc: " + "\n".join(said) + "\n")
        sys.stderr.flush()
    except OSError:
        pass  # there is nobody to tell; the exit status still says it
    return error.exit_code


def wants_json(arguments: list[str]) -> bool:
    """Whether ``-o json`` was asked for, also where the command line is otherwise wrong."""
    ours = arguments[: arguments.index("--")] if "--" in arguments else arguments
    after = [ours[at + 1] for at, word in enumerate(ours[:-1]) if word in ("-o", "--output")]
    return "json" in after or "-ojson" in ours or "--output=json" in ours


if __name__ == "__main__":
    sys.exit(main())
