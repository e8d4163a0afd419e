"""Test results as tools write them: what pytest itself writes here, and captured shapes of ctest and JUnit."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tenure.domain.baseline import Mode
from tenure.domain.results import Result, read_results

SUITE = """
import pytest
def test_ok(): pass
def test_bad(): assert 1 == 2
@pytest.mark.skip(reason="no time")
def test_skip(): pass
@pytest.mark.xfail
def test_expected(): assert False
@pytest.mark.parametrize("x", ["a b", "c"])
def test_each(x): pass
@pytest.fixture
def broken(): raise RuntimeError("no fixture")
def test_error(broken): pass
@pytest.fixture
def late():
    yield
    raise RuntimeError("late")
def test_teardown(late): pass
"""
RIGHT = {
    "test_ok": Mode.PASSED,
    "test_bad": Mode.FAILED,
    "test_skip": Mode.SKIPPED,
    "test_expected": Mode.SKIPPED,
    "test_each[a b]": Mode.PASSED,
    "test_each[c]": Mode.PASSED,
    "test_error": Mode.CRASH,
    "test_teardown": Mode.CRASH,
}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str, str]:
    """(JUnit XML, what -rA prints, what -v prints), by the pytest that runs here."""
    folder = tmp_path_factory.mktemp("suite")
    (folder / "test_suite.py").write_text(SUITE)
    env = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    said = []
    for words in (["-rA", "--junit-xml=out.xml"], ["-v"]):
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--rootdir", str(folder), *words]
        done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 1, done.stdout
        said.append(done.stdout)
    return (folder / "out.xml").read_text(), said[0], said[1]


def test_junit_as_pytest_writes_it(written: tuple[str, str, str]) -> None:
    found = read_results(written[0])
    assert found.kind == "junit"
    assert found.modes == {f"test_suite::{name}": mode for name, mode in RIGHT.items()}
    assert found.by_name["test_suite::test_bad"].detail == "assert 1 == 2"
    assert found.by_name["test_suite::test_ok"].detail == ""


def test_what_pytest_prints_with_ra(written: tuple[str, str, str]) -> None:
    found = read_results(written[1])
    named = {name: mode for name, mode in RIGHT.items() if name != "test_skip"}  # folded: counted, not named
    assert found.modes == {f"test_suite.py::{name}": mode for name, mode in named.items()}
    assert found.unnamed_skips == 1
    assert found.by_name["test_suite.py::test_bad"].detail == "assert 1 == 2"


def test_what_pytest_prints_with_v(written: tuple[str, str, str]) -> None:
    found = read_results(written[2])
    assert found.modes == {f"test_suite.py::{name}": mode for name, mode in RIGHT.items()}


CTEST = """Test project /build
      Start  1: t_ok
 1/10 Test  #1: t_ok .............................   Passed    0.01 sec
 2/10 Test  #2: t_bad ............................***Failed    0.10 sec
 3/10 Test #12: t_match ..........................***Failed  Error regular expression found. Regex=[x]  0.02 sec
 4/10 Test  #4: t_slow ...........................***Timeout   5.01 sec
 5/10 Test  #5: t_segv ...........................***Exception: SegFault  0.20 sec
 6/10 Test  #6: t_abort ..........................Subprocess aborted***Exception:   0.30 sec
 7/10 Test  #7: t_skip ...........................***Skipped   0.00 sec
 8/10 Test  #8: t_off ............................***Not Run (Disabled)   0.00 sec
 9/10 Test  #9: t_gone ...........................***Not Run   0.00 sec
10/10 Test #10: t.dotted name .....................   Passed    0.01 sec

The following tests FAILED:
\t  2 - t_bad (Failed)
\t  4 - t_slow (Timeout)
"""


def test_what_ctest_prints() -> None:
    found = read_results(CTEST)
    assert found.kind == "ctest"
    assert {name: mode.name for name, mode in found.modes.items()} == {
        "t_ok": "PASSED",
        "t_bad": "FAILED",
        "t_match": "FAILED",
        "t_slow": "CRASH",
        "t_segv": "CRASH",
        "t_abort": "CRASH",
        "t_skip": "SKIPPED",
        "t_off": "SKIPPED",
        "t_gone": "SKIPPED",
        "t.dotted name": "PASSED",
    }
    assert found.by_name["t_segv"].detail == "Exception: SegFault"


def test_ordinals_say_nothing() -> None:
    assert read_results(CTEST.replace("#1:", "#7:").replace(" 1/10", " 3/11")).modes == read_results(CTEST).modes


def test_the_list_of_a_quiet_ctest() -> None:
    text = (
        "The following tests FAILED:\n\t  2 - t_bad (Failed)\n\t  4 - t_slow (Timeout)\n\t 11 - t_x (SEGFAULT)  gpu\n"
    )
    assert read_results(text).modes == {"t_bad": Mode.FAILED, "t_slow": Mode.CRASH, "t_x": Mode.CRASH}


CTEST_JUNIT = """<?xml version="1.0" encoding="UTF-8"?>
<testsuite name="Linux" tests="4" failures="2" disabled="0" skipped="1" hostname="h" time="1">
\t<testcase name="t_ok" classname="t_ok" time="0.01" status="run"><properties/><system-out>&lt;failure/&gt;</system-out>
\t</testcase>
\t<testcase name="t_bad" classname="t_bad" time="0.01" status="fail"><failure message="Failed"/></testcase>
\t<testcase name="t_slow" classname="t_slow" time="5" status="fail"><failure message="Timeout"/></testcase>
\t<testcase name="t_off" classname="t_off" time="0" status="disabled"><skipped message="Disabled"/></testcase>
</testsuite>
"""


def test_junit_as_ctest_writes_it() -> None:
    found = read_results(CTEST_JUNIT)
    assert found.by_name == {
        "t_ok": Result(Mode.PASSED),
        "t_bad": Result(Mode.FAILED, "Failed"),
        "t_slow": Result(Mode.CRASH, "Timeout"),
        "t_off": Result(Mode.SKIPPED, "Disabled"),
    }


def test_a_name_that_comes_twice_keeps_its_worst_mode() -> None:
    one = "<testcase name='t'/><testcase name='t'><failure message='m'/></testcase><testcase name='t'/>"
    assert read_results(f"<testsuites><testsuite>{one}</testsuite></testsuites>").by_name == {
        "t": Result(Mode.FAILED, "m")
    }


def test_of_two_outcomes_of_one_test_the_worse_is_told() -> None:
    for inner in ("<error message='e'/><failure message='f'/>", "<failure message='f'/><error message='e'/>"):
        found = read_results(f"<testsuite><testcase name='t'>{inner}</testcase></testsuite>")
        assert found.by_name == {"t": Result(Mode.CRASH, "e")}


def test_a_failure_that_speaks_of_a_timeout_is_no_timeout() -> None:
    def mode(message: str) -> Mode:
        return read_results(
            f"<testsuite><testcase name='t'><failure message='{message}'/></testcase></testsuite>"
        ).modes["t"]

    assert mode("AssertionError: the timeout was 3") is Mode.FAILED
    assert mode("Failed: Timeout (&gt;120.0s) from pytest-timeout.") is Mode.CRASH
    assert mode("SEGFAULT") is Mode.CRASH


def test_the_first_line_of_a_text_is_the_detail() -> None:
    text = "<testsuite><testcase name='t'><failure>\n\n  x != y\nmore</failure></testcase></testsuite>"
    assert read_results(text).by_name["t"].detail == "x != y"
    long = f"<testsuite><testcase name='t'><failure message='{'x' * 900}'/></testcase></testsuite>"
    assert len(read_results(long).by_name["t"].detail) == 200


def test_a_death_of_the_interpreter_is_a_crash() -> None:
    text = "tests/test_a.py::test_ok PASSED  [ 50%]\ntests/test_a.py::test_b Fatal Python error: Segmentation fault\n"
    assert read_results(text).modes == {"tests/test_a.py::test_ok": Mode.PASSED, "tests/test_a.py::test_b": Mode.CRASH}


LAUGHS = """<?xml version="1.0"?>
<!DOCTYPE lolz [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;&a;&a;">]>
<testsuite><testcase name="&b;"/></testsuite>"""
OUTSIDE = (
    """<!DOCTYPE t [<!ENTITY x SYSTEM "file:///etc/passwd">]><testsuite><testcase name="t">&x;</testcase></testsuite>"""
)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (LAUGHS, "document type or an entity"),
        (OUTSIDE, "document type or an entity"),
        ("<!DOCTYPE testsuite><testsuite/>", "document type or an entity"),
        ("<testsuite><testcase name='t'>", "not well-formed"),
        ("<testsuite><testcase name='t'>&nope;</testcase></testsuite>", "not well-formed"),
        ("<html/>", "begins with <html>"),
        ("<testsuite/>", "no test result"),
        ("<testsuite><testcase/></testsuite>", "neither a name nor a classname"),
        ("<testsuite>" + "<a>" * 100, "deep"),
        ("", "neither JUnit XML"),
        ("no tests ran in 0.01s", "neither JUnit XML"),
        ("SKIPPED [3] a.py:1: why", "neither JUnit XML"),
        (" 1/10 Test  #1: t_x .............................   Puzzled    0.01 sec", "'Puzzled"),
    ],
)
def test_what_is_no_result_is_refused(text: str, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        read_results(text)


def test_a_file_may_declare_any_encoding_and_begin_with_a_mark() -> None:
    body = "<testsuite><testcase name='tést'/></testsuite>"
    assert "tést" in read_results(f"\ufeff<?xml version='1.0' encoding='ISO-8859-1'?>{body}").modes
