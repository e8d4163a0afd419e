"""The grammar of requirements: one canonical text each, and errors that say where and how it should look."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tenure.domain.quantity import comparable
from tenure.domain.requirement import (
    BUNDLES,
    LIMIT,
    Kind,
    Look,
    Requirement,
    RequirementError,
    Result,
    canonical,
    expand,
    parse,
)
from tenure.domain.versions import reaches, said_version

unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


@pytest.mark.parametrize(
    ("typed", "text"),
    [
        ("tool:nvcc", "tool:nvcc"),
        (" tool: cmake >= 3.20.0 ", "tool:cmake>=3.20"),
        ("tool:c++", "tool:c++"),
        ("tool:/opt/x/bin/run", "tool:/opt/x/bin/run"),
        ("tool:x86_64-linux-gnu-gcc-12>=012", "tool:x86_64-linux-gnu-gcc-12>=12"),
        ("file:/etc//x/./y", "file:/etc/x/y"),
        ("file:/data/../x/", "file:/data/../x/"),
        ("file:a b>=3,c", "file:a b>=3,c"),
        ("lib:cudart", "lib:cudart"),
        ("lib:libcudart.so.12", "lib:libcudart.so.12"),
        ("header:cuda_runtime.h", "header:cuda_runtime.h"),
        ("header:c++/vector", "header:c++/vector"),
        ("python:torch>=2.1", "python:torch>=2.1"),
        ("python:a.b_c", "python:a.b_c"),
        ("mount:/data/", "mount:/data"),
        ("mount:/", "mount:/"),
        ("mount:/data,write, exec,free >= 102400M,write", "mount:/data,exec,write,free>=100G"),
        ("disk>=20480M", "disk>=20G"),
        ("memory >= 1.5G", "memory>=1536M"),
        ("driver>=535.0", "driver>=535.0"),
        ("compute>=8", "compute>=8"),
    ],
)
def test_a_requirement_has_one_text(typed: str, text: str) -> None:
    assert parse(typed).canonical == text
    assert parse(text) == parse(typed)
    assert parse(text).canonical == text


@pytest.mark.parametrize(
    ("typed", "at", "expected"),
    [
        ("", 0, "tool:"),
        ("nvcc", 0, "cuda-toolkit"),
        ("cuda-toolkit>=12", 12, "takes no version; for example tool:nvcc>=12"),
        ("Tool:x", 0, "tool:"),
        ("toolx:x", 0, "tool:"),
        ("tool", 4, "a : after tool"),
        ("tool:", 5, "the name or path of a program"),
        ("tool:x>>1", 6, "the name or path of a program"),
        ("tool:x>=", 8, "a version"),
        ("tool:x>=new", 8, "a version"),
        ("tool:x>=1.2b", 11, "a version"),
        ("tool:x y", 6, "the name or path of a program"),
        ("tool:--help", 5, "the name or path of a program"),
        ("lib:libcudart", 4, "a name without lib"),
        ("lib:/usr/lib/x.so", 4, "without a folder"),
        ("header:/usr/include/x.h", 7, "a header"),
        ("header:../x.h", 7, "without .."),
        ("python:scikit-learn", 13, "sklearn"),
        ("python:2to3", 7, "a module's name"),
        ("mount:data", 6, "the absolute path"),
        ("mount:/data,", 12, "exec, symlink, write"),
        ("mount:/data,noexec", 12, "exec, symlink, write"),
        ("mount:/data,free", 16, "a >= after free"),
        ("mount:/data,free>=1", 18, "a size"),
        ("mount:/data,free>=1G,free>=2G", 21, "once"),
        ("file:a\tb", 6, "control character"),
        ("disk>=20", 6, "a size"),
        ("disk>=20GB", 9, "a size"),
        ("disk=20G", 4, "a >="),
        ("memory:16G", 6, "a >="),
        ("driver>=", 8, "a version"),
        ("compute>=1.2.3.4.5.6.7.8.9", 24, "a version"),
        ("file:" + "x" * 600, 500, "at most 500"),
    ],
)
def test_an_error_names_the_place_and_shows_how(typed: str, at: int, expected: str) -> None:
    with pytest.raises(RequirementError, match=f"character {at + 1}[ :]") as caught:
        parse(typed)
    assert caught.value.position == at
    assert expected in str(caught.value)
    assert len(str(caught.value)) < 500
    assert str(caught.value).isprintable()
    parse(caught.value.example)


def test_a_bundle_is_each_of_its_pieces_and_nothing_twice() -> None:
    texts = canonical(["lib:cudart", "cuda-toolkit", "tool:nvcc", "disk>=1024M", "disk>=1G"])
    assert texts == ("lib:cudart", "tool:nvcc", "header:cuda_runtime.h", "disk>=1G")
    for name, pieces in BUNDLES.items():
        assert canonical([name]) == pieces
        with pytest.raises(RequirementError):
            parse(name)


def test_there_is_a_most() -> None:
    assert len(expand(f"file:/{n}" for n in range(LIMIT))) == LIMIT
    with pytest.raises(RequirementError, match="at most 200"):
        expand(f"file:/{n}" for n in range(LIMIT + 1))


versions = st.lists(st.integers(0, 10**6), min_size=1, max_size=8).map(lambda parts: ".".join(map(str, parts)))
sizes = st.tuples(st.integers(0, 10**9), st.sampled_from("KMGT")).map(lambda pair: f"{pair[0]}{pair[1]}")
words = st.from_regex(r"[A-Za-z_+][A-Za-z0-9_+.-]{0,20}", fullmatch=True)
paths = st.text(st.sampled_from("ab./ -_é"), min_size=1, max_size=20)
typed_needs = st.one_of(
    st.builds("tool:{}".format, words),
    st.builds("tool:{}>={}".format, words, versions),
    st.builds("file:{}".format, paths),
    st.builds("file:/{}".format, paths),
    st.builds("lib:{}".format, words),
    st.builds("header:{}/{}".format, words, words),
    st.builds("python:{}>={}".format, st.from_regex(r"[a-z_]\w{0,9}", fullmatch=True), versions),
    st.builds(
        lambda path, asked: ",".join([f"mount:/{path}", *asked]),
        paths,
        st.lists(st.one_of(st.sampled_from(["exec", "symlink", "write"]), sizes.map("free>={}".format)), max_size=4),
    ),
    st.builds("disk>={}".format, sizes),
    st.builds("memory >= {}".format, sizes),
    st.builds("driver>={}".format, versions),
    st.builds("compute>={}".format, versions),
)


def read(text: str) -> Requirement | RequirementError:
    try:
        return parse(text)
    except RequirementError as error:
        return error


@unhurried
@given(typed_needs)
def test_what_is_read_is_written_and_read_again(typed: str) -> None:
    need = read(typed)
    if isinstance(need, RequirementError):
        assert 0 <= need.position <= len(typed)
        return
    assert parse(need.canonical) == need
    assert parse(f"  {need.canonical}  ") == need
    assert canonical([need.canonical, typed]) == (need.canonical,)


@unhurried
@given(st.text(max_size=40) | typed_needs.flatmap(lambda text: st.integers(0, len(text)).map(lambda n: text[:n] + ">")))
def test_no_text_breaks_the_reading(text: str) -> None:
    need = read(text)
    if isinstance(need, RequirementError):
        assert str(need).isprintable()
    else:
        assert parse(need.canonical) == need


@pytest.mark.parametrize(
    ("output", "version"),
    [
        ("cmake version 3.25.1\n\nCMake suite maintained", "3.25.1"),
        ("cc (Debian 12.2.0-14+deb12u1) 12.2.0\nCopyright (C) 2022", "12.2.0"),
        ("x-gcc (crosstool-NG 1.25.0) 12.3.0", "12.3.0"),
        (
            "nvcc: NVIDIA (R) Cuda compiler driver\nCopyright (c) 2005-2024 NVIDIA Corporation\n"
            "Built on Thu_Mar_28_02:18:24_PDT_2024\nCuda compilation tools, release 12.4, V12.4.131\n",
            "12.4",
        ),
        ("GNU bash, version 5.2.15(1)-release (x86_64-pc-linux-gnu)", "5.2.15"),
        ("git version 2.39.2", "2.39.2"),
        ("v20.11.1", "20.11.1"),
        ("1.13.0rc1", "1.13.0rc1"),
        ("tool version 7", "7"),
        ("no figure at all", None),
        ("built in 2024", None),
        ("", None),
    ],
)
def test_the_version_that_a_tool_says(output: str, version: str | None) -> None:
    assert said_version(output) == version


@pytest.mark.parametrize(
    ("have", "least", "enough"),
    [
        ("2.1.0", "2.1", True),
        ("2.1.0+cu121", "2.1", True),
        ("2.10", "2.9", True),
        ("2.0.9", "2.1", False),
        ("2.1.0rc1", "2.1", False),
        ("2.1.0.dev20240101", "2.1", False),
        ("2.1.1rc1", "2.1", True),
        ("535.104.05", "535.0", True),
        ("9.0", "8", True),
        ("12", "12.1", False),
        ("main", "1", None),
    ],
)
def test_what_reaches_a_bound(have: str, least: str, enough: bool | None) -> None:
    assert reaches(have, least) is enough


@given(versions, versions)
def test_of_two_versions_one_reaches_the_other(one: str, other: str) -> None:
    assert reaches(one, other) or reaches(other, one)
    equal = comparable(one).version == comparable(other).version
    assert (reaches(one, other) and reaches(other, one)) == equal


def test_a_look_as_plain_values() -> None:
    need = Requirement(Kind.TOOL, "x")
    body = Look(need, Result.ABSENT, "not\nthere " + "x" * 2000).to()
    assert body == {"kind": "tool", "text": "tool:x", "result": "absent", "words": body["words"]}
    assert body["words"].isprintable()
    assert len(body["words"]) == 600
