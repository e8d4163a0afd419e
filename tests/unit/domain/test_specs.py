"""What is stored and sent comes back as it was."""

from __future__ import annotations

import json

from tenure.domain.device import CLEAR, Condition
from tenure.domain.job import Ending, JobSpec, Outcome
from tenure.domain.specs import condition_from, condition_to, outcome_from, outcome_to, spec_from, spec_to


def test_a_specification_comes_back() -> None:
    spec = JobSpec(
        ("sh", "-c", "x"),
        cwd="/w",
        env={"A": "1"},
        select="class=train",
        count=2,
        priority=-3,
        queue_timeout_s=5.0,
        umask=0o22,
        window={"span_s": 9.0},
        max_runtime_s=60.0,
        needs=("tool:gcc",),
        keep=True,
        stage={"hash": "h"},
        passed=("A",),
    )
    assert spec_from(json.loads(json.dumps(spec_to(spec)))) == spec


def test_fields_of_a_newer_version_are_ignored_and_those_of_an_older_one_keep_their_defaults() -> None:
    assert spec_from({"argv": ["true"], "weather": "fine"}) == JobSpec(("true",))


def test_an_outcome_comes_back_with_what_was_measured() -> None:
    outcome = Outcome(Ending.LOST, None, 9, "host_rebooted", "why", {"cpu_s": 1.5})
    assert outcome_from(json.loads(json.dumps(outcome_to(outcome)))) == outcome
    assert outcome_from({"ending": "exited", "stats": None}) == Outcome(Ending.EXITED)


def test_a_condition_comes_back() -> None:
    for seen in (CLEAR, Condition("occupied", "pid 9", ("bob",))):
        assert condition_from(json.loads(json.dumps(condition_to(seen)))) == seen
    assert condition_from({"outcome": "clear"}) == CLEAR
