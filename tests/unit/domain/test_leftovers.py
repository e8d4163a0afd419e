"""Attribution of what looks find, against a second implementation that keeps whole histories and is as slow as it is
plain; and the words in which it is told."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from tenure.domain import leftovers_words as words
from tenure.domain.leftovers import (
    MAX_CLOSED,
    OUTSIDE,
    Fingerprint,
    Leftover,
    Listing,
    Maker,
    Part,
    Worker,
    covering,
    fresh,
    left_by,
    looked,
    made_by,
    there_at_start,
)
from tenure.domain.reading import Reading, Reason, Scope, Unavailable, Value

PARTS = ("tools:/bin", "packages:dpkg")
ITEMS = ("/bin/a", "/bin/b", "/bin/sub/c", "/bin/sub/d")


@dataclass
class Shot:
    """One look as the second implementation keeps it."""

    state: dict[tuple[str, str], str | None]
    hidden: dict[tuple[str, str], str]
    jobs: list[str] = field(default_factory=list)


@st.composite
def shots(draw: st.DrawFn) -> list[Shot]:
    made = []
    for _ in range(draw(st.integers(1, 7))):
        keys = [(part, item) for part in PARTS for item in ITEMS]
        state = {key: draw(st.sampled_from((None, "1", "2"))) for key in keys}
        hidden: dict[tuple[str, str], str] = {}
        for part in PARTS:
            blind = draw(st.sampled_from(("no", "no", "no", "all", "/bin/sub", "/bin/a")))
            for item in ITEMS:
                if blind == "all" or item == blind or item.startswith(f"{blind}/"):
                    hidden[part, item] = blind
        made.append(Shot(state, hidden, draw(st.lists(st.sampled_from("ABC"), unique=True, max_size=3))))
    return made


def fingerprint(shot: Shot) -> Fingerprint:
    seen: dict[str, Reading[Listing]] = {}
    for part in PARTS:
        blinds = {shot.hidden[part, item] for item in ITEMS if (part, item) in shot.hidden}
        if "all" in blinds:
            seen[part] = Unavailable(Reason.TIMEOUT, 0.0, "files", Scope.HOST)
            continue
        # What lies under something unreadable may still be listed by a look that is torn: it must not count.
        items = {item: what for item in ITEMS if (what := shot.state[part, item]) is not None}
        seen[part] = Value(Listing(items, dict.fromkeys(blinds, "no_permission")), 0.0, "files", Scope.HOST)
    return seen


def run(history: list[Shot]) -> Worker:
    worker = fresh(fingerprint(history[0]), 0.0, history[0].jobs)
    for number, shot in enumerate(history[1:], 1):
        worker = looked(worker, fingerprint(shot), float(number), number + 0.5, shot.jobs)
    return worker


def slowly(history: list[Shot], key: tuple[str, str]) -> tuple[str | None, str | None, list[str], int] | None:
    """(image, now, makers newest first, closings) of one item from its whole history; None where it never was read."""
    read = [number for number, shot in enumerate(history) if key not in shot.hidden]
    if not read:
        return None
    image = history[read[0]].state[key]
    makers: list[str] = []
    closings = 0
    for earlier, later in pairwise(read):
        was, now = history[earlier].state[key], history[later].state[key]
        if was == now:
            continue
        jobs = history[later].jobs
        if later - earlier > 1:
            maker = "unknown"
        elif not jobs:
            maker = "outside"
        else:
            maker = ("job " if len(jobs) == 1 else "one_of ") + ",".join(jobs)
        if now == image:
            makers, closings = [], closings + 1
        else:
            makers = [maker, *makers]
    return image, history[read[-1]].state[key], makers, closings


def said(maker: Maker) -> str:
    return f"{maker.kind} {','.join(maker.jobs)}".strip()


@settings(max_examples=200, deadline=None)
@given(shots())
def test_a_second_implementation_says_the_same_of_every_item(history: list[Shot]) -> None:
    worker = run(history)
    closings = 0
    for part in PARTS:
        for item in ITEMS:
            told, found = slowly(history, (part, item)), worker.leftovers.get((part, item))
            if told is None:
                assert found is None
                continue
            image, now, makers, closed = told
            closings += closed
            if image == now:
                assert found is None, f"{part} {item} is as the image has it"
                continue
            assert found is not None
            assert (found.image, found.now) == (image, now)
            assert [said(maker) for maker in (found.by, *found.earlier)] == makers[:5]
            hidden = (part, item) in history[-1].hidden
            assert bool(found.unseen) == hidden
    assert len(worker.closed) == min(closings, MAX_CLOSED)


@settings(max_examples=200, deadline=None)
@given(shots())
def test_nothing_is_said_of_a_job_that_did_not_run_before_it_was_found(history: list[Shot]) -> None:
    worker = run(history)
    ran: set[str] = set().union(*(shot.jobs for shot in history[1:])) if len(history) > 1 else set()
    for each in (*worker.leftovers.values(), *worker.closed):
        assert set(each.jobs) <= ran
        assert set(each.by.jobs) <= set(history[int(each.found)].jobs)
        if each.by.kind == "job":
            assert len(history[int(each.found)].jobs) == 1
    for job in "ABC":
        assert all(job not in each.by.jobs for each in there_at_start(worker, job))
        assert {each.item for each in left_by(worker, job)} <= {item for _, item in worker.leftovers}


@settings(max_examples=200, deadline=None)
@given(shots())
def test_what_cannot_be_read_is_neither_new_nor_gone(history: list[Shot]) -> None:
    before = run(history)
    dark = Shot({}, {(part, item): "all" for part in PARTS for item in ITEMS}, ["Z"])
    after = run([*history, dark])
    assert after.leftovers.keys() == before.leftovers.keys()
    assert after.closed == before.closed
    for key, each in after.leftovers.items():
        assert (each.now, each.by, each.how) == (
            before.leftovers[key].now,
            before.leftovers[key].by,
            before.leftovers[key].how,
        )
        assert each.unseen


def test_a_prefix_covers_what_lies_under_it_and_not_its_neighbour() -> None:
    assert covering({"/opt/a": "x"}, "/opt/a/bin/t") == "/opt/a"
    assert covering({"/opt/a": "x"}, "/opt/ab/bin/t") is None
    assert covering({"": "x"}, "anything") == ""


def test_what_was_not_readable_when_fresh_is_never_called_image_nor_leftover() -> None:
    dark = {"tools:/bin": Unavailable(Reason.NO_PERMISSION, 0.0, "files", Scope.HOST, "denied")}
    worker = fresh(dark, 0.0)
    light: Fingerprint = {"tools:/bin": Value(Listing({"/bin/a": "1"}), 0.0, "files", Scope.HOST)}
    worker = looked(worker, light, 1.0, 1.5, ["A"])
    assert not worker.leftovers
    assert worker.unsure == {"tools:/bin": {"": "no_permission: denied"}}
    gone: Fingerprint = {"tools:/bin": Value(Listing({}), 0.0, "files", Scope.HOST)}
    worker = looked(worker, gone, 2.0, 2.5, ["B"])
    assert [(each.how, each.by) for each in worker.leftovers.values()] == [("removed", Maker("job", ("B",)))]


def test_several_attempts_of_one_job_are_one_maker_and_too_many_are_counted() -> None:
    assert made_by(["A", "A"]) == Maker("job", ("A",))
    assert made_by([]) == OUTSIDE
    assert made_by(["A"], more=3).kind == "one_of"
    assert made_by("ABCDEF").words == "one of A, B, C, D and 2 more"
    assert made_by("AB", more=7).words == "one of A, B and 7 more"


def leftover(part: str, item: str, now: str | None, by: Maker, image: str | None = None) -> Leftover:
    return Leftover(part, item, image, now, by, 0.0, 1.0)


def worker_with(*found: Leftover) -> Worker:
    parts: dict[str, dict[str, str]] = {}
    for each in found:
        parts.setdefault(each.part, {}).update({each.item: each.now} if each.now is not None else {})
    known = {name: Part(items) for name, items in parts.items()}
    return Worker(0.0, (), known, 1.0, leftovers={(each.part, each.item): each for each in found})


def test_a_jobs_record_names_the_first_and_counts_the_rest() -> None:
    only, either = Maker("job", ("A",)), Maker("one_of", ("A", "B"))
    tools = [leftover("tools:/bin", f"/bin/t{n}", "1", only) for n in range(5)]
    packages = [leftover("packages:dpkg", f"p{n}", "1.0", only) for n in range(3)]
    kit = leftover("cuda", "/usr/local/cuda", "nvcc;headers,libcudart", either)
    worker = worker_with(leftover("tools:/bin", "/bin/nvcc", "1", only), *tools, *packages, kit)
    versions = {"/bin/nvcc": "12.4"}
    assert words.left_words(worker, "A", versions) == (
        "left: nvcc 12.4 (/bin/nvcc), t0 (/bin/t0), t1 (/bin/t1), 3 more tools, 3 packages; left by it or by B:"
        " CUDA toolkit /usr/local/cuda (partial: nvcc; no headers, no libcudart)"
    )
    assert words.left_words(worker, "C", versions) == ""
    body = words.told(worker, versions, "/f")
    assert (body["count"], body["and_more"], body["jobs"]["A"]["count"]) == (10, 0, 10)
    assert body["leftovers"][0]["words"].startswith("CUDA toolkit")


def test_what_is_told_is_capped_and_says_how_much_more_there_is() -> None:
    made = [leftover("tools:/bin", f"/bin/{n:04}", "1", Maker("job", (f"j{n}",))) for n in range(500)]
    body = words.told(worker_with(*made), {}, "/the/file")
    assert (body["count"], len(body["leftovers"]), body["and_more"], len(body["jobs"])) == (500, 100, 400, 100)
    assert body["file"] == "/the/file"


def test_what_was_there_at_a_start_names_its_makers_and_what_nobody_looked_at() -> None:
    found = [
        leftover("tools:/bin", "/bin/x", "1", Maker("job", ("A",))),
        leftover("tools:/bin", "/bin/y", None, OUTSIDE, image="1"),
    ]
    assert words.start_words(found, {}, ["C"]) == (
        "2 leftovers on this worker at its start, where it differs from its image: x (/bin/x) (from A); removed: y"
        " (/bin/y) (outside any job); what C left was not looked at yet"
    )
    assert words.start_words([], {}, ["C"]) == "", "where one job follows the other it would be said of each"
