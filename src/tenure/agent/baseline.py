"""The memory of each device at rest, measured while nobody is on it and kept across restarts.

Drivers keep some memory at rest, and two calls of one driver may count it differently. So a baseline belongs to a
device, a driver version and the call that measured it; where any of them differs it is unknown, not close enough.

It is only ever lowered. Raising it on the grounds that a higher figure was there for a while would turn a hidden
tenant's memory into "rest". For the same reason a first figure that no driver keeps at rest is not taken for one.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from tenure.domain.reading import Reading, Reason, Scope, Unavailable, Value
from tenure.durable import write_atomic
from tenure.probes.nvml_records import DeviceSample

#: Above the baseline by more than this is somebody's. Less than any context takes, more than rounding leaves.
SLACK_BYTES = 32 << 20
#: A list that this driver does not have is not missed; any other failure of a list means that nobody could look.
NOT_THERE = frozenset({Reason.NOT_SUPPORTED, Reason.FUNCTION_MISSING})
#: More than this at rest is not believed to be rest. An idle card was seen to show 912 MiB by the older memory call.
MOST_AT_REST = 1536 << 20


@dataclass(frozen=True, slots=True)
class Baseline:
    """``bytes`` at rest, by which call of which driver."""

    bytes: int
    instrument: str
    driver: str


class Baselines:
    """What is known of every device's memory at rest, by UUID."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.problem = ""
        self._known: dict[str, Baseline] = {}
        try:
            for uuid, body in json.loads(path.read_bytes()).items():
                self._known[uuid] = Baseline(int(body["bytes"]), str(body["instrument"]), str(body["driver"]))
        except FileNotFoundError:
            pass
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            # Only measurements: they are taken again, and until then they are unknown.
            self._known, self.problem = {}, f"{path} could not be read ({error}); baselines are measured afresh"

    def of(self, uuid: str, memory: Reading[int], driver: str) -> Reading[int]:
        """The baseline that a reading of memory may be compared with."""
        known = self._known.get(uuid)
        if known is None:
            why = "the device has not been seen at rest yet"
        elif known.driver != driver:
            why = f"measured under driver {known.driver}, now {driver}"
        elif isinstance(memory, Value) and memory.instrument != known.instrument:
            why = f"measured by {known.instrument}, now by {memory.instrument}"
        else:
            return Value(known.bytes, memory.at, known.instrument, Scope.DEVICE)
        return Unavailable(Reason.BASELINE_UNKNOWN, memory.at, "baseline", Scope.DEVICE, why)

    def learn(self, sample: DeviceSample, driver: str, *, sees_all: bool) -> bool:
        """Takes a sample of an unleased device that nobody is listed on. Gives whether something new was learnt.

        ``sees_all``: whether the lists show the processes of the whole machine. Where they may not, an empty list says
        nothing of who holds the memory; then only as much is taken for rest as no context could be holding.
        """
        memory, most = sample.memory_used, MOST_AT_REST if sees_all else SLACK_BYTES
        if not isinstance(memory, Value) or not at_rest(sample) or memory.value > most:
            return False
        known = self._known.get(sample.uuid)
        comparable = known is not None and known.driver == driver and known.instrument == memory.instrument
        if comparable and known is not None and memory.value >= known.bytes:
            return False
        self._known[sample.uuid] = Baseline(memory.value, memory.instrument, driver)
        write_atomic(self._path, json.dumps({uuid: asdict(b) for uuid, b in self._known.items()}, indent=1).encode())
        return True


def at_rest(sample: DeviceSample) -> bool:
    """Whether every process list that this driver has answered and is empty, the compute list among them."""
    lists = (sample.compute, sample.graphics, sample.mps)
    return isinstance(sample.compute, Value) and all(
        not each.value if isinstance(each, Value) else each.reason in NOT_THERE for each in lists
    )
