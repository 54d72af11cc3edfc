"""What a record of calls says: how far threadcast was behind eager PyTorch, until when, and how fast it became."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from warmup_turns import Record

WITHIN_S, WITHIN_SHARE = 2.0, 0.05
"""Seconds, and share of eager's cumulative time, by which threadcast may be behind: the larger of the two."""

NEIGHBOURS = 2
"""Blocks of eager calls on each side over which the median smooths an eager step's time."""

SETTLED_S = 10.0
"""Settled speed is of the last calls, about so many seconds, and of the eager calls between them."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of one record. Calls count from 1; None: not within the calls that ran."""

    eager_s: float
    """Median of eager's steps."""
    eager_spread: float
    """Distance between the quartiles of eager's blocks, as a share of their median."""
    calls: int
    seconds: float
    break_even_call: int | None
    """The call after the last one at which cumulative time was behind eager's."""
    break_even_s: float | None
    """Cumulative seconds at `break_even_call`."""
    worst_lag_s: float
    worst_lag_share: float
    """`worst_lag_s` over eager's cumulative time at that call."""
    within: bool
    """Whether no call was behind by more than `WITHIN_S` or `WITHIN_SHARE`, whichever is larger."""
    longest_call_s: float
    settled_call: int | None
    """The first call after the last one that was still measuring."""
    settled_s: float | None
    step_s: float
    """Median of the last steps, of settled ones where there are enough."""
    ratio: float
    """Eager's step over threadcast's, of the last steps: above 1 where threadcast is faster."""
    end_lag_s: float
    """How far cumulative time is behind eager's after the last call; negative: ahead."""
    runs: str


def eager_times(record: Record) -> Floats:
    """Seconds of an eager step at the time of each call, shape (calls,).

    Mean of each block of eager steps, smoothed by the median over its neighbours (a block may fall into a disturbance),
    then the mean of the blocks before and after the call.
    """
    means = np.array([np.mean(block) for block in (*(block.eager_s for block in record.blocks), record.last_eager_s)])
    smooth = np.array([np.median(means[max(0, i - NEIGHBOURS) : i + NEIGHBOURS + 1]) for i in range(len(means))])
    around = (smooth[:-1] + smooth[1:]) / 2
    return np.repeat(around, [len(block.calls_s) for block in record.blocks])


def call_times(record: Record) -> Floats:
    """Seconds of each call, shape (calls,)."""
    return np.concatenate([np.asarray(block.calls_s, dtype=float) for block in record.blocks])


def figures(record: Record) -> Figures:
    """The record's figures."""
    calls_s = call_times(record)
    ours, theirs = np.cumsum(calls_s), np.cumsum(eager_times(record))
    lag = ours - theirs
    worst = int(lag.argmax())
    behind = np.flatnonzero(lag > 0)
    break_even = int(behind[-1]) + 2 if len(behind) else 1
    settled = _settled_call(record)
    last = _last_blocks(record, settled)
    steps = np.concatenate([record.blocks[i].calls_s for i in last])
    eager_then = np.concatenate([record.blocks[i].eager_s for i in last])
    by_block = np.array([np.median(block.eager_s) for block in record.blocks])
    low, middle, high = np.quantile(by_block, [0.25, 0.5, 0.75])
    return Figures(
        eager_s=float(middle), eager_spread=float((high - low) / middle), calls=len(calls_s), seconds=float(ours[-1]),
        break_even_call=break_even if break_even <= len(calls_s) else None,
        break_even_s=float(ours[break_even - 1]) if break_even <= len(calls_s) else None,
        worst_lag_s=float(lag[worst]), worst_lag_share=float(lag[worst] / theirs[worst]),
        within=bool((lag <= np.maximum(WITHIN_S, WITHIN_SHARE * theirs)).all()),
        longest_call_s=float(calls_s.max()), settled_call=settled,
        settled_s=None if settled is None else float(ours[settled - 1]),
        step_s=float(np.median(steps)), ratio=float(np.median(eager_then) / np.median(steps)),
        end_lag_s=float(lag[-1]), runs=record.changes[-1][1],
    )  # fmt: skip


def _settled_call(record: Record) -> int | None:
    """The first call after which no report said "measuring" any more."""
    call, runs = record.changes[-1]
    for earlier, what in reversed(record.changes):
        if "measuring" in what:
            break
        call, runs = earlier, what
    return None if "measuring" in runs else call


def _last_blocks(record: Record, settled: int | None) -> list[int]:
    """Indices of the last blocks, those of about `SETTLED_S` seconds; at least one, else only settled ones."""
    first = np.cumsum([1, *(len(block.calls_s) for block in record.blocks)])  # number of each block's first call
    found: list[int] = []
    seconds = 0.0
    for i in reversed(range(len(record.blocks))):
        if seconds >= SETTLED_S or (found and settled is not None and first[i] < settled):
            break
        found.append(i)
        seconds += sum(record.blocks[i].calls_s)
    return found
