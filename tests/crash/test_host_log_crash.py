"""The samples beside a job after a power cut at any point: at most two seconds of them are gone.

The mutant shows that this test would see a sync left out.
"""

from __future__ import annotations

import sys
from pathlib import Path
from textwrap import dedent

from tests.crash.mutant import mutant
from tests.crash.record import Recording, record
from tests.crash.replay import losses

from tenure.agent import host_log

#: The real sampler beside a job (this process, as its own supervisor), with the clock marked ten times a second.
PROGRAM = """
    import asyncio, os, sys, time
    from pathlib import Path
    from types import SimpleNamespace
    from record import mark
    from tenure.agent.telemetry import HostSampler, Telemetry
    from tenure.durable import make_dirs
    from tenure.probes import proc

    folder = Path(sys.argv[1]) / "j1.1"
    make_dirs(folder / "scratch")  # an attempt's folder is made durable beside its start
    handle = SimpleNamespace(pid=os.getpid(), start_ticks=proc.read_entry(os.getpid()).start_ticks)
    run = SimpleNamespace(key=("j1", 1), folder=folder, handle=handle)
    identity, runs = SimpleNamespace(boot_id="this"), SimpleNamespace(live={})
    shell = SimpleNamespace(host_sampler=HostSampler(), identity=identity, runs=runs)

    async def main():
        companion = Telemetry(shell, run)
        task = asyncio.create_task(companion.run())
        for _ in range(45):
            await asyncio.sleep(0.1)
            mark(f"clock {time.time()}")
        task.cancel()
        await asyncio.wait([task])

    asyncio.run(main())
"""
MOST_S = 2.0


def lost(folder: Path, marks: list[str]) -> str | None:
    """Whether the last sample that is left is too old, by the last clock that was marked before the cut."""
    if len(marks) < 22:  # the first sync may be due two seconds after the first sample
        return None
    now = float(marks[-1].split(" ")[1])
    account = host_log.read(folder / "j1.1" / "host.log")
    if account is None or not account.recent:
        return f"no sample is left after {len(marks) / 10:g} s"
    age = now - account.recent[-1]["utc"]
    return f"the last sample left is {age:.2f} s old" if age > MOST_S else None


def run(tmp_path: Path, shim: Path, source: Path | None = None) -> Recording:
    root = tmp_path / "state"
    root.mkdir()
    path = [] if source is None else [source]
    return record([sys.executable, "-c", dedent(PROGRAM), root], root, shim, python_path=path)


def test_a_power_cut_takes_two_seconds_of_samples_at_most(tmp_path: Path, cut: Path, shim: Path) -> None:
    recording = run(tmp_path, shim)
    assert len(recording.marks) == 45
    assert losses(recording, lost, cut, points=60, most=3) == []


def test_a_sync_left_out_is_seen(tmp_path: Path, cut: Path, shim: Path) -> None:
    changed = mutant(tmp_path, "agent/telemetry.py", "        watch.sync()\n", "        pass\n")
    assert losses(run(tmp_path, shim, changed), lost, cut, points=60, most=1), "no cut showed the loss"
