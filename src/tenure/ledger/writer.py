"""Group commit: the one way to change the fleet.

Commands queue. The writer takes all that wait (at most ``MAX_BATCH``), decides them in memory one after another,
commits what they caused in one transaction in a thread of its own, tells ``on_committed``, and answers everybody.
There is no timer: a batch is whatever gathered while the one before was on its way to the disk, so a lonely command
waits for nobody and a crowd shares a sync.

Memory runs ahead of the disk only between deciding and the end of the commit. Who reads memory awaits ``settled``
first, or reads through ``read``.

What goes wrong with one command stays with it. A command whose deciding raises is answered ``internal``; if it had
changed memory by then, memory is read anew from the rows and the others are decided again without it. A batch that
cannot be committed is undone in memory the same way, and its commands are tried one at a time, each with its own
answer.

Idempotency keys are not held in memory: that would grow with history. Before a batch is decided, the keys of its
submissions are looked up through their index and put into ``state.keys``, where the core expects them; the last
``KEYS_KEPT`` stay as a cache. Rejected: a second lookup inside the core (it does no I/O), and letting the unique index
refuse the insert (it would cost the batch its transaction to answer a question that one read answers).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import TypeVar

from tenure.domain import commands as cmd
from tenure.domain import events as ev
from tenure.domain.fleet import Outcomes, handle, submitted_job
from tenure.domain.instructions import Instruction, from_events
from tenure.domain.state import FleetState
from tenure.errors import TenureError
from tenure.ledger.rows import Stored, event_row
from tenure.ledger.store import Ledger, LedgerError

MAX_BATCH = 256
KEYS_KEPT = 4096
#: Seconds without a commit after which the store is put in order.
IDLE_S = 2.0

log = logging.getLogger(__name__)
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Result:
    """The answer to a command: what came of it, the version of the fleet right after it, and for a submission the job
    it stands for (which an idempotency key may have made earlier)."""

    outcomes: Outcomes
    version: int
    job: str | None = None


@dataclass(frozen=True, slots=True)
class Committed:
    """A command whose events are durable, in the order of commit; ``instructions`` may be sent now, each to its agent.

    Commands that changed nothing are among them, with no events. ``now`` is the UTC time it was decided with.
    """

    command: cmd.Command
    outcomes: Outcomes
    instructions: list[tuple[str, Instruction]]
    version: int
    now: float


@dataclass(slots=True, eq=False)
class _Waiting:
    """A queued command and whoever waits for it. The answer may find nobody; the command counts all the same."""

    command: cmd.Command
    answer: asyncio.Future[Result]

    def refuse(self, error: Exception) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)
            self.answer.exception()  # asked for here: who went away meanwhile leaves no warning behind

    def resolve(self, result: Result) -> None:
        if not self.answer.done():
            self.answer.set_result(result)


class _Spoiled(Exception):
    """Deciding the command of this index raised when it had changed memory already."""

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self.index = index


class _Batch:
    """What a batch came to in memory."""

    def __init__(self) -> None:
        self.waiting: list[_Waiting] = []
        self.committed: list[Committed] = []
        self.results: list[Result] = []
        self.events: list[ev.Event] = []
        self.stored: list[Stored] = []
        self.failed: Exception | None = None


class Writer:
    """Takes commands from an event loop and makes them durable. One of them for a ledger.

    ``on_committed`` is called in the loop with what was committed, in order, before the answers go out; memory is
    settled while it runs. ``clock`` gives UTC seconds and only labels.
    """

    def __init__(
        self,
        ledger: Ledger,
        on_committed: Callable[[Sequence[Committed]], None] = lambda batch: None,
        *,
        clock: Callable[[], float] = time.time,
        max_batch: int = MAX_BATCH,
        idle_s: float = IDLE_S,
    ) -> None:
        self.ledger = ledger
        self.state = FleetState()
        self._on_committed = on_committed
        self._clock = clock
        self._max_batch = max_batch
        self._idle_s = idle_s
        self._queue: deque[_Waiting] = deque()
        self._wake = asyncio.Event()
        self._closing = False
        self._unsettled = False
        self._broken: TenureError | None = None  # memory is not what is on disk, and the disk could not be read
        self._settlers: list[asyncio.Future[None]] = []
        self._task: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="ledger")

    # -- its life --------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Loads the fleet from the rows and begins to take commands; the first one should be ``Begin``."""
        await self._in_thread(lambda: self.ledger.load(self.state))
        self._task = asyncio.create_task(self._run(), name="ledger writer")

    async def close(self) -> None:
        """Commits what has been submitted, refuses what comes later, and ends. The ledger stays open."""
        self._closing = True
        self._wake.set()
        if self._task is not None:
            await self._task
        self._thread.shutdown()

    async def __aenter__(self) -> Writer:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # -- what others may ask ---------------------------------------------------------------------------------------

    async def submit(self, command: cmd.Command) -> Result:
        """Queues a command and gives its result once it is durable. A refusal is a result; a failure raises.

        Commands are decided in the order of these calls. Being cancelled here takes nothing back: the command is
        decided and committed as if somebody still waited. Raises ``TenureError``: ``disk_full``, ``io_error``,
        ``internal``, or ``controller_unreachable`` once the writer is closing.
        """
        if self._closing or (self._task is not None and self._task.done()):
            raise _going()
        waiting = _Waiting(command, asyncio.get_running_loop().create_future())
        self._queue.append(waiting)
        self._wake.set()
        return await waiting.answer

    async def settled(self) -> None:
        """Returns when memory holds nothing that is not durable; this lasts until the caller awaits anything else.

        To be awaited directly, not through a task of its own: between that task's end and its caller's next step the
        writer may have gone on. ``read`` has no such trap. Raises ``TenureError`` where memory had to be thrown away
        and the rows cannot be read.
        """
        while self._unsettled:
            settled = asyncio.get_running_loop().create_future()
            self._settlers.append(settled)
            await settled
        if self._broken is not None:
            raise self._broken

    async def read(self, look: Callable[[FleetState], _T]) -> _T:
        """What a function sees in the settled state. It must not change it."""
        await self.settled()
        return look(self.state)

    async def forget(self, before: float, most: int) -> list[str]:
        """``Ledger.forget`` while no batch is being written, and in memory the keys that those jobs were made by."""
        gone = set(await self._in_thread(lambda: self.ledger.forget(before, most)))
        keys = self.state.keys
        for key in [key for key, (job, _) in keys.items() if job in gone]:
            del keys[key]
        return sorted(gone)

    # -- the loop --------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        batch: list[_Waiting] = []
        rested = True
        try:
            while self._queue or not self._closing:
                if not self._queue:
                    self._wake.clear()
                    try:
                        async with asyncio.timeout(None if rested else self._idle_s):
                            await self._wake.wait()
                    except TimeoutError:
                        rested = await self._rest()
                    continue
                batch = [self._queue.popleft() for _ in range(min(len(self._queue), self._max_batch))]
                await self._process(batch)
                batch = []
                rested = False
                await asyncio.sleep(0)  # whoever waited for settled memory has it to themselves for this one turn
            if not rested:
                await self._rest()
        except Exception:
            log.exception("the writer has ended by a defect; the controller must be started again")
            raise
        finally:
            self._closing = True
            self._settle()
            for waiting in (*batch, *self._queue):
                waiting.refuse(_going())

    async def _rest(self) -> bool:
        """Uses idle time: reads memory anew where that had failed, else puts the store in order. Whether it is done."""
        if self._broken is not None:
            return await self._reload()
        await self._in_thread(self.ledger.rest)
        return True

    async def _process(self, batch: list[_Waiting]) -> None:
        """Decides, commits and answers a batch, whatever goes wrong with any of it."""
        remaining = list(batch)
        self._unsettled = True
        try:
            while remaining:
                if self._broken is not None and not await self._reload():
                    raise self._broken
                await self._look_up_keys(remaining)
                try:
                    decided = self._decide(remaining)
                except _Spoiled as spoiled:
                    self._defect(remaining.pop(spoiled.index), spoiled.__cause__)
                    await self._reload()
                    continue
                if decided.events and not await self._commit(decided):
                    await self._one_by_one(decided)
                else:
                    self._publish(decided)
                return
        except TenureError as error:  # the ledger cannot be read
            for waiting in remaining:
                waiting.refuse(error)
        finally:
            self._settle()

    def _decide(self, batch: Sequence[_Waiting]) -> _Batch:
        """Decides commands in order. One whose deciding raised is answered and left out, if memory is as before it."""
        state, done = self.state, _Batch()
        for index, waiting in enumerate(batch):
            command, before, now = waiting.command, state.version, self._clock()
            try:
                outcomes = handle(state, command, now)
                told = from_events(state, outcomes.events)
                stored = [event_row(before + nth, event) for nth, event in enumerate(outcomes.events, 1)]
                job = None
                if isinstance(command, cmd.Submit) and outcomes.refusal is None:
                    job = submitted_job(command, state, outcomes.events)
            except Exception as error:
                if state.version != before:
                    raise _Spoiled(index) from error
                self._defect(waiting, error)
                continue
            done.waiting.append(waiting)
            done.committed.append(Committed(command, outcomes, told, state.version, now))
            done.results.append(Result(outcomes, state.version, job))
            done.events += outcomes.events
            done.stored += stored
        return done

    @staticmethod
    def _defect(waiting: _Waiting, error: BaseException | None) -> None:
        log.error("deciding a command failed: %r", waiting.command, exc_info=error)
        waiting.refuse(_internal(waiting.command, error))

    async def _commit(self, decided: _Batch) -> bool:
        """Whether it is on disk. Where it is not, memory is what the rows say again, and ``failed`` says why."""
        state = self.state
        try:
            await self._in_thread(lambda: self.ledger.write(decided.events, decided.stored, state))
        except Exception as error:
            log.warning("a batch of %d commands was not committed: %s", len(decided.waiting), error)
            decided.failed = error
            return await self._reload() and await self._is_there(decided.stored[-1])
        return True

    async def _is_there(self, last: Stored) -> bool:
        """Whether the store failed to say so, but all of a batch is on disk: then nothing may be decided again."""
        try:
            return await self._in_thread(lambda: self.ledger.events_after(last.seq - 1, 1)) == [last]
        except TenureError as error:
            self._broken = error  # it may be: so nothing is decided before the rows have been read
            return False

    async def _one_by_one(self, decided: _Batch) -> None:
        """After a failed commit: each command by itself, so that each gets its own answer. One alone gets it now."""
        failed = decided.failed
        assert failed is not None
        fatal = isinstance(failed, TenureError) and failed.code == "already_running"
        if fatal:  # somebody else writes: nothing that is decided here has a meaning any more
            self._closing = True
            self._broken = self._broken or _told(decided.waiting[0].command, failed)
        for waiting in decided.waiting:
            if fatal or len(decided.waiting) == 1:
                waiting.refuse(_told(waiting.command, failed))
            else:
                await self._process([waiting])

    def _publish(self, decided: _Batch) -> None:
        """Tells what is durable, lets memory forget what the ledger has, and answers."""
        try:
            self._on_committed(decided.committed)
        except Exception:
            log.exception("a defect after a commit: on_committed raised; the commit stands")
        self.state.drain()
        keys = self.state.keys
        while len(keys) > KEYS_KEPT:
            del keys[next(iter(keys))]
        for waiting, result in zip(decided.waiting, decided.results, strict=True):
            waiting.resolve(result)

    def _settle(self) -> None:
        self._unsettled = False
        settlers, self._settlers = self._settlers, []
        for settler in settlers:
            if not settler.done():
                settler.set_result(None)

    async def _reload(self) -> bool:
        """Throws memory away and reads the rows. False, with the reason in ``_broken``, where even that failed."""
        fresh = FleetState()
        try:
            await self._in_thread(lambda: self.ledger.load(fresh))
        except Exception as error:
            log.exception("the ledger could not be read anew")
            self._broken = error if isinstance(error, TenureError) else LedgerError("internal", str(error))
            return False
        self.state.become(fresh)
        self._broken = None
        return True

    async def _look_up_keys(self, batch: Sequence[_Waiting]) -> None:
        unknown = {
            (waiting.command.owner, waiting.command.key)
            for waiting in batch
            if isinstance(waiting.command, cmd.Submit) and waiting.command.key is not None
        }
        pairs = [(owner, key) for owner, key in unknown if key is not None and (owner, key) not in self.state.keys]
        if pairs:
            look = partial(self.ledger.keys_lookup, pairs)
            self.state.keys.update(look() if self.ledger.local else await self._in_thread(look))

    async def _in_thread(self, work: Callable[[], _T]) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)


def _going() -> TenureError:
    return TenureError("controller_unreachable", "The controller is shutting down.", do="Try again in a moment.")


def _internal(command: cmd.Command, cause: BaseException | None) -> TenureError:
    kind = type(command).__name__
    return TenureError(
        "internal",
        f"Deciding {kind} failed, and nothing of it was kept: {cause}",
        do="This is a defect of Tenure: please report it with the controller's log.",
        facts={"command": kind, "error": type(cause).__name__},
    )


def _told(command: cmd.Command, error: Exception) -> TenureError:
    return error if isinstance(error, TenureError) else _internal(command, error)


__all__ = ["Committed", "LedgerError", "Result", "Writer"]
