"""A plan's claim on a phase (will it have a CUDA context?) held against the verdict of use."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from tenure.domain.use import DeviceVerdict, JobVerdict, Verdict


class ClaimOutcome(StrEnum):
    """What became of a claim."""

    UPHELD = "claim_upheld"
    FALSIFIED = "claim_falsified"
    NOT_ESTABLISHED = "not_established"


@dataclass(frozen=True, slots=True)
class ClaimVerdict:
    """The outcome, judged for each device, with one sentence."""

    outcome: ClaimOutcome
    devices: tuple[ClaimOutcome, ...]
    words: str


def judge(claims_context: bool | None, use: JobVerdict) -> ClaimVerdict:
    """Holds the claim against each device. A context that idles upholds it; without claim or verdict nothing is known.

    Falsified on any device falsifies the claim; it is upheld only where it is upheld on every device.
    """
    if claims_context is None:
        return ClaimVerdict(ClaimOutcome.NOT_ESTABLISHED, (), "the plan claims nothing")
    devices = tuple(_device(claims_context, device) for device in use.devices)
    if ClaimOutcome.FALSIFIED in devices:
        outcome = ClaimOutcome.FALSIFIED
    elif devices and set(devices) == {ClaimOutcome.UPHELD}:
        outcome = ClaimOutcome.UPHELD
    else:
        outcome = ClaimOutcome.NOT_ESTABLISHED
    claimed = "a context" if claims_context else "no context"
    return ClaimVerdict(outcome, devices, f"the plan claims {claimed}; seen: {use.words}")


def _device(claims_context: bool, device: DeviceVerdict) -> ClaimOutcome:
    if device.verdict in (Verdict.USED, Verdict.CONTEXT_IDLE) or device.first_context_at is not None:
        had_context = True
    elif device.verdict is Verdict.NO_CONTEXT:
        had_context = False
    else:
        return ClaimOutcome.NOT_ESTABLISHED
    return ClaimOutcome.UPHELD if had_context == claims_context else ClaimOutcome.FALSIFIED
