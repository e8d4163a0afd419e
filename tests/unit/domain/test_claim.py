"""Claims of a plan against verdicts of use, over every combination of up to three devices."""

from __future__ import annotations

import itertools

import pytest

from tenure.domain.claim import ClaimOutcome, judge
from tenure.domain.use import DeviceVerdict, JobVerdict, Limits, Verdict

#: What was seen of a device: its verdict, whether a context was ever seen, and what that says of "it has a context".
SEEN: dict[str, tuple[Verdict, float | None, bool | None]] = {
    "used": (Verdict.USED, 3.0, True),
    "a context that idles": (Verdict.CONTEXT_IDLE, 3.0, True),
    "no context": (Verdict.NO_CONTEXT, None, False),
    "unknown": (Verdict.UNKNOWN, None, None),
    "unknown now, a context before": (Verdict.UNKNOWN, 3.0, True),
}


def device(number: int, kind: Verdict, first: float | None) -> DeviceVerdict:
    return DeviceVerdict(f"h:gpu{number}", kind, kind, 9.0, 0.0, Limits(), str(kind), first_context_at=first)


def job(devices: list[DeviceVerdict]) -> JobVerdict:
    # Claims are judged by the devices: whatever the job's own verdict is, it must not matter.
    return JobVerdict(Verdict.UNKNOWN, 0, len(devices), "as told", tuple(devices))


@pytest.mark.parametrize("claims", [True, False, None])
@pytest.mark.parametrize("count", [0, 1, 2, 3])
def test_every_combination(claims: bool | None, count: int) -> None:
    for names in itertools.product(SEEN, repeat=count):
        devices = [device(number, *SEEN[name][:2]) for number, name in enumerate(names)]
        found = judge(claims, job(devices))
        had = [SEEN[name][2] for name in names]
        if claims is None or not names:
            assert found.outcome is ClaimOutcome.NOT_ESTABLISHED
        elif any(one is not None and one is not claims for one in had):
            assert found.outcome is ClaimOutcome.FALSIFIED
        elif None in had:
            assert found.outcome is ClaimOutcome.NOT_ESTABLISHED
        else:
            assert found.outcome is ClaimOutcome.UPHELD
        assert len(found.devices) == (0 if claims is None else count)
        assert found.words


def test_each_device_is_judged_by_itself() -> None:
    found = judge(True, job([device(0, Verdict.USED, 1.0), device(1, Verdict.NO_CONTEXT, None)]))
    assert found.devices == (ClaimOutcome.UPHELD, ClaimOutcome.FALSIFIED)
    assert found.words.startswith("the plan claims a context; seen: ")
