"""``python -m tests.mutants.generated``: small changes made by rule to every file of the domain, and who notices.

Twenty of each file's possible changes are drawn, always the same ones while the file stays the same. Each is applied to
a copy of the source and tried: what the fleet is made of by simulated clusters first, then everything by the tests of
the domain. Who survives is listed in ``survivors.toml`` with the reason why nothing can, or need, notice; a survivor
that is not listed fails the run, and so does one that is listed and is caught by now.
"""

from __future__ import annotations

import argparse
import ast
import copy
import hashlib
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOMAIN = ROOT / "src/tenure/domain"
LISTED = Path(__file__).with_name("survivors.toml")
PER_FILE = 20
DEADLINE_S = 300

#: What simulated clusters run through at every step; the other files are arithmetic of their own.
FLEET = frozenset(
    {
        "contact",
        "device",
        "ends",
        "evolve",
        "fleet",
        "grants",
        "instructions",
        "job",
        "operate",
        "pieces",
        "queue",
        "refusal",
        "registration",
        "replacing",
        "reports",
        "specs",
        "state",
    }
)

_COMPARE: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
_ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
}


@dataclass(frozen=True, slots=True)
class Change:
    """One possible change of a file: the line it is on, what it does in words, and which node (in walking order)."""

    file: str
    line: int
    words: str
    node: int

    def text(self, source: list[str]) -> str:
        """The line as it stands, by which a listed survivor is known again when lines move."""
        return source[self.line - 1].strip()


def changes_of(path: Path) -> list[Change]:
    """Every change that the rules know in a file, in order."""
    tree = ast.parse(path.read_text("utf-8"))
    found = []
    for number, node in enumerate(_nodes(tree)):
        words = _words(node)
        if words:
            found.append(Change(path.name, getattr(node, "lineno", 0), words, number))
    return found


def _nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """The nodes whose change means something: annotations and docstrings are left out."""
    left_out: set[int] = set()
    for node in ast.walk(tree):
        for name in ("annotation", "returns"):
            inner = getattr(node, name, None)
            if isinstance(inner, ast.AST):
                left_out |= {id(each) for each in ast.walk(inner)}
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            left_out |= {id(node), id(node.value)}
    return (node for node in ast.walk(tree) if id(node) not in left_out)


def _words(node: ast.AST) -> str:
    match node:
        case ast.Compare(ops=[op]) if type(op) in _COMPARE:
            return f"{type(op).__name__} becomes {_COMPARE[type(op)].__name__}"
        case ast.BoolOp(op=ast.And()):
            return "and becomes or"
        case ast.BoolOp(op=ast.Or()):
            return "or becomes and"
        case ast.UnaryOp(op=ast.Not()):
            return "not is left out"
        case ast.Constant(value=bool(value)):
            return f"{value} becomes {not value}"
        case ast.Constant(value=int(value)) | ast.Constant(value=float(value)):
            return f"{value} becomes {value + 1}"
        case ast.BinOp(op=op) if type(op) in _ARITHMETIC:
            return f"{type(op).__name__} becomes {_ARITHMETIC[type(op)].__name__}"
        case ast.If():
            return "the condition is turned round"
        case ast.Expr(value=ast.Call()) | ast.AugAssign():
            return "the statement is left out"
        case ast.Return(value=value) if value is not None and not isinstance(value, ast.Constant):
            return "None is returned"
    return ""


def changed(path: Path, change: Change) -> str:
    """The source with the change made."""
    tree = copy.deepcopy(ast.parse(path.read_text("utf-8")))
    node = next(node for number, node in enumerate(_nodes(tree)) if number == change.node)
    if isinstance(node, ast.Expr | ast.AugAssign):
        _replace(tree, node, ast.Pass())
    elif isinstance(node, ast.UnaryOp):
        _replace(tree, node, node.operand)
    elif isinstance(node, ast.Compare):
        node.ops = [_COMPARE[type(node.ops[0])]()]
    elif isinstance(node, ast.BoolOp):
        node.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
    elif isinstance(node, ast.Constant):
        node.value = (not node.value) if isinstance(node.value, bool) else node.value + 1  # type: ignore[operator]
    elif isinstance(node, ast.BinOp):
        node.op = _ARITHMETIC[type(node.op)]()
    elif isinstance(node, ast.If):
        node.test = ast.UnaryOp(ast.Not(), node.test)
    elif isinstance(node, ast.Return):
        node.value = None
    return ast.unparse(ast.fix_missing_locations(tree))


def _replace(tree: ast.AST, old: ast.AST, new: ast.AST) -> None:
    for parent in ast.walk(tree):
        for name, value in ast.iter_fields(parent):
            if value is old:
                setattr(parent, name, new)
                return
            if isinstance(value, list):
                for index, item in enumerate(value):
                    if item is old:
                        value[index] = new
                        return


def drawn(path: Path) -> list[Change]:
    """The changes that are tried: twenty, drawn by the file's own content."""
    possible = changes_of(path)
    seed = int.from_bytes(hashlib.sha256(path.read_bytes()).digest()[:8], "big")
    return sorted(random.Random(seed).sample(possible, min(PER_FILE, len(possible))), key=lambda c: (c.line, c.node))


def tried(path: Path, change: Change) -> str:
    """Who noticed, in a few words; empty where nobody did."""
    with tempfile.TemporaryDirectory(prefix="tenure-generated-") as folder:
        source = Path(folder) / "src"
        shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("__pycache__"))
        (source / "tenure/domain" / path.name).write_text(changed(path, change), "utf-8")
        environment = {**os.environ, "PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1"}
        for words, command in _trials(path.stem):
            try:
                done = subprocess.run(
                    command, cwd=ROOT, env=environment, capture_output=True, timeout=DEADLINE_S, check=False
                )
            except subprocess.TimeoutExpired:
                return f"{words} (no end)"
            if done.returncode:
                return words
    return ""


def _trials(stem: str) -> list[tuple[str, list[str]]]:
    python = [sys.executable, "-m"]
    pytest = [*python, "pytest", "-x", "-q", "-p", "no:cacheprovider", "--no-header"]
    trials = []
    if stem in FLEET:
        trials.append(("simulated clusters", [*python, "tenure.testing.sim", "--steps", "12000", "--no-shrinking"]))
        trials.append(
            ("the short stories", [*pytest, "tests/model/test_silence.py", "tests/model/test_short_surprises.py"])
        )
    own = sorted(str(p.relative_to(ROOT)) for p in (ROOT / "tests/unit/domain").glob(f"test_{stem}*.py"))
    trials.append(("its own tests", [*pytest, *own, "tests/unit/domain/test_records.py"]))
    return [*trials, ("the tests of the domain", [*pytest, "tests/unit/domain", "tests/unit/testing"])]


def listed() -> dict[tuple[str, str, str], str]:
    """The survivors on record: (file, line, change) -> the reason."""
    body = tomllib.loads(LISTED.read_text("utf-8")) if LISTED.exists() else {}
    return {(one["file"], one["line"], one["change"]): one["reason"] for one in body.get("survivor", ())}


def main() -> int:
    """Exit status 1 where a survivor is not listed, or one that is listed is caught."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants.generated", description=__doc__)
    parser.add_argument("files", nargs="*", help="only files of the domain with these names, without .py")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="so many at once")
    given = parser.parse_args()
    paths = [p for p in sorted(DOMAIN.glob("*.py")) if not given.files or p.stem in given.files]
    work = [(path, change) for path in paths for change in drawn(path)]
    known, met = listed(), set()
    caught = unlisted = 0
    began = time.monotonic()
    with ThreadPoolExecutor(given.jobs) as pool:
        for (path, change), by in zip(work, pool.map(lambda each: tried(*each), work), strict=True):
            key = (change.file, change.text(path.read_text("utf-8").splitlines()), change.words)
            where = f"{change.file}:{change.line}: {change.words}"
            if by:
                caught += 1
                stale = key in known
                print(f"caught by {by}: {where}" + (", and is listed as a survivor" if stale else ""), flush=True)
                unlisted += stale
            elif key in known:
                met.add(key)
                print(f"survives, listed: {where} ({known[key]})", flush=True)
            else:
                unlisted += 1
                print(f"SURVIVES: {where}\n    {key[1]}", flush=True)
    took = time.monotonic() - began
    print(
        f"{len(work)} changes in {took:.0f} s: {caught} caught, {len(met)} listed survivors, {unlisted} to be settled"
    )
    return 1 if unlisted else 0


if __name__ == "__main__":
    sys.exit(main())
