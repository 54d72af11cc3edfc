"""Finds pairs of ops that slow each other down, so that later plans do not run them at the same time.

Source: Liu et al. 2018, III-D, discussion: cases of unexpected loss by interference can be recorded and avoided in
later steps. The method by which a loss is found and attributed to a pair is our own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import median

from threadcast.core import OpGraph, Placement, Trace
from threadcast.core.corun import CoRunTable, Keys
from threadcast.core.errors import InvalidInput

SLOWER = 1.5
"""Slow-down (time side by side over time alone) from which on a pair is bad. Forecasts are mostly within a fifth, and
sharing memory bandwidth costs less than this on most machines; a larger slow-down is better avoided than modelled."""

LEAST_S = 20e-6
"""Shortest op in seconds that is judged: recording times, waking threads and the kernel's ticks change shorter ones."""

FEWEST_TIMES = 5
"""How often a pair must have run side by side at least; a single step may have been disturbed by anything."""

ALONE, ALONE_SHARE = 3, 0.1
"""Fewest ops that ran alone, from which it is computed how far forecasts are off; and the part of its time in which
such an op may have had another op beside it."""

LARGEST = 20.0
"""Slow-down that is assumed where the lost time is at least as long as the time side by side."""


def observed_slowdowns(traces: Iterable[Trace], graph: OpGraph, lone_s: Mapping[str, float]) -> dict[Keys, float]:
    """Return slow-downs of ops beside others, by pairs of op keys (the slowed op, the other op); each at least 1.

    `lone_s` is each op's predicted time alone on the cores that it had, by id. A loss of an op is attributed to the op
    that ran beside it longest on other cores, if that was for at least half of its time. With a slow-down s during o
    seconds side by side, o / s seconds of work were done in them; the rest was done at the general pace of the step's
    ops. A pair's slow-down is the median over all times that it was observed; pairs observed fewer than FEWEST_TIMES
    times are left out. InvalidInput for ops of the traces that are not in the graph or have no predicted time.
    """
    key = {op_id: op.key for op_id, op in zip(graph.ids, graph.ops)}
    observed: dict[Keys, list[float]] = defaultdict(list)
    for trace in traces:
        unknown = [at.id for at in trace.ops if at.id not in key or at.id not in lone_s]
        if unknown:
            raise InvalidInput(f"op {unknown[0]!r} of the trace is not in the graph, or has no predicted time")
        beside = _longest_beside(trace.ops)
        pace = _pace(trace.ops, beside, lone_s)
        for at in trace.ops:
            expected_s = pace * lone_s[at.id]
            if at.id not in beside or expected_s < LEAST_S:
                continue
            other, together_s = beside[at.id]
            if together_s >= at.duration_s / 2:
                observed[key[at.id], key[other]].append(_slowdown(at.duration_s, expected_s, together_s))
    return {pair: median(factors) for pair, factors in observed.items() if len(factors) >= FEWEST_TIMES}


def learned(table: CoRunTable, observed: Mapping[Keys, float]) -> CoRunTable:
    """Return the table with its bad pairs updated: an observed pair is bad if its slow-down is at least `SLOWER`."""
    others = {pair: by for pair, by in table.bad_pairs.items() if pair not in observed}
    return replace(table, bad_pairs={**others, **{pair: by for pair, by in observed.items() if by >= SLOWER}})


def _slowdown(took_s: float, expected_s: float, together_s: float) -> float:
    """s in: expected = took - together + together / s."""
    done_together_s = together_s - (took_s - expected_s)
    return max(1.0, min(LARGEST, together_s / done_together_s)) if done_together_s > 0 else LARGEST


def _pace(ops: Sequence[Placement], beside: Mapping[str, tuple[str, float]], lone_s: Mapping[str, float]) -> float:
    """Median of real over predicted time, at least 1: of ops that ran alone, or of all where fewer than ALONE did.

    Forecasts that are too short all round, and other programs on the cores, must not look like interference: a pair is
    bad that loses more than the step does in general.
    """
    timed = [at for at in ops if lone_s[at.id] >= LEAST_S]
    alone = [at for at in timed if at.id not in beside or beside[at.id][1] <= ALONE_SHARE * at.duration_s]
    ratios = [at.duration_s / lone_s[at.id] for at in (alone if len(alone) >= ALONE else timed)]
    return max(1.0, median(ratios)) if ratios else 1.0


def _longest_beside(ops: Sequence[Placement]) -> dict[str, tuple[str, float]]:
    """By op id: the id of the op that ran beside it longest on other cores, and for how many seconds."""
    found: dict[str, tuple[str, float]] = {}
    open_: list[Placement] = []
    for at in ops:  # in order of start
        open_ = [other for other in open_ if other.finish_s > at.start_s]
        for other in open_:
            together_s = min(at.finish_s, other.finish_s) - at.start_s
            if together_s > 0 and set(at.cores).isdisjoint(other.cores):
                for one, two in ((at.id, other.id), (other.id, at.id)):
                    if together_s > found.get(one, ("", 0.0))[1]:
                        found[one] = (two, together_s)
        open_.append(at)
    return found
