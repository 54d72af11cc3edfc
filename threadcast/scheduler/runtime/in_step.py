"""Curves of ops as they run in the step itself: every op of a few steps timed at each thread count.

An op finds its caches, its memory and its inputs as the step leaves them, which no lone run does, and a few steps of
each thread count measure all ops at once (Graphi, section 4: the profile of a few iterations).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from threadcast.core import Case, CurveTable, Machine, Source, Trace
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


def curves_in_step(traces: Mapping[Case, Sequence[Trace]]) -> CurveTable:
    """The curve of every op: the median of its times in the traces of each case, and their quartiles around it.

    All traces are of one graph. InvalidInput for none.
    """
    if not traces or not all(traces.values()):
        raise InvalidInput("every case needs a trace or more")
    times = np.array(
        [
            np.quantile(
                [[op.finish_s - op.start_s for op in trace.ops] for trace in of_case], (0.25, 0.5, 0.75), axis=0
            )
            for of_case in traces.values()
        ]
    )  # (cases, 3, ops)
    low, middle, high = np.maximum(times, 1e-9).transpose(1, 2, 0)
    source = np.full(middle.shape, list(Source).index(Source.MEASURED), dtype=np.int8)
    return CurveTable(tuple(traces), middle, low, high, source, "in-step")
