"""Memory, rows and a replay of all events say the same, after any commands in any batches, failures and restarts."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from tests.contract import ledger_world as world
from tests.contract.ledger_world import STORES, T0, Store

from tenure.errors import TenureError
from tenure.ledger import LedgerError, Writer
from tenure.ledger.check import disagreements

_DICE = st.integers(0, 10**9)
#: What may happen between two batches: nothing, a restart, or a disk that refuses the next commit.
_BATCHES = st.lists(
    st.tuples(st.lists(_DICE, min_size=1, max_size=6), st.sampled_from(["", "", "", "", "restart", "refuse"])),
    min_size=1,
    max_size=14,
)


async def _run(store: world.Store, batches: list[tuple[list[int], str]]) -> None:
    clock = iter(range(10**6))
    ledger = store.open()
    writer = Writer(ledger, clock=lambda: T0 + next(clock))
    await writer.start()
    await asyncio.gather(writer.submit(world.register("h")), writer.submit(world.register("g")))
    for dice, between in batches:
        refused = _refuse_once(writer) if between == "refuse" else None
        commands = [world.any_command(writer.state, each, next(clock)) for each in dice]
        answers = await asyncio.gather(*map(writer.submit, commands), return_exceptions=True)
        assert all(not isinstance(answer, BaseException) or refused for answer in answers), answers
        vars(writer.ledger).pop("write", None)  # nothing was written: the refusal must not wait for the next batch
        assert not any((writer.state.touched, writer.state.closed, writer.state.released))
        assert disagreements(ledger, writer.state) == []
        if between == "restart":
            await writer.close()
            ledger.close()
            ledger = store.open()
            writer = Writer(ledger, clock=lambda: T0 + next(clock))
            await writer.start()
            assert disagreements(ledger, writer.state) == []
    await writer.close()
    ledger.close()


def _refuse_once(writer: Writer) -> list[str]:
    """The next commit fails: the batch has to be undone in memory and each command tried again."""
    write, tried = writer.ledger.write, ["once"]

    def failing(*arguments: object) -> None:
        writer.ledger.write = write  # type: ignore[method-assign]
        raise LedgerError("disk_full", "no room")

    writer.ledger.write = failing  # type: ignore[method-assign, assignment]
    return tried


@pytest.mark.parametrize("name", list(STORES))
def test_memory_rows_and_replay_agree_after_every_batch(name: str) -> None:
    @settings(
        max_examples=25,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
        phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
    )
    @given(_BATCHES)
    def agree(batches: list[tuple[list[int], str]]) -> None:
        memory = Path("/dev/shm")  # many syncs that prove nothing here: those are for the crash lane
        with tempfile.TemporaryDirectory(prefix="tenure-ledger-", dir=memory if memory.is_dir() else None) as folder:
            asyncio.run(_run(STORES[name](Path(folder)), batches))

    agree()


async def test_the_check_itself_sees_what_differs(store: Store) -> None:
    ledger = store.open()
    async with Writer(ledger) as writer:
        await writer.submit(world.register())
        await writer.submit(world.submit("j1", key="k"))
        state = writer.state
        assert disagreements(ledger, state) == []
        state.tokens["GPU-h-0"] += 1
        assert len(disagreements(ledger, state)) == 2
        state.tokens["GPU-h-0"] -= 1
        state.keys["ann", "k"] = ("j2", "")
        assert disagreements(ledger, state) == ["memory: key ('ann', 'k') means ('j2', '')"]
        state.keys.clear()
        with ledger._transaction() as connection:
            connection.exec_driver_sql("UPDATE devices SET state = 'ready', lease = NULL WHERE name = 'h:gpu0'")
        assert any("h:gpu0" in line for line in disagreements(ledger, state))
    ledger.close()


async def test_a_failure_is_told_only_to_whom_it_belongs(store: Store) -> None:
    """The one commit that fails is the batch's; tried one at a time, every command succeeds."""
    ledger = store.open()
    async with Writer(ledger) as writer:
        await writer.submit(world.register())
        _refuse_once(writer)
        answers = await asyncio.gather(*(writer.submit(world.submit(f"j{n}")) for n in range(5)))
        assert [answer.job for answer in answers] == [f"j{n}" for n in range(5)]
        _refuse_once(writer)
        with pytest.raises(TenureError, match="no room"):
            await writer.submit(world.submit("j9"))
        assert disagreements(ledger, writer.state) == []
    ledger.close()
