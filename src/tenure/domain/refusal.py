"""A command that was refused: nothing changed, and here is why and what to do instead."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Refusal:
    """The answer to a command that changed nothing.

    ``code`` is a key of the table in ``tenure.errors``; ``do`` is the next thing to try; ``facts`` are for programs.
    """

    code: str
    message: str
    do: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)


class IllegalMoveError(Exception):
    """Code tried a move that the transition table does not have: a defect, told with the history of the thing."""

    def __init__(self, thing: str, name: str, before: str, after: str, story: str) -> None:
        super().__init__(f"{thing} {name}: no move from {before} to {after}; its story: {story}")
        self.thing, self.name, self.before, self.after, self.story = thing, name, before, after, story
