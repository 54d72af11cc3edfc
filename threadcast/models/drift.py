"""Whether a model's forecasts still hold: observed over predicted seconds, by machine and kind of op."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence

from threadcast.core import Measurement
from threadcast.core.errors import ModelError
from threadcast.models.base import PerformanceModel
from threadcast.models.measured import MeasuredOp, group

MOST_OPS = 64
"""Most ops of one batch that are compared."""

ALL = ""
"""The kind that stands for all kinds of a machine."""

Place = tuple[str, str]
"""The fingerprint of a machine, and a kind of op or `ALL`."""


def ratios(model: PerformanceModel, measured: Sequence[Measurement], *, most_ops: int) -> list[float]:
    """Observed over predicted seconds at each case of the first `most_ops` ops, predicted without samples of them.

    Ops that the model cannot predict without samples are left out.
    """
    return [ratio for entry in group(measured)[:most_ops] for ratio in _ratios_of(model, entry)]


def ratios_by_place(model: PerformanceModel, measured: Sequence[Measurement]) -> dict[Place, list[float]]:
    """`ratios` of all ops, by machine and kind, and by machine over all kinds."""
    found: dict[Place, list[float]] = {}
    for entry in group(measured):
        of_entry = list(_ratios_of(model, entry))
        for kind in (entry.op.kind, ALL):
            found.setdefault((entry.machine.fingerprint, kind), []).extend(of_entry)
    return found


def drifts(found: Mapping[Place, Sequence[float]], *, least: int) -> dict[Place, float]:
    """`drift` of each place that has at least `least` ratios."""
    return {place: drift(of_place) for place, of_place in found.items() if len(of_place) >= least}


def drift(found: Sequence[float]) -> float:
    """The typical factor by which single times are off, either way, at least 1: the median of the ratios, or of their
    inverses where these are below 1."""
    return statistics.median(max(ratio, 1 / ratio) for ratio in found) if found else 1.0


def _ratios_of(model: PerformanceModel, entry: MeasuredOp) -> Iterator[float]:
    try:
        curve = model.predict(entry.op, [], tuple(entry.by_case), machine=entry.machine)
    except ModelError:
        return
    for m, predicted_s in zip(entry.by_case.values(), curve.seconds.tolist(), strict=True):
        ratio = m.seconds / predicted_s if predicted_s > 0 else math.inf
        if math.isfinite(ratio):
            yield ratio
