"""The paper's model: try growing thread counts until time rises, and interpolate linearly between the measured ones."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Self

from threadcast.core import Affinity, Case, Curve, Machine, Measurement, Op
from threadcast.core.arguments import check_whole
from threadcast.models.artefacts import json_bytes, read_json, reading
from threadcast.models.base import PerformanceModel
from threadcast.models.interpolation import curve_through, measured_knots
from threadcast.models.measured import by_case

INTERVAL = 4
"""The interval for which the paper states that the optimum found is within 2 % of the true one (III-C)."""


def ladder(counts: Sequence[int], interval: int) -> tuple[int, ...]:
    """The thread counts that a climb may run: 1, 1 + interval, 1 + 2 interval, ... up to the largest of `counts`.

    `counts` are the legal ones, ascending. In place of a count that is not legal the next larger legal one is run.
    InvalidInput for an `interval` that is not a whole number of at least 1.
    """
    check_whole("interval", interval)
    if not counts:
        return ()
    wanted = range(1, counts[-1] + 1, interval)
    return tuple(dict.fromkeys(counts[bisect_left(counts, count)] for count in wanted))


def next_count(steps: Sequence[int], measured: Mapping[int, float]) -> int | None:
    """The thread count to run next; None once time has risen from one step to the next, or all were run."""
    before: float | None = None
    for threads in steps:
        if threads not in measured:
            return threads
        if before is not None and measured[threads] > before:
            return None
        before = measured[threads]
    return None


class HillClimb(PerformanceModel):
    """The climb of Liu et al. 2018, III-C: needs no training, no counters and no knowledge of the op.

    Thread counts are 1, 1 + x, 1 + 2 x, ... with x = `interval` (None: 4, but at most a quarter of the cores), each
    once with and once without cache sharing (COMPACT, SPREAD), until time rises or the cores are used up: at most
    2 C / x runs on C cores, each quotient rounded up. Between two measured counts time is a straight line. Measured
    cases that are not steps of the climb are used as further points.

    The paper is silent on four points, and we decided:

    - Threads that share caches must fill whole cache groups (III-B: 2, 4, ... 68 on tiles of two cores). A count that
      is not legal is replaced by the next larger legal one: with x = 4 COMPACT climbs 2, 6, ..., 66, SPREAD 1, 5, ...,
      33.
    - Each affinity stops by itself: a rise of time without cache sharing does not end the climb with it.
    - Equal times are no rise: III-C stops when time increases, section III-A when it no longer falls.
    - Beyond the last count that was run time is taken as constant. Where time never rose the paper takes all cores as
      the best count, also where no step ends there.

    Stops at the first rise: on jagged real curves the count it picks can be far slower than the best.
    """

    name = "hill_climb"

    def __init__(self, *, interval: int | None = None) -> None:
        if interval is not None:
            ladder((1,), interval)
        self.interval = interval

    def propose_among(
        self, op: Op, observed: Sequence[Measurement], machine: Machine, cases: Sequence[Case]
    ) -> Case | None:
        """The next step of the climb with cache sharing (COMPACT); after its end, of the one without (SPREAD)."""
        interval = self.interval or min(INTERVAL, max(1, len(machine) // 4))
        measured_at = by_case(observed)
        for affinity in Affinity:
            counts = [case.threads for case in sorted(cases) if case.affinity is affinity]
            times = {case.threads: m.seconds for case, m in measured_at.items() if case.affinity is affinity}
            threads = next_count(ladder(counts, interval), times)
            if threads is not None:
                return Case(threads, affinity)
        return None

    def predict(self, op: Op, observed: Sequence[Measurement], cases: Sequence[Case], *, machine: Machine) -> Curve:
        """Measured points and straight lines between them; see `interpolation.curve_through` for the rest."""
        return curve_through(measured_knots(observed), cases)

    def to_files(self) -> dict[str, bytes]:
        """The interval, which is all that there is to store."""
        return {"model.json": json_bytes({"interval": self.interval})}

    def from_files(self, files: Mapping[str, bytes]) -> Self:
        """Load what `to_files` returned; ArtefactError on anything else."""
        document = read_json(files, "model.json")
        with reading(self.name):
            self.interval = HillClimb(interval=document["interval"]).interval
        return self
