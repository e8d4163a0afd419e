"""Takes the samples: warm-up, then round after round with the products in turn, and the load beside each."""

from __future__ import annotations

import json
import statistics
import time
from pathlib import Path
from typing import IO, Any

from bench import machine, whole
from bench.rows import Measure, Row, order
from bench.world import World


class Runner:
    """Writes every sample to a file as soon as it is taken; a run that is cut short has lost nothing."""

    def __init__(self, world: World, raw: Path) -> None:
        self.world = world
        self.loads: list[float] = []
        self.syncs: list[float] = []
        self.cut: list[str] = []
        self._raw: IO[str] = raw.open("w", encoding="utf-8")

    def close(self) -> None:
        """Closes the file of samples."""
        self._raw.close()

    def write(self, **record: Any) -> None:
        """One line of the file of samples."""
        self._raw.write(json.dumps({"at": time.time(), **record}) + "\n")
        self._raw.flush()

    @property
    def fdatasync_ms(self) -> float:
        """The median of every fdatasync that was taken between the rounds of this run; 0 before the first."""
        return statistics.median(self.syncs) if self.syncs else 0.0

    def run(self, measure: Measure, kept_s: float = 0.0) -> None:
        """The rounds of one measure: all of them, or as many as leave ``kept_s`` seconds to the measures after it."""
        print(f"{measure.title}", flush=True)
        for row in measure.rows:
            row.absent = row.absent or self.world.absent.get(row.product, "")
        if measure.warm_up:
            for row in measure.rows:
                self._take(row, 0)
        for number in range(1, measure.rounds + 1):
            if number > 1 and time.monotonic() + measure.seconds + kept_s > self.world.deadline:
                self.cut.append(f"{measure.key}: {number - 1} of {measure.rounds} rounds, for want of time")
                break
            before = machine.load()
            syncs = whole.fdatasyncs(self.world, 20)
            self.syncs += syncs
            for row in order(measure.rows, number):
                if number <= row.most:
                    self._take(row, number)
            after = machine.load()
            self.loads += [before, after]
            self.write(measure=measure.key, round=number, load_before=before, load_after=after, fdatasync_ms=syncs)

    def _take(self, row: Row, number: int) -> None:
        """One row's samples of a round; number 0 is the warm-up. A row that fails is out, and says why."""
        if row.absent:
            return
        try:
            values = row.take()
        except Exception as error:  # whatever it is, it must not take the other rows with it
            row.absent = f"failed in {f'round {number}' if number else 'the warm-up'}: {type(error).__name__}: {error}"
            self.write(measure=row.measure, row=row.name, round=number, failed=row.absent)
            print(f"  {row.name}: {row.absent}", flush=True)
            try:
                self.world.clear(row.product)
            except Exception as trouble:
                self.write(measure=row.measure, row=row.name, round=number, failed=f"not cleared away: {trouble}")
            return
        self.write(
            measure=row.measure,
            product=row.product,
            row=row.name,
            durability=row.durability,
            round=number,
            unit=row.unit,
            values=values,
        )
        if number:
            row.samples[number] = values
