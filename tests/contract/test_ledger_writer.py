"""What the writer promises to those who submit, to those who read, and when something goes wrong."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.contract import ledger_world as world
from tests.contract.ledger_world import T0, Store

from tenure.domain import commands as cmd
from tenure.domain import events as ev
from tenure.domain import evolve as evolving
from tenure.domain.device import CLEAR
from tenure.domain.instructions import StartJob
from tenure.domain.state import FleetState
from tenure.errors import TenureError
from tenure.ledger import Committed, LedgerError, Result, Writer
from tenure.ledger import writer as writing
from tenure.ledger.check import disagreements


@asynccontextmanager
async def fleet(
    store: Store, told: Callable[[Sequence[Committed]], None] = lambda batch: None, devices: int = 2
) -> AsyncIterator[Writer]:
    """A writer over a host with some devices; memory, rows and replay agree at the end."""
    ledger = store.open()
    try:
        async with Writer(ledger, told, clock=lambda: T0) as writer:
            await writer.submit(world.register(devices=devices))
            yield writer
            await writer.settled()
            assert disagreements(ledger, writer.state) == []
    finally:
        ledger.close()


async def at_once(writer: Writer, *commands: cmd.Command) -> list[Result | BaseException]:
    """The answers to commands that are in one batch."""
    return await asyncio.gather(*map(writer.submit, commands), return_exceptions=True)


async def test_answers_come_after_the_commit_and_after_the_word_of_it(store: Store) -> None:
    said: list[str] = []

    def told(batch: Sequence[Committed]) -> None:
        for each in batch:
            if isinstance(each.command, cmd.Submit):
                committed = {job.id for job in writer.ledger.jobs()}
                said.append(f"committed {each.command.job}: {each.command.job in committed}")

    async with fleet(store, told) as writer:

        async def one(job: str) -> None:
            await writer.submit(world.submit(job))
            said.append(f"answered {job}")

        await asyncio.gather(one("j1"), one("j2"))
    assert said == ["committed j1: True", "committed j2: True", "answered j1", "answered j2"]


async def test_commands_take_effect_in_the_order_of_submission(store: Store) -> None:
    seen: list[Committed] = []
    async with fleet(store, seen.extend, devices=1) as writer:
        answers = await at_once(writer, *(world.submit(f"j{n}") for n in range(700)))
    versions = [answer.version for answer in answers if isinstance(answer, Result)]
    assert len(versions) == 700
    assert versions == sorted(versions)
    assert [each.command.job for each in seen if isinstance(each.command, cmd.Submit)] == [f"j{n}" for n in range(700)]
    numbers = [each.version for each in seen]
    assert numbers == sorted(numbers)


async def test_instructions_come_with_the_command_that_caused_them(store: Store) -> None:
    seen: list[Committed] = []
    async with fleet(store, seen.extend, devices=1) as writer:
        await at_once(writer, world.submit("j1"), world.submit("j2"))
        await writer.submit(world.ended(writer.state, "j1"))
    told = [(each.command, agent, what) for each in seen for agent, what in each.instructions]
    assert [(agent, what.job, type(what)) for _, agent, what in told] == [
        ("a-h", "j1", StartJob),
        ("a-h", "j2", StartJob),
    ]
    assert isinstance(told[1][0], cmd.ReportEnded)


async def test_a_refusal_is_an_answer_and_writes_nothing(store: Store) -> None:
    async with fleet(store) as writer:
        version = writer.ledger.version()
        result = await writer.submit(world.submit("j1", device="h:gpu9"))
        assert result.outcomes.refusal is not None
        assert (result.outcomes.refusal.code, result.version, result.job) == ("unknown_device", version, None)
        stale = cmd.ReportStarted("a-h", "j7", 1, {}, 1)
        assert (await writer.submit(stale)).outcomes.ignored
        assert writer.ledger.version() == version


async def test_who_goes_away_takes_nothing_back(store: Store) -> None:
    async with fleet(store) as writer:
        tasks = [asyncio.create_task(writer.submit(world.submit(f"j{n}"))) for n in range(4)]
        await asyncio.sleep(0)
        tasks[0].cancel()  # still queued
        tasks[2].cancel()
        others = await asyncio.gather(tasks[1], tasks[3])
        assert [each.job for each in others] == ["j1", "j3"]
        assert [job.id for job in writer.ledger.jobs()] == ["j3", "j2", "j1", "j0"]
        one = asyncio.create_task(writer.submit(world.submit("j4")))
        await asyncio.sleep(0)
        assert writer._unsettled or writer._queue  # on its way
        one.cancel()
        with pytest.raises(asyncio.CancelledError):
            await one
        await writer.settled()
        assert "j4" in writer.state.jobs


async def test_a_command_that_cannot_be_decided_is_alone_with_it(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    class Nonsense:
        pass

    async with fleet(store) as writer:
        no_command: Any = Nonsense()
        one, nonsense, two = await at_once(writer, world.submit("j1"), no_command, world.submit("j2"))
        assert isinstance(one, Result)
        assert isinstance(two, Result)
        assert isinstance(nonsense, TenureError)
        assert (nonsense.code, nonsense.facts["command"]) == ("internal", "Nonsense")
        assert set(writer.state.jobs) == {"j1", "j2"}
    assert "Nonsense" in caplog.text


@pytest.mark.parametrize("place", [0, 1, 2])
async def test_a_defect_halfway_through_a_command_is_undone(
    store: Store, monkeypatch: pytest.MonkeyPatch, place: int
) -> None:
    """Memory has changed by the time it raises: so memory is read anew, and the others are decided again."""
    grant = evolving._APPLY[ev.LeaseGranted]

    def fail(state: FleetState, event: ev.LeaseGranted) -> None:
        grant(state, event)
        if event.job == "bad":
            raise ZeroDivisionError("a defect")

    monkeypatch.setitem(evolving._APPLY, ev.LeaseGranted, fail)
    async with fleet(store, devices=4) as writer:
        jobs = ["j1", "j2"]
        jobs.insert(place, "bad")
        answers = await at_once(writer, *(world.submit(job) for job in jobs))
        error = answers.pop(place)
        assert isinstance(error, TenureError)
        assert (error.code, error.facts) == ("internal", {"command": "Submit", "error": "ZeroDivisionError"})
        assert "a defect" in error.message
        assert [answer.job for answer in answers if isinstance(answer, Result)] == ["j1", "j2"]
        assert set(writer.state.jobs) == {"j1", "j2"}
        assert world.ready(writer.state) == ["h:gpu2", "h:gpu3"]


async def test_what_cannot_be_written_down_is_undone(store: Store) -> None:
    async with fleet(store) as writer:
        await writer.submit(world.submit("j1"))
        report = world.started(writer.state, "j1")
        use = cmd.ReportUse("a-h", "j1", 1, report.tokens, {"share": float("nan")})
        surrogate = world.submit("j\udcff")  # no text of a database: refused by the store, not by the encoding
        huge = world.register("g", devices=1)
        huge = cmd.Register(
            huge.agent, "g", "b", "n", "i", "u", (cmd.OfferedDevice("g:x", "U", "cpu", False, 1 << 70, CLEAR),)
        )
        answers = await at_once(writer, report, use, surrogate, huge, world.submit("j3"))
        assert [isinstance(answer, Result) for answer in answers] == [True, False, False, False, True]
        assert all(error.code == "internal" for error in answers if isinstance(error, TenureError))
        assert set(writer.state.jobs) == {"j1", "j3"}


async def test_a_commit_that_failed_but_is_there_is_a_commit(store: Store) -> None:
    """A store may report an error for a transaction that is on disk: deciding it again would do it twice."""
    async with fleet(store) as writer:
        write = writer.ledger.write

        def unsure(*arguments: Any) -> None:
            write(*arguments)
            writer.ledger.write = write  # type: ignore[method-assign]
            raise LedgerError("io_error", "the sync failed, or did it?")

        writer.ledger.write = unsure  # type: ignore[method-assign, assignment]
        answers = await at_once(writer, world.submit("j1"), world.submit("j2"))
        assert [answer.job for answer in answers if isinstance(answer, Result)] == ["j1", "j2"]
        assert [job.id for job in writer.ledger.jobs()] == ["j2", "j1"]


async def test_without_rows_to_read_memory_is_shown_to_nobody(store: Store) -> None:
    async with fleet(store) as writer:
        load, write = writer.ledger.load, writer.ledger.write
        broken = LedgerError("io_error", "the disk is gone")

        def fail(*arguments: Any) -> None:
            raise broken

        writer.ledger.load = writer.ledger.write = fail  # type: ignore[method-assign, assignment]
        for _ in range(2):
            answers = await at_once(writer, world.submit("j1"), world.submit("j2"))
            assert answers == [broken, broken]
            with pytest.raises(TenureError, match="the disk is gone"):
                await writer.settled()
        writer.ledger.load, writer.ledger.write = load, write  # type: ignore[method-assign]
        assert (await writer.submit(world.submit("j3"))).job == "j3"
        assert set(writer.state.jobs) == {"j3"}


async def test_memory_that_was_lost_comes_back_by_itself(store: Store) -> None:
    async with fleet(store) as writer:
        writer._idle_s = 0.01
        load, write = writer.ledger.load, writer.ledger.write

        def fail(*arguments: Any) -> None:
            raise LedgerError("io_error", "the disk is gone")

        writer.ledger.load = writer.ledger.write = fail  # type: ignore[method-assign, assignment]
        with pytest.raises(TenureError):
            await writer.submit(world.submit("j1"))
        writer.ledger.load, writer.ledger.write = load, write  # type: ignore[method-assign]
        await world.until(lambda: writer._broken is None)
        await writer.settled()
        assert writer.state.jobs == {}


async def test_a_reader_sees_only_what_is_durable(store: Store) -> None:
    async with fleet(store) as writer:
        stop = False

        async def busy(name: str) -> None:
            n = 0
            while not stop:
                n += 1
                await writer.submit(world.submit(f"{name}{n}"))
                await writer.submit(cmd.Cancel(f"{name}{n}", "ann", ""))

        crowd = [asyncio.create_task(busy(name)) for name in "abcdef"]
        for _ in range(30):
            await writer.settled()
            assert writer.state.version == writer.ledger.version()
            assert await writer.read(lambda state: state.version) == writer.ledger.version()
        stop = True
        await asyncio.gather(*crowd)


async def test_an_idempotency_key_makes_one_job_in_a_batch_later_and_after_a_restart(store: Store) -> None:
    first = world.submit("j1", key="k", body_hash="x")
    again = world.submit("j2", key="k", body_hash="x")
    other = world.submit("j3", key="k", body_hash="y")
    bob = world.submit("j4", key="k", body_hash="y", owner="bob")

    async def submit_all(writer: Writer) -> None:
        answers = await at_once(writer, first, again, other, bob)
        results = [answer for answer in answers if isinstance(answer, Result)]
        assert [result.job for result in results] == ["j1", "j1", None, "j4"]
        refusal = results[2].outcomes.refusal
        assert refusal is not None
        assert (refusal.code, refusal.facts["job"]) == ("key_reused", "j1")
        assert sorted(job.id for job in writer.ledger.jobs()) == ["j1", "j4"]

    async with fleet(store) as writer:
        await submit_all(writer)
        writer.state.keys.clear()
        await submit_all(writer)
        await writer.submit(world.ended(writer.state, "j1"))
        await submit_all(writer)
    async with fleet(store) as writer:
        assert writer.state.keys == {}
        await submit_all(writer)


async def test_keys_do_not_pile_up_in_memory(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "KEYS_KEPT", 8)
    async with fleet(store) as writer:
        for n in range(20):
            await writer.submit(world.submit(f"j{n}", key=f"k{n}"))
        assert len(writer.state.keys) == 8
        assert (await writer.submit(world.submit("j99", key="k0"))).job == "j0"


async def test_a_defect_of_a_listener_does_not_stop_the_writer(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    def told(batch: Sequence[Committed]) -> None:
        raise RuntimeError("the listener's own")

    async with fleet(store, told) as writer:
        assert (await writer.submit(world.submit("j1"))).job == "j1"
    assert "the listener's own" in caplog.text


async def test_closing_commits_what_was_submitted_and_refuses_the_rest(store: Store) -> None:
    ledger = store.open()
    writer = Writer(ledger)
    await writer.start()
    await writer.submit(world.register())
    waiting = [asyncio.create_task(writer.submit(world.submit(f"j{n}"))) for n in range(3)]
    await asyncio.sleep(0)
    await writer.close()
    assert [(await each).job for each in waiting] == ["j0", "j1", "j2"]
    assert len(ledger.jobs()) == 3
    with pytest.raises(TenureError) as caught:
        await writer.submit(world.submit("j4"))
    assert caught.value.code == "controller_unreachable"
    await writer.close()
    ledger.close()


async def test_a_second_writer_ends_the_first(store: Store) -> None:
    one, two = store.open(), store.open()
    async with Writer(one) as first, Writer(two) as second:
        await first.submit(world.register("h"))
        answers = await at_once(second, world.register("g"), world.register("f"))
        assert {answer.code for answer in answers if isinstance(answer, TenureError)} == {"already_running"}
        with pytest.raises(TenureError):
            await second.submit(world.submit("j1"))
        with pytest.raises(TenureError, match="Somebody else wrote"):
            await second.settled()
        assert sorted(agent.id for agent in first.state.agents.values()) == ["a-h"]
        assert (await first.submit(world.submit("j1"))).job == "j1"
    one.close()
    two.close()


async def test_the_store_is_put_in_order_when_idle_and_once(store: Store) -> None:
    ledger = store.open()
    rested: list[int] = []
    rest = ledger.rest

    def note() -> None:
        rested.append(ledger.version())
        rest()

    ledger.rest = note  # type: ignore[method-assign]
    async with Writer(ledger, idle_s=0.02) as writer:
        await writer.submit(world.register())
        await world.until(lambda: rested)
        await asyncio.sleep(0.1)  # nothing more comes of it: only time can show that
        assert len(rested) == 1
    assert len(rested) == 1
    ledger.close()
