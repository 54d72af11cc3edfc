"""How often changes of an op's times are found where there are none, and how soon where there are some.

    python benchmarks/changes.py [--series 400] [--write]

Half a minute. A series is what was recorded of one op in one case on a real machine that others use too: at least
`LEAST` samples. As it is, every change that is found is a false one. In the order in which they were timed, samples
follow each other within microseconds, and a disturbance hits many; measurements are commonly made at quite different
times. So the samples are taken in random order too, and then with sessions that differ: each measurement's times are
multiplied by a factor of its own (log-normal, 5 %). To see how soon a change is found, all samples after the middle
of the series in random order are multiplied by a factor.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from figures.forecasts import CHANGES
from recorded_sets import recorded
from run_facts import RunFacts

from threadcast.store import changes
from threadcast.store.changes import Point, courses

LEAST, MOST = 24, 60
"""Fewest samples of a series, and how many are used."""
SESSIONS = 0.05
"""Standard deviation of the logs of the factors by which sessions differ."""
FACTORS = (1.5, 2.0, 3.0, 1 / 3)
RULES: dict[str, dict[str, float]] = {
    "as it is": {},
    "scatter at least 8 %": {"SCATTER": 0.08},
    "scatter at least 12 %": {"SCATTER": 0.12},
    "scatter at least 24 %": {"SCATTER": 0.24},
    "samples count without bound": {"CAP": 1e9},
    "two samples are enough": {"ALARM": 3.8},
    "four samples are needed": {"ALARM": 7.5},
    "no slack": {"SLACK": 0.0},
}
"""Constants of `store.changes` that are other than they are, by the name of a row."""


@contextmanager
def constants(values: dict[str, float]) -> Iterator[None]:
    """The constants of `store.changes` with these values during the block."""
    before = {name: getattr(changes, name) for name in values}
    try:
        for name, value in values.items():
            setattr(changes, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(changes, name, value)


def series_of_recorded(most: int) -> list[list[float]]:
    """Log seconds of up to `most` series, drawn at random."""
    found = [
        [math.log(sample.seconds) for sample in measured.samples[:MOST]]
        for measured in recorded()
        if len(measured.samples) >= LEAST
    ]
    chosen = np.random.default_rng(0).permutation(len(found))[:most]
    return [found[i] for i in chosen]


def shuffled(every: Sequence[Sequence[float]]) -> list[list[float]]:
    """Each series in random order."""
    return [np.random.default_rng(i).permutation(logs).tolist() for i, logs in enumerate(every)]


def measurements(logs: Sequence[float], size: int, *, sessions: float = 0.0, seed: int = 0) -> list[Point]:
    """The series as measurements of `size` samples, whose levels differ by `sessions`."""
    own = np.random.default_rng(seed).normal(0.0, sessions, len(logs)) if sessions else np.zeros(len(logs))
    parts = [logs[i : i + size] for i in range(0, len(logs) - size + 1, size)]
    return [Point(float(i), 0, float(np.median(part) + own[i]), size) for i, part in enumerate(parts)]


def false_changes(every: Sequence[Sequence[float]], size: int, sessions: float) -> float:
    """Changes found in each 1,000 measurements of series that have none."""
    points = [measurements(logs, size, sessions=sessions, seed=i) for i, logs in enumerate(every)]
    return 1000 * sum(len(courses(some)[0].ended) for some in points) / sum(map(len, points))


def found_after(every: Sequence[Sequence[float]], factor: float, new: int) -> float:
    """The share of series whose change by this factor is found after so many new samples."""
    found = 0
    for logs in every:
        half = len(logs) // 2
        slower = [*logs[:half], *(log + math.log(factor) for log in logs[half : half + new])]
        course = courses(measurements(slower, 1))[0]
        found += abs(course.log_s - math.log(factor) - float(np.median(logs[:half]))) < abs(math.log(factor)) / 2
    return found / len(every)


def row(name: str, every: Sequence[Sequence[float]]) -> dict[str, str]:
    """One rule's row of data/studies/changes.csv."""
    mixed = shuffled(every)
    kinds = {
        "single": (mixed, 1, 0.0), "single_sessions": (mixed, 1, SESSIONS), "of_three_sessions": (mixed, 3, SESSIONS),
        "single_in_order": (every, 1, 0.0), "of_three_in_order": (every, 3, 0.0),
    }  # fmt: skip
    return {
        "rule": name,
        **{kind: f"{false_changes(*of_kind):.1f}" for kind, of_kind in kinds.items()},
        **{f"found_{factor:.3g}x_after_3": f"{100 * found_after(mixed, factor, 3):.0f}" for factor in FACTORS},
        **{f"found_3x_after_{new}": f"{100 * found_after(mixed, 3.0, new):.0f}" for new in (1, 2, 5)},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--series", type=int, default=400)
    parser.add_argument("--write", action="store_true", help=CHANGES.writes)
    chosen = parser.parse_args()
    every = series_of_recorded(chosen.series)
    rows = []
    for name, values in RULES.items():
        with constants(values):
            rows.append(row(name, every))
        print(rows[-1], file=sys.stderr, flush=True)
    print(CHANGES.printed(rows))
    if chosen.write:
        CHANGES.store(rows, RunFacts.now())


if __name__ == "__main__":
    main()
