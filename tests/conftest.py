"""What every lane shares: the markers that need something of the machine, and the account of what was skipped.

A lane is a folder right under ``tests``; ``make LANE`` runs it. A skipped test has proven nothing, so skips are counted
by reason at the end of every run, and CI fails a lane that skipped more than ``tests/skips.toml`` allows. pytest has no
such limit of its own: its ``-ra`` lists skips, and a suite that skips everything passes.
"""

from __future__ import annotations

import os
import tomllib
from collections import Counter
from pathlib import Path

import pytest

LIMITS = Path(__file__).with_name("skips.toml")

# Any of these device files means that a driver is loaded; a test marked `gpu` then has to run, not to skip.
GPU_FILES = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg", "/dev/nvhost-gpu")


def lane_of(nodeid: str) -> str:
    """The lane of a test by its id (``tests/unit/test_x.py::test_y`` is in ``unit``); ``none`` outside the lanes."""
    parts = nodeid.split("::", maxsplit=1)[0].split("/")
    return parts[1] if len(parts) > 2 and parts[0] == "tests" else "none"


def limits() -> dict[str, int]:
    """The most skips each lane may have in CI, by lane, from ``tests/skips.toml``."""
    return {lane: int(table["max"]) for lane, table in tomllib.loads(LIMITS.read_text()).items()}


class SkipAccount:
    """Counts skips by lane and reason, and says which lanes went over their limit.

    ``TENURE_MAX_SKIPS`` (a whole number) bounds the whole run instead of the file, in CI or not; without it the file
    holds where ``CI`` is set.
    """

    def __init__(self) -> None:
        self.skips: Counter[tuple[str, str]] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        # An expected failure is reported as skipped too, but it ran, and pytest accounts for it by itself.
        if report.skipped and not hasattr(report, "wasxfail"):
            self._count(report.nodeid, report.longrepr)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        # A whole module that skips itself never becomes a test report. It counts once, whatever it holds.
        if report.skipped:
            self._count(report.nodeid, report.longrepr)

    def _count(self, nodeid: str, told: object) -> None:
        reason = str(told[2]) if isinstance(told, tuple) else str(told)
        self.skips[lane_of(nodeid), reason.removeprefix("Skipped: ")] += 1

    def excess(self) -> list[str]:
        """One line for each limit that was passed; empty where all held or none applies."""
        whole = os.environ.get("TENURE_MAX_SKIPS", "")
        if whole:
            total = self.skips.total()
            return [f"{total} skipped, TENURE_MAX_SKIPS allows {whole}"] if total > int(whole) else []
        if os.environ.get("CI", "").lower() in ("", "0", "false"):
            return []
        allowed = limits()
        by_lane: Counter[str] = Counter()
        for (lane, _), count in self.skips.items():
            by_lane[lane] += count
        return [
            f"lane {lane}: {count} skipped, tests/{LIMITS.name} allows {allowed.get(lane, 0)}"
            for lane, count in sorted(by_lane.items())
            if count > allowed.get(lane, 0)
        ]

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        # Before the summary is printed; pytest returns what stands in session.exitstatus after all these hooks.
        if self.excess() and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.skips:
            terminalreporter.section("skipped by reason")
            for (lane, reason), count in sorted(self.skips.items()):
                terminalreporter.line(f"{count:5}  {lane:12} {reason}")
        for line in self.excess():
            terminalreporter.line(f"TOO MANY SKIPS: {line}", red=True)


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(SkipAccount(), "tenure-skips")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skips what this machine cannot show, with the reason that the marker has to give."""
    for name, present in (
        ("gpu", any(Path(file).exists() for file in GPU_FILES)),
        ("root", os.geteuid() == 0),
    ):
        marker = item.get_closest_marker(name)
        if marker is None:
            continue
        reason = str(marker.kwargs.get("reason", ""))
        if not reason:
            pytest.fail(f"the marker `{name}` needs reason=..., saying what the test would prove", pytrace=False)
        if not present:
            pytest.skip(f"needs {'a real GPU' if name == 'gpu' else 'root'}: {reason}")
