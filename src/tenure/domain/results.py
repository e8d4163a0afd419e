"""Test results as tools write them, read into names and modes: JUnit XML, ctest's output, pytest's output.

A name is what the tool calls a test, never its number. Where a name comes twice (a rerun, an error in a teardown) the
worst mode stands. XML is read without any document type or entity: results need neither, and both are ways to make a
small file grow without bound or reach out of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from xml.parsers import expat

from tenure.domain.baseline import Mode

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Bounds of what is read: characters of a file, depth of its elements, results in it, characters of a detail.
MAX_CHARACTERS = 64 << 20
MAX_DEPTH = 64
MAX_RESULTS = 1_000_000
_DETAIL = 200


@dataclass(frozen=True, slots=True)
class Result:
    """One test: how it went, and the first line of what the tool said of it (empty where it said nothing)."""

    mode: Mode
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Results:
    """A run: its results by name, what kind of file it was, and skips that the tool counted without naming them."""

    kind: str
    by_name: Mapping[str, Result]
    unnamed_skips: int = 0

    @property
    def modes(self) -> dict[str, Mode]:
        """The mode of every name."""
        return {name: result.mode for name, result in self.by_name.items()}


def read_results(text: str) -> Results:
    """The results in a file's text, whichever of the three kinds it is.

    Raises ValueError with what is wrong: of no known kind, too large, malformed, or without a single result (an empty
    run would make every test look as if it had left).
    """
    if len(text) > MAX_CHARACTERS:
        raise ValueError(f"more than {MAX_CHARACTERS >> 20} Mi characters")
    body = text.removeprefix("\ufeff")
    if body.lstrip().startswith("<"):
        found = Results("junit", _merged(_Junit().read(body)))
    elif _CTEST.search(body) or ("The following tests FAILED" in body and _CTEST_LISTED.search(body)):
        found = Results("ctest", _merged(_ctest(body)))
    else:
        folded = sum(int(count) for count in _FOLDED.findall(body))
        found = Results("pytest", _merged(_pytest(body)), folded)
    if not found.by_name:
        raise ValueError(
            "no named test result in it: it is neither JUnit XML, nor ctest's output, nor pytest's with -rA or -v"
            if found.kind == "pytest"
            else "it holds no test result"
        )
    return found


def _merged(pairs: Iterator[tuple[str, Result]]) -> dict[str, Result]:
    merged: dict[str, Result] = {}
    for name, result in pairs:
        known = merged.get(name)
        if known is None or result.mode > known.mode:
            merged[name] = result
        if len(merged) > MAX_RESULTS:
            raise ValueError(f"more than {MAX_RESULTS} results")
    return merged


def _first(text: str) -> str:
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return line if len(line) <= _DETAIL else line[: _DETAIL - 1] + "…"


# -- JUnit XML ---------------------------------------------------------------------------------------------------------

#: What ctest writes as the message of a test that did not end by itself, and pytest-timeout of one that it ended.
_CRASHED = re.compile(
    r"(?i)timeout|segfault|segmentation fault|illegal|interrupt|numerical|other_fault|bus error|exception(: .*)?"
    r"|subprocess (aborted|killed)|failed: timeout .*"
)
_MODES = {"failure": Mode.FAILED, "error": Mode.CRASH, "skipped": Mode.SKIPPED}


@dataclass(slots=True)
class _Test:
    name: str
    depth: int
    mode: Mode = Mode.PASSED
    detail: str = ""
    text: list[str] = field(default_factory=list)


class _Junit:
    """Reads test cases as the parser meets them; nothing but the open one is kept."""

    def __init__(self) -> None:
        self.found: list[tuple[str, Result]] = []
        self.open: _Test | None = None
        self.within = ""
        self.depth = 0
        self.root = ""

    def read(self, text: str) -> Iterator[tuple[str, Result]]:
        parser = expat.ParserCreate()
        parser.buffer_text = True
        parser.StartDoctypeDeclHandler = self._refuse
        parser.EntityDeclHandler = self._refuse
        parser.ExternalEntityRefHandler = self._refuse
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.CharacterDataHandler = self._text
        try:
            parser.Parse(text.lstrip(), True)  # text: expat lets the encoding that the file declares be
        except expat.ExpatError as error:
            raise ValueError(f"not well-formed XML: {error}") from error
        if self.root not in ("testsuites", "testsuite"):
            raise ValueError(f"the XML is no JUnit file: it begins with <{self.root}>")
        return iter(self.found)

    def _refuse(self, *_: object) -> int:
        raise ValueError("it declares a document type or an entity, which no test result needs")

    def _start(self, tag: str, attributes: dict[str, str]) -> None:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise ValueError(f"elements nested more than {MAX_DEPTH} deep")
        self.root = self.root or tag
        if tag == "testcase":
            name, group = attributes.get("name", ""), attributes.get("classname", "")
            if not name and not group:
                raise ValueError("a testcase has neither a name nor a classname")
            whole = name if group in ("", name) else f"{group}::{name}" if name else group
            self.open = _Test(whole, self.depth)
            if attributes.get("status", "") in ("notrun", "disabled", "skipped"):
                self.open.mode = Mode.SKIPPED
        elif self.open is not None and tag in _MODES and self.depth == self.open.depth + 1:
            self._outcome(self.open, tag, attributes.get("message", ""))

    def _outcome(self, test: _Test, tag: str, message: str) -> None:
        mode = _MODES[tag]
        if mode is Mode.FAILED and _CRASHED.fullmatch(_first(message)):
            mode = Mode.CRASH
        if mode > test.mode or not test.detail:
            test.mode, test.detail = max(mode, test.mode), _first(message)
        self.within, test.text = tag, []

    def _text(self, data: str) -> None:
        if self.within and self.open is not None and len(self.open.text) < 10_000:
            self.open.text.append(data)

    def _end(self, tag: str) -> None:
        self.depth -= 1
        test = self.open
        if test is None:
            return
        if tag == self.within:
            if not test.detail:
                test.detail = _first("".join(test.text))
            self.within = ""
        elif tag == "testcase":
            self.found.append((test.name, Result(test.mode, test.detail)))
            self.open = None


# -- ctest -------------------------------------------------------------------------------------------------------------

_CTEST = re.compile(r"^[ \t]*\d+/\d+[ \t]+Test[ \t]+#\d+:[ \t]+(\S[^\n]*?)[ \t]+\.{2,}[ \t]*([^\n]*)$", re.MULTILINE)
_CTEST_LISTED = re.compile(r"^[ \t]+\d+ - (\S[^\n]*?) \(([^()\n]+)\)[^()\n]*$", re.MULTILINE)
_CTEST_STATUS = (
    (re.compile(r"passed\b", re.IGNORECASE), Mode.PASSED),
    (re.compile(r"(?:\*\*\*)?(?:skipped|not run|disabled)\b", re.IGNORECASE), Mode.SKIPPED),
    (
        re.compile(
            r"(?:\*\*\*)?(?:timeout|exception|segfault|illegal|interrupt|numerical|other_fault|subprocess)\b", re.I
        ),
        Mode.CRASH,
    ),
    (re.compile(r"(?:\*\*\*)?(?:failed|bad_command)\b", re.IGNORECASE), Mode.FAILED),
)


def _ctest(text: str) -> Iterator[tuple[str, Result]]:
    lines = _CTEST.findall(text)
    for name, status in lines or _CTEST_LISTED.findall(text):
        said = re.sub(r"\s+[0-9.]+ sec\s*$", "", status).strip()
        mode = next((mode for pattern, mode in _CTEST_STATUS if pattern.match(said)), None)
        if mode is None:
            raise ValueError(f"ctest says {status[:80]!r} of {name}, which is no outcome that is known")
        yield name, Result(mode, "" if mode is Mode.PASSED else _first(said.strip("* ")))


# -- pytest ------------------------------------------------------------------------------------------------------------

_WORDS = {
    "PASSED": Mode.PASSED,
    "XPASS": Mode.PASSED,
    "FAILED": Mode.FAILED,
    "ERROR": Mode.CRASH,
    "SKIPPED": Mode.SKIPPED,
    "XFAIL": Mode.SKIPPED,
}
_WORD = "|".join(_WORDS)
#: ``FAILED tests/test_a.py::test_b - AssertionError``, of the summary; an error of collection names the file alone.
_SUMMARY = re.compile(rf"^({_WORD}) (?!\[\d+\] )(\S[^\n]*?)(?: - ([^\n]*))?$", re.MULTILINE)
#: ``tests/test_a.py::test_b PASSED   [ 50%]``, of -v.
_VERBOSE = re.compile(rf"^(\S+::\S[^\n]*?) ({_WORD})(?: \(([^\n]*)\))?(?:[ \t]+\[[ \t]*\d+%\])?[ \t]*$", re.MULTILINE)
_DIED = re.compile(r"^(\S+::\S[^\n]*?) (Fatal Python error: [^\n]*)$", re.MULTILINE)
_FOLDED = re.compile(r"^SKIPPED \[(\d+)\] ", re.MULTILINE)


def _pytest(text: str) -> Iterator[tuple[str, Result]]:
    for word, name, detail in _SUMMARY.findall(text):
        if "::" in name or name.endswith(".py"):
            yield name, _told(word, detail)
    for name, word, detail in _VERBOSE.findall(text):
        yield name, _told(word, detail)
    for name, detail in _DIED.findall(text):
        yield name, Result(Mode.CRASH, _first(detail))


def _told(word: str, detail: str) -> Result:
    timed_out = word == "FAILED" and detail.startswith("Failed: Timeout ")
    return Result(Mode.CRASH if timed_out else _WORDS[word], _first(detail))
