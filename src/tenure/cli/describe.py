"""``rc describe``: one device or job in full, or the environment that jobs get."""

from __future__ import annotations

import sys

from tenure.cli import session, streaming
from tenure.cli.options import Command, Given, Option, usage_error
from tenure.cli.text import ago, clean, command_line, paint, say, span, table
from tenure.errors import TenureError
from tenure.sdk.transport import Transport, quote

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

COMMAND = Command(
    "describe",
    "DEVICE|JOB",
    "Show one device or job in full.",
    (Option("--environment", "", "list the variables that jobs get instead"),),
    most=1,
)


def main(given: Given) -> int:
    """Exit status 68 where there is neither a device nor a job of that name."""
    if given.flag("environment"):
        return _environment(given)
    if not given.words:
        raise usage_error(COMMAND, "name a device or a job")
    connection = session.transport()
    kind, told = _find(connection, given.words[0])
    if kind == "device":
        told = {**told, "leftovers": _leftovers(connection, told["agent"])}
    if given.json:
        from json import dumps

        sys.stdout.write(dumps(told) + "\n")
    elif kind == "device":
        _device(told)
    else:
        _job(told)
    return 0


def _find(connection: Transport, name: str) -> tuple[str, dict[str, Any]]:
    try:
        return "device", connection.call("GET", f"/v1/devices/{quote(name)}")
    except TenureError as error:
        if error.code != "unknown_device":
            raise
        no_device = error
    try:
        return "job", connection.call("GET", f"/v1/jobs/{quote(name)}")
    except TenureError as error:
        if error.code != "unknown_job":
            raise
        raise TenureError(
            "unknown_device" if ":" in name else "unknown_job",
            f"there is neither a device nor a job {name!r}",
            do=f"{no_device.do}; jobs are listed by: rc jobs",
            facts={"name": name, **no_device.facts},
        ) from error


def _leftovers(connection: Transport, agent: str) -> dict[str, Any] | None:
    try:
        told: dict[str, Any] | None = connection.call("GET", f"/v1/leftovers/{quote(agent)}")["told"]
    except TenureError as error:
        if error.code != "usage":  # a controller that is older than this command has no such thing to tell
            raise
        return None
    return told


def _lines(pairs: list[tuple[str, object]]) -> None:
    shown = [(name, value) for name, value in pairs if value is not None and value != ""]
    wide = max(len(name) for name, _ in shown)
    for name, value in shown:
        say(paint(f"{name:<{wide}}  {clean(value)}"))


def _device(d: Mapping[str, Any]) -> None:
    quarantine, contended = d["quarantine"], d["contended"]
    _lines(
        [
            ("device", d["name"]),
            ("uuid", d["uuid"]),
            ("kind", "simulated" if d["simulated"] else d["kind"]),
            ("host", d["host"]),
            ("state", f"{d['words']} (since {ago(d['since'])})"),
            ("job", f"{d['job']} of {d['holder']}" if d["job"] else None),
            ("lease", d["lease"]),
            ("token", d["token"]),
            ("quarantine", f"{quarantine['cause']}: {quarantine['detail']}" if quarantine else None),
            ("contended", contended["detail"] if contended else None),
            ("seen there", ", ".join(d["condition"]["by"]) or None),
            *_allowed(d),
        ]
    )
    if d["labels"]:
        rows = [[name, *_label(label)] for name, label in sorted(d["labels"].items())]
        say("\n" + table(["LABEL", "VALUE", "SOURCE", "NOTE"], rows))
    facts = {k: "-" if v is None else v for k, v in d["facts"].items() if k != "bounds"}
    if facts:
        say("\n" + table(["FACT", "VALUE"], sorted([k, v] for k, v in facts.items())))
    from tenure.cli import left_behind

    say("\n" + left_behind.of_host(d["host"], d["leftovers"]))


def _allowed(d: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What holds for a job that leaves a bound out, and the most that a job may ask for."""
    if not d["facts"].get("bounds"):
        return [("max runtime", "none by default"), ("idle timeout", "none by default")]
    from tenure.domain.ceilings import Ceilings

    return list(zip(("max runtime", "idle timeout"), Ceilings.of(d["facts"]).words, strict=True))


def _label(label: object) -> list[object]:
    if not isinstance(label, dict):
        return [label, "", ""]
    value = label.get("value")
    aside = [str(label[key]) for key in ("unknown", "reason", "declared") if label.get(key)]
    aside += ["stale"] if label.get("stale") else []
    return ["unknown" if value is None else value, label.get("source", ""), "; ".join(aside)]


def _job(j: Mapping[str, Any]) -> None:
    spec, outcome = j["spec"], j["outcome"] or {}
    leases = ", ".join(f"{lease['device']} (token {lease['token']}, {lease['state']})" for lease in j["leases"])
    asked = [
        f"device {spec['device']}" if spec.get("device") else "",
        f"select {spec['select']}" * bool(spec["select"]),
    ]
    asked += [f"count {spec['count']}" if spec.get("count", 1) > 1 else ""]
    _lines(
        [
            ("job", j["id"]),
            ("label", j["label"]),
            ("owner", j["owner"]),
            ("state", j["words"]),
            ("command", command_line(j["argv"])),
            (
                "directory",
                j["cwd"] or _begins_in(spec.get("stage")),
            ),
            *_scratch(j),
            ("asked for", ", ".join(filter(None, asked)) or "any device"),
            ("bounds", _bounds(j)),
            ("leases", leases),
            ("simulated", ", ".join(j["simulated"])),
            ("waits", f"place {j['position']}: {j['reason']}" if j["position"] else None),
            ("submitted", f"{ago(j['submitted_at'])} ago"),
            ("started", f"{ago(j['started_at'])} ago, pid {j['pid']}" if j["started_at"] else None),
            ("ended", f"{ago(j['ended_at'])} ago" if j["ended_at"] else None),
            ("exit", j["exit_status"]),
            ("output", _output(j)),
            ("control", (outcome.get("stats") or {}).get("control")),
            ("evidence", j["evidence"]),
            ("use", streaming.use_words(j) if j["devices"] and (outcome or j["use"]) else None),
            ("left", ((j.get("left") or {}).get("words") or "").removeprefix("left: ")),
            ("found there", _found_there(j)),
            *_warnings(j),
            *(("notice", f"{ago(one.get('utc'))} ago: {one.get('words')}") for one in j["notices"]),
            *_took(j),
        ]
    )
    if spec.get("needs"):
        from tenure.cli import needs  # only for a job that asked for something

        say("\n" + needs.page(j))


def _bounds(j: Mapping[str, Any]) -> str:
    """The bounds it asked for; those that held are known of one that is over."""
    spec, held = j["spec"], ((j["outcome"] or {}).get("stats") or {}).get("bounds") or {}
    said = []
    for name, key in (("max runtime", "max_runtime_s"), ("idle timeout", "idle_timeout_s")):
        seconds = held.get(key) if spec.get(key) is None else spec[key]
        if seconds is not None:
            said.append(f"{name} {span(seconds)}" if seconds else f"no {name}")
    if said and spec.get("idle_signal") == "output":
        said.append("idle by its output alone")
    return ", ".join(said)


def _found_there(j: Mapping[str, Any]) -> str | None:
    """What others had left there before it: with its outcome, where it was over too soon to be noticed."""
    if any(notice.get("kind") == "leftovers" for notice in j["notices"]):
        return None
    return (((j["outcome"] or {}).get("stats") or {}).get("leftovers") or {}).get("words")


def _took(j: Mapping[str, Any]) -> list[tuple[str, str]]:
    stats, needs = (j["outcome"] or {}).get("stats") or {}, j["spec"].get("needs") or ()
    if not needs and not stats.keys() & {"host", "ceiling", "peak_memory"}:
        return []
    from tenure.cli import took

    return took.rows(stats) + took.floors(stats, needs)


def _begins_in(stage: Mapping[str, Any] | None) -> str:
    if not stage:
        return "(a scratch folder of its own)"
    return f"{stage['cwd']} in its staged tree" if stage.get("cwd") else "(its staged tree)"


def _scratch(j: Mapping[str, Any]) -> list[tuple[str, object]]:
    kept = ((j["outcome"] or {}).get("stats") or {}).get("scratch")
    rows: list[tuple[str, object]] = []
    if kept:
        rows.append(("scratch", f"{kept} at its end (rc jobs --kept: what is there now)"))
    if j["spec"].get("stage"):
        from tenure.domain.stage import words

        rows.append(("staged", words(j["spec"]["stage"])))
    return rows


def _output(j: Mapping[str, Any]) -> str | None:
    if j["output_bytes"] is None:
        return None
    gaps = ((j["outcome"] or {}).get("stats") or {}).get("output_gaps") or ()
    lost = sum(gap["bytes"] for gap in gaps)
    return (
        f"{j['output_bytes']} bytes"
        + (f", {lost} more were written and not stored" if lost else "")
        + f" (rc logs {j['id']})"
    )


def _warnings(j: Mapping[str, Any]) -> list[tuple[str, str]]:
    if not (j["use"] or {}).get("announcements"):
        return []
    from tenure.cli import warned

    return warned.rows(j)


def _environment(given: Given) -> int:
    from tenure.agent.environment import CALLER_VARIABLES, OWN_VARIABLES

    if given.json:
        from json import dumps

        sys.stdout.write(dumps({"passed_on": list(CALLER_VARIABLES), "set": dict(OWN_VARIABLES)}) + "\n")
        return 0
    say("Passed on from the caller, on the same machine:\n  " + " ".join(CALLER_VARIABLES))
    say("\nSet for every job, whatever it asked for:")
    say(table(["VARIABLE", "WHAT"], [list(row) for row in OWN_VARIABLES.items()]))
    say("Anything else has to be given: rc run --env NAME=VALUE, or --env NAME for your own value.")
    return 0
