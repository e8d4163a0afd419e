"""The repository's own rules: what it may say, what it pins, and how it is laid out.

Reviewers forget rules that nothing holds, so each of them is a test over the tracked files. Patterns are put together
from pieces here, since this file is read by its own tests.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
import warnings
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import NormalizedName, canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
LANES = ("unit", "contract", "model", "crash", "integration", "kill", "hosts", "e2e")
PYPROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())

# Registries are named by the machine that installs, never by the repository: a mirror or an air gap must do as well.
REGISTRIES = [a + "." + b for a, b in (("pypi", "org"), ("pythonhosted", "org"), ("npmjs", "org"), ("npmjs", "com"))]
REGISTRIES += [a + "." + b for a, b in (("debian", "org"), ("crates", "io"), ("golang", "org"))]

FORBIDDEN = {
    "a registry's address": "|".join(re.escape(host) for host in REGISTRIES),
    "a path of the machine it was built on": r"(?<![\w.-])/(?:" + "wor" + "k|" + "roo" + r"t)/",
    "a tool of the place it was built in": r"\bfar" + r"m-[a-z]|(?<!\w)\.libr" + "ary",
    "a ticket that readers cannot see": r"(?i)\b(?:iss" + r"ue|ticket|pull request|closes|fixes|resolves)\s*#\d+",
    "how the text came about": r"(?i)\bclau"
    + r"de\b|anthro"
    + r"pic|open"
    + r"ai\b|\bcopi"
    + r"lot\b|\bsub-?ag"
    + "ent",
    "how the text came about, in capitals": r"\b(?:L" + r"LM|A" + r"I|G" + r"PT)s?\b",
}


def tracked() -> list[Path]:
    """The tracked files that exist and are text; git is asked whoever owns the checkout."""
    listed = subprocess.run(
        ["git", "-c", f"safe.directory={ROOT}", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, timeout=20
    )
    paths = [ROOT / name for name in listed.stdout.decode().split("\0") if name]
    return [path for path in paths if path.is_file() and b"\0" not in path.read_bytes()[:8192]]


def locked() -> dict[NormalizedName, tuple[Requirement, int]]:
    """Each locked package by canonical name, with the number of its hashes."""
    text = re.sub(r"^\s*#.*$", "", (ROOT / "requirements.lock").read_text(), flags=re.MULTILINE)
    packages = {}
    for line in text.replace("\\\n", " ").splitlines():
        if line.strip():
            requirement, *options = line.split(" --")
            assert all(re.fullmatch(r"hash=sha256:[0-9a-f]{64}\s*", option) for option in options), line[:120]
            parsed = Requirement(requirement)
            packages[canonicalize_name(parsed.name)] = (parsed, len(options))
    return packages


def declared(*, development: bool) -> list[Requirement]:
    """What pyproject.toml asks for, with the development group or without."""
    project = PYPROJECT["project"]
    lines = list(project["dependencies"])
    for extra in project.get("optional-dependencies", {}).values():
        lines += extra
    return [Requirement(line) for line in lines + (PYPROJECT["dependency-groups"]["dev"] if development else [])]


@pytest.mark.parametrize("what", FORBIDDEN)
def test_the_repository_speaks_of_itself_alone(what: str) -> None:
    pattern = re.compile(FORBIDDEN[what])
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}"
        for path in tracked()
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1)
        if pattern.search(line)
    ]
    assert not found, f"{what} in:\n" + "\n".join(found)


def test_no_file_names_the_folder_it_lies_in() -> None:
    # A checkout at the top of the file system (a container's /src, say) has a path too common to look for.
    if len(ROOT.parts) > 2:
        found = [str(path.relative_to(ROOT)) for path in tracked() if f"{ROOT}/" in path.read_text(errors="replace")]
        assert not found


@pytest.mark.parametrize(
    ("text", "caught"),
    [
        ("see /wor" + "k/main/x", True),
        ("frame/wor" + "k/x", False),
        ("https://pypi" + ".org/simple", True),
        ("fixes #" + "12", True),
        ("a job that fixes 12 units", False),
        ("AVAIL", False),
        ("an A" + "I wrote it", True),
        ("people at a shell and coding agents alike", False),
    ],
)
def test_the_patterns_catch_what_they_are_for(text: str, caught: bool) -> None:
    assert any(re.search(pattern, text) for pattern in FORBIDDEN.values()) == caught


def test_every_locked_package_is_pinned_and_hashed() -> None:
    packages = locked()
    assert len(packages) > 30
    for requirement, hashes in packages.values():
        assert [spec.operator for spec in requirement.specifier] == ["=="], requirement
        assert requirement.url is None, requirement
        assert hashes >= 1, requirement


def test_the_lock_holds_no_address_and_no_path() -> None:
    text = (ROOT / "requirements.lock").read_text()
    assert not re.search(r"://|file:|^\s*--?(?:i|f|index|extra|find|trusted)\b| @ |(?<![\w#])/", text, re.MULTILINE)


def test_the_lock_satisfies_what_the_project_declares() -> None:
    packages = locked()
    for wanted in declared(development=True):
        pinned, _ = packages[canonicalize_name(wanted.name)]
        (version,) = pinned.specifier
        assert wanted.specifier.contains(version.version, prereleases=True), f"{wanted} is locked as {pinned}"


@pytest.mark.parametrize(("folder", "development"), [("src", False), ("tests", True), ("bench", True)])
def test_every_imported_package_is_declared(folder: str, development: bool) -> None:
    # What another package happens to bring may go with its next release.
    allowed = {canonicalize_name(wanted.name) for wanted in declared(development=development)}
    distributions = packages_distributions()
    undeclared = set()
    for path in (path for path in tracked() if path.suffix == ".py" and path.relative_to(ROOT).parts[0] == folder):
        for name in imported(path) - sys.stdlib_module_names - {"tenure", "tests", "bench"}:
            if not allowed & {canonicalize_name(dist) for dist in distributions.get(name, [name])}:
                undeclared.add(f"{path.relative_to(ROOT)} imports {name}")
    assert not undeclared


def imported(path: Path) -> set[str]:
    """The top-level names that a file imports, anywhere in it."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.split(".")[0])
    return names


def make_targets() -> set[str]:
    text = (ROOT / "Makefile").read_text().replace("$(LANES):", " ".join(LANES) + ":")
    heads = re.findall(r"^([a-z0-9][a-z0-9 -]*):(?!=)", text, re.MULTILINE)
    return {target for head in heads for target in head.split()}


def test_every_make_target_that_the_readme_shows_exists() -> None:
    shown = set(re.findall(r"\bmake ([a-z][a-z0-9-]*)", "\n".join(code_of(ROOT / "README.md"))))
    assert {"run", "test"} <= shown <= make_targets()


def code_of(page: Path) -> list[str]:
    """The code of a Markdown page: fenced blocks and inline spans."""
    text = page.read_text()
    return re.findall(r"```\w*\n(.*?)```", text, re.DOTALL) + re.findall(r"(?<!`)`([^`\n]+)`(?!`)", text)


def test_every_test_lies_in_a_lane() -> None:
    makefile = re.search(r"^LANES := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert makefile
    assert tuple(makefile[1].split()) == LANES
    assert set(tomllib.loads((ROOT / "tests/skips.toml").read_text())) == set(LANES)
    strays = [path for path in (ROOT / "tests").rglob("test_*.py") if path.relative_to(ROOT).parts[1] not in LANES]
    assert not strays, "no make target runs these"


def test_files_stay_short_enough_to_read() -> None:
    lengths = {path: len(path.read_text().splitlines()) for path in (ROOT / "src/tenure").rglob("*.py")}
    long = [f"{path.relative_to(ROOT)} ({length})" for path, length in sorted(lengths.items()) if 300 < length < 500]
    if long:
        warnings.warn(
            f"over 300 lines, each worth asking whether it tells two stories: {', '.join(long)}", stacklevel=1
        )
    assert not {str(path.relative_to(ROOT)): length for path, length in lengths.items() if length >= 500}


def test_nobody_waits_by_what_swallows_a_cancel() -> None:
    """``asyncio.wait_for`` of Python 3.11 does: see ``tenure.agent.waiting``, and ``asyncio.timeout`` for all else."""
    users = [path for path in (ROOT / "src/tenure").rglob("*.py") if "asyncio.wait_for(" in path.read_text()]
    assert not users


def test_imports_point_downward_only() -> None:
    done = subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]


def test_every_changelog_fragment_has_a_known_kind_and_says_something() -> None:
    kinds = {kind["directory"] for kind in PYPROJECT["tool"]["towncrier"]["type"]}
    assert kinds == {"feature", "fix", "change", "removal", "doc"}
    for fragment in (path for path in (ROOT / "changelog.d").iterdir() if path.name != "README.md"):
        assert re.fullmatch(r"\+[a-z0-9-]+\.(?:" + "|".join(sorted(kinds)) + r")\.md", fragment.name), fragment.name
        assert fragment.read_text().strip(), f"{fragment.name} is empty"


def test_every_decision_is_listed_and_fits_a_screen() -> None:
    folder = ROOT / "docs/decisions"
    pages = sorted(page.name for page in folder.glob("[0-9]*.md"))
    assert [page[:4] for page in pages] == [f"{number:04}" for number in range(1, len(pages) + 1)]
    assert sorted(re.findall(r"\]\((\d[^)]+\.md)\)", (folder / "README.md").read_text())) == pages
    for page in pages:
        assert len((folder / page).read_text().splitlines()) <= 50, page


def test_every_link_between_pages_leads_somewhere() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    links = [(page, link) for page in pages for link in re.findall(r"\]\(([^)#:\s]+)", page.read_text())]
    assert len(links) > 10
    for page, link in links:
        assert (page.parent / link).exists(), f"{page.relative_to(ROOT)}: {link}"


def test_every_file_that_a_page_names_exists() -> None:
    for page in (ROOT / "README.md", *(ROOT / "docs/explanation").glob("*.md")):
        for name in re.findall(r"`((?:[a-z_]+/)+[a-z_]+\.py)`", page.read_text()):
            assert (ROOT / "src/tenure" / name).exists() or (ROOT / name).exists(), f"{page.name}: {name}"


def test_commit_hooks_fetch_nothing() -> None:
    text = (ROOT / ".pre-commit-config.yaml").read_text()
    assert re.findall(r"repo: *(.*)", text) == ["local"]
    assert set(re.findall(r"language: *(.*)", text)) == {"system"}
    assert set(re.findall(r"entry: *(\S+/)", text)) == {".venv/bin/"}
