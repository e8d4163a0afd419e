"""A program that uses a simulated GPU: it registers its own pid in the scenario, works, and takes itself off again.

What a job runs where there is no GPU: ``python -m tenure.testing.gpu_program --device GPU-... --seconds 5``. Killed
without a chance to clean up, its entry goes the way of a real one: the driver (here, the library) drops the dead.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from types import FrameType

from tenure.testing.nvml.scenario import Scenario

STEP_S = 0.02


class _Stopped(Exception):
    """A signal asked for the end."""


def _stop(number: int, _frame: FrameType | None) -> None:
    raise _Stopped(number)


def main(argv: list[str] | None = None) -> int:
    """Exit status 0, 128+n after signal n, 2 where no device or scenario is named."""
    parser = argparse.ArgumentParser(prog="gpu_program", description="Uses a simulated GPU for a while.")
    parser.add_argument("--device", help="UUID or index; default: the first entry of CUDA_VISIBLE_DEVICES")
    parser.add_argument("--memory-mb", type=int, default=18000, help="device memory to hold")
    parser.add_argument("--util", type=int, default=90, help="utilisation in percent that it shows")
    parser.add_argument("--seconds", type=float, default=5.0, help="how long to run")
    parser.add_argument("--idle", action="store_true", help="hold a context and do no work")
    parser.add_argument("--open-for-ms", type=float, help="hold the context only this long, then run on without it")
    parser.add_argument("--kind", choices=("compute", "graphics", "mps"), default="compute")
    options = parser.parse_args(argv)
    path = os.environ.get("TENURE_SIM_SCENARIO")
    device = options.device or os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0]
    if not path or not device:
        print("gpu_program: set TENURE_SIM_SCENARIO, and CUDA_VISIBLE_DEVICES or --device", file=sys.stderr)
        return 2
    scenario, pid = Scenario(path), os.getpid()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _stop)
    began = time.monotonic()
    closing = began + (options.seconds if options.open_for_ms is None else options.open_for_ms / 1000)
    held = False
    try:
        scenario.add_process(device, pid, options.memory_mb, 0 if options.idle else options.util, kind=options.kind)
        held = True
        print(f"gpu_program: context on {device} (simulated), pid {pid}", flush=True)
        while (now := time.monotonic()) < began + options.seconds:
            if held and now >= closing:
                scenario.remove_process(device, pid)
                held = False
            if not options.idle:
                sum(range(2000))  # a little work of the CPU's own, as launching kernels is
            time.sleep(max(0.0, min(STEP_S, began + options.seconds - now)))
    except _Stopped as stopped:
        return 128 + int(stopped.args[0])
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        if held:
            scenario.remove_process(device, pid)
    return 0


if __name__ == "__main__":
    sys.exit(main())
