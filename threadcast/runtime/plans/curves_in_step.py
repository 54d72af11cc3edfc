"""Curves of ops as they run in the step itself: every op of a few steps timed at each thread count.

An op finds its caches, its memory and its inputs as the step leaves them, which no lone run does, and a few steps of
each thread count measure all ops at once (Graphi, section 4: the profile of a few iterations).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from threadcast.core import Case, CurveTable, Machine, OpGraph, Source, Trace
from threadcast.core.errors import InvalidInput

WARM_UP = 2
"""Steps before those that count: memory, kernels and thread teams come into being in them."""
STEPS = 5
"""Steps that count, at each case."""

_FULL_UP_TO = 4
"""Thread counts up to which all are tried; from there on each is a half more than the one before."""


def probe_cases(machine: Machine) -> tuple[Case, ...]:
    """The cases to try: all small thread counts, larger ones by halves, and all cores."""
    counts, largest = {len(machine)}, 1
    while largest <= len(machine):
        counts.add(largest)
        largest = max(largest + 1, largest * 3 // 2) if largest >= _FULL_UP_TO else largest + 1
    return tuple(case for case in machine.cases() if case.threads in counts)


def curves_in_step(graph: OpGraph, traces: Mapping[Case, Sequence[Trace]]) -> CurveTable:
    """The curve of every op: the median of its times in the traces of each case, and their quartiles around it.

    InvalidInput for a case without traces.
    """
    if not traces or not all(traces.values()):
        raise InvalidInput("every case needs a trace or more")
    times = np.array(
        [
            np.quantile([_seconds(graph, trace) for trace in of_case], (0.25, 0.5, 0.75), axis=0)
            for of_case in traces.values()
        ]
    )  # (cases, 3, ops)
    low, middle, high = np.maximum(times, _LEAST_S).transpose(1, 2, 0)
    source = np.full(middle.shape, list(Source).index(Source.MEASURED), dtype=np.int8)
    return CurveTable(tuple(traces), middle, low, high, source, "in-step")


def as_seen(alone: CurveTable, graph: OpGraph, traces: Sequence[Trace]) -> CurveTable:
    """`alone` corrected by how long ops took in `traces` of a plan, side by side with others.

    What an op had decides, its kind and whether it took all cores: seconds of all such ops in the plan, over what
    `alone` says of them. Kinds that the plan did not run so count as all others that it did; where it ran nothing so,
    as all ops.
    """
    cores = max(case.threads for case in alone.cases)
    column: dict[int, int] = {}
    for position, case in enumerate(alone.cases):
        column.setdefault(case.threads, position)
    taken: defaultdict[tuple[bool, str], float] = defaultdict(float)
    expected: defaultdict[tuple[bool, str], float] = defaultdict(float)
    ran = traces[0].by_id()
    seconds = np.median([_seconds(graph, trace) for trace in traces], axis=0)
    for i, (op_id, op) in enumerate(zip(graph.ids, graph.ops, strict=True)):
        threads = ran[op_id].threads
        if threads not in column:
            continue
        at_s = float(alone.seconds[i, column[threads]])
        for kind in (op.kind, _ANY):
            taken[threads == cores, kind] += float(seconds[i])
            expected[threads == cores, kind] += at_s
    if not expected:
        return alone
    overall = sum(taken.values()) / sum(expected.values())

    def factor(kind: str, all_cores: bool) -> float:
        known = next(((all_cores, name) for name in (kind, _ANY) if (all_cores, name) in expected), None)
        return taken[known] / expected[known] if known else overall

    by_case = [[factor(op.kind, case.threads == cores) for case in alone.cases] for op in graph.ops]
    scale = np.array(by_case).reshape(alone.seconds.shape)
    scaled = {name: np.maximum(getattr(alone, name) * scale, _LEAST_S) for name in ("seconds", "low", "high")}
    return replace(alone, **scaled)


_LEAST_S = 1e-9
"""Seconds that an op takes at least: clocks see no less."""
_ANY = ""
"""Stands for all kinds."""


def _seconds(graph: OpGraph, trace: Trace) -> list[float]:
    """How long each op took, in the graph's order."""
    ran = trace.by_id()
    return [ran[op_id].finish_s - ran[op_id].start_s for op_id in graph.ids]
