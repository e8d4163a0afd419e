"""The environment of a job: a whitelist, and Tenure's own on top."""

from __future__ import annotations

from tenure.agent.environment import CALLER_VARIABLES, OWN_VARIABLES, from_caller, job_environment

GPU0 = ("h:gpu0", "GPU-aaa", "nvidia", "l1", 7)
GPU1 = ("h:gpu1", "MIG-bbb", "mig", "l2", 9)
CPU = ("h:cpu0", "CPU-ccc", "cpu", "l3", 4)


def made(given: dict[str, str], *devices: tuple[str, str, str, str, int], scenario: str = "") -> dict[str, str]:
    return job_environment(
        given, job="j1", attempt=2, devices=devices, scratch="/s", controller="/run/ctl.sock", scenario=scenario
    )


def test_what_the_caller_passes_on() -> None:
    caller = {
        "PATH": "/bin",
        "LC_ALL": "C",
        "CONDA_PREFIX": "/c",
        "VIRTUAL_ENV": "/v",
        "AWS_SECRET_ACCESS_KEY": "x",
        "LD_PRELOAD": "y",
        "CUDA_VISIBLE_DEVICES": "3",
        "SSH_AUTH_SOCK": "/s",
    }
    assert from_caller(caller) == {"PATH": "/bin", "LC_ALL": "C", "CONDA_PREFIX": "/c", "VIRTUAL_ENV": "/v"}


def test_devices_are_shown_by_uuid_in_the_order_of_the_grant() -> None:
    env = made({}, GPU0, GPU1)
    assert env["CUDA_VISIBLE_DEVICES"] == env["NVIDIA_VISIBLE_DEVICES"] == "GPU-aaa,MIG-bbb"
    assert (env["RC_DEVICE"], env["RC_LEASE_ID"], env["RC_FENCE"]) == ("h:gpu0,h:gpu1", "l1,l2", "7,9")
    assert env["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"


def test_a_cpu_lease_sees_no_gpu() -> None:
    assert made({"CUDA_VISIBLE_DEVICES": "0"}, CPU)["CUDA_VISIBLE_DEVICES"] == ""


def test_nothing_given_overrides_what_is_tenures_own() -> None:
    env = made({**dict.fromkeys(OWN_VARIABLES, "forged"), "MINE": "1"}, GPU0)
    assert "forged" not in env.values()
    assert env["MINE"] == "1"


def test_the_agents_own_environment_never_leaks() -> None:
    import os

    os.environ["TENURE_TEST_LEAK"] = "1"
    try:
        assert "TENURE_TEST_LEAK" not in made({}, CPU)
    finally:
        del os.environ["TENURE_TEST_LEAK"]


def test_only_simulated_devices_get_the_scenario() -> None:
    simulated = ("h:gpu0", "GPU-aaa", "simulated", "l1", 7)
    assert made({}, simulated, scenario="/sim/scenario")["TENURE_SIM_SCENARIO"] == "/sim/scenario"
    assert "TENURE_SIM_SCENARIO" not in made({}, GPU0, scenario="/sim/scenario")


def test_the_list_names_no_secret() -> None:
    assert not [name for name in CALLER_VARIABLES if name in ("*", "LD_*", "AWS_*")]
