"""``rc admin token``: tokens for agents on other hosts: made, listed, revoked."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tenure.cli import session
from tenure.cli.options import Command, Given, Option, usage_error
from tenure.cli.text import ago, clean, duration, say, table
from tenure.errors import TenureError
from tenure.sdk.transport import quote

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

COMMAND = Command(
    "admin token",
    "create --agent HOST --out FILE | list | revoke TOKEN",
    "Make, list and revoke the tokens with which agents on other hosts come in.",
    (
        Option(
            "--agent",
            "HOST",
            "create: the host that it is for, whose devices are then called HOST:gpu0; revoke: all of that host",
        ),
        Option("--out", "FILE", "create: where to write the token file, for this user alone; it must not be there yet"),
        Option(
            "--expires", "TIME", "create: how long it is valid, such as 30d (default: until revoked)", read=duration
        ),
        Option("--address", "HOST:PORT", "create: what that host dials, where it differs from the others", many=True),
    ),
    least=1,
    most=2,
    more="The file holds the only copy of the secret. Take it to the host, and there: rc agent --join FILE",
)


def main(given: Given) -> int:
    """Exit status 0 where it was done, 73 where the file is there already."""
    what, *rest = given.words
    if what == "create" and not rest:
        return _create(given)
    if what == "list" and not rest:
        return _list(given)
    if what == "revoke" and bool(rest) != bool(given.text("agent")):
        return _revoke(given, rest)
    raise usage_error(COMMAND, "it is create, list, or revoke with a token's id or --agent HOST")


def _create(given: Given) -> int:
    host, out = given.text("agent"), given.text("out")
    if not host or not out:
        raise usage_error(COMMAND, "create needs --agent HOST and --out FILE")
    body = {"host": host, "expires_s": given.value("expires"), "addresses": given.many("address")}
    fd = _new_file(out)
    try:
        made = session.transport().call("POST", "/v1/tokens", body)
        _write(fd, made["file"])
    except BaseException:
        Path(out).unlink()  # there is no token in it
        raise
    finally:
        os.close(fd)
    token = made["token"]
    if given.json:
        from json import dumps

        sys.stdout.write(dumps({"token": token, "out": out}) + "\n")
        return 0
    until = f", valid for {ago(token['created_at'], token['expires_at'])}" if token["expires_at"] else ""
    say(f"token {token['id']} for the agent of {clean(token['host'])}{until}, written to {clean(out)}")
    say(f"it dials {clean(', '.join(token['addresses']))}")
    say("take the file there in a way that nobody reads it, and then: rc agent --join FILE")
    return 0


def _new_file(path: str) -> int:
    try:
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except FileExistsError as error:
        raise TenureError(
            "conflict",
            f"{path} is there already, and may hold a token that is in use",
            do="choose another name: --out FILE",
            facts={"path": path},
        ) from error


def _write(fd: int, body: dict[str, Any]) -> None:
    from json import dumps

    data = memoryview(dumps(body, indent=1).encode() + b"\n")
    while data:
        data = data[os.write(fd, data) :]
    os.fsync(fd)


def _list(given: Given) -> int:
    tokens = session.transport().call("GET", "/v1/tokens")["tokens"]
    if given.json:
        from json import dumps

        sys.stdout.write(dumps({"tokens": tokens}) + "\n")
        return 0
    rows = [
        [t["id"], t["host"], t["state"], "yes" if t["connected"] else "no", t["agent"] or "-", *_times(t)]
        for t in tokens
    ]
    say(
        table(["TOKEN", "HOST", "STATE", "CONNECTED", "AGENT", "MADE", "ENDS"], rows)
        if rows
        else "no token was made yet"
    )
    return 0


def _times(token: dict[str, Any]) -> tuple[str, str]:
    made = f"{ago(token['created_at'])} ago by {token['created_by']}"
    if token["revoked_at"] is not None:
        return made, f"revoked {ago(token['revoked_at'])} ago by {token['revoked_by']}"
    if token["expires_at"] is None:
        return made, "when revoked"
    if token["state"] == "expired":
        return made, f"{ago(token['expires_at'])} ago"
    import time

    return made, f"in {ago(time.time(), token['expires_at'])}"


def _revoke(given: Given, named: list[str]) -> int:
    connection = session.transport()
    host = given.text("agent")
    if not named:
        tokens = connection.call("GET", "/v1/tokens")["tokens"]
        named = [token["id"] for token in tokens if token["host"] == host and token["state"] == "valid"]
        if not named:
            raise TenureError("conflict", f"no token of host {host!r} is valid", do="rc admin token list")
    done = [connection.call("POST", f"/v1/tokens/{quote(token)}/revoke", {}) for token in named]
    if given.json:
        from json import dumps

        sys.stdout.write(dumps({"revoked": done}) + "\n")
        return 0
    for each in done:
        cut = "its agent was connected and is cut off; jobs there go on"
        after = cut if each["links_ended"] else "nobody was connected with it"
        say(f"token {clean(each['token']['id'])} of {clean(each['token']['host'])} is revoked: {after}")
    return 0
