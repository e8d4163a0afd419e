"""``rc serve``: a controller for several hosts, in the foreground."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NoReturn

from tenure.cli.options import Command, Given, Option, usage_error


def _address(text: str) -> str:
    from tenure.controller.listening import joined, split

    return joined(*split(text))


COMMAND = Command(
    "serve",
    "[--listen HOST:PORT]...",
    "Run a controller that agents on other hosts reach over TLS, in the foreground, until it is told to stop.",
    (
        Option(
            "--listen",
            "HOST:PORT",
            "where to listen (default 127.0.0.1:7420); may be repeated",
            read=_address,
            many=True,
        ),
        Option(
            "--address",
            "HOST:PORT",
            "what agents dial, where that is not what is listened at; may be repeated",
            read=_address,
            many=True,
        ),
        Option(
            "--cert", "FILE", "a certificate of your own (PEM, with its chain); else one is made and pinned", read=Path
        ),
        Option("--key", "FILE", "its key (PEM, without a password)", read=Path),
        Option("--ca", "FILE", "who signed it: agents check against that and not the certificate itself", read=Path),
        Option("--install-unit", "", "write a systemd unit for this, say what to type next, and do no more"),
        Option("--user", "", "with --install-unit: for this user (the default for all but root)"),
        Option("--system", "", "with --install-unit: for this host"),
    ),
    more="Agents join with: rc admin token create --agent HOST --out FILE here, and there: rc agent --join FILE",
)


def main(given: Given) -> int:
    """Exit status 0 when it was told to stop, 73 where a controller of this home runs already, 78 where it cannot be
    as asked."""
    if given.flag("install-unit"):
        from tenure.cli import units

        return units.install(given, "serve", _words(given))
    if given.flag("user") or given.flag("system"):
        raise usage_error(COMMAND, "--user and --system go with --install-unit")
    from tenure.controller.listening import DEFAULT

    words = _words(given) if given.many("listen") else ["--listen", DEFAULT, *_words(given)]
    words += ["--output", "json"] if given.json else []
    return _become(words)


def _become(words: list[str]) -> NoReturn:
    """This very process becomes the controller: whoever started it, at a shell or under systemd, stops that one. With
    ``-P``, so that a folder called tenure where it was typed is not taken for the program."""
    os.execv(sys.executable, [sys.executable, "-P", "-m", "tenure.controller", "--serve", *words])


def _file(given: Given, name: str) -> Path | None:
    found = given.value(name)
    return None if found is None else Path(found).expanduser().absolute()


def _words(given: Given) -> list[str]:
    words = [word for name in ("listen", "address") for each in given.many(name) for word in (f"--{name}", each)]
    files = [(name, _file(given, name)) for name in ("cert", "key", "ca")]
    return words + [word for name, file in files if file is not None for word in (f"--{name}", str(file))]
