"""Whether a model's forecasts still hold: observed over predicted seconds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from threadcast.core import Measurement
from threadcast.core.errors import ModelError
from threadcast.models.base import PerformanceModel
from threadcast.models.measured import group

MOST_OPS = 64
"""Most ops of one batch that are compared."""


def ratios(model: PerformanceModel, measured: Sequence[Measurement], *, most_ops: int) -> list[float]:
    """Observed over predicted seconds at each case of the first `most_ops` ops, predicted without samples of them.

    Ops that the model cannot predict without samples are left out.
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
    """The typical factor by which times are off, at least 1: the median of the ratios or its inverse, whichever is
    larger."""
    return statistics.median(max(ratio, 1 / ratio) for ratio in found) if found else 1.0
