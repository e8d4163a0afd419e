"""The hash of a tree by a second implementation of its rule, and streams that must not be taken for one."""

from __future__ import annotations

import hashlib
import io
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure.domain.tree import MAGIC, Nowhere, TreeError, TreeWriter, read_tree

Entry = tuple[bytes, bytes, bytes]  # kind, name, bytes of the file or target of the link


def hash_by_the_rule(entries: list[Entry]) -> str:
    """The rule of ``docs/how-to/stage-a-tree.md``, written down anew."""
    text = b""
    for kind, name, content in sorted(entries, key=lambda entry: entry[1].replace(b"/", b"\0")):
        value = {b"l": content, b"d": b""}.get(kind, hashlib.sha256(content).hexdigest().encode())
        text += kind + b" " + name + b"\0" + value + b"\0"
    return hashlib.sha256(text).hexdigest()


def stream_of(entries: list[Entry]) -> tuple[bytes, str]:
    out = io.BytesIO()
    tree = TreeWriter(out.write)
    for kind, name, content in sorted(entries, key=lambda entry: entry[1].split(b"/")):
        if kind == b"d":
            tree.folder(name)
        elif kind == b"l":
            tree.link(name, content)
        else:
            tree.begin(name, executable=kind == b"x")
            tree.data(content)
            tree.finish()
    digest = tree.close()
    return out.getvalue(), digest


class Collected(Nowhere):
    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self._open = b"", b"", b""

    def folder(self, name: bytes) -> None:
        self.entries.append((b"d", name, b""))

    def link(self, name: bytes, target: bytes) -> None:
        self.entries.append((b"l", name, target))

    def begin(self, name: bytes, *, executable: bool) -> None:
        self._open = b"x" if executable else b"f", name, b""

    def data(self, piece: bytes) -> None:
        kind, name, so_far = self._open
        self._open = kind, name, so_far + piece

    def finish(self, value: str) -> None:
        assert hashlib.sha256(self._open[2]).hexdigest() == value
        self.entries.append(self._open)


_parts = st.binary(min_size=1, max_size=6).filter(lambda part: not {0, 47} & set(part) and part not in (b".", b".."))
_entries = st.lists(
    st.tuples(st.sampled_from([b"f", b"x", b"l", b"d"]), st.lists(_parts, min_size=1, max_size=3), _parts),
    max_size=8,
).map(lambda many: _leaves([(kind, b"/".join(parts), content) for kind, parts, content in many]))


def _leaves(entries: list[Entry]) -> list[Entry]:
    """Those of which none lies below another's name, one of each name."""
    by_name = {name: (kind, name, content) for kind, name, content in entries}
    return [e for name, e in by_name.items() if not any(other.startswith(name + b"/") for other in by_name)]


@given(_entries)
def test_any_tree_comes_back_whole_and_its_hash_follows_the_written_rule(entries: list[Entry]) -> None:
    stream, digest = stream_of(entries)
    assert digest == hash_by_the_rule(entries)
    found = Collected()
    for piece in (1, 7, 1 << 20):
        found = Collected()
        source = io.BytesIO(stream)
        assert read_tree(lambda size, source=source, piece=piece: source.read(min(size, piece)), found) == digest  # type: ignore[misc]
    assert sorted(found.entries) == sorted(
        (kind, name, content if kind != b"d" else b"") for kind, name, content in entries
    )


def test_the_hash_of_a_known_tree_stays_what_it_is() -> None:
    entries = [(b"x", b"run.sh", b"echo\n"), (b"f", b"a/b", b""), (b"l", b"a-l", b"/etc"), (b"d", b"a/e", b"")]
    assert stream_of(entries)[1] == hash_by_the_rule(entries)
    assert stream_of(entries)[1] == "454ea44c1f065550728be17a71a75a5911452320f36b72aed83f9c1000734e7f"


@pytest.mark.parametrize("change", ["content", "name", "mode", "target", "kind", "empty folder"])
def test_every_part_of_a_tree_is_in_its_hash(change: str) -> None:
    before = [(b"x", b"run", b"1"), (b"l", b"to", b"a")]
    after = {
        "content": [(b"x", b"run", b"2"), (b"l", b"to", b"a")],
        "name": [(b"x", b"rum", b"1"), (b"l", b"to", b"a")],
        "mode": [(b"f", b"run", b"1"), (b"l", b"to", b"a")],
        "target": [(b"x", b"run", b"1"), (b"l", b"to", b"b")],
        "kind": [(b"x", b"run", b"1"), (b"f", b"to", b"a")],
        "empty folder": [(b"x", b"run", b"1"), (b"l", b"to", b"a"), (b"d", b"e", b"")],
    }[change]
    assert stream_of(before)[1] != stream_of(after)[1]


def _raw(*entries: bytes) -> bytes:
    return MAGIC + b"".join(entries)


def _name(kind: bytes, name: bytes) -> bytes:
    return kind + struct.pack("<I", len(name)) + name


def _file(name: bytes, content: bytes = b"") -> bytes:
    piece = struct.pack("<I", len(content)) + content if content else b""
    return _name(b"f", name) + piece + struct.pack("<I", 0) + hashlib.sha256(content).digest()


def _link(name: bytes, target: bytes) -> bytes:
    return _name(b"l", name) + struct.pack("<I", len(target)) + target


@pytest.mark.parametrize(
    ("stream", "words"),
    [
        (_raw(_file(b"../out")), "has the part '..'"),
        (_raw(_file(b"a/../../out")), "has the part '..'"),
        (_raw(_file(b"/etc/passwd")), "is absolute"),
        (_raw(_file(b"a//b")), "has the part ''"),
        (_raw(_file(b"./a")), "has the part '.'"),
        (_raw(_file(b"")), "is 0 bytes long"),
        (_raw(_file(b"a\0b")), "holds a NUL"),
        (_raw(_file(b"n" * 300)), "a part of 300 bytes"),
        (_raw(_name(b"f", b"n/" * 3000)), "a length of 6000"),
        (_raw(_link(b"a", b"/etc"), _file(b"a/passwd")), "would lie below 'a'"),
        (_raw(_file(b"b"), _file(b"a")), "twice, or out of order"),
        (_raw(_file(b"a"), _file(b"a")), "twice, or out of order"),
        (_raw(_name(b"b", b"sda")), "of the kind b'b', which there is not"),
        (_raw(_name(b"c", b"null")), "of the kind b'c', which there is not"),
        (_raw(_link(b"l", b"")), "a link to 0 bytes"),
        (_raw(_name(b"f", b"big") + struct.pack("<I", 1 << 30)), "a length of 1073741824"),
        (_raw(_name(b"f", b"a") + struct.pack("<II", 0, 0) + b"x" * 28), "are not those that were packed"),
        (_raw(_file(b"a", b"x")), "ends in the middle, at 'a'"),
        (b"PK\3\4 not a tree at all", "does not begin as a tree does"),
        (stream_of([(b"f", b"a", b"")])[0] + b"more", "something follows its end"),
        (stream_of([(b"f", b"a", b"")])[0][:-1] + b"!", "are not those that its end tells of"),
    ],
)
def test_what_must_not_be_is_refused_by_name(stream: bytes, words: str) -> None:
    with pytest.raises(TreeError) as refused:
        read_tree(io.BytesIO(stream).read, Nowhere())
    assert words in str(refused.value)
