"""A campaign that follows a model: any performance model as a campaign's proposer."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from threadcast.collector.budget import guess_s
from threadcast.collector.proposers import CheckedOp, Choice
from threadcast.core import Case, CurveTable, Machine, Measurement, Op
from threadcast.core.errors import ModelError
from threadcast.models.base import PerformanceModel
from threadcast.models.overconfidence import Surprise, surprise, widening
from threadcast.models.parallel import one_blas_thread

UNKNOWN_REGRET = 1.0
"""Assumed regret of a choice while a model cannot forecast: twice the best case's time. A convention; in sets of curves
of large machines the choice of all cores costs that much or less for nine ops of ten."""


class FollowedModel:
    """A model as a campaign's proposer (`collector.proposers.LearningProposer`).

    `known` are measurements of other campaigns and machines; the model is fitted to them and to the campaign's own
    together. Without `fits` the model stays as it is.
    """

    def __init__(self, model: PerformanceModel, known: Sequence[Measurement] = (), *, fits: bool = True) -> None:
        self.model, self._known, self._fits = model, tuple(known), fits
        self._surprises: dict[str, Surprise] = {}
        """By key of each checked op, how far it was from its forecast before the model learned the check."""
        self.widened = 1.0
        """By what factor the model's standard deviations are taken wider, as checks have shown."""

    def propose(self, op: Op, observed: Sequence[Measurement], machine: Machine) -> Case | None:
        """The model's proposal."""
        return self.model.propose(op, observed, machine)

    def choices(self, ops: Sequence[Op], observed: Sequence[Sequence[Measurement]], machine: Machine) -> list[Choice]:
        """The choice for each op; all cores, with `UNKNOWN_REGRET`, where the model cannot forecast."""
        cases = machine.cases()
        try:
            with one_blas_thread():
                found = self.model.outlooks(ops, observed, machine, widened=self.widened)
        except ModelError:
            if len(ops) > 1:  # an op that cannot be forecast must not hide the others
                return [self.choices([op], [known], machine)[0] for op, known in zip(ops, observed, strict=True)]
            op, known = ops[0], observed[0]
            asked, most = self.model.propose(op, known, machine), max(cases, key=lambda case: case.threads)
            return [Choice(most, guess_s(op, most, known), UNKNOWN_REGRET, asked)]
        return [
            Choice(
                cases[one.best], one.seconds, one.expected_regret, None if one.ask is None else cases[one.ask],
                tuple(cases[i] for i in one.rivals),
            )
            for one in found
        ]  # fmt: skip

    def learn(self, measurements: Sequence[Measurement], *, tune: bool) -> None:
        """Fit the model to these measurements and those known before; where that fails, it stays as it is."""
        if not (self._fits and measurements):
            return
        with one_blas_thread(), suppress(ModelError):
            every = [*self._known, *measurements]
            self.model = self.model.following(every, measurements[0].machine, tune=tune)

    def check(self, checked: Sequence[CheckedOp], machine: Machine) -> None:
        """Take wider intervals from now on if the checked ops lay outside of the forecast ones too often.

        Each op is held against the forecast at its first check: later the model has learned what was found.
        """
        for one in checked:
            if one.op.key not in self._surprises:
                found = Surprise(0.0, 0)
                with one_blas_thread(), suppress(ModelError):
                    found = surprise(self.model, one)
                self._surprises[one.op.key] = found
        self.widened = widening(self._surprises.values())

    def curves(self, ops: Sequence[Op], observed: Sequence[Sequence[Measurement]], machine: Machine) -> CurveTable:
        """The curves of the ops at all cases, measured points where there are any; ModelError where the model cannot
        forecast one."""
        with one_blas_thread():
            return self.model.predict_many(ops, observed, machine.cases(), machine=machine)
