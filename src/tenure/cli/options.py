"""The command line's own parser: one table of options per command gives parsing, help and completion.

Not argparse, because building its parser for ``rc run`` took about as long as the job's whole round trip
(docs/decisions has the figures), and not Typer, which takes ten times as long again.
"""

from __future__ import annotations

from tenure.errors import TenureError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any


class Option:
    """One option. Without a ``metavar`` it is a flag. ``read`` turns its text into a value and raises ``ValueError``
    with the reason; ``many`` collects every value in order; ``choices`` are offered by completion and nothing else is
    accepted."""

    __slots__ = ("choices", "help", "many", "metavar", "names", "read")

    def __init__(
        self,
        names: str,
        metavar: str,
        help: str,
        *,
        read: Callable[[str], Any] = str,
        many: bool = False,
        choices: Sequence[str] = (),
    ) -> None:
        self.names = tuple(names.split())
        self.metavar = metavar
        self.help = help
        self.read = read
        self.many = many
        self.choices = tuple(choices)

    @property
    def key(self) -> str:
        """The name it is asked for by: its last one, without dashes."""
        return self.names[-1].lstrip("-")


COMMON = (
    Option("-o --output", "FORMAT", "table for people, json for programs", choices=("table", "json")),
    Option("--color", "WHEN", "colour states: auto, always or never", choices=("auto", "always", "never")),
    Option("-h --help", "", "show this and do nothing"),
)


class Command:
    """One command: its words in usage, what it does in a line, its options, and how many words it takes.

    With ``rest`` the first word begins the words of another program: nothing after it is an option of ours.
    """

    __slots__ = ("about", "least", "more", "most", "name", "options", "rest", "usage")

    def __init__(
        self,
        name: str,
        usage: str,
        about: str,
        options: Sequence[Option] = (),
        *,
        least: int = 0,
        most: int | None = 0,
        rest: bool = False,
        more: str = "",
    ) -> None:
        self.name = name
        self.usage = usage
        self.about = about
        self.options = (*options, *COMMON)
        self.least = least
        self.most = most
        self.rest = rest
        self.more = more

    def help(self) -> str:
        """The page that ``--help`` shows."""
        rows = [(", ".join(o.names) + (f" {o.metavar}" if o.metavar else ""), o.help) for o in self.options]
        wide = max(len(left) for left, _ in rows)
        lines = [f"usage: rc {self.name} {self.usage}".rstrip(), "", self.about, ""]
        lines += [f"  {left:<{wide}}  {right}" for left, right in rows]
        return "\n".join(lines + (["", self.more] if self.more else [])) + "\n"


class Group(Command):
    """A word that other commands follow (``rc bench judge``): each of them is a file of its own, named after both."""

    __slots__ = ("members",)

    def __init__(self, name: str, about: str, members: dict[str, str]) -> None:
        super().__init__(name, "COMMAND ...", about, least=1)
        self.members = members

    def help(self) -> str:
        """The list of its commands."""
        wide = max(map(len, self.members))
        lines = [f"  {name:<{wide}}  {about}" for name, about in self.members.items()]
        head = f"usage: rc {self.name} COMMAND ...   (rc {self.name} COMMAND --help says more)"
        return "\n".join([head, "", self.about, "", *lines, ""])


class Given:
    """What was given to a command."""

    __slots__ = ("_values", "command", "words")

    def __init__(self, command: Command, values: dict[str, Any], words: list[str]) -> None:
        self.command = command
        self.words = words
        self._values = values

    def flag(self, key: str) -> bool:
        """Whether a flag was given."""
        return bool(self._values.get(key))

    def text(self, key: str, default: str = "") -> str:
        """The text of an option."""
        return str(self._values.get(key, default))

    def value(self, key: str, default: Any = None) -> Any:
        """The value that an option was read to."""
        return self._values.get(key, default)

    def many(self, key: str) -> list[Any]:
        """Every value of an option that may be repeated."""
        return list(self._values.get(key, ()))

    @property
    def json(self) -> bool:
        """Whether the answer is for a program."""
        return self._values.get("output") == "json"


def usage_error(command: Command, message: str) -> TenureError:
    """A malformed command line, with how it should look."""
    return TenureError(
        "usage", f"{command.name}: {message}", do=f"rc {command.name} {command.usage}  (rc {command.name} --help)"
    )


def in_options(error: TenureError, command: Command) -> TenureError:
    """A refusal of the API under the names that are typed here: its field as the option that fills it."""
    field = str(error.facts.get("field") or "")
    if error.code != "invalid_request" or not field:
        return error
    key = field.partition(".")[0].removesuffix("_s").removesuffix("_bytes").replace("_", "-")
    key = {"queue-timeout": "timeout", "label": "as"}.get(key, key)
    option = next((one for one in command.options if one.key == key), None)
    said = error.message.removeprefix(f"{field}: ")
    message = f"{option.names[-1]}: {said}" if option is not None else error.message
    return TenureError(error.code, message, do=f"rc {command.name} --help", facts=error.facts)


def parse(command: Command, arguments: Sequence[str]) -> Given:
    """Reads a command's arguments; raises ``usage`` with what is wrong and how it should look."""
    known = {name: option for option in command.options for name in option.names}
    values: dict[str, Any] = {}
    words: list[str] = []
    left = list(arguments)
    while left:
        word = left.pop(0)
        if word == "--":
            words += left
            break
        if not word.startswith("-") or word == "-":
            words.append(word)
            if command.rest:
                words += left[1:] if left[:1] == ["--"] else left
                break
            continue
        name, glued = _split(word, known)
        option = known.get(name)
        if option is None:
            raise usage_error(command, f"there is no option {name!r}{_guess(name, known)}")
        if not option.metavar:
            if glued is not None and word.startswith("--"):
                raise usage_error(command, f"{name} takes no value")
            if glued:
                left.insert(0, f"-{glued}")  # -qf: flags run together
            values[option.key] = True
            continue
        if glued is None and not left:
            raise usage_error(command, f"{name} needs a value ({option.metavar})")
        _store(command, option, name, glued if glued is not None else left.pop(0), values)
    if not values.get("help"):
        if len(words) < command.least:
            raise usage_error(command, f"{command.usage} is missing")
        if not command.rest and not all(words):
            raise usage_error(command, "an empty word was given (a variable that is not set?)")
        if command.most is not None and len(words) > command.most:
            raise usage_error(command, f"{words[command.most]!r} is one word too many")
    return Given(command, values, words)


def _split(word: str, known: dict[str, Option]) -> tuple[str, str | None]:
    if word.startswith("--"):
        name, equals, value = word.partition("=")
        return name, value if equals else None
    if word in known or len(word) == 2:
        return word, None
    return word[:2], word[2:].removeprefix("=")


def _store(command: Command, option: Option, name: str, text: str, values: dict[str, Any]) -> None:
    if option.choices and text not in option.choices:
        raise usage_error(command, f"{name} is one of {', '.join(option.choices)}, not {text!r}")
    if not text and option.read is str:
        # Left out silently, the device, tree or requirement that somebody asked for would not count.
        raise usage_error(command, f"{name} was given an empty {option.metavar} (a variable that is not set?)")
    try:
        value = option.read(text)
    except ValueError as error:
        raise usage_error(command, f"{name} {text!r}: {error}") from error
    if option.many:
        values.setdefault(option.key, []).append(value)
    else:
        values[option.key] = value


def _guess(name: str, known: dict[str, Option]) -> str:
    from difflib import get_close_matches

    near = get_close_matches(name, known, 1)
    return f"; did you mean {near[0]}?" if near else ""
