"""The chart of an op: its curve by several models, and the measured points."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from threadcast.core import Affinity, Case, Curve, Measurement
from threadcast.core.errors import ArtefactError, ModelError, NotFound, UnknownKind
from threadcast.models.evaluation import replay
from threadcast.models.measured import MeasuredOp
from threadcast.service.dashboard.charts import Chart, Line, Values, wants_log
from threadcast.service.dashboard.frame import case_text
from threadcast.service.model_shelf import ModelShelf

ROOM = 1.3
"""The axis ends at this factor beyond the measured points and the first model's curve; other curves may go beyond."""

MARKED_TONES = {Affinity.COMPACT: 8, Affinity.SPREAD: 9}
"""Numbers of the colours of measured points, by affinity."""


@dataclass(frozen=True, slots=True)
class ModelCurve:
    """The curve that one model version predicts for the op.

    None, with the reason in `problem`, where it predicts none.
    """

    version: str
    samples_given: int
    """Number of the op's measurements that the model was given."""
    curve: Curve | None = None
    problem: str = ""


def model_curve(models: ModelShelf, version: str, entry: MeasuredOp, *, all_given: bool) -> ModelCurve:
    """Return the curve that `version` predicts from the measurements that it proposes; with `all_given`, from all."""
    try:
        model, _ = models.get(version)
        observed = list(entry.by_case.values()) if all_given else replay(model, entry)
        curve = model.predict(entry.op, observed, entry.machine.cases(), machine=entry.machine)
    except (ModelError, UnknownKind) as error:
        return ModelCurve(version, 0, problem=str(error))
    except (ArtefactError, NotFound):
        return ModelCurve(version, 0, problem="it is damaged or holds what must not be loaded")
    return ModelCurve(version, len(observed), curve)


def chart_of(entry: MeasuredOp, by_model: Sequence[ModelCurve]) -> Chart:
    """Return a chart with a line for each version, the first with its interval, and the measured points.

    The fastest measured point has a ring.
    """
    curves = [(i, one, one.curve) for i, one in enumerate(by_model) if one.curve is not None]
    cases = [*entry.by_case, *(case for _, _, curve in curves for case in curve.cases)]
    threads = sorted({case.threads for case in cases})
    lines: list[Line] = []
    for i, one, curve in curves:
        at = {case.threads: k for k, case in reversed(list(enumerate(curve.cases)))}
        for k, case in enumerate(curve.cases):
            if curve.seconds[k] < curve.seconds[at[case.threads]]:
                at[case.threads] = k
        values, low, high = (
            tuple(_number(array[at[n]]) if n in at else None for n in threads)
            for array in (curve.seconds, curve.low, curve.high)
        )
        banded = not lines
        lines.append(Line(one.version, values, i, low if banded else (), high if banded else ()))
    lines += measured_lines(entry.without_stale().by_case or entry.by_case, threads)
    shown = [v for line in (*lines[:1], *lines[len(curves) :]) for v in (*line.values, *line.low, *line.high)]
    found = [v for v in shown if v]
    return Chart(
        f"seconds of {entry.op.key} by threads", tuple(map(float, threads)), tuple(lines), "threads", "seconds", "s",
        x_log=threads[-1] >= 8, y_log=wants_log(found),
        within=(min(found) / ROOM, max(found) * ROOM) if min(found, default=0.0) > 0 else None,
    )  # fmt: skip


def measured_lines(by_case: Mapping[Case, Measurement], threads: Sequence[int]) -> list[Line]:
    """Return the measured points of each affinity, and a ring around the fastest of all."""
    affinities = [a for a in Affinity if any(case.affinity is a for case in by_case)]
    lines = []
    for affinity in affinities:
        at = {case.threads: m.seconds for case, m in by_case.items() if case.affinity is affinity}
        name = "measured" if len(affinities) == 1 else f"measured, {affinity}"
        lines.append(Line(name, tuple(at.get(n) for n in threads), MARKED_TONES[affinity], marks="dots"))
    best = min(by_case, key=lambda case: (by_case[case].seconds, case))
    ring: Values = tuple(by_case[best].seconds if n == best.threads else None for n in threads)
    return [*lines, Line(f"fastest: {case_text(best)}", ring, MARKED_TONES[best.affinity], marks="ring")]


def _number(value: float) -> float | None:
    """The value, or None where a logarithmic axis cannot show it."""
    return float(value) if value > 0 else None
