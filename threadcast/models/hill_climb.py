"""The paper's model: try growing thread counts until time rises, and interpolate linearly between the measured ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Self

from threadcast.core import Affinity, Case, Curve, Machine, Measurement, Op
from threadcast.core.errors import InvalidInput
from threadcast.core.json_reading import member
from threadcast.models.artefacts import json_bytes, read_json, reading
from threadcast.models.base import PerformanceModel
from threadcast.models.interpolation import curve_through, measured_knots
from threadcast.models.measured import by_case


@dataclass(frozen=True, slots=True)
class Climb:
    """The result of a climb: `points` are (threads, seconds) in the order in which they were run."""

    points: tuple[tuple[int, float], ...]
    stopped_by: Literal["rise", "limit"]

    @property
    def best(self) -> int:
        """Threads of the fastest point; among equals the fewest."""
        return min(self.points, key=lambda point: (point[1], point[0]))[0]


def hill_climb(time_s: Callable[[int], float], *, limit: int, interval: int = 4) -> Climb:
    """Climb from one thread in steps of `interval` until time rises or `limit` is reached.

    The last step is shortened so that it ends at `limit`. Stops in a local minimum; on jagged curves that can be
    far from the best count. Source: Liu et al. 2018, III-C.
    """
    if limit < 1:
        raise InvalidInput(f"limit={limit!r}: a climb needs at least 1 thread")
    steps = ladder(range(1, limit + 1), interval)
    measured: dict[int, float] = {}
    while (threads := next_count(steps, measured)) is not None:
        measured[threads] = time_s(threads)
    points = tuple(measured.items())
    rose = len(points) > 1 and points[-1][1] > points[-2][1]
    return Climb(points, "rise" if rose else "limit")


def ladder(counts: Sequence[int], interval: int) -> tuple[int, ...]:
    """The thread counts that a climb may run, taken from the ascending `counts`.

    They are the smallest, then each time the first that is at least `interval` larger than the one before, and the
    largest. InvalidInput for an `interval` that is not a whole number of at least 1.
    """
    if not isinstance(interval, int) or isinstance(interval, bool) or interval < 1:
        raise InvalidInput(f"interval={interval!r} must be a whole number of at least 1")
    steps = list(counts[:1])
    for count in counts[1:]:
        if count >= steps[-1] + interval:
            steps.append(count)
    if steps and steps[-1] != counts[-1]:
        steps.append(counts[-1])
    return tuple(steps)


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


def next_case(
    observed: Sequence[Measurement],
    machine: Machine,
    next_count: Callable[[Sequence[int], Mapping[int, float]], int | None],
) -> Case | None:
    """The next case of a climb with cache sharing (COMPACT); after its end, of one without (SPREAD).

    `next_count` gets the ascending legal thread counts of an affinity and the measured seconds by thread count; it
    returns the next count of the climb, None at its end.
    """
    measured_at = by_case(observed)
    for affinity in Affinity:
        counts = [case.threads for case in machine.cases() if case.affinity is affinity]
        times = {case.threads: m.seconds for case, m in measured_at.items() if case.affinity is affinity}
        threads = next_count(counts, times)
        if threads is not None:
            return Case(threads, affinity)
    return None


class HillClimb(PerformanceModel):
    """The climb of Liu et al. 2018, III-C: needs no training, no counters and no knowledge of the op.

    The paper runs each thread count with and without cache sharing. Threads that share caches must fill whole cache
    groups (2, 4, ... 68 on tiles of two cores), so the counts 1, 5, 9, ... are not legal for them. Each affinity
    therefore climbs by itself over its own legal counts, COMPACT 2, 6, 10, ..., SPREAD 1, 5, 9, ..., until its time
    rises. The last step ends at the maximum, as the paper's second stopping rule requires; that makes up to two runs
    more than the paper's bound of 2 C / x. Measured cases that are not steps of the climb are used as further points.

    Stops at the first rise: on jagged real curves the count it picks can be far slower than the best.
    """

    name = "hill_climb"

    def __init__(self, *, interval: int = 4) -> None:
        ladder((1,), interval)
        self.interval = interval

    def propose(self, op: Op, observed: Sequence[Measurement], machine: Machine) -> Case | None:
        """The next step of the climb with cache sharing (COMPACT); after its end, of the one without (SPREAD)."""
        return next_case(observed, machine, lambda counts, times: next_count(ladder(counts, self.interval), times))

    def predict(self, op: Op, observed: Sequence[Measurement], cases: Sequence[Case], *, machine: Machine) -> Curve:
        """Measured points and straight lines between them; see `interpolation.curve_through` for the rest."""
        return curve_through(measured_knots(observed), cases)

    def to_files(self) -> dict[str, bytes]:
        """The interval, as a JSON file."""
        return {"model.json": json_bytes({"interval": self.interval})}

    def from_files(self, files: Mapping[str, bytes]) -> Self:
        """Load the interval."""
        with reading("hill_climb"):
            HillClimb.__init__(self, interval=member(read_json(files, "model.json"), "interval", int))
        return self
