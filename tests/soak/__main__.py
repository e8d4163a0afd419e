"""``make soak``: a job's output at full size, with figures. Exit status 1 where anything is not exact.

A gibibyte without a newline, a million updates of a bar, NULs, characters byte by byte, 50,000 lines a second, agent
and controller killed while it streams; and the peak memory of both at a gibibyte against that at 16 MiB, each in a home
of its own. ``ARGS=--quick`` takes sizes that fit a coffee.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.e2e.conftest import House
from tests.soak.stream import Passed, killer, pass_through

from tenure.testing.nvml import build

MIB = 1 << 20
#: How much more memory agent and controller may take for the large output than for the small one.
MOST_RATIO = 1.2
#: Agent and controller each keep a copy.
COPIES = 2.2


@contextmanager
def home(library: Path) -> Iterator[House]:
    """A fresh home with everything up."""
    made = House(Path(tempfile.mkdtemp(prefix="tenure-soak-")), library)
    try:
        made.up("1xH100")
        yield made
    finally:
        made.tear_down()


def told(name: str, passed: Passed) -> bool:
    """Prints one line of figures; gives whether all was exact."""
    size = sum(stream["bytes"] for stream in passed.produced.values())
    said = f"{size / MIB:8.1f} MiB  {passed.writes:9d} writes  writer {passed.writer_s:6.1f} s"
    said += f"  whole {passed.whole_s:6.1f} s  {size / MIB / passed.whole_s:6.1f} MiB/s"
    said += f"  {passed.kills} kills" if passed.kills else ""
    exact = passed.exact and passed.status == 0
    print(f"{'ok  ' if exact else 'FAIL'} {name:<34} {said}  {passed.produced['stdout']['sha256'][:16]}", flush=True)
    if not exact:
        print(f"     produced {passed.produced}\n     stored   {passed.stored}\n     shown    {passed.shown}")
        print(f"     exit status {passed.status}; {passed.said[-500:].decode(errors='replace')}")
    return exact


def main() -> int:
    """Runs everything and prints it."""
    parser = argparse.ArgumentParser(prog="make soak", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a sixteenth of every size")
    parser.add_argument("--only", default="", help="only what has this in its name")
    given = parser.parse_args()
    part = 16 if given.quick else 1
    large = 1024 * MIB // part
    free = shutil.disk_usage(tempfile.gettempdir()).free
    if free < COPIES * large + 1024 * MIB:
        print(f"{tempfile.gettempdir()} has {free / MIB:.0f} MiB free; {COPIES * large / MIB + 1024:.0f} are needed")
        return 2
    began, good = time.monotonic(), True
    with tempfile.TemporaryDirectory(prefix="tenure-soak-nvml-") as library:
        build(Path(library))
        one = _One(Path(library), given.only)
        small_hwm = one.run("16 MiB without a newline", "flat", 16 * MIB)
        large_hwm = one.run(f"{large // MIB} MiB without a newline", "flat", large)
        one.run("a million updates of a bar" if part == 1 else "updates of a bar", "bars", 1_000_000 // part)
        one.run("NULs", "nuls", 256 * MIB // part)
        one.run("characters byte by byte", "emoji", 200_000 // part)
        one.run("50,000 lines a second", "lines", max(2, 60 // part))
        one.run("the agent killed", "lines", max(5, 60 // part), lambda h: h.paths.agent_lock)
        one.run("the agent killed, flat", "flat", large, lambda h: h.paths.agent_lock)
        one.run("the controller killed", "lines", max(5, 60 // part), lambda h: h.paths.controller_lock)
        good = one.good
        if small_hwm and large_hwm:
            for who in ("agent", "controller"):
                ratio = large_hwm[who] / small_hwm[who]
                good = good and ratio <= MOST_RATIO
                said = (
                    f"{small_hwm[who] / 1024:.1f} MiB at 16 MiB, {large_hwm[who] / 1024:.1f} MiB at {large // MIB} MiB"
                )
                print(
                    f"{'ok  ' if ratio <= MOST_RATIO else 'FAIL'} peak memory of the {who}: {said}: ratio {ratio:.3f}"
                )
    print(f"{'all exact' if good else 'NOT EXACT'} in {time.monotonic() - began:.0f} s")
    return 0 if good else 1


class _One:
    """Runs one thing after the other, each in a home of its own."""

    def __init__(self, library: Path, only: str) -> None:
        self.library = library
        self.only = only
        self.good = True

    def run(
        self, name: str, kind: str, size: int, victim: Callable[[House], Path] | None = None
    ) -> dict[str, int] | None:
        """One output; gives the peak memory of agent and controller in KiB."""
        if self.only not in name:
            return None
        with home(self.library) as house:
            during = killer(house, victim(house), 1, (1.0, 3.0)) if victim is not None else None
            passed = pass_through(house, kind, size, during=during, timeout_s=1500)
            exact = told(name, passed)
            self.good = self.good and exact and (victim is None or passed.kills > 0)
            return passed.hwm_kib


if __name__ == "__main__":
    sys.exit(main())
