"""Pairs of ops that were observed to slow each other down, so that later plans do not run them at the same time.

Source: Liu et al. 2018, III-D, discussion: cases of unexpected loss by interference can be recorded and avoided in
later steps. How a loss is found and blamed on a pair is ours.
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
"""Times as long as alone from which on a pair is bad. Forecasts are commonly within a fifth, and sharing memory
bandwidth costs less than this on most machines; what costs more is better avoided than modelled."""

LEAST_S = 20e-6
"""Ops of less time are not judged: noting times, waking threads and the scheduler's ticks move them as much."""

FEWEST_TIMES = 5
"""Times that a pair must have run side by side: a single step may have been disturbed by anything."""

ALONE, ALONE_SHARE = 3, 0.1
"""Ops that ran alone, needed to tell how far forecasts are off, and the part of its time in which one may have had
another beside it."""

LARGEST = 20.0
"""Slow-down assumed where the loss is as long as the time side by side, or longer."""


def observed_slowdowns(traces: Iterable[Trace], graph: OpGraph, lone_s: Mapping[str, float]) -> dict[Keys, float]:
    """Return by how much ops ran slower beside others, by their keys; at least 1.

    `lone_s` is each op's predicted time alone on the cores that it had, by id. Of every op the one is blamed that ran
    beside it longest, if that was half of its time or more, and was not on its cores: with slow-down s in the o
    seconds side by side, o / s of work was done in them and the rest at the pace of the step's ops in general. A
    pair's slow-down is the median over all times that it was observed; fewer than FEWEST_TIMES say nothing.
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


def learned(table: CoRunTable, observed: Mapping[Keys, float], *, slower: float = SLOWER) -> CoRunTable:
    """Return the table with the pairs observed that are at least `slower`, without those observed that are not."""
    kept = {pair: by for pair, by in table.bad_pairs.items() if pair not in observed}
    return replace(table, bad_pairs={**kept, **{pair: by for pair, by in observed.items() if by >= slower}})


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
    """By op id: who ran beside it longest on other cores, and for how many seconds."""
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
