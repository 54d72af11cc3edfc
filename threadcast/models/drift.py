"""Whether a model's forecasts still hold: observed over predicted seconds."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from threadcast.core import Measurement
from threadcast.core.errors import ModelError
from threadcast.models.base import PerformanceModel
from threadcast.models.measured import MeasuredOp, group

MOST_OPS = 64
"""Most ops of one batch that are compared."""


def ratios(model: PerformanceModel, measured: Sequence[Measurement], *, most_ops: int) -> list[float]:
    """Observed over predicted seconds at each case of the first `most_ops` ops, predicted without samples of them.

    Ops that the model cannot predict without samples are left out.
    """
    return [ratio for entry in group(measured)[:most_ops] for ratio in _ratios_of(model, entry)]


def _ratios_of(model: PerformanceModel, entry: MeasuredOp) -> Iterator[float]:
    try:
        curve = model.predict(entry.op, [], tuple(entry.by_case), machine=entry.machine)
    except ModelError:
        return
    for m, predicted_s in zip(entry.by_case.values(), curve.seconds.tolist(), strict=True):
        ratio = m.seconds / predicted_s if predicted_s > 0 else math.inf
        if math.isfinite(ratio):
            yield ratio
