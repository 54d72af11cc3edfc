"""Whether what is measured still is what a model says: observed over predicted seconds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from threadcast.core import Measurement
from threadcast.core.errors import ModelError
from threadcast.models.base import PerformanceModel
from threadcast.models.measured import group

MOST_OPS = 64
"""Ops of one batch that are looked at."""


def ratios(model: PerformanceModel, measured: Sequence[Measurement], *, most_ops: int) -> list[float]:
    """Observed over predicted seconds of each case of the first `most_ops` ops, predicted without their samples.

    Ops that the model can tell nothing of without samples are left out.
    """
    found = []
    for entry in group(measured)[:most_ops]:
        try:
            curve = model.predict(entry.op, [], tuple(entry.by_case), machine=entry.machine)
        except ModelError:
            continue
        pairs = zip(entry.by_case.values(), curve.seconds.tolist(), strict=True)
        found += [m.seconds / predicted_s for m, predicted_s in pairs if predicted_s > 0]
    return [ratio for ratio in found if math.isfinite(ratio)]


def drift(found: Sequence[float]) -> float:
    """By which factor times are typically off, at least 1: the median of ratio or its inverse, whichever is larger."""
    return statistics.median(max(ratio, 1 / ratio) for ratio in found) if found else 1.0
