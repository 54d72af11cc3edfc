"""Times that seem to be in another unit than those next to them: milliseconds among seconds."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from statistics import median

from threadcast.core import Affinity, Op
from threadcast.core.measurement import TIMED
from threadcast.models.measured import MeasuredOp
from threadcast.models.static_features import work

STEP = math.log(1000.0)
"""Logarithm of the ratio between neighbouring units of time: seconds, milliseconds, microseconds."""

PART = 0.8
"""Share of a step above which an unexplained jump counts as a step: a factor of 250. On MKL at 96 thread counts, among
PyTorch's ops and ncnn's networks, no time is that far off."""

SHARED = 3
"""Fewest points of which a machine must share with others to be compared."""

Point = tuple[float, float, str]
"""Logarithm of the thread count or the work (0 where all are the same), logarithm of the time, and the name of the
point."""


def odd_units(entries: Sequence[MeasuredOp]) -> tuple[str, ...]:
    """One sentence for each group of times that differ by a factor of about 1,000 (or its powers) from those next to
    them: samples of a case, cases of an op next in threads, ops of a kind next in work, machines that measured the
    same.

    `entries` are usable ones (`measured.usable`). What threadcast timed itself is in seconds and is passed over: it may
    be far off only because others used the cores. Whole tables in another unit cannot be found, nor ops of unknown
    work. Such times are reported but not left out: where more threads than cores wait for each other, an op may really
    take so long.
    """
    asked = [
        replace(entry, by_case={case: m for case, m in entry.by_case.items() if TIMED not in m.conditions})
        for entry in entries
    ]
    entries = [entry for entry in asked if entry.by_case]
    return (*_of_samples(entries), *_of_cases(entries), *_of_ops(entries), *_of_machines(entries))


def _of_samples(entries: Sequence[MeasuredOp]) -> Iterator[str]:
    for entry in entries:
        odd: dict[str, list[str]] = {}
        for case, measured in entry.by_case.items():
            if found := _odd([(0.0, math.log(sample.seconds), "") for sample in measured.samples], falls=0.0):
                odd[str(case)] = found
        if odd:
            count = sum(map(len, odd.values()))
            yield _said(f"{count} samples of {_name(entry.op)} at {_few([*odd])}", "the others there")


def _of_cases(entries: Sequence[MeasuredOp]) -> Iterator[str]:
    for entry in entries:
        for affinity in Affinity:
            points = [
                (math.log(case.threads), math.log(measured.seconds), str(case))
                for case, measured in entry.by_case.items()
                if case.affinity is affinity
            ]
            if odd := _odd(points, falls=1.0):
                yield _said(f"{_name(entry.op)} at {_few(odd)}", "the cases beside them")


def _of_ops(entries: Sequence[MeasuredOp]) -> Iterator[str]:
    alike: dict[tuple[str, str], list[Point]] = {}
    for entry in entries:
        if max(entry.op.flops, entry.op.bytes_moved) > 0:
            middle = math.log(median(measured.seconds for measured in entry.by_case.values()))
            point = (math.log(work([entry.op])[0]), middle, _name(entry.op))
            alike.setdefault((entry.machine.fingerprint, entry.op.kind), []).append(point)
    for (machine, kind), points in alike.items():
        if odd := _odd(points, falls=0.0):
            yield _said(f"{_few(odd)} on {machine}", f"ops of kind {kind} next in work")


def _of_machines(entries: Sequence[MeasuredOp]) -> Iterator[str]:
    times: dict[tuple[str, object], dict[str, float]] = {}
    for entry in entries:
        for case, measured in entry.by_case.items():
            times.setdefault((entry.op.key, case), {})[entry.machine.fingerprint] = math.log(measured.seconds)
    above: dict[str, list[float]] = {}
    for of_point in times.values():
        if len(of_point) > 1:
            least = min(of_point.values())
            for machine, log in of_point.items():
                above.setdefault(machine, []).append(log - least)
    points = [(0.0, median(logs), machine) for machine, logs in above.items() if len(logs) >= SHARED]
    if odd := _odd(points, falls=0.0):
        yield _said(f"what {_few(odd)} measured", "the same on other machines")


def _odd(points: Iterable[Point], *, falls: float) -> list[str]:
    """The points that are off from the rest by whole steps.

    From one point to the next, time may grow by at most the ratio of their first coordinates; with `falls` 1 it may
    also shrink by at most that ratio. The part of a change that exceeds this is compared with a step.
    """
    ranked = sorted(points)
    steps = []
    for (x, log, _), (next_x, next_log, _) in pairwise(ranked):
        change, room = next_log - log, next_x - x
        beyond = max(change - room, 0.0) + min(change + falls * room, 0.0)
        steps.append(round(beyond / STEP) if abs(beyond) >= PART * STEP else 0)
    levels = list(accumulate(steps, initial=0))
    usual = min(Counter(levels).most_common(), key=lambda found: (-found[1], found[0]))[0]
    return [name for (_, _, name), level in zip(ranked, levels, strict=False) if level != usual]


def _name(op: Op) -> str:
    label = op.attributes.get("label")
    return op.key if label is None else f"{op.key} ({label})"


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _said(what: str, beside: str) -> str:
    return f"{what}: about 1,000 times off {beside}, or more; is one of both in milliseconds?"
