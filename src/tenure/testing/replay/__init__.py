"""Replays field cases through the product's own functions: ``python -m tenure.testing.replay FILE...``.

The shape of a file, and of each of its cases, is recognised by its keys, never by a name, so that unseen files of the
same shape replay too. Each case gives what the product says (``got``) for every key under ``right``; they are compared
by the product's strictest reading: exact, but for numbers that a case states rounded, which are compared at the places
it states.
"""

from tenure.testing.replay.cases import Case, NotBuilt, replay_file

__all__ = ["Case", "NotBuilt", "replay_file"]
