"""``rc completion``: a static script for a shell, made from the same tables as the parser and the help."""

from __future__ import annotations

import sys

from tenure.cli.options import Command, Given, Group, usage_error

SHELLS = ("bash", "zsh", "fish")
COMMAND = Command(
    "completion",
    "bash|zsh|fish",
    "Print completions for a shell.",
    least=1,
    most=1,
    more='bash: eval "$(rc completion bash)"   zsh: eval "$(rc completion zsh)"   fish: rc completion fish | source',
)


def main(given: Given) -> int:
    """Exit status 0 for a shell that is known."""
    shell = given.words[0]
    if shell not in SHELLS:
        raise usage_error(COMMAND, f"there is nothing for {shell!r}")
    sys.stdout.write({"bash": _bash, "zsh": _zsh, "fish": _fish}[shell](_commands()))
    return 0


def _commands() -> dict[str, Command]:
    from importlib import import_module

    from tenure.cli.main import COMMANDS

    return {name: import_module(f"tenure.cli.{name}").COMMAND for name in COMMANDS}


def _members(command: Command) -> dict[str, Command]:
    """The commands that follow a group's word."""
    from importlib import import_module

    names = command.members if isinstance(command, Group) else {}
    return {name: import_module(f"tenure.cli.{command.name}_{name}").COMMAND for name in names}


def _bash(commands: dict[str, Command]) -> str:
    cases = "".join(_bash_case(name, command) for name, command in commands.items())
    groups = "|".join(name for name, command in commands.items() if isinstance(command, Group))
    return f"""_tenure() {{
    local word="${{COMP_WORDS[COMP_CWORD]}}" words="" key=""
    if [ "$COMP_CWORD" -eq 1 ]; then
        COMPREPLY=($(compgen -W "{" ".join(commands)}" -- "$word"))
        return
    fi
    case "${{COMP_WORDS[1]}}" in
        {groups}) key="${{COMP_WORDS[1]}} ${{COMP_WORDS[2]}}" ;;
        *) key="${{COMP_WORDS[1]}}" ;;
    esac
    case "$key" in
{cases}    esac
    case "$COMP_CWORD ${{COMP_WORDS[1]}}" in
{_bash_members(commands)}    esac
    case "$word" in
        -*) COMPREPLY=($(compgen -W "$words" -- "$word")) ;;
        *) COMPREPLY=($(compgen -f -- "$word")) ;;
    esac
}}
complete -F _tenure rc tenure
"""


def _bash_case(name: str, command: Command) -> str:
    found = {f"{name} {sub}": member for sub, member in _members(command).items()} or {name: command}
    return "".join(
        f'        "{key}") words="{" ".join(n for option in one.options for n in option.names)}" ;;\n'
        for key, one in found.items()
    )


def _bash_members(commands: dict[str, Command]) -> str:
    return "".join(
        f'        "2 {name}") COMPREPLY=($(compgen -W "{" ".join(command.members)}" -- "$word")); return ;;\n'
        for name, command in commands.items()
        if isinstance(command, Group)
    )


def _zsh(commands: dict[str, Command]) -> str:
    return "autoload -U +X bashcompinit && bashcompinit\n" + _bash(commands)


def _fish(commands: dict[str, Command]) -> str:
    from tenure.cli.main import COMMANDS

    lines = []
    for program in ("rc", "tenure"):
        for name, command in commands.items():
            about = COMMANDS[name].replace("'", "\\'")
            lines.append(f"complete -c {program} -n __fish_use_subcommand -f -a {name} -d '{about}'")
            seen = f"'__fish_seen_subcommand_from {name}'"
            options = {option.names: option for option in command.options}
            for sub, member in _members(command).items():
                said = (command.members[sub] if isinstance(command, Group) else "").replace("'", "\\'")
                lines.append(f"complete -c {program} -n {seen} -f -a {sub} -d '{said}'")
                options |= {option.names: option for option in member.options}
            for option in options.values():
                flags = " ".join(f"-l {n[2:]}" if n.startswith("--") else f"-s {n[1:]}" for n in option.names)
                about = option.help.replace("'", "\\'")
                takes = f" -r -a '{' '.join(option.choices)}'" if option.choices else " -r" if option.metavar else ""
                lines.append(f"complete -c {program} -n {seen} {flags}{takes} -d '{about}'")
    return "\n".join(lines) + "\n"
