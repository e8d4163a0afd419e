"""A thousand kills of trees that do not want to die: no device shows free while anything of its last job is alive.

``TENURE_KILLS`` sets another number. Half of them go through cgroups (where this machine has them), half without.
"""

from __future__ import annotations

import os
import random
import sys
import threading
import time
from collections import Counter

import pytest
from tests.kill import outside
from tests.kill.harness import Api, Home, control, homes

KILLS = int(os.environ.get("TENURE_KILLS", "1000"))
DEVICES = 3
GRACE_S = 0.03

#: Trees, each of which says `ready` when it stands. None of them ends by SIGTERM.
TREES = {
    "setsid": "trap '' TERM INT HUP; setsid sleep 600 & setsid sh -c \"trap '' TERM; sleep 600; sleep 600\" &"
    " echo ready; wait; sleep 600",
    "double fork": "( (setsid sh -c \"trap '' TERM HUP; echo ready; sleep 600; sleep 600\" &) & ); exec sleep 600",
    "trap that forks": "trap '(setsid sleep 600 &); sleep 600 &' TERM; echo ready; while :; do sleep 600 & wait; done",
    "steady forks": "trap '' TERM; echo ready; while :; do (setsid sleep 600 &); sleep 0.01; done",
    "stragglers": "(setsid sh -c \"trap '' TERM; sleep 600; sleep 600\" &); (sleep 600 &); echo ready; exit 7",
    "on the device": f"(setsid {sys.executable} -m tenure.testing.gpu_program --seconds 600 &);"
    " trap '' TERM; echo ready; while :; do sleep 600; done",
}
#: The last one takes a tenth of a second to start: it comes by more seldom.
WEIGHTS = (5, 5, 5, 3, 4, 1)


def _attack(home: Home, device: str, seen: outside.Observer, kills: int, seed: str, told: Counter[str]) -> None:
    """Starts trees on one device and kills them, one after the other, at instants drawn from the seed."""
    draw = random.Random(seed)
    api = Api(home.layout.ctl_sock, 30.0)
    python = os.environ.get("PYTHONPATH", "")
    for _ in range(kills):
        kind = draw.choices(list(TREES), WEIGHTS)[0]
        body = {
            "argv": ["/bin/sh", "-c", TREES[kind]],
            "device": f"h:{device}",
            "grace_s": GRACE_S,
            "env": {**seen.environment, "PATH": os.environ["PATH"], "PYTHONPATH": python},
        }
        job = api.ask("POST", "/v1/jobs", body)["job"]["id"]
        stopped = kind == "stragglers"
        stop_at = time.monotonic() + draw.choice((0.0, 0.02, 0.05, 0.08)) + draw.random() * 0.05
        end = time.monotonic() + 60.0
        while (now := api.ask("GET", f"/v1/jobs/{job}"))["state"] != "ended":
            assert time.monotonic() < end, f"{job} ({kind}) is {now['words']}\n{home.logs()}"
            if not stopped and now["state"] in ("starting", "running") and time.monotonic() >= stop_at:
                stopped = True
                api.ask("POST", f"/v1/jobs/{job}/stop", {"reason": "test"})
            time.sleep(0.01)
        ending = now["outcome"]["ending"]
        told[f"{kind}: {ending}"] += 1
        time.sleep(draw.choice((0.0, 0.0, 0.01, 0.03)))
    api.close()


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("without_cgroups", [False, True], ids=["as it is", "without cgroups"])
def test_no_device_is_free_while_its_last_job_lives(without_cgroups: bool) -> None:
    each = -(-KILLS // (2 * DEVICES))
    told: Counter[str] = Counter()
    failures: list[BaseException] = []
    began = time.monotonic()
    with homes() as make:
        home = make(sim=f"{DEVICES}xH100", prefix=control(without_cgroups))
        home.up(DEVICES + 1)
        for number in range(DEVICES):
            home.device(f"gpu{number}", "ready")
        with outside.observing(home) as seen:

            def attack(number: int) -> None:
                try:
                    _attack(home, f"gpu{number}", seen, each, f"{without_cgroups} {number}", told)
                except BaseException as error:
                    failures.append(error)

            threads = [threading.Thread(target=attack, args=(number,)) for number in range(DEVICES)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            time.sleep(0.05)
        early, margins = outside.released_early(seen, home)
    found = [*outside.shown_free(seen), *early, *outside.overlapping(seen)]
    span = time.monotonic() - began
    print(f"\n{each * DEVICES} kills in {span:.0f} s: {outside.summary(seen, margins)}")
    print("\n".join(f"  {count:5} {what}" for what, count in sorted(told.items())))
    assert not found, f"{len(found)} violations, first of all: {found[:5]}"
    assert not failures, failures
    assert len(seen.jobs) >= 0.7 * each * DEVICES, "the observer saw too few of the jobs to say anything"
    assert all(seen.ready.get(f"h:gpu{number}") for number in range(DEVICES)), "no answer ever showed the device free"
