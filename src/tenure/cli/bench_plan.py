"""``rc bench plan``: how many work items a window can hold before its chance of being clean is too small."""

from __future__ import annotations

import sys

from tenure.cli.options import Command, Given, Option, usage_error
from tenure.cli.text import number, say, table, whole
from tenure.domain.clocks import chance_bound, chance_clean, items_for

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MOST_ITEMS = 1_000_000


def _chance(text: str) -> float:
    found = number(text)
    if not 0 <= found <= 1:
        raise ValueError("a chance from 0 to 1 is needed")
    return found


def _some_chance(text: str) -> float:
    found = _chance(text)
    if found == 0:
        raise ValueError("a chance over 0 is needed")
    return found


COMMAND = Command(
    "bench plan",
    "--p-event P | --events K --of N  [--at-least Q]",
    "Say how many work items a window can hold and still be clean with a chance of at least Q.",
    (
        Option("--p-event", "P", "the chance that a work item meets an event (a throttle, a neighbour)", read=_chance),
        Option("--events", "K", "instead: events that a pilot met", read=whole),
        Option("--of", "N", "work items of that pilot", read=whole),
        Option("--at-least", "Q", "the chance of a clean window that is asked for (0.5)", read=_some_chance),
    ),
    more="Events are taken to be independent, which is an assumption. Exit status: 0; 1 where not even one item fits.",
)


def main(given: Given) -> int:
    """Exit status 0, or 1 where not even one item can be held."""
    least = given.value("at-least", 0.5)
    chance, bound = _chances(given)
    items = items_for(chance, least)
    pilot = None if bound is None else items_for(bound, least)
    if given.json:
        from json import dumps

        said: dict[str, Any] = {
            "p_event": chance,
            "at_least": least,
            "items": items,
            "chance_clean": None if items is None else chance_clean(chance, items),
            "p_event_upper_95": bound,
            "items_at_upper_95": pilot,
            "assumed": ["events are independent"],
        }
        sys.stdout.write(dumps(said) + "\n")
    else:
        rows = [["as given" if bound is None else "as seen", *_row(chance, items)]]
        rows += [] if bound is None else [["at most (95 %)", *_row(bound, pilot)]]
        say(table(["CHANCE OF AN EVENT", "AN ITEM", "ITEMS", "CHANCE CLEAN"], rows))
        told = _items(items) if bound is None else f"{_items(pilot)} (by what the pilot leaves open, at 95 %)"
        say(f"a window can hold {told} and be clean with a chance of at least {least:g}")
        say("assumed: events are independent")
    return 1 if (items if bound is None else pilot) == 0 else 0


def _items(items: int | None) -> str:
    return "any number of work items" if items is None else f"{items} work item{'' if items == 1 else 's'}"


def _row(chance: float, items: int | None) -> list[object]:
    clean = "1" if items is None else f"{chance_clean(chance, items):.4g}"
    return [f"{chance:.4g}", "any" if items is None else items, clean]


def _chances(given: Given) -> tuple[float, float | None]:
    chance, events, of = given.value("p-event"), given.value("events"), given.value("of")
    if (chance is None) == (events is None):
        raise usage_error(COMMAND, "give either --p-event, or --events with --of")
    if chance is not None:
        if of is not None:
            raise usage_error(COMMAND, "--of goes with --events")
        return chance, None
    if of is None or not 0 <= events <= of or not 1 <= of <= MOST_ITEMS:
        raise usage_error(COMMAND, f"--events K --of N needs 0 <= K <= N and N from 1 to {MOST_ITEMS}")
    return events / of, chance_bound(events, of)
