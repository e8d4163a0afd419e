"""The environment a job starts with: a whitelist, never the agent's own.

Three layers, later ones win: a base that any command needs, what came with the job (on the local machine the caller's
variables of ``CALLER_VARIABLES`` and whatever was given by ``--env``), and Tenure's own, which nothing can override:
a job that could name other devices than its lease's would be no lease. Imports the standard library only, because the
command line reads the list as well.
"""

from __future__ import annotations

import os
import pwd

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: What the local caller's environment passes on to a job. A trailing ``*`` stands for any ending.
CALLER_VARIABLES: tuple[str, ...] = (
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "LANG",
    "LANGUAGE",
    "LC_*",
    "TZ",
    "TERM",
    "COLORTERM",
    "VIRTUAL_ENV",
    "VIRTUAL_ENV_PROMPT",
    "CONDA_*",
)

#: Set by Tenure for every job, whatever the job asked for.
OWN_VARIABLES: Mapping[str, str] = {
    "RC_JOB_ID": "the job's id",
    "RC_ATTEMPT": "which attempt of the job this is, from 1",
    "RC_DEVICE": "the leased devices, separated by commas",
    "RC_LEASE_ID": "their leases, in the same order",
    "RC_FENCE": "their fencing tokens, in the same order",
    "RC_SCRATCH": "a folder of the job's own, removed after its end",
    "RC_CONTROLLER": "where the controller answers",
    "CUDA_VISIBLE_DEVICES": "the leased GPUs by UUID; empty where none is leased, so that none is seen",
    "NVIDIA_VISIBLE_DEVICES": "the same, for container runtimes",
    "CUDA_DEVICE_ORDER": "PCI_BUS_ID, so that numbers mean the same in every tool",
    "PYTHONUNBUFFERED": "1, because a log that stays empty for minutes looks like a job that hangs",
}

_GPU_KINDS = frozenset({"nvidia", "mig", "simulated"})


def from_caller(environ: Mapping[str, str]) -> dict[str, str]:
    """Those of the caller's variables that a job on the same machine gets."""
    import fnmatch

    return {
        name: value
        for name, value in environ.items()
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in CALLER_VARIABLES)
    }


def base() -> dict[str, str]:
    """What a command needs where its caller gave nothing: the user's own login values."""
    env = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8"}
    try:
        user = pwd.getpwuid(os.getuid())
    except KeyError:
        return env  # a user without an entry, as in many containers
    return {**env, "HOME": user.pw_dir, "USER": user.pw_name, "LOGNAME": user.pw_name, "SHELL": user.pw_shell}


def job_environment(
    given: Mapping[str, str],
    *,
    job: str,
    attempt: int,
    devices: Sequence[tuple[str, str, str, str, int]],
    scratch: str,
    controller: str,
    scenario: str = "",
) -> dict[str, str]:
    """The whole environment of one attempt.

    ``devices`` are (name, UUID, kind, lease id, token) in the order of the grant; ``scenario`` the file that simulated
    devices answer from, so that a simulated job can say what it pretends to do.
    """
    gpus = ",".join(uuid for _, uuid, kind, _, _ in devices if kind in _GPU_KINDS)
    own = {
        "RC_JOB_ID": job,
        "RC_ATTEMPT": str(attempt),
        "RC_DEVICE": ",".join(name for name, *_ in devices),
        "RC_LEASE_ID": ",".join(lease for _, _, _, lease, _ in devices),
        "RC_FENCE": ",".join(str(token) for *_, token in devices),
        "RC_SCRATCH": scratch,
        "RC_CONTROLLER": controller,
        "CUDA_VISIBLE_DEVICES": gpus,
        "NVIDIA_VISIBLE_DEVICES": gpus,
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "PYTHONUNBUFFERED": "1",
    }
    if scenario and any(kind == "simulated" for _, _, kind, _, _ in devices):
        own["TENURE_SIM_SCENARIO"] = scenario
    return {**base(), **given, **own}
