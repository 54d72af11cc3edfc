"""Comparing models: the same folds and the same measurements for all, and for each only the samples that it asks
for."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from threadcast.core import Case, Measurement
from threadcast.core.errors import ModelError
from threadcast.core.settings_table import STEPS
from threadcast.models import parallel
from threadcast.models.base import PerformanceModel
from threadcast.models.fold_judging import Asked, asked_for, forecast, judge_fold, one_sample, replay
from threadcast.models.judgement import Outcome, Row, noise_floors, row_of
from threadcast.models.lead import Lead, lead_of
from threadcast.models.measured import MeasuredOp, group, usable
from threadcast.models.op_score import measuring_s
from threadcast.models.shared import SharedOps
from threadcast.models.splits import Fold, Split
from threadcast.models.units import odd_units

__all__ = ["ALL_FOLDS", "Evaluation", "evaluate", "judge_together", "one_sample", "replay"]

ALL_FOLDS = "all"


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The results of all models: `rows` over all folds, `by_fold` one row for each fold of each model.

    `left_out`: ops that no model was given, by key with the reason. `odd_units`: sentences about times that seem to be
    in another unit than the rest. `lead`: by how much the best row is ahead.
    """

    rows: tuple[Row, ...]
    by_fold: tuple[Row, ...]
    left_out: Mapping[str, str]
    odd_units: tuple[str, ...] = ()
    lead: Lead | None = None


def evaluate(
    measurements: Iterable[Measurement],
    models: Sequence[tuple[str, PerformanceModel]],
    *,
    split: Split,
    split_name: str,
    jobs: int = 1,
    draw: int | None = None,
    steps: int = STEPS,
    progress: Callable[[int, int], None] | None = None,
) -> Evaluation:
    """Compare unfitted `models`, given with the names of their rows, on ops that they have not learned from.

    A copy of each model is fitted to all measurements of a fold's training ops. For each test op it then proposes
    samples, gets the recorded ones and nothing else, and forecasts all recorded cases. Where a proposed case was not
    recorded, the model cannot be judged by that op. With `draw`, a seed, it gets one of each case's samples instead of
    all, the same one as every other model. `steps` is how often a user runs each op (`Row.cost`). `jobs` processes work
    on models and folds side by side; `progress` is called with (done, total). Models that learn the same
    (`fit_key`) are fitted once; each row has the time of that fit. A model that cannot be fitted gets a row
    that says why. ModelError where the measurements cannot be learned from at all (`measured.usable`) or do not allow
    the split.
    """
    import joblib

    entries, left_out = usable(group(measurements))
    if not models:
        raise ModelError("no model was given to evaluate")
    folds = split(entries)
    together = _groups([model for _, model in models])
    tasks = [(of_fold, positions) for positions in together for of_fold in range(len(folds))]
    shared = SharedOps(entries)
    found: dict[tuple[int, int], Outcome] = {}
    calls = (
        joblib.delayed(_judge_shared)([models[i][1] for i in positions], shared, folds[of_fold], draw)
        for of_fold, positions in tasks
    )
    for number, outcomes in parallel.run(calls, jobs=jobs):
        of_fold, positions = tasks[number]
        found |= {(of_fold, i): outcome for i, outcome in zip(positions, outcomes, strict=True)}
        if progress:
            progress(len(found), len(models) * len(folds))
    floors = noise_floors(entries)
    by_model = [[found[of_fold, i] for of_fold in range(len(folds))] for i in range(len(models))]
    rows = [
        row_of(name, split_name, ALL_FOLDS, own, floors=floors, steps=steps)
        for (name, _), own in zip(models, by_model, strict=True)
    ]
    by_fold = [
        row_of(name, split_name, fold.name, [found[of_fold, i]], floors=floors, steps=steps)
        for of_fold, fold in enumerate(folds)
        for i, (name, _) in enumerate(models)
    ]
    return Evaluation(tuple(rows), tuple(by_fold), left_out, odd_units(entries), lead_of(rows, by_model))


def _groups(models: Sequence[PerformanceModel]) -> list[tuple[int, ...]]:
    """Positions of the models that share a fit; the largest groups first, as they take longest."""
    by_key: dict[Hashable, list[int]] = {}
    for i, model in enumerate(models):
        key = model.fit_key()
        by_key.setdefault(i if key is None else key, []).append(i)
    return sorted((tuple(positions) for positions in by_key.values()), key=len, reverse=True)


def _judge_shared(models: Sequence[PerformanceModel], shared: SharedOps, fold: Fold, draw: int | None) -> list[Outcome]:
    return judge_fold(models, shared.get(), fold, draw=draw)


def judge_together(
    models: Sequence[PerformanceModel], entries: Sequence[MeasuredOp], *, split_name: str, steps: int = STEPS
) -> tuple[Row, ...]:
    """Compare fitted models on the same points of the same ops, one row for each.

    Each model gets all recorded measurements that any of them proposes, and forecasts all recorded cases. `unusable` of
    a row counts the ops that the model cannot forecast although it has everything that it asked for. An op that one
    model cannot forecast is left out of the scores of all. The cost of a row counts the measuring of the samples that
    the model itself proposes, over `steps` runs of each op.
    """
    outcomes = [Outcome() for _ in models]
    batches: dict[tuple[str, tuple[Case, ...]], list[Asked]] = {}
    wanting: set[tuple[int, int]] = set()
    own_s: dict[tuple[int, int], float] = {}
    for at, entry in enumerate(entries):
        shown: dict[Case, Measurement] = {}
        for number, model in enumerate(models):
            try:
                found, missing = asked_for(model, entry)
            except ModelError as error:
                outcomes[number].unusable[at] = str(error)
                continue
            shown |= {measured.case: measured for measured in found}
            own_s[number, at] = measuring_s(found)
            if missing is not None:
                wanting.add((number, at))
        asked = Asked(at, entry, list(shown.values()))
        batches.setdefault((entry.machine.fingerprint, tuple(entry.by_case)), []).append(asked)
    for model, outcome in zip(models, outcomes, strict=True):
        for batch in batches.values():
            forecast(model, batch, outcome)
    floors = noise_floors(entries)
    failed = {at for outcome in outcomes for at in outcome.unusable}
    for number, outcome in enumerate(outcomes):
        outcome.scores = {
            at: replace(score, measuring_s=own_s[number, at])
            for at, score in outcome.scores.items()
            if at not in failed
        }
        outcome.unusable = {at: why for at, why in outcome.unusable.items() if (number, at) not in wanting}
    return tuple(
        row_of(model.name, split_name, ALL_FOLDS, [outcome], floors=floors, steps=steps)
        for model, outcome in zip(models, outcomes, strict=True)
    )
