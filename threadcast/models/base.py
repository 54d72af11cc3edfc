"""The contract of everything that predicts how long an op takes in a case."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from typing import Protocol, Self

import numpy as np

from threadcast.core import Case, Curve, CurveTable, Machine, Measurement, Op, Source
from threadcast.core.curve import Floats
from threadcast.core.errors import ModelError
from threadcast.models.choosing import Outlook, interval_covariance, outlook
from threadcast.store.holding import Elsewhere

LEAST_CALL_S = 1e-8
"""Seconds of a call that does nothing, at least: some dozens of clock cycles. A convention."""


class Measurements(Protocol):
    """Something that has measurements of ops: a `Store`, or a cache in front of one."""

    def measurements(self, *, machine: str, keys: Collection[str]) -> Sequence[Measurement]:
        """What was measured of the ops with these keys on the machine with this fingerprint, in the order of time."""
        ...

    def changes(self, machine: str) -> Elsewhere:
        """What the ops of the machine with this fingerprint tell of its changes."""
        ...


class PerformanceModel(ABC):
    """Forecasts an op's seconds at every case, from no measurement of the op or from a few.

    Set `name`, under which the model is registered. Write `predict`, `to_files` and `from_files`. Write `fit` if the
    model learns from other ops, and `propose` if it chooses which cases of an op are measured.

    `observed` holds measurements of the same op on the same machine, in the order in which they were made; a model
    neither changes nor stores it. A fitted model answers many threads at once and uses one thread itself. A point whose
    source is `measured` is the median of the given samples. Register a model with
    `threadcast.models.registry_of_kinds.register`, and test it with `tests/models/model_contract.py` of a checkout.
    """

    name: str
    notes: Sequence[str] = ()
    """What the last `fit` left out or could not do, a sentence each."""

    @property
    def least_s(self) -> float:
        """Seconds of a call, below which no forecast is believed. Override where the model has learned how few."""
        return LEAST_CALL_S

    def knows(self, op: Op) -> Source | None:
        """What a forecast of the op is: learned; extrapolated where more, or values beyond theirs, describe it than the
        ops that were learned; None where no op of its kind was learned.

        FeatureError where it lacks what describes all learned ops of its kind. Override where a model learns from
        descriptions of ops.
        """
        return Source.LEARNED

    def propose(self, op: Op, observed: Sequence[Measurement], machine: Machine) -> Case | None:
        """Return the case to measure next, or None when enough is known. Never a case that is in `observed`.

        Override this, or `propose_among` for a model that can choose among any cases.
        """
        return self.propose_among(op, observed, machine, machine.cases())

    def propose_among(
        self, op: Op, observed: Sequence[Measurement], machine: Machine, cases: Sequence[Case]
    ) -> Case | None:
        """As `propose`, where only these cases of the machine can be measured, as in a table of past measurements.

        Unless a model overrides it, what `propose` returns may be another one.
        """
        overridden = type(self).propose is not PerformanceModel.propose
        return self.propose(op, observed, machine) if overridden else None

    def fit(self, measurements: Sequence[Measurement]) -> Self:
        """Learn from measured ops of one or more machines and return self; ModelError on data that cannot be learned
        from."""
        return self

    def to_register(self) -> PerformanceModel:
        """The unfitted model that is trained and registered where this one was judged."""
        return self

    def fit_key(self) -> Hashable | None:
        """What models have in common that learn the same from the same measurements, whatever their other options; None
        for one that needs a fit of its own. Override with `as_fitted`, where a comparison has many such models."""
        return None

    def as_fitted(self, fitted: PerformanceModel) -> PerformanceModel:
        """A copy of this model that has learned what `fitted` has: one of the same `fit_key`, and of at least as many
        `samples`. They may share arrays."""
        raise NotImplementedError(f"{self.name} has no fit_key")

    def following(self, measurements: Sequence[Measurement], machine: Machine, *, tune: bool) -> PerformanceModel:
        """The model after a step of a campaign on `machine` that it follows, fitted to all `measurements` known by now;
        this model may change.

        Without `tune` it takes milliseconds; unless overridden, the model stays as it is. ModelError as of `fit`.
        """
        return copy.deepcopy(self).fit(measurements) if tune else self

    def adapts_to(self, machine: Machine) -> bool:
        """Whether `adapted` to measurements of any ops on this machine would forecast its other ops differently."""
        return False

    def adapted(self, measurements: Sequence[Measurement]) -> PerformanceModel:
        """A model that also takes into account what was measured of any ops, on machines that it has not learned from;
        itself where it has no use for them.

        It takes a second at most, and this model stays as it is. Override, with `adapts_to`, where the model can
        forecast machines that it has not learned from.
        """
        return self

    @abstractmethod
    def predict(self, op: Op, observed: Sequence[Measurement], cases: Sequence[Case], *, machine: Machine) -> Curve:
        """Return the curve of `op` over `cases` of `machine`; ModelError where the model cannot predict it."""

    def predict_many(
        self, ops: Sequence[Op], observed: Sequence[Sequence[Measurement]], cases: Sequence[Case], *, machine: Machine
    ) -> CurveTable:
        """Return the curves of many ops, one row each; override where a batch is cheaper than one op after the
        other."""
        curves = [
            self.predict(op, measured, cases, machine=machine) for op, measured in zip(ops, observed, strict=True)
        ]
        return CurveTable.of(curves, model=self.name)

    def most_together(self, machine: Machine) -> int:
        """Of so many ops without measurements at most, one call of `predict_many` forecasts each to the last bit as if
        it were alone, in less time than calls for each would take."""
        return 1

    def distributions(
        self, ops: Sequence[Op], observed: Sequence[Sequence[Measurement]], machine: Machine
    ) -> Iterable[tuple[Floats, Floats]]:
        """For each op the forecast log seconds (n_cases,) at the machine's cases, and their covariance (n_cases,
        n_cases); ModelError where the model cannot predict.

        Errors are assumed to be as large as intervals say, and alike in neighbouring cases; override where the model
        knows more.
        """
        cases = machine.cases()
        table = self.predict_many(ops, observed, cases, machine=machine)
        return [
            (np.log(table.seconds[row]), interval_covariance(table.low[row], table.high[row], cases))
            for row in range(len(ops))
        ]

    def outlooks(
        self, ops: Sequence[Op], observed: Sequence[Sequence[Measurement]], machine: Machine, *, widened: float = 1.0
    ) -> list[Outlook]:
        """What choosing among the machine's cases by the forecast may cost each op; `ask` is what `propose` returns.

        The standard deviations of `distributions` are taken times `widened`. ModelError where it cannot predict.
        """
        cases = machine.cases()
        found = []
        for row, (logs, left) in enumerate(self.distributions(ops, observed, machine)):
            asked = self.propose(ops[row], observed[row], machine)
            without = outlook(logs, widened**2 * left, np.zeros(len(cases), dtype=bool), 0.0)
            found.append(without._replace(ask=None if asked is None else cases.index(asked)))
        return found

    @abstractmethod
    def to_files(self) -> dict[str, bytes]:
        """Return the options and what was learned as files: content by flat file name, none of which can hold code."""

    @abstractmethod
    def from_files(self, files: Mapping[str, bytes]) -> Self:
        """Load the files that `to_files` returned, and return self; ArtefactError for any others. Nothing in them is
        executed."""


class BatchModel(PerformanceModel):
    """A model that forecasts many ops in little more than the time of one: write `predict_many`."""

    def predict(self, op: Op, observed: Sequence[Measurement], cases: Sequence[Case], *, machine: Machine) -> Curve:
        """The curve of one op: measured points where there are any, forecasts elsewhere; ModelError where it cannot
        predict."""
        return self.predict_many([op], [observed], cases, machine=machine)[0]

    @abstractmethod
    def predict_many(
        self, ops: Sequence[Op], observed: Sequence[Sequence[Measurement]], cases: Sequence[Case], *, machine: Machine
    ) -> CurveTable:
        """Return the curves of many ops, one row each; ModelError where it cannot predict one of them."""

    @staticmethod
    def check_batch(ops: Sequence[Op], observed: Sequence[Sequence[Measurement]]) -> None:
        """Raise ModelError where there is no op, or where `ops` and `observed` have different lengths."""
        if not ops:
            raise ModelError("no op to forecast was given")
        if len(ops) != len(observed):
            raise ModelError(f"{len(ops)} ops and measurements of {len(observed)}: give as many")
