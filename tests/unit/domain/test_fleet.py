"""The fleet core, told one command at a time: whose word counts, of what, and what it may not change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from tenure.domain import commands as cmd
from tenure.domain import events as ev
from tenure.domain import instructions
from tenure.domain.device import CLEAR, Cause, Condition
from tenure.domain.evolve import evolve
from tenure.domain.fleet import Outcomes, handle
from tenure.domain.job import Ending, JobSpec, JobState, Outcome
from tenure.domain.state import FleetState

UNKNOWN = Condition("unknown", "could not look")
BUSY = Condition("occupied", "bob", ("bob",))
DONE = Outcome(Ending.EXITED, 0)


def offered(name: str = "h:g0", uuid: str = "GPU-0", seen: Condition = CLEAR, high_water: int = 0) -> cmd.OfferedDevice:
    return cmd.OfferedDevice(name, uuid, "nvidia", False, high_water, seen)


def register(agent: str = "a", *devices: cmd.OfferedDevice, known: Sequence[cmd.KnownAttempt] = ()) -> cmd.Register:
    return cmd.Register(agent, "h", "boot", "ns", "run", "ann", devices or (offered(),), tuple(known))


class Fleet:
    """A fleet of one agent ``a`` with one device ``h:g0``, unless told otherwise."""

    def __init__(self, *first: cmd.Command) -> None:
        self.state = FleetState()
        self.now = 1000.0
        for command in first or (cmd.Begin(), register()):
            self.tell(command)

    def tell(self, command: cmd.Command) -> Outcomes:
        self.now += 1.0
        done = handle(self.state, command, self.now)
        self.state.validate()
        return done

    def submit(self, job: str = "j1", **spec: Any) -> None:
        self.tell(cmd.Submit(job, "ann", JobSpec(("true",), **spec)))

    def tokens(self, name: str = "h:g0") -> dict[str, int]:
        return {name: self.state.devices[name].token}

    def running(self) -> Fleet:
        self.submit()
        self.tell(cmd.ReportStarted("a", "j1", 1, self.tokens(), 51))
        return self

    def ended(self, **more: Any) -> cmd.ReportEnded:
        usual: dict[str, Any] = {"agent": "a", "job": "j1", "attempt": 1, "tokens": self.tokens(), "outcome": DONE}
        return cmd.ReportEnded(**usual | more)

    @property
    def words(self) -> str:
        return self.state.devices["h:g0"].words


# -- whose word counts -------------------------------------------------------------------------------------------------


def test_a_report_of_another_agent_of_another_token_or_of_another_attempt_changes_nothing() -> None:
    fleet = Fleet().running()
    version = fleet.state.version
    wrong = {"h:g0": fleet.state.devices["h:g0"].token - 1}
    for report in (
        fleet.ended(agent="b"),
        fleet.ended(tokens=wrong),
        fleet.ended(tokens={}),
        fleet.ended(attempt=2),
        fleet.ended(job="j9"),
    ):
        assert fleet.tell(report).ignored
    assert (fleet.state.version, fleet.words) == (version, "busy")


def test_what_another_agent_sees_on_a_device_is_not_taken() -> None:
    fleet = Fleet()
    assert fleet.tell(cmd.ReportDevice("b", "h:g0", 0, BUSY)).ignored
    assert fleet.words == "ready"


def test_a_look_from_before_the_last_grant_says_nothing() -> None:
    fleet = Fleet()
    fleet.submit()
    token = fleet.state.devices["h:g0"].token
    assert fleet.tell(cmd.ReportDevice("a", "h:g0", token - 1, BUSY)).ignored
    fleet.tell(cmd.ReportDevice("a", "h:g0", token, BUSY))
    assert fleet.words == "busy (contended: bob)"


def test_a_uuid_is_taken_from_one_agent_only() -> None:
    fleet = Fleet()
    other = replace(register("b", offered("i:g0")), host="i")
    fleet.tell(other)
    assert "i:g0" not in fleet.state.devices
    assert fleet.state.devices["h:g0"].agent == "a"


def test_a_name_is_not_bound_to_another_uuid_under_a_live_lease() -> None:
    fleet = Fleet().running()
    fleet.tell(register("a", offered("h:g0", "GPU-1")))
    assert fleet.state.devices["h:g0"].uuid == "GPU-0"
    assert fleet.state.devices["h:g0"].lease is not None


def test_a_device_that_its_agent_does_not_offer_any_more_is_unknown() -> None:
    fleet = Fleet(cmd.Begin(), register("a", offered(), offered("h:g1", "GPU-1")))
    fleet.tell(register())
    assert fleet.state.devices["h:g1"].words == "unknown (its agent does not find it any more)"


# -- tokens ------------------------------------------------------------------------------------------------------------


def test_tokens_lie_above_the_clock_in_milliseconds_and_above_all_the_host_accepted() -> None:
    fleet = Fleet(cmd.Begin(), register("a", offered(high_water=5_000_000)))
    fleet.submit()
    assert fleet.tokens() == {"h:g0": 5_000_001}
    fleet = Fleet()
    fleet.submit()
    assert fleet.tokens() == {"h:g0": 1_001_001}  # began at 1001 s


def test_a_controller_that_comes_up_has_heard_nobody() -> None:
    fleet = Fleet()
    fleet.tell(cmd.Begin())
    assert fleet.words == "unknown (no contact)"


# -- ends and releases -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seen", [UNKNOWN, Condition("dirty", "512 MiB left")])
def test_an_end_without_a_proof_frees_nothing(seen: Condition) -> None:
    fleet = Fleet().running()
    fleet.tell(fleet.ended())
    assert fleet.words == "ending"
    fleet.tell(fleet.ended(proofs={"h:g0": seen}))
    assert fleet.state.devices["h:g0"].lease is not None
    assert seen.detail in fleet.words
    fleet.tell(fleet.ended(proofs={"h:g0": CLEAR}))
    assert fleet.words == "ready"


def test_an_end_told_again_does_not_change_the_first() -> None:
    fleet = Fleet().running()
    fleet.tell(fleet.ended())
    fleet.tell(fleet.ended(outcome=Outcome(Ending.LOST, cause="x")))
    assert fleet.state.jobs["j1"].outcome == DONE


def test_a_verdict_or_a_start_that_comes_after_the_end_changes_nothing() -> None:
    fleet = Fleet()
    fleet.submit()
    tokens = fleet.tokens()
    fleet.tell(fleet.ended(use={"label": "no_context"}))
    version = fleet.state.version
    assert fleet.tell(cmd.ReportUse("a", "j1", 1, tokens, {"label": "used"})).ignored
    assert fleet.tell(cmd.ReportStarted("a", "j1", 1, tokens, 51)).ignored
    assert fleet.tell(cmd.ReportRefused("a", "j1", 1, tokens, "no")).ignored == ""
    assert (fleet.state.version, fleet.state.jobs["j1"].state) == (version, JobState.ENDED)


def test_a_refusal_of_what_runs_does_not_queue_it_again() -> None:
    fleet = Fleet().running()
    assert fleet.tell(cmd.ReportRefused("a", "j1", 1, fleet.tokens(), "no", {"h:g0": CLEAR})).ignored
    assert (fleet.state.jobs["j1"].state, fleet.words) == (JobState.RUNNING, "busy")


def test_contention_is_of_a_running_lease_and_not_of_what_its_end_still_shows() -> None:
    fleet = Fleet().running()
    fleet.tell(fleet.ended())
    assert fleet.tell(cmd.ReportDevice("a", "h:g0", fleet.state.devices["h:g0"].token, BUSY)).events == []
    assert fleet.words == "ending"


def test_a_proof_under_an_older_token_releases_its_lease_and_says_nothing_of_now() -> None:
    fleet = Fleet().running()
    old = fleet.tokens()
    fleet.tell(fleet.ended())
    # The host turns out to have accepted a later token: another controller's, from before a restore.
    fleet.tell(register("a", offered(seen=BUSY, high_water=old["h:g0"] + 9)))
    fleet.tell(fleet.ended(tokens=old, proofs={"h:g0": CLEAR}))
    assert fleet.state.devices["h:g0"].lease is None
    assert fleet.words == "occupied (bob)"


# -- quarantine --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cause", list(Cause))
@pytest.mark.parametrize("seen", [CLEAR, UNKNOWN])
def test_what_a_look_refutes_clears_itself_but_never_a_fault_or_an_operators_word(
    cause: Cause, seen: Condition
) -> None:
    fleet = Fleet()
    evolve(fleet.state, ev.DeviceQuarantined(at=1.0, actor="x", device="h:g0", cause=str(cause), detail="why"))
    fleet.tell(cmd.ReportDevice("a", "h:g0", 0, seen))
    clears = cause not in (Cause.FAULT, Cause.OPERATOR) and seen is CLEAR
    assert fleet.words == ("ready" if clears else f"unhealthy ({cause}: why)")


def test_a_registration_does_not_clear_a_quarantine_under_a_live_lease() -> None:
    fleet = Fleet().running()
    fleet.tell(fleet.ended(proofs={"h:g0": Condition("dirty", "512 MiB left")}))
    fleet.tell(register())
    assert fleet.words == "unhealthy (dirty: 512 MiB left)"


# -- the queue, and what agents are told -------------------------------------------------------------------------------


def test_a_clock_that_falls_back_does_not_let_later_submissions_overtake() -> None:
    fleet = Fleet().running()
    fleet.submit("j2")
    fleet.now -= 500.0
    fleet.submit("j3")
    assert fleet.state.jobs["j2"].order < fleet.state.jobs["j3"].order


def test_what_runs_without_a_lease_is_stopped() -> None:
    fleet = Fleet().running()
    strange = cmd.KnownAttempt("j7", 1, {"h:g0": 1})
    mine = cmd.KnownAttempt("j1", 1, fleet.tokens())
    told = instructions.on_register(fleet.state, "a", [strange, mine])
    assert [(type(one).__name__, one.job, one.grants) for one in told] == [("StopJob", "j7", ())]
    told = instructions.on_register(fleet.state, "a", [cmd.KnownAttempt("j1", 1, {"h:g0": 1})])
    assert {type(one).__name__ for one in told} == {"StopJob"}


def test_a_warning_is_made_once_whatever_the_agent_forgets() -> None:
    fleet = Fleet().running()
    tokens = fleet.tokens()
    first, other = {"kind": "warning", "words": "first"}, {"kind": "advisory", "words": "other"}

    def told(*announcements: dict[str, str], label: str = "no_context") -> list[tuple[str, Any]]:
        use = {"label": label, **({"announcements": list(announcements)} if announcements else {})}
        decided = fleet.tell(cmd.ReportUse("a", "j1", 1, tokens, use)).events
        return [(e.kind, e.warning if isinstance(e, ev.UseWarned) else (e.before, e.after)) for e in decided]  # type: ignore[attr-defined]

    assert told(first) == [("use_judged", ("unknown", "no_context")), ("use_warned", first)]
    assert told(first) == [("use_judged", ("no_context", "no_context"))]
    assert told(label="unknown") == [("use_judged", ("no_context", "unknown"))]
    assert told({**first, "words": "again"}, other) == [
        ("use_judged", ("unknown", "no_context")),
        ("use_warned", other),
    ]
    use = fleet.state.jobs["j1"].use
    assert use is not None
    assert use["announcements"] == [first, other]


# -- notices -----------------------------------------------------------------------------------------------------------


def test_a_notice_is_kept_once_under_its_own_token_and_not_without_end() -> None:
    fleet = Fleet().running()
    told = cmd.ReportNotice("a", "j1", 1, fleet.tokens(), {"kind": "k", "words": "w", "utc": 1.0, "facts": {}})
    assert [event.kind for event in fleet.tell(told).events] == ["job_noticed"]
    assert fleet.tell(told).events == []
    stale = replace(told, tokens={"h:g0": fleet.state.devices["h:g0"].token - 1}, notice={"kind": "other"})
    assert fleet.tell(stale).ignored
    for number in range(100):
        fleet.tell(replace(told, notice={"kind": "k", "words": str(number), "utc": 1.0, "facts": {}}))
    assert len(fleet.state.jobs["j1"].notices) == 64
    fleet.tell(fleet.ended())
    assert fleet.state.jobs["j1"].notices[0] == told.notice
