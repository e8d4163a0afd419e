"""A job's requirements at the command line: read, explained, and shown as they were found.

Loaded only where a job has some.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tenure.cli.options import Given
from tenure.cli.text import clean, note, table
from tenure.domain.requirement import RequirementError, canonical
from tenure.errors import TenureError

#: What ``result`` is called where people read it.
WORDS = {"present": "present", "absent": "absent", "could_not_look": "could not look"}


def asked(given: Given) -> list[str]:
    """The canonical texts of what ``--need``, ``--need-disk`` and ``--need-mem`` ask for."""
    texts = [str(text) for text in given.many("need")]
    for option, kind in (("need-disk", "disk"), ("need-mem", "memory")):
        if given.text(option):
            texts.append(f"{kind}>={given.text(option)}")
    try:
        return list(canonical(texts))
    except RequirementError as error:
        raise TenureError(
            "invalid_request", str(error), do=f"for example: --need '{error.example}'", facts={"needs": texts[:20]}
        ) from error


def explained(needs: Sequence[str]) -> str:
    """What ``--explain`` says of them: nobody has looked yet."""
    return (
        "requirements, looked at on the host of the lease before the command starts (not looked at now): "
        + ", ".join(needs)
    )


def found(job: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """What was found of each requirement, where that is on record."""
    stats = (job.get("outcome") or {}).get("stats") or {}
    return [row for row in stats.get("requirements") or () if isinstance(row, Mapping)]


def tell(job: Mapping[str, Any]) -> None:
    """A line for each requirement that was not met, and one for all that were."""
    rows = found(job)
    for row in rows:
        if row.get("result") != "present":
            aside = f" ({row['reason']})" if row.get("reason") else ""
            note(f"{row.get('text')}: {_word(row)}{aside}: {row.get('words')}")
    met = [_met(row) for row in rows if row.get("result") == "present"]
    if met:
        note(f"present: {', '.join(met[:20])}{f' and {len(met) - 20} more' if len(met) > 20 else ''}")


def _word(row: Mapping[str, Any]) -> str:
    result = str(row.get("result"))
    return WORDS.get(result, result)


def _met(row: Mapping[str, Any]) -> str:
    where = " ".join(filter(None, (str(row.get("path", "")), str(row.get("version", "")))))
    return f"{row.get('text')}{f' ({where})' if where else ''}"


def page(job: Mapping[str, Any]) -> str:
    """The table of ``rc describe``; what nobody has looked at yet says so."""
    rows = found(job)
    if not rows:
        why = "nobody has looked" if (job.get("outcome") or {}).get("ending") else "not told before the job's end"
        rows = [{"text": text, "result": "-", "words": why} for text in (job.get("spec") or {}).get("needs") or ()]
    shown = [[row.get("text", ""), _word(row), _line(row)] for row in rows]
    return table(["REQUIREMENT", "RESULT", "FOUND"], shown)


def _line(row: Mapping[str, Any]) -> str:
    return clean(f"{row['reason']}: {row.get('words')}" if row.get("reason") else str(row.get("words", "")))
