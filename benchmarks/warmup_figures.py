"""What a record of calls says: how much was done after so many seconds, how soon it was fast, how far it was behind."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from figures.beginnings import HORIZONS_S, OURS
from numpy.typing import NDArray
from warmup_cases import MODES
from warmup_turns import Record

WITHIN_S, WITHIN_SHARE = 3.0, 0.05
"""Seconds, and share of eager's cumulative time, by which threadcast may be behind; both together."""
WINDOW_S, HELD, LEAST, SETTLED_S, NEAR = 0.5, 6, 5, 10.0, 0.95
"""Speeds are those of windows of half a second. Settled: the median of the last 10 s, of 5 at least; reached: where
a window and the median of 6 from it on are 95 % of it."""

Floats = NDArray[np.float64]


def cumulative(record: Record) -> tuple[Floats, Floats]:
    """Seconds after each call, and eager PyTorch's seconds for as many calls, both of shape (calls,)."""
    return np.cumsum(record.ours_s, dtype=float), np.cumsum(record.eager_s, dtype=float)


def done_after(record: Record, seconds: float) -> float | None:
    """Eager's seconds for what was done after `seconds`, as a share of these; None where calls ended before."""
    ours, theirs = cumulative(record)
    if max(record.until_s, record.seconds) < 0.97 * seconds:
        return None
    done = int(np.searchsorted(ours, seconds, side="right"))
    return float(theirs[done - 1] / seconds) if done else 0.0


def behind_at(ours: Floats, theirs: Floats, seconds: float) -> float | None:
    """How much longer than in eager PyTorch it takes to do what eager does in `seconds`; None: calls ended before."""
    done = int(np.searchsorted(theirs, seconds, side="right"))
    return float(ours[done - 1] - theirs[done - 1]) if 0 < done < len(ours) else None


def speeds(ours: Floats, theirs: Floats) -> tuple[Floats, Floats]:
    """The ends of windows of `WINDOW_S` or one call, in seconds, and speeds over eager's within them."""
    if not len(ours):
        return ours, theirs
    last = np.unique(np.searchsorted(ours, np.arange(WINDOW_S, ours[-1], WINDOW_S)).clip(max=len(ours) - 1))
    ends, eager = np.append(0.0, ours[last]), np.append(0.0, theirs[last])
    return ends[1:], np.diff(eager) / np.diff(ends)


def settled_speed(record: Record) -> float | None:
    """Times eager's speed in the last seconds of calls; None for less than `LEAST` windows."""
    ends, found = speeds(*cumulative(record))
    if len(ends) < LEAST:
        return None
    return float(np.median(found[ends > ends[-1] - min(SETTLED_S, ends[-1] / 3)]))


def seconds_until(record: Record, speed: float) -> float | None:
    """Seconds of calls until `NEAR` of this speed is reached; None: not within those that ran."""
    ends, found = speeds(*cumulative(record))
    for i in range(len(found)):
        if min(found[i], np.median(found[i : i + HELD])) >= NEAR * speed:
            return float(ends[i - 1]) if i else 0.0
    return None


def rows(records: Sequence[Record], notes: dict[str, str]) -> list[dict[str, object]]:
    """The rows of data/studies/warmup.csv; `notes` say by title what data a script had.

    Seconds until 95 % of the settled speed are until that of the best speed at the end of any of the way's processes.
    """
    settled = {(one.title, one.way, one.process): settled_speed(one) for one in records}
    alone = {one.title: settled[one.title, one.way, one.process] for one in records if one.part == "pairs"}
    found = []
    for record in records:
        title, _, beside = record.title.partition(" beside ")
        name, _, mode = title.rpartition(", ") if title.endswith(MODES) else (title, "", "")
        of_way = [speed for (title, way, _), speed in settled.items() if (title, way) == (record.title, record.way)]
        best, own = (
            max((speed for speed in of_way if speed), default=None),
            settled[record.title, record.way, record.process],
        )
        reference = alone.get(title) if beside else None
        ours, theirs = cumulative(record)
        lag = ours - theirs
        promised = record.way in OURS
        row: dict[str, object] = {
            "part": record.part, "name": name, "mode": mode, "beside": beside, "way": record.way,
            "process": record.process, "eager_ms": 1e3 * float(np.median(record.eager_s)) if len(ours) else None,
            "settled": own, "to_95_s": seconds_until(record, best) if best and own else None,
            "of_best": own / best if own and best else None,
            "over_alone": own / reference if own and reference else None,
            **{f"done_{at}": done_after(record, at) for at in HORIZONS_S},
            **{f"behind_{at}_s": behind_at(ours, theirs, at) for at in (10, 30)},
            "worst_lag_s": float(lag.max()) if len(ours) else None,
            "within": bool((lag <= WITHIN_S + WITHIN_SHARE * theirs).all()) if len(ours) and promised else None,
            "calls": len(ours), "seconds": record.seconds, "runs": record.runs,
            "data": notes.get(record.title, ""), "failed": record.failed.replace("|", " ")[-120:],
            "others_percent": 100 * record.others, "run": record.run,
        }  # fmt: skip
        found.append(row)
    return found
