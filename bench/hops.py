"""``python -m bench hops``: where the time goes between a submission and the start of its process, and after its end.

Two homes in turn, round by round: one traced, one as it comes, so that the cost of tracing itself is shown and not
guessed. One client, one job at a time, simulated GPU.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench import machine, processes, traced
from bench.program import Stamps, compile_program
from bench.sites.tenure import SIMULATED, TenureSite
from bench.stats import columns, figure, percentile

BEGAN, REPLIED = "process: first instruction", "client: has the answer"


class TracedSite(TenureSite):
    """A home whose controller and agent note their hops."""

    def up(self) -> None:
        """Starts the traced controller, which starts the traced agent."""
        from tenure.sdk import embedded

        self.paths.create()
        embedded.write_options(self.paths, {"sim": self.sim})
        self.hops = self.home / "hops"
        self.hops.touch()
        traced.supervisor_program(self.home / "supervisor.py", self.hops)
        self.env |= {traced.FILE_VARIABLE: str(self.hops), traced.SUPERVISOR_VARIABLE: str(self.home / "supervisor.py")}
        path = os.pathsep.join(filter(None, [str(machine.ROOT), os.environ.get("PYTHONPATH", "")]))
        with self.paths.controller_log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "bench.traced", "controller"],
                env={**self.env, "PYTHONPATH": path},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                start_new_session=True,
            )
        processes.until(lambda: embedded.answers(self.paths), "the traced controller answers", timeout_s=30)
        embedded.wait_for_agent(self.client._transport)
        processes.until(lambda: self.simulated(), "its devices are free", timeout_s=30)

    def down(self) -> None:
        """Ends everything, and collects the controller, which is a child of this process."""
        try:
            super().down()
        finally:
            if hasattr(self, "_process"):
                self._process.wait(10)


def first_after(lines: Sequence[tuple[int, str]], began: int, until: int) -> dict[str, int]:
    """For each hop the first time it was passed from ``began`` on and before ``until`` (both monotonic ns)."""
    found: dict[str, int] = {}
    for when, name in sorted(lines):
        if began <= when < until:
            found.setdefault(name, when)
    return found


def profile(samples: Sequence[Mapping[str, int]]) -> list[tuple[str, float, float, float, float]]:
    """Each hop that most samples passed, in order of time: name, median ms since the submission, and median, 95th
    percentile and share of the step from the hop before it, in ms and in hundredths of the median total.

    Samples are times since the submission in ns. A step is taken sample by sample, to whichever listed hop came just
    before: things happen beside one another, and their order is that of the medians.
    """
    names = {name for sample in samples for name in sample}
    common = [name for name in names if sum(name in sample for sample in samples) * 2 > len(samples)]
    middle = {name: statistics.median(sample[name] for sample in samples if name in sample) for name in common}
    ordered = sorted(common, key=lambda name: middle[name])
    total = max(middle.values(), default=1) or 1
    lines, before = [], ""
    for name in ordered:
        steps = [
            s[name] - (s.get(before, 0) if before else 0) for s in samples if name in s and (not before or before in s)
        ]
        step, high = (statistics.median(steps), percentile(steps, 0.95)) if steps else (0.0, 0.0)
        lines.append((name, middle[name] / 1e6, step / 1e6, high / 1e6, 100 * step / total))
        before = name
    return lines


def show(title: str, lines: Sequence[tuple[str, float, float, float, float]]) -> list[str]:
    """The profile as text."""
    cells = [["", "hop", "at ms", "step p50", "p95", "share %"]]
    cells += [["  ", name, *(figure(value) for value in values[:3]), f"{values[3]:.0f}"] for name, *values in lines]
    return ["", title, *columns(cells, right=(2, 3, 4, 5))]


def main(*, quick: bool, where: Path | None) -> int:
    """Takes and prints the profile. Exit status 0."""
    with contextlib.ExitStack() as last:
        folder = Path(tempfile.mkdtemp(prefix="tenure-bench-", dir=where))
        last.callback(shutil.rmtree, folder, ignore_errors=True)
        stamps = Stamps(folder, compile_program(folder))
        plain, with_hops = TenureSite(folder / "plain", "1xH100"), TracedSite(folder / "traced", "1xH100")
        last.callback(stamps.close)
        sites = (plain, with_hops)
        for site in sites:
            last.callback(site.down)
            site.up()
        rounds, each = (3, 8) if quick else (8, 25)
        for site in sites:
            _samples(site, stamps, 3)  # warm-up
        untraced: list[float] = []
        spans: list[tuple[int, int, int, int]] = []
        loads = [machine.load()]
        for _ in range(rounds):
            untraced += [(began - at) / 1e6 for at, _, began, _ in _samples(plain, stamps, each)]
            spans += _samples(with_hops, stamps, each)
            loads.append(machine.load())
        lines = [_line(text) for text in with_hops.hops.read_text().splitlines()]
        print("\n".join(_report(lines, spans, untraced, loads)))
    return 0


def _samples(site: TenureSite, stamps: Stamps, count: int) -> list[tuple[int, int, int, int]]:
    """For each job: when it was submitted, when that was answered, when it began, when it was over (monotonic ns)."""
    found = []
    for _ in range(count):
        tag = stamps.tag()
        at = time.monotonic_ns()
        job = site.client.submit(stamps.argv(tag), select=SIMULATED)
        replied = time.monotonic_ns()
        began = stamps.wait(tag)
        site.client.wait(job.id)
        found.append((at, replied, began, time.monotonic_ns()))
        time.sleep(0.02)
    return found


def _line(text: str) -> tuple[int, str]:
    when, _, name = text.partition(" ")
    return int(when), name


def _report(
    lines: Sequence[tuple[int, str]],
    spans: Sequence[tuple[int, int, int, int]],
    untraced: Sequence[float],
    loads: Sequence[float],
) -> list[str]:
    starts, ends = [], []
    for at, replied, began, over in spans:
        found = first_after(lines, at, over)
        start = {name: when - at for name, when in found.items() if when <= began} | {BEGAN: began - at}
        starts.append(start | ({REPLIED: replied - at} if replied <= began else {}))
        ends.append({name: when - began for name, when in found.items() if when > began})
    totals = [(began - at) / 1e6 for at, _, began, _ in spans]
    told = [(replied - at) / 1e6 for at, replied, _, _ in spans]
    until_over = [(over - began) / 1e6 for _, _, began, over in spans]
    text = [f"{len(spans)} starts, load {min(loads):.1f} to {max(loads):.1f} on {os.cpu_count()} cores"]
    for name, values in (
        ("submission to process start, as it comes", untraced),
        ("submission to process start, traced", totals),
        ("submission to the client's answer, traced", told),
        ("process start to the client's word that it is over, traced", until_over),
    ):
        text.append(f"  {name}: p50 {figure(statistics.median(values))}, p95 {figure(percentile(values, 0.95))} ms")
    text += show("From the submission to the process", profile(starts))
    return text + show("From the process's first instruction to the free device", profile(ends))


if __name__ == "__main__":
    sys.exit(main(quick=False, where=None))
