"""Why a request cannot be met: one reason a device, in words and for programs."""

from __future__ import annotations

from collections.abc import Mapping

from tenure.domain import promises
from tenure.domain import selector as selectors
from tenure.domain.device import DeviceState
from tenure.domain.job import Job
from tenure.domain.queue import Requirement
from tenure.domain.refusal import Refusal
from tenure.domain.state import FleetState, need_of, objection_of


def reasons(state: FleetState, need: Requirement) -> dict[str, str]:
    """For every device of the fleet: ``matches``, or the first condition that fails; what was asked for of the device
    goes before the bounds of the job."""
    wanted = selectors.parse(need.select)
    told: dict[str, str] = {}
    for name in sorted(state.devices):
        device = state.devices[name]
        if need.device is not None:
            failed = [] if name == need.device else ["another name"]
        else:
            failed = [f.words for f in selectors.check(wanted, device.labels) if f.outcome != "matches"]
        if not failed and not promises.keeps(device, need.wire):
            failed = [promises.words(device, need.wire)]
        against = objection_of(device, need) if not failed else None
        told[name] = failed[0] if failed else against.words if against is not None else "matches"
    return told


def describe_bound(state: FleetState, need: Requirement) -> Refusal:
    """The refusal of a request for which there are devices, of which too few allow its bounds."""
    against = {}
    for name in sorted(state.named(need, state.devices.values())):
        found = objection_of(state.devices[name], need)
        if found is not None:
            against[name] = found
    name, first = next(iter(against.items()))
    facts = {"device": name, **first.facts, "devices": {name: found.words for name, found in against.items()}}
    if need.device is not None:
        return Refusal("bound_refused", f"{name} {first.words}", f"ask for what it allows: {first.do}", facts)
    # What helps on all of them, where they agree on it; else each is listed with its own.
    kinds = {found.do for found in against.values()}
    do = f"ask for what they allow: {first.do}" if len(kinds) == 1 else "ask for what one of them allows, or for others"
    listed = "".join(f"\n  {name} {found.words}: {found.do}" for name, found in list(against.items())[:20])
    what = f"of the devices that fit {need.select!r}" if need.select else "of the devices here"
    return Refusal("bound_refused", f"{what}, too few allow the job's bounds:{listed}", do, facts)


def describe_mismatch(state: FleetState, need: Requirement, by_host: Mapping[str, int]) -> Refusal:
    """The refusal of a request that no device, or no host with enough of them, can ever satisfy."""
    why = reasons(state, need)
    facts = {"select": need.select, "count": need.count, "devices": why, "by_host": dict(by_host)}
    if by_host:
        host, most = max(by_host.items(), key=lambda item: item[1])
        return Refusal(
            "no_matching_device",
            f"{need.count} devices of one host were asked for; {host} has the most that fit: {most}",
            f"ask for at most {most}, or for other devices",
            facts,
        )
    if need.device in why:
        return Refusal("no_matching_device", f"{need.device} does not fit: {why[need.device]}", "", facts)
    listed = "".join(f"\n  {name}: {words}" for name, words in list(why.items())[:20])
    return Refusal(
        "no_matching_device",
        f"no device fits {need.select!r}:{listed}" if why else "no device is known here yet",
        "see what each device offers with: rc describe DEVICE",
        facts,
    )


def waiting(state: FleetState, job: Job) -> tuple[int, str]:
    """Why a queued job waits: its place among those that ask for the same (1 is next), and what stands in the way."""
    need = state.need_of(job)
    found = state.queue.classes[need]
    position = 1 + sum(1 for order in found.waiting.values() if order < job.order)
    fits = [state.devices[name] for name in sorted(found.fits)]
    if not fits:
        for name in sorted(state.named(need, state.devices.values())):
            against = objection_of(state.devices[name], need_of(job.spec))
            if against is not None:
                return position, f"no device that fits allows its bounds now: {name} {against.words}"
        return position, "no device that fits is known now"
    held = {device.name for device in fits if device.state is DeviceState.READY}
    told = [f"{device.name} is {device.words}" for device in fits if device.name not in held]
    for device in fits:
        lease = state.leases.get(device.lease) if device.lease is not None else None
        if lease is not None and lease.job in state.jobs:
            index = next(i for i, text in enumerate(told) if text.startswith(f"{device.name} is "))
            told[index] += f" with job {lease.job} of {state.jobs[lease.job].owner}"
    if held:
        told.append(
            f"{len(held)} ready, held for a job ahead that needs several at once or for {need.count} of one host"
        )
    more = f" and {len(told) - 4} more" if len(told) > 4 else ""
    return position, "; ".join(told[:4]) + more
