"""What a host has beside its image, as ``rc describe DEVICE`` shows it."""

from __future__ import annotations

from tenure.cli.text import ago, clean, table

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

_COUNTED = {"cuda": "CUDA toolkit", "tools": "tool", "packages": "package", "mounts": "mount"}


def of_host(host: str, told: Mapping[str, Any] | None) -> str:
    """The image in a line, then each leftover with the job that made it and when it was seen."""
    if not told:
        return f"image of {host}: unknown (its agent has not looked at it, or does not look)"
    image, lines = told["image"], []
    counts = ", ".join(f"{n} {_COUNTED[k]}{'s' * (n != 1)}" for k, n in image["counts"].items() if k in _COUNTED)
    declared = f", declared as {clean(image['declared'])}" if image.get("declared") else ""
    lines.append(f"image of {host}: as seen {ago(image['at'])} ago{declared}: {counts}")
    if image["jobs_before"]:
        named = ", ".join(image["jobs_before"][:4])
        lines.append(f"  {named} ran before or during that look: what it had changed by then reads as image")
    lines += [f"  not known whether image or leftover: {_where(each)}" for each in told["unsure"][:4]]
    lines += [f"  could not be read last time: {_where(each)}" for each in told["unread"][:4]]
    if told.get("problem"):
        lines.append(f"  {clean(told['problem'])}")
    scratch = told.get("scratch") or {}
    if scratch.get("attempts"):
        first = ", ".join(f"{one['job']} {_size(one['bytes'])}" for one in scratch["largest"][:3])
        kept = f", {_size(scratch['kept_bytes'])} of it kept" if scratch["kept_bytes"] else ""
        lines.append(f"scratch of {scratch['attempts']} attempts: {_size(scratch['bytes'])}{kept} (most: {first})")
    elif scratch.get("unknown"):
        lines.append(f"scratch: unknown ({clean(scratch['unknown'])})")
    if told["count"] == 0:
        lines.append(f"leftovers: none (looked {ago(told['looked_at'])} ago)")
        return "\n".join(lines)
    lines.append(f"leftovers: {told['count']} (looked {ago(told['looked_at'])} ago; all in {clean(told['file'])})")
    rows = [[clean(each["words"]), each["by"]["words"], f"{ago(each['found'])} ago"] for each in told["leftovers"][:20]]
    lines.append(table(["LEFTOVER", "MADE BY", "SEEN"], rows).rstrip("\n"))
    if told["count"] > len(rows):
        lines.append(f"and {told['count'] - len(rows)} more (-o json)")
    return "\n".join(lines)


def _size(size: int) -> str:
    return f"{size / (1 << 30):.1f}G" if size >= 1 << 30 else f"{size >> 20}M" if size >= 1 << 20 else f"{size >> 10}K"


def _where(each: Mapping[str, Any]) -> str:
    under = f" under {each['under']}" if each["under"] else ""
    return clean(f"{each['part']}{under} ({each['why']})")
