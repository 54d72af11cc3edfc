"""Which models learn the same from the same measurements, and one fit for all of them.

A comparison has the learned curve and the joint process once for each number of samples. What they learn does not
depend on that number, only for how many samples the learned curve has the widths of intervals: one fit for the largest
serves all.
"""

from __future__ import annotations

import copy
from collections.abc import Hashable, Sequence
from dataclasses import replace

from threadcast.core import Measurement
from threadcast.models.base import PerformanceModel
from threadcast.models.joint_process import JointProcess
from threadcast.models.learned_curve import LearnedCurve


def fit_key(model: PerformanceModel) -> Hashable | None:
    """A key that models which can share a fit have in common; None for a model that needs a fit of its own."""
    if type(model) is LearnedCurve:
        return "learned_curve", model.shape
    if type(model) is JointProcess:
        return None if model._machines or model.for_unmeasured else ("joint_process", model.seed, model.prior)
    return None


def fit_all(models: Sequence[PerformanceModel], measurements: Sequence[Measurement]) -> list[PerformanceModel]:
    """A fitted copy of each of `models`, which are one model or have equal keys; ModelError as `fit` raises it.

    The copies forecast as if each had been fitted by itself, and share arrays.
    """
    if len(models) == 1:
        return [copy.deepcopy(models[0]).fit(measurements)]
    processes = [copy.copy(model) for model in models if isinstance(model, JointProcess)]
    if processes:
        processes[0].fit(measurements)
        for process in processes[1:]:
            process._machines = processes[0]._machines
        return [*processes]
    curves = [model for model in models if isinstance(model, LearnedCurve)]
    most = max(curves, key=lambda curve: curve.samples)
    fitted = copy.deepcopy(most).fit(measurements)
    return [_as_fitted(curve, fitted) for curve in curves]


def _as_fitted(curve: LearnedCurve, fitted: LearnedCurve) -> LearnedCurve:
    """A copy of `fitted` with the options of `curve`, which has at most as many samples."""
    found, count = copy.copy(fitted), curve.samples + 1
    found.samples, found.enough, found.jobs = curve.samples, curve.enough, curve.jobs
    found._machines = {
        fingerprint: replace(
            learned, low=learned.low[:count], high=learned.high[:count],
            novelty=learned.novelty and learned.novelty.first(curve.samples),
            widths={kind: widths[:count] for kind, widths in learned.widths.items()},
        )
        for fingerprint, learned in fitted._machines.items()
    }  # fmt: skip
    return found
