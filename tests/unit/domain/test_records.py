"""Every record of the domain: what has been said stays as it was said, and a misspelt field is an error."""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil

import pytest

import tenure.domain
from tenure.domain import events as ev
from tenure.domain.queue import Requirement
from tenure.domain.refusal import IllegalMoveError

#: Those that are changed in place: what is being gathered, and never told as it stands.
GATHERED = {"Outcomes", "QueueClass", "_Test", "Attempt", "Tracker"}
#: Those that are copied by their dictionary (see ``tenure.domain.replacing``).
COPIED = {"AgentRecord", "Device", "Job", "Lease"}


def records() -> list[type]:
    """The dataclasses of every module of the domain."""
    found: list[type] = []
    for each in pkgutil.iter_modules(tenure.domain.__path__):
        module = importlib.import_module(f"tenure.domain.{each.name}")
        mine = [thing for thing in vars(module).values() if isinstance(thing, type) and dataclasses.is_dataclass(thing)]
        found += [thing for thing in mine if thing.__module__ == module.__name__]
    return found


def test_there_are_records_to_look_at() -> None:
    names = {record.__name__ for record in records()}
    assert names > GATHERED | COPIED | {"Submit", "JobSubmitted", "Refusal", "ContactRule"}


@pytest.mark.parametrize("record", records(), ids=lambda record: record.__name__)
def test_a_record_is_frozen_and_takes_no_field_it_does_not_have(record: type) -> None:
    parameters = record.__dataclass_params__  # type: ignore[attr-defined]
    assert parameters.frozen is (record.__name__ not in GATHERED)
    assert ("__slots__" in vars(record)) is (record.__name__ not in COPIED)


@pytest.mark.parametrize("event", ev.Event.__subclasses__(), ids=lambda event: event.__name__)
def test_an_event_is_told_by_the_names_of_its_fields(event: type[ev.Event]) -> None:
    assert all(field.kw_only for field in dataclasses.fields(event))


def test_what_nothing_is_said_of_asks_for_the_oldest_agents() -> None:
    assert Requirement(None, "", 1).wire == 1


def test_an_illegal_move_tells_its_story() -> None:
    told = str(IllegalMoveError("device", "h:g0", "busy", "ready", "lease l1"))
    assert told == "device h:g0: no move from busy to ready; its story: lease l1"
