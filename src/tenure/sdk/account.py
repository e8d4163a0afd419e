"""Whether what a job wrote, what is stored of it and what was shown are the same bytes in number; where not, which.

Counted in three places: by the job's supervisor as it read the streams, by what is held of them, and by whoever shows
them. Nothing here claims an agreement that was not checked: without a count to compare with the answer is unknown.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

STREAMS = ("stdout", "stderr")
_WHY = {"disk": "the disk of its host refused them", "quota": "the output quota was used up"}


def produced(job: Mapping[str, Any]) -> dict[str, int] | None:
    """Bytes the job wrote to each stream, by its supervisor's exit record; None where that did not tell."""
    stats = (job.get("outcome") or {}).get("stats") or {}
    counts = [stats.get(f"{stream}_bytes") for stream in STREAMS]
    return {stream: int(count) for stream, count in zip(STREAMS, counts, strict=True) if count is not None} or None


def account(job: Mapping[str, Any], shown: Mapping[str, int], held: int | None) -> dict[str, Any]:
    """The counts of a job that is over, by stream: ``produced`` (None: not known), ``not_stored`` with the cause,
    ``stored`` by its host and ``held`` here in all, and ``shown``, which names the streams that were to be shown whole.

    ``agree`` is True where all that was written was shown, False where not, None where that could not be compared.
    ``words`` has a line for each difference.
    """
    written, stats = produced(job), (job.get("outcome") or {}).get("stats") or {}
    lost = [gap for gap in stats.get("output_gaps") or () if gap.get("stream") in shown]
    told: dict[str, Any] = {"produced": written, "not_stored": lost, "stored": job.get("output_bytes")}
    told |= {"held": held, "shown": dict(shown), "agree": None, "words": []}
    if written is None:
        if shown and job.get("started_at") and job.get("ended_at"):
            told["words"] = [
                f"how much it wrote is not known (no exit record tells); {sum(shown.values())} bytes were shown"
            ]
        return told
    if shown:
        told["agree"] = all(written.get(stream) == count for stream, count in shown.items())
    every = sum(gap["bytes"] for gap in stats.get("output_gaps") or ())
    if job.get("output_bytes") is not None and sum(written.values()) - every != job["output_bytes"]:
        told["agree"], wrote = False if shown else None, sum(written.values())
        told["words"] = [f"its host counted {wrote} bytes written, {every} not stored and {job['output_bytes']} stored"]
    for stream, count in shown.items():
        if written.get(stream) != count:
            told["words"].append(f"{stream}: {_difference(job, stream, written.get(stream, 0), count, lost, held)}")
    return told


def _difference(
    job: Mapping[str, Any], stream: str, written: int, shown: int, lost: list[Mapping[str, Any]], held: int | None
) -> str:
    if shown > written:
        return f"{shown} bytes were shown and only {written} written"
    parts, left = [], written - shown
    for gap in lost:
        if gap["stream"] == stream:
            left -= gap["bytes"]
            parts.append(f"{gap['bytes']} were not stored ({_WHY.get(gap['cause'], gap['cause'])})")
    if left > 0:
        away = held is not None and held < (job.get("output_bytes") or 0)
        parts.append(f"{left} {'have not arrived from its host' if away else 'are missing, and nothing says why'}")
    elif left < 0:
        parts.append(f"{-left} of these were shown all the same")
    return f"{written} bytes were written and {shown} shown: {', '.join(parts)}"
