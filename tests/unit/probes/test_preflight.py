"""Requirements looked at on a real host: real programs, files, libraries, headers, modules; and what
nobody can look at.

What the look should say is known from outside: the files were made, or left out, by the test itself.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tenure.domain.reading import Reading, Reason, Scope, Unavailable, Value
from tenure.domain.requirement import Look, Result, expand, parse
from tenure.probes import preflight, preflight_files
from tenure.probes.preflight import LeasedDevice, Start, of_devices
from tenure.probes.preflight_place import CannotLook, Place


def program(path: Path, body: str = "exit 0") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


class Jobs:
    """A job's place of its own: what it finds is what the test put there. ``system``: the host's programs too."""

    def __init__(self, root: Path) -> None:
        self.bin = root / "bin"
        self.cwd = root / "cwd"
        self.scratch = root / "scratch"
        for folder in (self.bin, self.cwd, self.scratch):
            folder.mkdir()
        self.env = {"PATH": f"{self.bin}:/usr/bin:/bin"}
        self.program = "true"
        self.deadline_s = 30.0  # a busy machine is not what is tested

    def look(self, *texts: str) -> list[Look]:
        start = Start(self.env, str(self.cwd), self.program, str(self.scratch))
        return list(asyncio.run(preflight.look(expand(texts), start, [], deadline_s=self.deadline_s)))

    def one(self, text: str) -> Look:
        (found,) = self.look(text)
        assert found.need == parse(text)
        return found


@pytest.fixture
def job(tmp_path: Path) -> Jobs:
    return Jobs(tmp_path)


# -- tools -------------------------------------------------------------------------------------------------------------


def test_a_tool_is_found_on_the_jobs_path_and_not_on_ours(job: Jobs) -> None:
    made = program(job.bin / "mytool")
    (job.bin / "plain").write_text("no program")
    (job.bin / "folder").mkdir()
    there, gone, plain, folder, whole = job.look(
        "tool:mytool", "tool:notool", "tool:plain", "tool:folder", f"tool:{made}"
    )
    assert (there.result, there.path) == (Result.PRESENT, str(made))
    assert gone.result is plain.result is folder.result is Result.ABSENT
    assert str(job.bin) in gone.words
    assert "/sh" in gone.words  # the control, by name
    assert whole.result is Result.PRESENT
    job.env["PATH"] = "/usr/bin:/bin"
    assert job.one("tool:mytool").result is Result.ABSENT


def test_an_empty_entry_of_the_path_is_the_working_directory(job: Jobs) -> None:
    made = program(job.cwd / "here")
    job.env["PATH"] = f"{job.bin}::/bin"
    found = job.one("tool:here")
    assert (found.result, os.path.realpath(found.path)) == (Result.PRESENT, str(made))
    assert job.one("tool:./here").result is Result.PRESENT


def test_what_was_not_found_where_nobody_could_look_is_not_absent(job: Jobs) -> None:
    loop = job.cwd / "loop"
    loop.symlink_to(loop)
    made = program(job.bin / "mytool")
    job.env["PATH"] += f":{loop}"
    job.env["LD_LIBRARY_PATH"] = str(loop)
    found = job.look("tool:nope", "lib:nope", "lib:libnope.so.1", f"file:{loop}/x", f"mount:{loop}", "tool:mytool")
    assert [look.result for look in found] == [Result.COULD_NOT_LOOK] * 5 + [Result.PRESENT]
    assert {look.reason for look in found[:5]} == {Reason.UNPARSEABLE}
    assert all("Too many levels of symbolic links" in look.words for look in found[:5])
    assert found[5].path == str(made)


def test_a_path_on_which_nothing_is_found_says_nothing_of_one_tool(job: Jobs) -> None:
    job.env["PATH"] = str(job.bin)
    found = job.one("tool:nvcc")
    assert (found.result, found.reason) == (Result.COULD_NOT_LOOK, Reason.NOT_SUPPORTED)
    program(job.bin / "other")
    found = job.one("tool:nvcc")
    assert found.result is Result.ABSENT
    assert str(job.bin / "other") in found.words


@pytest.mark.parametrize(
    ("body", "result", "words"),
    [
        ("echo mytool 3.21.0", Result.PRESENT, "3.21.0"),
        ("echo mytool 3.9", Result.ABSENT, "below 3.20"),
        ("echo 'mytool (packaged 9.9) 3.20'", Result.PRESENT, "3.20"),
        ("echo 3.21 >&2", Result.COULD_NOT_LOOK, "nothing on standard output"),
        ("echo 3.21; exit 1", Result.COULD_NOT_LOOK, "exited 1"),
        ("echo latest", Result.COULD_NOT_LOOK, "latest"),
        ("kill -9 $$", Result.COULD_NOT_LOOK, "signal 9"),
        ('test "$1" = --version && echo "$GIVEN"', Result.PRESENT, "3.77"),
        ('test "$PWD" = "$THERE" && echo 3.20', Result.PRESENT, "3.20"),
    ],
)
def test_a_version_is_what_the_tool_prints(job: Jobs, body: str, result: Result, words: str) -> None:
    program(job.bin / "mytool", body)
    job.env |= {"GIVEN": "3.77", "THERE": str(job.cwd)}
    found = job.one("tool:mytool>=3.20")
    assert found.result is result
    assert words in found.words
    assert str(job.bin / "mytool") in found.words


def test_a_tool_that_hangs_is_left_behind_with_all_it_started(job: Jobs) -> None:
    program(job.bin / "slow", f"sleep 987 & echo $! > {job.scratch}/pid; wait")
    program(job.bin / "quick", "echo 2.0")
    job.deadline_s = 3.0
    began = time.monotonic()
    slow, quick, there = job.look("tool:slow>=1", "tool:quick>=1", "tool:slow")
    assert time.monotonic() - began < 6
    assert (slow.result, slow.reason) == (Result.COULD_NOT_LOOK, Reason.TIMEOUT)
    assert f"{job.bin}/slow --version" in slow.words
    assert quick.result is there.result is Result.PRESENT
    pid = int((job.scratch / "pid").read_text())
    end = time.monotonic() + 5
    while running(pid) and time.monotonic() < end:
        time.sleep(0.01)
    assert not running(pid)


def running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


# -- files -------------------------------------------------------------------------------------------------------------


def test_files_and_folders(job: Jobs, tmp_path: Path) -> None:
    (job.cwd / "a").write_text("12345")
    (job.cwd / "link").symlink_to(tmp_path / "nowhere")
    texts = ("file:a", f"file:{job.cwd}/a", "file:a/", f"file:{job.cwd}/", "file:b/c", "file:link", "file:a/b")
    relative, whole, not_folder, folder, gone, dangling, below = job.look(*texts)
    assert relative.result is whole.result is folder.result is Result.PRESENT
    assert "5 bytes" in relative.words
    assert not_folder.result is gone.result is dangling.result is below.result is Result.ABSENT
    assert "no folder" in not_folder.words
    assert f"{job.cwd} is" in gone.words  # the control
    assert str(tmp_path / "nowhere") in dangling.words


def test_a_fifo_is_looked_at_and_not_opened(job: Jobs) -> None:
    os.mkfifo(job.cwd / "pipe")
    assert stat.S_ISFIFO((job.cwd / "pipe").stat().st_mode)
    assert job.one("file:pipe").result is Result.PRESENT


# -- libraries ---------------------------------------------------------------------------------------------------------


def shared_library(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    compiler = shutil.which("cc")
    assert compiler
    subprocess.run([compiler, "-shared", "-nostdlib", "-x", "c", "-o", str(path), "-"], input=b"int x;", check=True)
    return path


def test_a_library_is_found_as_the_loader_finds_it(job: Jobs, tmp_path: Path) -> None:
    made = shared_library(tmp_path / "lib/libmine.so.3")
    hidden, named, c_library = job.look("lib:mine", "lib:libmine.so.3", "lib:libc.so.6")
    assert hidden.result is named.result is Result.ABSENT
    assert c_library.result is Result.PRESENT
    assert c_library.path in hidden.words  # the control
    job.env["LD_LIBRARY_PATH"] = f"/nonexistent:{made.parent}"
    hidden, named, other = job.look("lib:mine", "lib:libmine.so.3", "lib:libmine.so.4")
    assert (hidden.result, hidden.path) == (named.result, named.path) == (Result.PRESENT, str(made))
    assert other.result is Result.ABSENT


def test_what_the_loader_would_pass_over_is_no_library(job: Jobs, tmp_path: Path) -> None:
    folder = tmp_path / "lib"
    whole = shared_library(folder / "libmine.so.1").read_bytes()
    (folder / "libmine.so.1").write_bytes(whole[:4] + b"\x01" + whole[5:])  # an ELF file of 32 bits
    (folder / "libscript.so").write_text("INPUT(libelse.so)")  # as the linker reads them, and the loader does not
    job.env["LD_LIBRARY_PATH"] = str(folder)
    os.mkfifo(folder / "libpipe.so")  # whoever opens it waits for ever
    other, script, pipe = job.look("lib:mine", "lib:script", "lib:libpipe.so")
    assert other.result is script.result is pipe.result is Result.ABSENT
    assert str(folder / "libpipe.so") in pipe.words
    assert str(folder / "libmine.so.1") in other.words
    assert str(folder / "libscript.so") in script.words
    # The loader itself says the same.
    code = "import ctypes, sys; ctypes.CDLL(sys.argv[1])"
    for name in ("libmine.so.1", "libscript.so"):
        done = subprocess.run([sys.executable, "-c", code, name], env=job.env, capture_output=True, check=False)
        assert done.returncode != 0


def test_every_library_that_the_cache_names_is_found_where_the_loader_takes_it_from(job: Jobs) -> None:
    code = "import ctypes, sys; ctypes.CDLL('libz.so.1'); print(open('/proc/self/maps').read())"
    loaded = subprocess.run(["/usr/bin/env", "-i", sys.executable, "-c", code], capture_output=True, text=True)
    assert loaded.returncode == 0
    taken = {line.split()[-1] for line in loaded.stdout.splitlines() if "/libz.so" in line}
    found = job.one("lib:libz.so.1")
    assert {os.path.realpath(found.path)} == {os.path.realpath(path) for path in taken}


def test_a_search_that_does_not_even_find_the_c_library_says_nothing(
    job: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Place(job.env, str(job.cwd), "true", str(job.scratch))
    monkeypatch.setattr(preflight_files, "_cached", [])
    assert preflight_files.library(parse("lib:nope"), place).result is Result.ABSENT
    monkeypatch.setattr(preflight_files, "_candidates", lambda *given: iter(()))
    with pytest.raises(CannotLook, match="the C library") as caught:
        preflight_files.library(parse("lib:nope"), place)
    assert caught.value.reason is Reason.NOT_SUPPORTED


@pytest.mark.parametrize("ldconfig", ["", "exit 3", "kill -9 $$"])
def test_a_cache_that_cannot_be_read_makes_nothing_absent(
    job: Jobs, monkeypatch: pytest.MonkeyPatch, ldconfig: str
) -> None:
    place = Place(job.env, str(job.cwd), "true", str(job.scratch))
    monkeypatch.setattr(preflight_files, "_cached", [])
    programs = (str(program(job.bin / "ldconfig", ldconfig)),) if ldconfig else ("/nonexistent",)
    monkeypatch.setattr(preflight_files, "LDCONFIG", programs)
    with pytest.raises(CannotLook, match="not everything could be looked at"):
        preflight_files.library(parse("lib:nope"), place)
    assert preflight_files.library(parse("lib:libc.so.6"), place).result is Result.PRESENT


# -- headers -----------------------------------------------------------------------------------------------------------


def test_a_header_is_found_as_the_compiler_finds_it(job: Jobs, tmp_path: Path) -> None:
    (tmp_path / "inc/sub").mkdir(parents=True)
    (tmp_path / "inc/sub/mine.h").write_text("#error it is not included, only looked for\n")
    system, gone, nothing = job.look("header:stdio.h", "header:sub/mine.h", "header:no/such.h")
    assert (system.result, system.path) == (Result.PRESENT, "/usr/include/stdio.h")
    assert gone.result is nothing.result is Result.ABSENT
    assert "finds stdio.h" in gone.words
    for name in ("CPATH", "CUDA_HOME", "CUDA_PATH"):
        inner = tmp_path / "inc" if name == "CPATH" else tmp_path / name / "include"
        if not inner.exists():
            shutil.copytree(tmp_path / "inc", inner)
        value = str(inner if name == "CPATH" else inner.parent)
        job.env = {"PATH": job.env["PATH"], name: value}
        found = job.one("header:sub/mine.h")
        assert (found.result, found.path) == (Result.PRESENT, f"{inner}/sub/mine.h"), name


def test_without_a_compiler_no_header_is_absent(job: Jobs, tmp_path: Path) -> None:
    job.env["PATH"] = str(job.bin)
    program(job.bin / "sh")
    found = job.one("header:stdio.h")
    assert (found.result, found.reason) == (Result.COULD_NOT_LOOK, Reason.LIBRARY_MISSING)
    assert "cc, gcc, clang" in found.words
    (tmp_path / "inc").mkdir()
    (tmp_path / "inc/mine.h").touch()
    job.env["CPATH"] = str(tmp_path / "inc")
    assert job.one("header:mine.h").result is Result.PRESENT


@pytest.mark.parametrize(
    ("body", "words"),
    [("exit 0", "does not even find stdio.h"), ("echo broken >&2; exit 3", "exited 3: broken"), ("kill -11 $$", "11")],
)
def test_a_compiler_that_finds_nothing_at_all_says_nothing(job: Jobs, body: str, words: str) -> None:
    program(job.bin / "cc", body)
    found = job.one("header:cuda_runtime.h")
    assert (found.result, found.reason) == (Result.COULD_NOT_LOOK, Reason.LIBRARY_MISSING)
    assert words in found.words


def test_a_compiler_of_c_alone_says_nothing_of_a_header_of_cpp(job: Jobs) -> None:
    program(job.bin / "cc", 'test "$2" = c++ && { echo no cc1plus >&2; exit 1; }; exec /usr/bin/cc "$@"')
    system, gone, cpp = job.look("header:stdio.h", "header:no_such.h", "header:vector")
    assert system.result is Result.PRESENT
    assert gone.result is Result.ABSENT
    assert "(as c)" in gone.words
    assert (cpp.result, cpp.reason) == (Result.COULD_NOT_LOOK, Reason.LIBRARY_MISSING)
    assert "no cc1plus" in cpp.words


def test_an_nvcc_of_its_own_list_is_asked_too_and_its_hanging_is_no_answer(job: Jobs) -> None:
    wrapper = program(
        job.bin / "nvcc",
        """echo tenure_control tenure_wanted '
# 1 "/opt/toolkit/include/mine.h" 1'""",
    )
    found = job.one("header:mine.h")
    assert (found.result, found.path) == (Result.PRESENT, "/opt/toolkit/include/mine.h")
    assert str(wrapper) in found.words
    program(wrapper, "echo tenure_control")
    assert "does not find it either" in job.one("header:mine.h").words
    program(wrapper, "exec sleep 987")
    found = job.one("header:mine.h")
    assert (found.result, found.reason) == (Result.COULD_NOT_LOOK, Reason.TIMEOUT)
    assert job.one("header:stdio.h").result is Result.PRESENT


def test_a_partial_toolkit_fails_by_the_name_of_what_it_lacks(job: Jobs, tmp_path: Path) -> None:
    toolkit = tmp_path / "toolkit"
    compiler = program(toolkit / "bin/nvcc", "echo 'Cuda compilation tools, release 12.4, V12.4.131'")
    job.env["PATH"] = f"{compiler.parent}:{job.bin}:{without_cuda(tmp_path)}"
    tool, header, library = job.look("cuda-toolkit")
    assert (tool.result, tool.path) == (Result.PRESENT, str(compiler))
    assert header.result is Result.ABSENT
    assert "cc" in header.words
    assert "finds stdio.h" in header.words
    assert job.one("tool:nvcc>=12.4").version == "12.4"
    # The host's own loader may know a cudart of its own; a name of ours it cannot know.
    assert job.one("lib:cudart_of_tests").result is Result.ABSENT
    # With what it lacks it is whole: the header in the toolkit's own folder, the library where the loader looks.
    (toolkit / "include").mkdir()
    (toolkit / "include/cuda_runtime.h").touch()
    made = shared_library(toolkit / "lib64/libcudart_of_tests.so.12")
    hint = job.one("lib:cudart_of_tests")
    assert hint.result is Result.ABSENT
    assert str(made) in hint.words
    job.env["LD_LIBRARY_PATH"] = str(made.parent)
    header, library = job.look("header:cuda_runtime.h", "lib:cudart_of_tests")
    assert (header.result, header.path) == (Result.PRESENT, str(toolkit / "include/cuda_runtime.h"))
    assert (library.result, library.path) == (Result.PRESENT, str(made))


def without_cuda(root: Path) -> Path:
    """The host's compiler, alone in a folder."""
    folder = root / "compiler"
    folder.mkdir()
    for name in ("cc", "sh", "as", "ld"):
        (folder / name).symlink_to(str(shutil.which(name)))
    return folder


# -- Python ------------------------------------------------------------------------------------------------------------


def test_a_module_is_asked_of_the_python_on_the_jobs_path_and_never_imported(job: Jobs, tmp_path: Path) -> None:
    site = tmp_path / "site"
    (site / "pkg").mkdir(parents=True)
    for name in ("__init__", "inner"):
        (site / f"pkg/{name}.py").write_text(f"open({str(tmp_path / 'imported')!r}, 'w')\n")
    (site / "mine_dist-2.1.0.dist-info").mkdir()
    (site / "mine_dist-2.1.0.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: mine-dist\nVersion: 2.1.0\n")
    (site / "mine_dist-2.1.0.dist-info/top_level.txt").write_text("pkg\n")
    (job.bin / "python").symlink_to(sys.executable)
    job.env["PYTHONPATH"] = str(site)
    texts = ("pkg", "pkg.inner", "pkg.none", "none", "json", "pkg>=2.1", "pkg>=2.2", "json>=1")
    there, inner, no_inner, none, own, enough, below, no_version = job.look(*(f"python:{t}" for t in texts))
    assert there.result is inner.result is own.result is enough.result is Result.PRESENT
    assert there.path == str(site / "pkg/__init__.py")
    assert no_inner.result is none.result is below.result is Result.ABSENT
    assert "2.1.0" in below.words
    assert enough.version == "2.1.0"
    assert no_version.result is Result.COULD_NOT_LOOK
    assert not (tmp_path / "imported").exists()


def test_a_folder_is_no_module(job: Jobs) -> None:
    (job.bin / "python3").symlink_to(sys.executable)
    (job.cwd / "data").mkdir()
    found = job.one("python:data")
    assert found.result is Result.ABSENT
    assert str(job.cwd / "data") in found.words or "data" in found.words
    (job.cwd / "real.py").touch()
    assert job.one("python:real").result is Result.PRESENT


def test_the_commands_own_python_goes_before_the_paths(job: Jobs, tmp_path: Path) -> None:
    program(job.bin / "python", "exit 9")
    assert job.one("python:json").result is Result.COULD_NOT_LOOK
    job.program = sys.executable
    assert job.one("python:json").result is Result.PRESENT


def test_where_there_is_no_python_no_module_is_absent(job: Jobs) -> None:
    job.env["PATH"] = str(job.bin)
    found = job.one("python:torch")
    assert (found.result, found.reason) == (Result.COULD_NOT_LOOK, Reason.LIBRARY_MISSING)


@pytest.mark.parametrize("body", ["echo '{}'", "echo 'Traceback'", "exit 0", "echo '{\"control\": true}'"])
def test_a_python_that_answers_something_else_says_nothing(job: Jobs, body: str) -> None:
    program(job.bin / "python", body)
    found = job.one("python:torch")
    assert (found.result, found.reason) == (Result.COULD_NOT_LOOK, Reason.UNPARSEABLE)


# -- room --------------------------------------------------------------------------------------------------------------


def test_room_on_disk_and_in_memory(job: Jobs) -> None:
    disk, no_disk, memory, no_memory = job.look("disk>=1K", "disk>=90000T", "memory>=1M", "memory>=90000T")
    assert disk.result is memory.result is Result.PRESENT
    assert no_disk.result is no_memory.result is Result.ABSENT
    job.scratch.rmdir()
    assert job.one("disk>=1K").result is Result.COULD_NOT_LOOK


# -- devices -----------------------------------------------------------------------------------------------------------


def device(name: str, driver: str | None, capability: str | None) -> LeasedDevice:
    def reading(text: str | None) -> Reading[str]:
        if text is None:
            return Unavailable(Reason.NO_PERMISSION, 0.0, "nvml", Scope.DEVICE, "not allowed")
        return Value(text, 0.0, "nvml", Scope.DEVICE)

    return LeasedDevice(name, reading(driver), reading(capability))


@pytest.mark.parametrize(
    ("text", "devices", "result", "words"),
    [
        ("driver>=535.0", [device("g0", "535.104.05", "9.0")], Result.PRESENT, "535.104.05"),
        ("driver>=550", [device("g0", "535.104.05", "9.0")], Result.ABSENT, "below 550"),
        ("compute>=8.0", [device("g0", "1", "9.0"), device("g1", "1", "7.5")], Result.ABSENT, "7.5 on g1"),
        ("compute>=8.0", [device("g0", "1", "9.0"), device("g1", "1", None)], Result.COULD_NOT_LOOK, "g1: not allowed"),
        ("compute>=8.0", [device("g0", "1", None), device("g1", "1", "7.5")], Result.ABSENT, "g1"),
        ("compute>=8.0", [device("g0", "1", "9.0"), device("g1", "1", "10.0")], Result.PRESENT, "g1"),
        ("driver>=1", [], Result.COULD_NOT_LOOK, "no device"),
        ("driver>=1", [device("g0", "N/A", "9.0")], Result.COULD_NOT_LOOK, "N/A"),
    ],
)
def test_every_leased_device_has_to_reach_it(text: str, devices: list[Any], result: Result, words: str) -> None:
    found = of_devices(parse(text), devices)
    assert found.result is result
    assert words in found.words


# -- the looking itself ------------------------------------------------------------------------------------------------


def test_two_hundred_are_looked_at_side_by_side(job: Jobs) -> None:
    texts = [f"file:/nonexistent/{n}" for n in range(190)] + ["tool:sh", "file:/etc/", "lib:libc.so.6"]
    found = job.look(*texts)
    assert [look.need.canonical for look in found] == texts
    assert {look.result for look in found[:190]} == {Result.ABSENT}
    assert {look.result for look in found[190:]} == {Result.PRESENT}


def test_a_hundred_tools_are_asked_in_turns(job: Jobs) -> None:
    for number in range(100):
        program(job.bin / f"tool{number}", f"echo 1.{number}")
    found = job.look(*(f"tool:tool{number}>=1.50" for number in range(100)))
    assert [look.version for look in found] == [f"1.{number}" for number in range(100)]
    assert [look.result is Result.PRESENT for look in found] == [number >= 50 for number in range(100)]


def test_a_child_that_cannot_be_started_makes_nothing_absent(job: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "python_argv", lambda *words: ["/bin/false"])
    found = job.one("tool:sh")
    assert (found.result, found.reason) == (Result.COULD_NOT_LOOK, Reason.SAMPLING_GAP)
    monkeypatch.setattr(preflight, "python_argv", lambda *words: ["/nonexistent"])
    assert job.one("tool:sh").result is Result.COULD_NOT_LOOK
