"""The contract of everything that predicts how long an op takes in a case."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import ClassVar, NamedTuple, Protocol, Self

from threadcast.core import Case, Curve, CurveTable, Machine, Measurement, Op
from threadcast.core.errors import ModelError


class Range(NamedTuple):
    """Values of an option that are worth trying, on a logarithmic scale; whole numbers where `low` is one."""

    low: float
    high: float


class Measurements(Protocol):
    """Something that has measurements of ops: a `Store`, or a cache in front of one."""

    def measurements(self, *, machine: str, keys: Collection[str]) -> Sequence[Measurement]:
        """What was measured of the ops with these keys on the machine with this fingerprint, in the order of time."""
        ...


class PerformanceModel(ABC):
    """Forecasts an op's seconds at every case from none to a few of its own measurements.

    Set `name`, under which it is registered; write `predict`, `to_files` and `from_files`; write `fit` if it learns
    from other ops, and `propose` if it chooses which cases of an op are measured. All arguments are the caller's: a
    model never changes or keeps the `observed` that it is given. A fitted model answers from many threads at once and
    uses one thread itself. `observed` holds measurements of this very op on this very machine, in the order taken.
    A point said to be `measured` is the median of the samples given. Register a model with
    `threadcast.models.registry_of_kinds.register`, and test it with `threadcast.models.testing`.
    """

    name: str
    searched: ClassVar[Mapping[str, Range]] = MappingProxyType({})
    """Options that `threadcast.models.tuned` may choose."""

    def propose(self, op: Op, observed: Sequence[Measurement], machine: Machine) -> Case | None:
        """Return the case to measure next, None when enough is known. Never one that `observed` has."""
        return None

    def fit(self, measurements: Sequence[Measurement]) -> Self:
        """Learn from measured ops, of one or more machines, and return self. ModelError on unusable data."""
        return self

    @abstractmethod
    def predict(self, op: Op, observed: Sequence[Measurement], cases: Sequence[Case], *, machine: Machine) -> Curve:
        """Return the curve of `op` over `cases` of `machine`; ModelError when it cannot tell."""

    def predict_many(
        self, ops: Sequence[Op], observed: Sequence[Sequence[Measurement]], cases: Sequence[Case], *, machine: Machine
    ) -> CurveTable:
        """Return the curves of many ops; override where a batch is cheaper than one after the other."""
        curves = [self.predict(op, seen, cases, machine=machine) for op, seen in zip(ops, observed, strict=True)]
        return CurveTable.of(curves, model=self.name)

    @abstractmethod
    def to_files(self) -> dict[str, bytes]:
        """Return options and what was learned as files: flat names, and content that cannot hold code."""

    @abstractmethod
    def from_files(self, files: Mapping[str, bytes]) -> Self:
        """Take over what `to_files` gave and return self; ArtefactError on anything else, with nothing executed."""


class BatchModel(PerformanceModel):
    """A model that forecasts many ops in little more than the time of one: write `predict_many`."""

    def predict(self, op: Op, observed: Sequence[Measurement], cases: Sequence[Case], *, machine: Machine) -> Curve:
        """Measured points where there are, forecasts elsewhere; ModelError when it cannot tell."""
        return self.predict_many([op], [observed], cases, machine=machine)[0]

    @abstractmethod
    def predict_many(
        self, ops: Sequence[Op], observed: Sequence[Sequence[Measurement]], cases: Sequence[Case], *, machine: Machine
    ) -> CurveTable:
        """Return the curves of many ops; ModelError when it cannot tell one of them."""

    @staticmethod
    def check_batch(ops: Sequence[Op], observed: Sequence[Sequence[Measurement]]) -> None:
        """ModelError where there is no op, or not for each one what was observed."""
        if not ops:
            raise ModelError("no op to forecast was given")
        if len(ops) != len(observed):
            raise ModelError(f"{len(ops)} ops and measurements of {len(observed)}: give as many")
