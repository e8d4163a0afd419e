"""What is said of an attempt when it is over, from what outlived it on disk."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tenure.agent import aftermath, memory_ceilings
from tenure.agent.host_log import HostLog
from tenure.domain.job import Ending, Outcome

GIB = 1 << 30
END = 1_700_000_100.0


def log(folder: Path, *samples: tuple[float, dict[str, float]]) -> None:
    kept = HostLog(folder / "host.log")
    kept.begin("boot", 64 * GIB)
    for before, values in samples:
        kept.append({"utc": END - before, "at": 1000 - before, "v": values, "un": {}})
    kept.sync()
    kept.close()


def told(folder: Path, outcome: Outcome) -> Outcome:
    return aftermath._told(None, folder, outcome)  # type: ignore[arg-type]


def killed(**stats: Any) -> Outcome:
    return Outcome(Ending.SIGNALED, signal=9, stats={"ended_at": END, **stats})


EMPTY = (3.0, {"memory_available": 41.0 * (1 << 20)})
PLENTY = (3.0, {"memory_available": 30.0 * GIB})


def test_an_error_while_memory_was_exhausted_is_marked(tmp_path: Path) -> None:
    log(tmp_path, PLENTY, EMPTY)
    outcome = told(tmp_path, killed())
    assert outcome.detail == "while memory was exhausted (MemAvailable 41.0 MiB of 64.0 GiB, 3 s before the end)"
    assert outcome.stats["memory_exhausted"] == outcome.detail
    assert "exhausted" in outcome.words


@pytest.mark.parametrize("outcome", [Outcome(Ending.EXITED, 0, stats={"ended_at": END})])
def test_a_success_is_not(tmp_path: Path, outcome: Outcome) -> None:
    log(tmp_path, EMPTY)
    assert not told(tmp_path, outcome).detail


def test_an_error_with_memory_to_spare_is_not(tmp_path: Path) -> None:
    log(tmp_path, PLENTY)
    outcome = told(tmp_path, killed())
    assert not outcome.detail
    assert outcome.stats["host"]["lowest"]["memory_available"] == 30 * GIB


def test_a_job_lost_to_a_reboot_is_marked_by_its_last_sample(tmp_path: Path) -> None:
    log(tmp_path, (5000.0, EMPTY[1]))
    outcome = told(tmp_path, Outcome(Ending.LOST, cause="host_rebooted", detail="gone"))
    assert outcome.detail.startswith("gone; while memory was exhausted (MemAvailable 41.0 MiB of 64.0 GiB")


def test_a_process_killed_by_the_kernel_meanwhile_is_told(tmp_path: Path) -> None:
    log(tmp_path, (4.0, {"kills": 7.0}), (3.0, {"kills": 8.0}))
    assert "the kernel killed 1 process of this host for memory" in told(tmp_path, killed()).detail


def test_nothing_measured_says_nothing(tmp_path: Path) -> None:
    outcome = told(tmp_path, killed())
    assert outcome.stats == {"ended_at": END}
    assert not outcome.detail


def test_a_damaged_log_is_named_and_the_end_is_told_anyway(tmp_path: Path) -> None:
    log(tmp_path, PLENTY, PLENTY)
    data = bytearray((tmp_path / "host.log").read_bytes())
    data[30] ^= 0xFF
    (tmp_path / "host.log").write_bytes(bytes(data))
    outcome = told(tmp_path, killed(max_rss_kb=2048))
    assert outcome.stats["peak_memory"]["bytes"] == 2 << 20
    assert outcome.signal == 9


def group(folder: Path, *, peak: int, kills: int) -> None:
    made = folder / "group"
    made.mkdir()
    (made / "memory.max").write_text(str(128 << 20))
    (made / "memory.peak").write_text(str(peak))
    (made / "memory.events").write_text(f"oom_kill {kills}\n")
    ceiling = {"group": str(made), "version": 2, "limit": 128 << 20, "reserve": GIB}
    (folder / "spec.json").write_text(json.dumps({"ceiling": ceiling}))


@pytest.mark.parametrize(
    ("outcome", "cause", "detail"),
    [
        (killed(), "memory ceiling: limit 128.0 MiB, peak 128.0 MiB, 1 process killed by the kernel", ""),
        (Outcome(Ending.EXITED, 1), "memory ceiling: limit 128.0 MiB", ""),
        (Outcome(Ending.SIGNALED, signal=15, cause="memory ceiling: older figures"), "memory ceiling: limit 128.0", ""),
        # Somebody's stop, or a command that coped, was not ended by the ceiling; it is said all the same.
        (Outcome(Ending.SIGNALED, signal=15, cause="cancelled by ann"), "cancelled by ann", "memory ceiling: limit"),
        (Outcome(Ending.EXITED, 0), "", "memory ceiling: limit"),
    ],
)
def test_what_met_its_ceiling_says_so(tmp_path: Path, outcome: Outcome, cause: str, detail: str) -> None:
    group(tmp_path, peak=128 << 20, kills=1)
    found = told(tmp_path, outcome)
    assert found.cause.startswith(cause)
    assert bool(found.cause) == bool(cause)
    assert found.detail.startswith(detail)
    assert bool(found.detail) == bool(detail)
    assert found.stats["peak_memory"] == {
        "bytes": 128 << 20,
        "instrument": "peak of its cgroup",
        "lower": True,  # it was not let go further
        "note": "file cache included",
    }


def test_a_kill_below_its_own_limit_is_of_the_common_ceiling(tmp_path: Path) -> None:
    group(tmp_path, peak=90 << 20, kills=2)
    cause = told(tmp_path, killed()).cause
    expected = "memory ceiling: the ceiling of all jobs of this host together, peak 90.0 MiB, 2 processes killed by the"
    assert cause.startswith(expected)


def test_a_job_that_stayed_below_has_no_reason_from_the_ceiling(tmp_path: Path) -> None:
    group(tmp_path, peak=90 << 20, kills=0)
    found = told(tmp_path, killed())
    assert not found.cause
    assert memory_ceilings.ceiling_of(tmp_path) is not None
