"""What a job asks of the agent that runs it, by the wire version that first kept it.

A field that an agent does not know is ignored by it. For most that does no harm; a bound or a requirement that nobody
keeps would be a promise broken in silence. So such a job fits only devices whose agent speaks the version that has it.
"""

from __future__ import annotations

from tenure.domain.device import Device
from tenure.domain.job import JobSpec

#: The fact of a device that says which version its agent speaks; there only where that is older than the controller's.
WIRE_FACT = "wire"


def asked(spec: JobSpec) -> dict[str, int]:
    """The options of a job that need an agent of some version, each with that version."""
    found = {
        "--max-runtime": spec.max_runtime_s,
        "--idle-timeout": spec.idle_timeout_s,
        "--need": spec.needs,
        "--stage": spec.stage,
        "--keep": spec.keep,
        "--output-quota": spec.output_quota_bytes,
    }
    return {name: 2 for name, value in found.items() if value}


def wire_of(spec: JobSpec) -> int:
    """The oldest wire version whose agents keep all that a job asks."""
    return max(asked(spec).values(), default=1)


def spoken(device: Device) -> int | None:
    """The wire version of a device's agent where it is an old one; ``None`` where it keeps all that can be asked."""
    found = device.facts.get(WIRE_FACT)
    return found if isinstance(found, int) and not isinstance(found, bool) else None


def keeps(device: Device, wire: int) -> bool:
    """Whether the agent of a device speaks so recent a version."""
    old = spoken(device)
    return old is None or old >= wire


def words(device: Device, wire: int) -> str:
    """Why a device does not fit, for people."""
    return (
        f"its agent speaks wire version {spoken(device)}, and what this job asks for (a bound, a requirement, a staged "
        f"tree) came with version {wire}: upgrade the agent"
    )
