"""The learned curve: forecasts from an op's shapes and work, and a Gaussian over their residuals, conditioned on a few
samples."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import asdict, replace
from itertools import chain
from typing import Self

import numpy as np

from threadcast.core import Case, CurveTable, Machine, Measurement, Op, Source
from threadcast.core.arguments import check, check_whole
from threadcast.core.curve import Floats
from threadcast.core.errors import ArtefactError, ModelError
from threadcast.core.json_reading import check_schema, member
from threadcast.models.aged_samples import aged_samples
from threadcast.models.artefacts import json_bytes, npz_bytes, read_json, read_npz, reading
from threadcast.models.base import BatchModel, PerformanceModel
from threadcast.models.case_gaussian import expected_regret
from threadcast.models.choosing import Outlook
from threadcast.models.correction import Forecast
from threadcast.models.curve_learning import MIN_OPS, learn, some_of_each_machine
from threadcast.models.doubts import level_variance
from threadcast.models.interpolation import forecast_table, refuse_defect, through_forecasts
from threadcast.models.joint_process import JointProcess
from threadcast.models.linear_scaling import measured_or_forecast
from threadcast.models.machine_curves import MachineCurves
from threadcast.models.machine_limits import MachineLimits
from threadcast.models.machine_transfer import MachineTransfer, machines_left_out
from threadcast.models.measured import MeasuredOp, by_case, group, rows_by_machine, usable
from threadcast.models.op_features import OpFeatures
from threadcast.models.op_process import TOGETHER
from threadcast.models.parallel import in_chunks, one_blas_thread
from threadcast.models.point_trees import Points, PointTrees, Shape
from threadcast.models.prior import Prior

SCHEMA = "threadcast.learned_curve/4"

DECISION = 0.25
"""When the next sample is chosen, the weight of the probability that a case is the best; the rest of the weight is
equal for all cases."""

_SPARSE_FILES = {"model.json": "sparse.json", "machines.npz": "sparse.npz"}
"""Names of the files of the process for sparsely measured machines, by their names where it is stored alone."""

SPARSE, FEWEST_CASES = 0.25, 3
"""A machine on which each op was measured in less than this share of the cases that any op was measured in, or all in
fewer cases than these, is forecast by a joint process: the Gaussian learns from cases that ops have in common.
Campaigns measure 3 to 10 %, recorded tables all."""


class LearnedCurve(BatchModel):
    """Forecasts whole curves from none to a few samples of the op.

    Without samples it uses boosted trees over `static_features`. On machines that it has not learned from, a joint
    process forecasts and proposes, with the trees' smooth curves as its prior, and learns from what `adapted` is given.
    For a machine and kinds of ops that it knows, it also uses a Gaussian process over descriptions of ops
    (`op_process`); the weights of the two follow from the errors of each out of fold. Each sample narrows the whole
    curve, according to how the residuals of the training ops vary together over cases. Where many ops were learned
    from, trees over how a thread count divides an op correct the result (`correction`).

    It proposes at most `samples` cases, the most informative first, weighted by the probability of being the best, and
    stops once its choice is expected to cost at most `enough` (a share of the best case's time; 0: never stop early).
    Samples are expected to scatter as training samples of the case did. Old measurements lose weight against newer ones
    of the op.

    Intervals are scaled so that 90 % of them hold for ops that the Gaussian has not seen. Cases that were not measured
    in training are interpolated.

    Sources: conditioning, Rasmussen and Williams 2006, Gaussian Processes for Machine Learning, 2.2; choice of cases,
    Krause, Singh, Guestrin 2008, Near-optimal sensor placements in Gaussian processes.
    """

    name = "learned_curve"

    def __init__(
        self, *, samples: int = 3, enough: float = 0.0, trees: int = 60, depth: int = 8, rate: float = 0.12,
        seed: int = 0,
    ) -> None:  # fmt: skip
        check_whole("samples", samples, 0)
        check(enough >= 0, "enough", enough, "at least 0, a share of the best case's time")
        self.samples, self.enough = samples, float(enough)
        self.shape = Shape(trees, depth, rate, seed)
        self.notes: tuple[str, ...] = ()
        """What the last `fit` left out."""
        self._trees: PointTrees | None = None
        self._op_features = OpFeatures()
        self._machines: dict[str, MachineCurves] = {}
        self._transfer = MachineTransfer()
        """What is assumed of unknown machines: how far the trees' forecasts are off."""
        self._unknown = JointProcess()
        """Forecasts unknown machines by the trees, and by what the model was adapted to."""
        self._sparse: JointProcess | None = None
        """Forecasts machines of which it has learned a few cases of each op."""

    @property
    def least_s(self) -> float:
        """The seconds of a call, or the shortest that were learned."""
        return self._op_features.kinds.least_s

    def knows(self, op: Op) -> Source | None:
        """Whether an op is described as those that were learned; FeatureError where it lacks something."""
        return self._op_features.kinds.knows(op)

    def propose(self, op: Op, observed: Sequence[Measurement], machine: Machine) -> Case | None:
        """The most informative case; None once `samples` cases are measured or the choice is good enough."""
        measured_at = by_case(observed)
        for measured in measured_at.values():
            refuse_defect(measured)
        (op,) = self._op_features.translated([op])
        learned = self._machines.get(machine.fingerprint)
        if learned is None:
            return self._process(machine).propose(op, observed, machine) if self.samples else None
        allowed = [i for i, case in enumerate(learned.cases) if case not in measured_at]
        if not allowed or len(measured_at) >= self.samples:
            return None
        where, _, noise = aged_samples(measured_at, learned.position, learned.gaussian.noise)
        left = learned.scale_of(op.kind) ** 2 * learned.gaussian.remaining(where, np.array(noise))
        weights = np.ones(len(learned.cases))
        if where:
            logs, _ = self._forecast([op], [measured_at], learned, machine)
            cost, likely = expected_regret(logs[0], left)
            if self.enough and cost <= self.enough:
                return None
            weights = (1 - DECISION) / len(weights) + DECISION * likely
        return learned.cases[learned.gaussian.most_informative(left, allowed, weights)]

    def propose_among(
        self, op: Op, observed: Sequence[Measurement], machine: Machine, cases: Sequence[Case]
    ) -> Case | None:
        """As `propose`; where a joint process proposes, one of `cases`."""
        if machine.fingerprint in self._machines:
            return self.propose(op, observed, machine)
        (op,) = self._op_features.translated([op])
        return self._process(machine).propose_among(op, observed, machine, cases) if self.samples else None

    def fit(self, measurements: Sequence[Measurement]) -> Self:
        """Learn trees from all points, and a Gaussian for each machine with `MIN_OPS` ops or more, or a joint process
        where few cases of each op were measured."""
        entries, refused = usable(group(measurements))
        notes = [f"op {key} left out: {why}" for key, why in refused.items()]
        entries, more = some_of_each_machine(entries, seed=self.shape.seed)
        notes += more
        op_features = OpFeatures.learned(entries)
        entries, names = op_features.of_entries(entries), op_features.names
        points = Points.of(entries, names, MachineLimits.learned(entries))
        trees, residuals = points.learned(self.shape)
        out_of_fold = points.targets - residuals
        machines, sparse = {}, []
        for fingerprint, rows in rows_by_machine(entries).items():
            own = [entries[row] for row in rows]
            if len(rows) < MIN_OPS:
                notes.append(f"{fingerprint}: {len(rows)} ops are too few to learn it from")
                continue
            if _is_sparse(own):
                sparse += [measured for entry in own for measured in entry.by_case.values()]
                continue
            by_trees = [
                out_of_fold[points.of_op[row]] + points.rooflines[points.of_op[row]]
                for row, entry in zip(rows, own, strict=True)
            ]
            with one_blas_thread():
                machines[fingerprint] = learn(own, by_trees, samples=self.samples, seed=self.shape.seed, names=names)
        self._trees, self._machines = trees, machines
        self._op_features, self.notes = op_features, tuple(notes)
        self._transfer = MachineTransfer.learned(machines_left_out(entries, points, self.shape))
        self._unknown = JointProcess(prior=Prior(trees, self._transfer), seed=self.shape.seed)
        self._sparse = JointProcess(seed=self.shape.seed).fit(self._translated(sparse)) if sparse else None
        return self

    def fit_key(self) -> Hashable:
        """What is learned depends on the trees' shape; widths of intervals are learned for `samples` and fewer."""
        return self.name, self.shape

    def as_fitted(self, fitted: PerformanceModel) -> LearnedCurve:
        """A copy of `fitted` with the options of this one."""
        assert isinstance(fitted, LearnedCurve)
        found, count = copy(fitted), self.samples + 1
        found.samples, found.enough = self.samples, self.enough
        found._machines = {
            fingerprint: replace(
                learned, low=learned.low[:count], high=learned.high[:count],
                widths={kind: widths[:count] for kind, widths in learned.widths.items()},
            )
            for fingerprint, learned in fitted._machines.items()
        }  # fmt: skip
        return found

    def adapts_to(self, machine: Machine) -> bool:
        """Whether the machine is one that was not learned from."""
        learned = machine.fingerprint in self._machines or (self._sparse and not self._sparse.adapts_to(machine))
        return self._trees is not None and not learned

    def adapted(self, measurements: Sequence[Measurement]) -> LearnedCurve:
        """A copy whose forecasts for machines that were not learned from are shifted, and surer, by what these
        measurements of any ops there have in common; measurements of other machines tell nothing."""
        if not any(self.adapts_to(measured.machine) for measured in measurements):
            return self
        found = copy(self)
        found._unknown = self._unknown.adapted([m for m in self._translated(measurements) if self.adapts_to(m.machine)])
        return found

    def most_together(self, machine: Machine) -> int:
        """`TOGETHER` on machines with a Gaussian of their own; a joint process learns from what it is asked."""
        return TOGETHER if machine.fingerprint in self._machines else 1

    def distributions(
        self, ops: Sequence[Op], observed: Sequence[Sequence[Measurement]], machine: Machine
    ) -> Iterable[tuple[Floats, Floats]]:
        """For each op log seconds (n_cases,) at the machine's cases, and their covariance (n_cases, n_cases)."""
        if machine.fingerprint in self._machines or self._trees is None:
            return super().distributions(ops, observed, machine)
        return self._process(machine, observed).distributions(self._op_features.translated(ops), observed, machine)

    def outlooks(
        self, ops: Sequence[Op], observed: Sequence[Sequence[Measurement]], machine: Machine, *, widened: float = 1.0
    ) -> list[Outlook]:
        """What choosing among the machine's cases may cost each op; `ask` is what `propose` returns."""
        if machine.fingerprint in self._machines or self._trees is None:
            return super().outlooks(ops, observed, machine, widened=widened)
        process, ops = self._process(machine, observed), self._op_features.translated(ops)
        return process.outlooks(ops, observed, machine, widened=widened)

    def predict_many(
        self, ops: Sequence[Op], observed: Sequence[Sequence[Measurement]], cases: Sequence[Case], *, machine: Machine
    ) -> CurveTable:
        """The curves of many ops, one row each; ModelError where the model was not fitted or a time cannot be real.

        The trees are called once for all ops, the Gaussian once for all ops with samples at the same cases.
        """
        if self._trees is None:
            raise ModelError(f"{self.name} has learned nothing yet: fit it first")
        self.check_batch(ops, observed)
        learned = self._machines.get(machine.fingerprint)
        if learned is None:
            process, ops = self._process(machine, observed), self._op_features.translated(ops)
            return replace(process.predict_many(ops, observed, cases, machine=machine), model=self.name)
        if not any(observed):
            return self._curves(ops, [{}] * len(ops), cases, learned, machine)
        return measured_or_forecast(
            observed, cases, self.name,
            lambda rows, known: self._curves([ops[row] for row in rows], known, cases, learned, machine),
        )  # fmt: skip

    def _curves(
        self, ops: Sequence[Op], known: Sequence[Mapping[Case, Measurement]], cases: Sequence[Case],
        learned: MachineCurves, machine: Machine,
    ) -> CurveTable:  # fmt: skip
        logs, spread = self._forecast(self._op_features.translated(ops), known, learned, machine)
        samples: int | list[list[int]] = 0
        if any(known):  # those at other cases tell the Gaussian nothing
            counts = [len(measured_at.keys() & learned.position.keys()) for measured_at in known]
            samples = [[min(count, len(learned.low) - 1)] for count in counts]
        found = (
            np.exp(logs), np.exp(logs - spread * learned.low[samples]), np.exp(logs + spread * learned.high[samples])
        )  # fmt: skip
        columns = [learned.position.get(case, -1) for case in cases]
        if -1 in columns:
            return through_forecasts(learned.cases, found, known, cases, between="log", model=self.name)
        seconds, low, high = found if columns == list(range(len(learned.cases))) else (a[:, columns] for a in found)
        return forecast_table(cases, seconds, low, high, self.name)

    def _forecast(
        self, ops: Sequence[Op], known: Sequence[Mapping[Case, Measurement]], learned: MachineCurves, machine: Machine
    ) -> tuple[Floats, Floats]:
        """Log seconds at the learned cases, and their standard deviations (`MachineCurves.deviations`), both (n_ops,
        n_cases)."""
        base = self._base(ops, learned, machine)
        if not any(known):
            nothing = np.empty((len(ops), 0))
            forecast = learned.conditioned(ops, base, (), nothing, nothing)
            return forecast.mean, learned.deviations(forecast)
        logs, spread = np.empty_like(base), np.empty_like(base)
        alike: dict[tuple[int, ...], tuple[list[int], list[float], list[float]]] = {}
        # Flat lists: with a small list for each of 10,000 ops the garbage collector would take long.
        for row, measured_at in enumerate(known):
            where, *own = aged_samples(measured_at, learned.position, learned.gaussian.noise)
            rows, *flat = alike.setdefault(where, ([], [], []))
            rows.append(row)
            for values, more in zip(flat, own, strict=True):
                values.extend(more)
        for where, (rows, *flat) in alike.items():
            given = (np.reshape(values, (len(rows), len(where))) for values in flat)
            changed = np.array([level_variance(known[row]) for row in rows])
            forecast = learned.conditioned([ops[row] for row in rows], base[rows], where, *given, changed=changed)
            logs[rows] = self._corrected(forecast, learned)
            spread[rows] = learned.deviations(forecast)
        return logs, spread

    def _corrected(self, forecast: Forecast, learned: MachineCurves) -> Floats:
        if learned.correction is None:
            return forecast.mean

        def of_some(some: Sequence[int]) -> Floats:
            return learned.log_seconds(forecast.rows(slice(some[0], some[-1] + 1)))

        return in_chunks(of_some, range(len(forecast.ops)))

    def _base(self, ops: Sequence[Op], learned: MachineCurves, machine: Machine) -> Floats:
        """(n_ops, n_cases) log seconds without samples."""

        def by_trees(some: Sequence[Op]) -> Floats:
            assert self._trees is not None
            return self._trees.log_seconds(some, machine, learned.cases)

        return in_chunks(lambda some: learned.base(some, by_trees), ops)

    def _process(self, machine: Machine, observed: Sequence[Sequence[Measurement]] = ()) -> JointProcess:
        """What forecasts ops on a machine without a Gaussian of its own. On one that was not learned from, what was
        `observed` of several ops tells of all others, unless the model was adapted to it."""
        sparse = self._sparse
        process = copy(self._unknown if sparse is None or sparse.adapts_to(machine) else sparse)
        process.samples, process.enough = max(self.samples, 1), self.enough
        if process.adapts_to(machine) and sum(map(bool, observed)) > 1:
            process = process.adapted(self._translated(chain.from_iterable(observed)))
        return process

    def _translated(self, measurements: Iterable[Measurement]) -> list[Measurement]:
        measurements = list(measurements)
        ops = self._op_features.translated([measured.op for measured in measurements])
        return [replace(measured, op=op) for measured, op in zip(measurements, ops, strict=True)]

    def to_files(self) -> dict[str, bytes]:
        """The options, the trees, and the arrays of each machine."""
        parts = {name: learned.to_files(f"correction.{i}") for i, (name, learned) in enumerate(self._machines.items())}
        document = {
            "schema": SCHEMA, "samples": self.samples, "enough": self.enough, "shape": asdict(self.shape),
            "fitted": self._trees is not None, "transfer": self._transfer.to_json(),
            "limits": self._trees.limits.to_json() if self._trees else MachineLimits().to_json(),
            "op_features": self._op_features.to_json(),
            "machines": {name: described for name, (described, _, _) in parts.items()},
        }  # fmt: skip
        arrays = {f"{i}.{name}": array for i, (_, own, _) in enumerate(parts.values()) for name, array in own.items()}
        files = self._trees.to_files("trees") if self._trees is not None else {}
        for _, _, own in parts.values():
            files |= own
        if self._sparse is not None:
            files |= {_SPARSE_FILES[name]: content for name, content in self._sparse.to_files().items()}
        return {"model.json": json_bytes(document), "machines.npz": npz_bytes(arrays), **files}

    def from_files(self, files: Mapping[str, bytes]) -> Self:
        """Load what `to_files` returned; ArtefactError on anything else."""
        document = read_json(files, "model.json")
        with reading("model.json"):
            check_schema(document, SCHEMA)
            loaded = LearnedCurve(
                samples=member(document, "samples", int), enough=float(document["enough"]),
                **asdict(Shape(**member(document, "shape", dict))),
            )  # fmt: skip
            fitted = member(document, "fitted", bool)
            limits = MachineLimits.from_json(document["limits"])
            loaded._transfer = MachineTransfer.from_json(document["transfer"])
            loaded._op_features = OpFeatures.from_json(document["op_features"])
            names = loaded._op_features.names
            arrays = read_npz(files, "machines.npz")
            for i, (name, described) in enumerate(member(document, "machines", dict).items()):
                own = {key.removeprefix(f"{i}."): array for key, array in arrays.items() if key.startswith(f"{i}.")}
                loaded._machines[name] = MachineCurves.from_files(described, own, f"correction.{i}", files, names)
        if fitted:
            loaded._trees = PointTrees(loaded.shape, names, limits).from_files("trees", files)
            prior = Prior(loaded._trees, loaded._transfer)
            loaded._unknown = JointProcess(prior=prior, seed=loaded.shape.seed)
        if any(name in files for name in _SPARSE_FILES.values()):
            if not all(name in files for name in _SPARSE_FILES.values()):
                raise ArtefactError(f"of {' and '.join(_SPARSE_FILES.values())} one is missing")
            loaded._sparse = JointProcess().from_files({own: files[name] for own, name in _SPARSE_FILES.items()})
        self.__dict__.update(loaded.__dict__)
        return self


def _is_sparse(entries: Sequence[MeasuredOp]) -> bool:
    """Whether too few cases of each op of a machine were measured to learn how times vary over cases."""
    cases = {case for entry in entries for case in entry.by_case}
    share = sum(len(entry.by_case) for entry in entries) / (len(entries) * len(cases))
    return share < SPARSE or len(cases) < min(FEWEST_CASES, len(entries[0].machine.cases()))
