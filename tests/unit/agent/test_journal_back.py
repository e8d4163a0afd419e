"""What the journal holds can be read by the version before, and what a later one may add is passed over here."""

from __future__ import annotations

import json

import pytest

from tenure.agent import journal
from tenure.agent import records as r

UNLOOKED = r.JobsUnlooked((("j1", 1), ("j2", 3)), 4)


def test_what_an_earlier_version_does_not_know_travels_in_what_it_does() -> None:
    payload = journal.encode([UNLOOKED, r.OutputAcked("j1", 1, 10)])
    [(carrier, body), (plain, _)] = json.loads(payload)
    assert (carrier, body["seq"], plain) == ("ReportAcked", 0, "OutputAcked"), "an acknowledgement of nothing"
    assert journal.decode(payload) == [UNLOOKED, r.OutputAcked("j1", 1, 10)]


def test_it_is_read_as_it_was_written_before_too() -> None:
    body = {"keys": [["j1", 1], ["j2", 3]], "more": 4}
    assert journal.decode(json.dumps([["JobsUnlooked", body]]).encode()) == [UNLOOKED]


def test_only_what_a_later_version_can_do_without_is_passed_over() -> None:
    later = ["SomethingLater", {"a": 1}]
    carried = json.dumps(
        [["ReportAcked", {"seq": 0, "more": later}], ["OutputAcked", {"job": "j", "attempt": 1, "offset": 2}]]
    )
    assert journal.decode(carried.encode()) == [r.OutputAcked("j", 1, 2)]
    with pytest.raises(ValueError, match="unknown kind"):
        journal.decode(json.dumps([later]).encode())
