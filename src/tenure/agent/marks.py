"""The mark that a supervisor leaves on all that comes of it: see its ``leave_mark``."""

from __future__ import annotations


def same_mark(mark: int, limit: int) -> bool:
    """Whether a hard limit on file locks is a mark, or one out of its range: that of a supervisor which itself ran
    inside the job. A mark's range is what its trailing ones span."""
    ones = (~mark & (mark + 1)).bit_length() - 1
    return limit >= 0 and limit >> ones == mark >> ones
