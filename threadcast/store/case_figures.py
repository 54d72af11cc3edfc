"""Figures of an op in a case, to which measurements are added one by one; and of an op, from the medians of its cases.

Adding takes equally long however much was measured before: a case has its newest `MOST_NEWEST` samples, each with its
time, and counts of all. The median is that of the newest samples since the last change (`store.changes`), which is that
of all where there are no more and none has changed.
"""

from __future__ import annotations

import json
import math
import statistics
import struct
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isnan
from typing import Any

from threadcast.core import Affinity
from threadcast.store.changes import FULL, Point, courses

MOST_NEWEST = 64
"""Samples of a case whose median is its figure: more than most campaigns take (19 on average in `data/recorded`), and
1 KB a case. The median of 64 has a standard error of a sixth of the samples' standard deviation."""

NEAR = 1.2
"""Where the newest three samples are within this factor of all, none is looked for that has changed."""

UNSAID = 3
"""Rank (`unlikeness`) of measurements that say nothing of their caches: they go with whatever is forecast."""

CaseKey = tuple[int, str]
"""Threads and affinity, as the tables have them."""

_SAMPLE = struct.Struct("<dd")  # time in seconds since 1970, NaN where it is not known; seconds
_MEDIAN = struct.Struct("<iBd")  # threads, place of the affinity among `_AFFINITIES`, median in seconds
_AFFINITIES = [affinity.value for affinity in Affinity]


@dataclass(slots=True)
class CaseFigures:
    """Figures of one op in one case on one machine.

    `oldest_s` is the time of the oldest measurement in seconds since 1970, None where none says when it was made.
    `newest` are the newest samples, the oldest first, packed: of those measurements only in which the caches were most
    as they are in a step (`unlikeness`), and of those that say nothing of them, as models use them (`store.holding`).
    """

    measurements: int = 0
    samples: int = 0
    oldest_s: float | None = None
    unlikeness: int = UNSAID
    newest: bytes = b""
    _median_s: float | None = None
    """What `median_s` is; None before it was asked for and when samples were added since."""

    def add(self, seconds: Sequence[float], *, time_s: float, unlikeness: int) -> None:
        """Add a measurement's samples; `time_s` is NaN where it is not known."""
        self.measurements += 1
        self.samples += len(seconds)
        self._median_s = None
        if not isnan(time_s):
            self.oldest_s = time_s if self.oldest_s is None else min(self.oldest_s, time_s)
        if self.unlikeness < unlikeness < UNSAID:
            return
        if unlikeness < self.unlikeness:
            self.newest = self.newest if self.unlikeness == UNSAID else b""
            self.unlikeness = unlikeness
        added = b"".join([_SAMPLE.pack(time_s, s) for s in seconds[-MOST_NEWEST:]])
        in_order = not self.newest or not time_s < _SAMPLE.unpack(self.newest[-_SAMPLE.size :])[0]
        found = self.newest + added
        if not in_order or isnan(time_s):
            found = b"".join([_SAMPLE.pack(*s) for s in sorted(_SAMPLE.iter_unpack(found), key=_time_of)])
        self.newest = found[-MOST_NEWEST * _SAMPLE.size :]

    @property
    def median_s(self) -> float:
        """Median seconds of those of the newest samples that hold now: the ones since the last change."""
        if self._median_s is None:
            self._median_s = self._found_median_s()
        return self._median_s

    def _found_median_s(self) -> float:
        numbers: tuple[float, ...] = struct.unpack(f"<{len(self.newest) // 8}d", self.newest)
        seconds = numbers[1::2]
        every = statistics.median(seconds)
        last = statistics.median(seconds[-FULL:])
        if every < NEAR * last and last < NEAR * every:  # as nearly always: finding changes takes 100 times as long
            return every
        return statistics.median(_holding(numbers[0::2], seconds))

    def row(self) -> dict[str, Any]:
        """The columns of these figures."""
        return {
            "measurements": self.measurements, "samples": self.samples, "oldest_s": self.oldest_s,
            "unlikeness": self.unlikeness, "newest": self.newest, "median_s": self.median_s,
        }  # fmt: skip


def _holding(times_s: Sequence[float], seconds: Sequence[float]) -> list[float]:
    """The seconds of the samples since the last change; samples of one time were measured together."""
    parts: list[list[float]] = []
    before_s = math.nan
    for time_s, second in zip(times_s, seconds, strict=True):
        if time_s == before_s:
            parts[-1].append(second)
        else:
            parts.append([second])
        before_s = time_s
    points = [
        Point(float(i), 0, math.log(max(statistics.median(part), sys.float_info.min)), len(part))
        for i, part in enumerate(parts)
    ]
    return [second for i in courses(points)[0].holding for second in parts[i]]


def _time_of(sample: tuple[float, float]) -> float:
    return -1.0 if isnan(sample[0]) else sample[0]


def unlikeness(conditions: str) -> int:
    """Rank of how different the caches were from those in a step (`store.holding`), from a row's JSON."""
    if '"cache"' not in conditions:
        return UNSAID
    if '"cache":"rotated"' in conditions and conditions.count("{") == 1:  # within texts quotes are escaped
        return 0
    cache = json.loads(conditions).get("cache")
    return {"rotated": 0, "cold": 2}.get(str(cache), 1) if cache else UNSAID


def seconds_of(samples: bytes, count: int) -> tuple[float, ...]:
    """The seconds in the `samples` column of a measurement with `count` samples."""
    return struct.unpack_from(f"<{count}d", samples)


def packed_medians(medians: Mapping[CaseKey, float]) -> bytes:
    """The column `medians` of a summary."""
    return b"".join(
        [_MEDIAN.pack(threads, _AFFINITIES.index(name), s) for (threads, name), s in sorted(medians.items())]
    )


def medians_in(packed: bytes) -> dict[CaseKey, float]:
    """Median seconds by case, from the column `medians` of a summary."""
    return {(threads, _AFFINITIES[place]): s for threads, place, s in _MEDIAN.iter_unpack(packed)}


def op_figures(medians: Mapping[CaseKey, float]) -> dict[str, Any]:
    """The columns of a summary that follow from the medians of an op's cases."""
    best = min(medians, key=lambda case: (medians[case], case))
    first, last = min(medians)[0], max(medians)[0]
    first_s = min(s for case, s in medians.items() if case[0] == first)
    last_s = min(s for case, s in medians.items() if case[0] == last)
    best_s = medians[best]
    return {
        "cases": len(medians), "medians": packed_medians(medians), "best_s": best_s, "best_threads": best[0],
        "best_affinity": best[1], "speedup": first_s / best_s if best_s else 1.0,
        "all_threads": last_s / best_s if best_s else 1.0,
    }  # fmt: skip
