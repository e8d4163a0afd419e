"""Bounds as a person meets them: the notice, the end's words, the log, the device's page, and every refusal."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.conftest import House, _house, until

BOUNDS = {
    "gpu0": {"max_runtime": "1h", "max_runtime_ceiling": "2h", "idle_ceiling": "30m"},
    "gpu1": {"require_max_runtime": True},
}
NOTICE = re.compile(r"^rc: notice: no output, .* the idle timeout of 2 s ends it in 0\.\d s unless it does something$")
#: Says something, and then nothing: an abandoned shell.
ABANDONED = ("sh", "-c", "printf 'no newline'; sleep 60")


@pytest.fixture(scope="module")
def house(library: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """A home with bounds on two of three simulated devices."""
    for made in _house(library):
        claims = tmp_path_factory.mktemp("bounds") / "claims"
        claims.mkdir()
        made.paths.root.mkdir(parents=True, exist_ok=True)
        settings = {"agent": {"claims_dir": str(claims), "bounds": BOUNDS}}
        (made.paths.root / "embedded.json").write_text(json.dumps(settings))
        made.up()
        yield made


def _warnings(said: bytes) -> list[str]:
    """What was shown of the idle time, among other notices."""
    return [line for line in said.decode().splitlines() if "idle timeout of 2 s ends it" in line]


def test_an_idle_job_is_warned_where_it_is_followed_and_ended_and_its_log_says_so(house: House) -> None:
    run = house.start("run", "-d", house.gpu(2), "--idle-timeout", "2s", "--", *ABANDONED)
    job = until(lambda: house.json("ps")["jobs"], "it runs")[0]["id"]
    follower = house.start("logs", "-f", job)
    out, said = run.communicate(timeout=60)
    assert (run.returncode, out) == (143, b"no newline")
    first = _warnings(said)
    assert re.search(rb"ended by signal 15 \(idle timeout of 2 s reached: no output, .* for [\d.]+ s\)", said)
    # One, unless this machine was so late with a look that the first was taken back.
    notices = [one for one in house.json("describe", job)["notices"] if one["kind"] == "idle_soon"]
    assert [f"rc: notice: {one['words']}" for one in notices] == first, "each once"
    assert all(map(NOTICE.match, first)), said
    assert first

    out, said = follower.communicate(timeout=60)
    assert out == b"no newline"
    assert _warnings(said) == first
    logged = house.rc("logs", job)
    assert logged.stdout == b"no newline"
    assert _warnings(logged.stderr) == first
    assert _warnings(house.rc("attach", job).stderr) == first, "part of the log that is shown from its beginning"

    described = house.rc("describe", job).stdout.decode()
    assert described.count("the idle timeout of 2 s ends it in") == len(first)
    assert re.search(r"^notice +[\d.]+ s ago: no output", described, re.MULTILINE)
    assert re.search(r"^bounds +.*idle timeout 2\.0 s", described, re.MULTILINE)
    assert {(one["kind"], one["facts"]["idle_timeout_s"]) for one in notices} == {("idle_soon", 2.0)}
    pieces = [json.loads(line) for line in house.rc("logs", job, "-o", "json").stdout.splitlines()]
    assert pieces[0]["job"]["notices"][: len(notices)] == notices


def test_a_max_runtime_says_which_bound_with_what_numbers(house: House) -> None:
    done = house.rc("run", "-d", house.gpu(2), "--max-runtime", "1s", "--", "sleep", "60")
    assert done.returncode == 143
    assert re.search(rb"ended by signal 15 \(max runtime of 1 s reached: ran 1\.\d s\)", done.stderr)
    trapped = ("sh", "-c", "trap 'exit 3' TERM; sleep 60 & wait")
    done = house.rc("run", "-d", house.gpu(2), "--max-runtime", "1s", "--", *trapped)
    assert done.returncode == 3, "the status stays the command's own"
    assert b"exited 3 (max runtime of 1 s reached: ran 1." in done.stderr


@pytest.mark.parametrize(
    ("words", "message", "do"),
    [
        (("-d", "gpu0", "--max-runtime", "3h"), "gpu0 allows a max runtime of at most 2 h, and 3 h was", "2h"),
        (("-d", "gpu0", "--max-runtime", "0"), "and 0 is no bound", "--max-runtime 2h"),
        (("-d", "gpu0", "--idle-timeout", "0"), "gpu0 allows an idle timeout of at most 30 min", "--idle-timeout 30m"),
        (("-d", "gpu1"), "gpu1 requires a max runtime, and none was given", "--max-runtime TIME"),
        (("-d", "gpu1", "--max-runtime", "0"), "and 0 is none", "--max-runtime TIME"),
        (("--select", "simulated=true", "--count", "3", "--max-runtime", "3h"), "at most 2 h", "--max-runtime 2h"),
    ],
)
def test_what_a_device_does_not_allow_is_refused_and_never_cut_down(
    house: House, words: tuple[str, ...], message: str, do: str
) -> None:
    done = house.rc("run", "-o", "json", *words, "--", "true")
    assert done.returncode == 67
    error = json.loads(done.stderr)["error"]
    assert error["code"] == "bound_refused"
    assert message in error["message"]
    assert error["do"].endswith(do)


def test_with_a_selector_a_device_that_does_not_allow_it_does_not_match(house: House) -> None:
    explained = house.rc("explain", "simulated=true", "--max-runtime", "3h")
    assert explained.returncode == 0
    rows = {line.split()[0].rpartition(":")[2]: line for line in explained.stdout.decode().splitlines()[1:]}
    assert "allows a max runtime of at most 2 h, and 3 h was asked for" in rows["gpu0"]
    assert [rows[name].split()[1] for name in ("gpu0", "gpu1", "gpu2")] == ["no", "yes", "yes"]
    bare = house.rc("run", "--explain", "--select", "simulated=true").stdout.decode()
    assert "requires a max runtime, and none was given" in bare
    for _ in range(2):
        done = house.rc("run", "-q", "--select", "simulated=true", "--max-runtime", "3h", "--", "printenv", "RC_DEVICE")
        assert done.stdout.decode().strip().endswith(("gpu1", "gpu2"))


def test_the_page_of_a_device_prints_what_holds_where_a_job_says_nothing(house: House) -> None:
    for name, runtime, idle in (
        ("gpu0", "1 h by default, at most 2 h", "30 min by default, at most 30 min"),
        ("gpu1", "to be given with --max-runtime", "none by default"),
        ("gpu2", "none by default", "none by default"),
    ):
        page = house.rc("describe", name).stdout.decode()
        assert re.search(rf"^max runtime +{runtime}$", page, re.MULTILINE), page
        assert re.search(rf"^idle timeout +{idle}$", page, re.MULTILINE), page
    facts = house.json("describe", "gpu0")["facts"]
    assert facts["bounds"] == {"max_runtime": 3600.0, "max_runtime_ceiling": 7200.0, "idle_ceiling": 1800.0}
