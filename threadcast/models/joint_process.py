"""The joint process: one Gaussian process over all ops and cases of a machine, for few measurements at any cases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from threadcast.core import Case, CurveTable, Machine, Measurement, Op, Source
from threadcast.core.curve import Floats
from threadcast.core.errors import ArtefactError, InvalidInput, ModelError
from threadcast.core.json_reading import check_schema, member
from threadcast.models.artefacts import json_bytes, npz_bytes, read_json, read_npz, reading
from threadcast.models.base import BatchModel
from threadcast.models.choosing import Outlook, outlook
from threadcast.models.interpolation import knots_of, refuse_defect, with_measured
from threadcast.models.intervals import NORMAL_95
from threadcast.models.joint_kernel import (
    OP_NUMBERS,
    OpNumbers,
    Parameters,
    Points,
    Similarity,
    case_features,
    covariance,
    similar_cases,
    tuned,
)
from threadcast.models.machine_limits import has_tensors_or_work
from threadcast.models.measured import by_case, group, usable
from threadcast.models.nominal_roofline import CALL_S
from threadcast.models.parallel import one_blas_thread
from threadcast.models.prior import SERIAL, Prior, shipped
from threadcast.models.static_features import work

SCHEMA = "threadcast.joint_process/1"

NEAREST = 300
"""Most points of other ops that an op's forecast is conditioned on, those of the most similar ops."""

MANY = 10
"""From so many ops on linear algebra is limited to one thread, which takes as long as the forecasts of two or three."""

NOISE = 0.01**2
"""Variance of the log of a median where its samples do not tell it. A convention: campaigns stop at 2 % either way."""

_LEARNED = list(Source).index(Source.LEARNED)


@dataclass(frozen=True, slots=True, eq=False)
class _Known:
    """What was measured on one machine. `rows` of the points are positions in `ops`, `columns` in `cases`."""

    ops: OpNumbers
    keys: tuple[str, ...]
    cases: tuple[Case, ...]
    points: Points
    parameters: Parameters
    similarity: Similarity

    @classmethod
    def none(cls, parameters: Parameters) -> _Known:
        """Nothing is known."""
        empty, ops = np.empty(0), OpNumbers.of([])
        whole = empty.astype(np.int64)
        return cls(ops, (), (), Points(whole, whole, empty, empty), parameters, Similarity.of(parameters, ops, ops))


class JointProcess(BatchModel):
    """Forecasts ops from few measurements, which may lie at other cases from op to op.

    One Gaussian process covers all ops and cases of a machine (`joint_kernel`), so that each measurement says something
    about the other cases of its op and about other ops. Its parameters follow from the measurements; before there are
    any, from conventions. It needs no case that many ops have in common, and learns in a second from a hundred ops;
    from ops that were measured everywhere the learned curve learns more.

    Before anything is measured, times are assumed to follow from the work, or to be those that `prior` forecasts (True:
    the shipped one), which are much better for ops and machines without measurements. Campaigns do as well without:
    where the prior's curves are wrong for a family of ops, they stop too early (decision 30).

    It proposes the case that lowers the expected regret most, until that is `enough` (a share of the best case's time)
    or `samples` cases were measured. Limits: what was measured on one machine tells nothing of another. ModelError for
    an op without tensors, FLOPs and bytes of which nothing was measured, on a machine that was not learned from.
    """

    name = "joint_process"

    def __init__(self, *, samples: int = 12, enough: float = 0.02, prior: Prior | bool = False, seed: int = 0) -> None:
        if not isinstance(samples, int) or isinstance(samples, bool) or samples < 1:
            raise InvalidInput(f"samples={samples!r} must be a whole number of at least 1")
        if not enough >= 0:
            raise InvalidInput(f"enough={enough!r} must be at least 0, a share of the best case's time")
        if not isinstance(prior, (Prior, bool)):
            raise InvalidInput(f"prior={prior!r} must be true, false or a prior")
        self.samples, self.enough, self.seed = samples, float(enough), seed
        self._chosen_prior = prior
        self._machines: dict[str, _Known] = {}

    def fit(self, measurements: Sequence[Measurement]) -> Self:
        """Learn the measurements, and choose the parameters of each machine by them."""
        return self.learn(measurements, tune=True)

    def learn(self, measurements: Sequence[Measurement], *, tune: bool) -> Self:
        """Learn the measurements in place of those learned before; without `tune` a machine's parameters stay.

        Without tuning it takes milliseconds. ModelError on data that cannot be learned from.
        """
        entries, _ = usable(group(measurements))
        by_machine: dict[str, list[int]] = {}
        for i, entry in enumerate(entries):
            by_machine.setdefault(entry.machine.fingerprint, []).append(i)
        machines = {}
        for fingerprint, rows in by_machine.items():
            own = [entries[i] for i in rows]
            before = self._machines.get(fingerprint)
            ops = OpNumbers.of([entry.op for entry in own])
            cases = tuple(sorted({case for entry in own for case in entry.by_case}))
            position = {case: i for i, case in enumerate(cases)}
            found = [(row, position[case], m) for row, entry in enumerate(own) for case, m in entry.by_case.items()]
            points = _points(found, self._assumed([entry.op for entry in own], own[0].machine, cases))
            parameters = before.parameters if before else self._parameters()
            if tune:
                features, start = case_features(own[0].machine, cases), before.parameters if before else None
                parameters = tuned(points, ops, features, assumed=self._parameters(), start=start, seed=self.seed)
            keys = tuple(entry.op.key for entry in own)
            machines[fingerprint] = _Known(ops, keys, cases, points, parameters, Similarity.of(parameters, ops, ops))
        self._machines = machines
        return self

    def propose(self, op: Op, observed: Sequence[Measurement], machine: Machine) -> Case | None:
        """The case that lowers the expected regret most; None once that is `enough`."""
        if len(by_case(observed)) >= self.samples:
            return None
        cases = machine.cases()
        (found,) = self.outlooks([op], [observed], machine)
        if found.ask is None or (observed and found.expected_regret <= self.enough):
            return None
        return cases[found.ask]

    def outlooks(self, ops: Sequence[Op], observed: Sequence[Sequence[Measurement]], machine: Machine) -> list[Outlook]:
        """What choosing among the machine's cases may cost each op, and which case to measure next."""
        cases = machine.cases()
        found = []
        for row, (logs, variances) in enumerate(self._posteriors(ops, observed, cases, machine)):
            measured_at = by_case(observed[row])
            complete = len(measured_at) >= self.samples
            allowed = np.array([not complete and case not in measured_at for case in cases])
            found.append(outlook(logs, variances, allowed, NOISE, seed=self.seed))
        return found

    def predict_many(
        self, ops: Sequence[Op], observed: Sequence[Sequence[Measurement]], cases: Sequence[Case], *, machine: Machine
    ) -> CurveTable:
        """The curves of many ops, one row each; ModelError where a time cannot be real."""
        self.check_batch(ops, observed)
        known = [by_case(measured) for measured in observed]
        logs, spread = np.zeros((len(ops), len(cases))), np.zeros((len(ops), len(cases)))
        wanting = [row for row, measured_at in enumerate(known) if not all(case in measured_at for case in cases)]
        some = [ops[row] for row in wanting], [observed[row] for row in wanting]
        with one_blas_thread() if len(wanting) >= MANY else nullcontext():
            posteriors = self._posteriors(*some, tuple(cases), machine)
        for row, (mean, variances) in zip(wanting, posteriors, strict=True):
            logs[row], spread[row] = mean, NORMAL_95 * np.sqrt(np.diag(variances))
        source = np.full(logs.shape, _LEARNED, dtype=np.int8)
        table = CurveTable(
            tuple(cases), np.exp(logs), np.exp(logs - spread), np.exp(logs + spread), source, self.name
        )  # fmt: skip
        return with_measured(table, list(map(knots_of, known)))

    def _posteriors(
        self, ops: Sequence[Op], observed: Sequence[Sequence[Measurement]], cases: tuple[Case, ...], machine: Machine
    ) -> list[tuple[Floats, Floats]]:
        """For each op log seconds (n_cases,) and their covariance (n_cases, n_cases)."""
        known = self._machines.get(machine.fingerprint) or _Known.none(self._parameters())
        measured = [by_case(of_op) for of_op in observed]
        for op, measured_at in zip(ops, measured, strict=True):
            if not (known.keys or measured_at or has_tensors_or_work(op)):
                raise ModelError(f"{op.key} has no tensors, FLOPs or bytes, and nothing was measured: no forecast")
        for known_measurement in chain.from_iterable(measured_at.values() for measured_at in measured):
            refuse_defect(known_measurement)
        every = tuple(sorted({*cases, *known.cases, *(case for measured_at in measured for case in measured_at)}))
        position = {case: i for i, case in enumerate(every)}
        alike = similar_cases(known.parameters, case_features(machine, every))
        moved = np.array([position[case] for case in known.cases], dtype=np.int64)
        known = replace(known, points=replace(known.points, columns=moved[known.points.columns]))
        asked = np.array([position[case] for case in cases])
        own_row = {key: row for row, key in enumerate(known.keys)}
        similarity = Similarity.of(known.parameters, OpNumbers.of(ops), known.ops)
        assumed = self._assumed(ops, machine, every)
        found = []
        for i, (op, measured_at) in enumerate(zip(ops, measured, strict=True)):
            own = _points([(0, position[case], m) for case, m in measured_at.items()], assumed[i : i + 1])
            others = _Others.of(known, similarity, i, own_row.get(op.key, -1))
            mean, left = _conditioned(known.parameters, own, others, alike, asked)
            found.append((mean + assumed[i, asked], left))
        return found

    @property
    def prior(self) -> Prior | None:
        """What times are assumed to be before anything is measured; the shipped prior is read at first use."""
        if isinstance(self._chosen_prior, Prior):
            return self._chosen_prior
        return shipped() if self._chosen_prior else None

    def _parameters(self) -> Parameters:
        return Parameters.before_measuring(None if self.prior is None else self.prior.transfer)

    def _assumed(self, ops: Sequence[Op], machine: Machine, cases: Sequence[Case]) -> Floats:
        """(n_ops, n_cases) log seconds before anything is measured; without a prior but for a factor that all share."""
        if self.prior is not None:
            return self.prior.log_seconds(ops, machine, cases)
        threads = np.array([case.threads for case in cases], dtype=np.float64)
        found: Floats = np.log(np.outer(1e-10 * work(ops), SERIAL + (1 - SERIAL) / threads) + CALL_S)
        return found

    def to_files(self) -> dict[str, bytes]:
        """The options, and what was measured on each machine."""
        document = {
            "schema": SCHEMA, "samples": self.samples, "enough": self.enough, "seed": self.seed,
            "prior": self.prior is not None,
            "machines": {
                name: {
                    "cases": [[case.threads, case.affinity] for case in known.cases], "keys": known.keys,
                    "kinds": known.ops.kinds.tolist(),
                }
                for name, known in self._machines.items()
            },
        }  # fmt: skip
        arrays: dict[str, NDArray[Any]] = {}
        for i, known in enumerate(self._machines.values()):
            own: dict[str, NDArray[Any]] = {
                "described": known.ops.described, "logs": known.points.logs, "noise": known.points.noise,
                "rows": known.points.rows.astype(np.int32),
                "columns": known.points.columns.astype(np.int32), "parameters": known.parameters.logs,
            }  # fmt: skip
            arrays |= {f"{i}.{name}": array for name, array in own.items()}
        files = {"model.json": json_bytes(document), "machines.npz": npz_bytes(arrays)}
        return files if self.prior is None else files | self.prior.to_files()

    def from_files(self, files: Mapping[str, bytes]) -> Self:
        """Load what `to_files` returned; ArtefactError on anything else."""
        document = read_json(files, "model.json")
        with reading("model.json"):
            check_schema(document, SCHEMA)
            loaded = JointProcess(
                samples=member(document, "samples", int), enough=float(document["enough"]),
                prior=member(document, "prior", bool) and Prior.from_files(files), seed=member(document, "seed", int),
            )  # fmt: skip
            arrays = read_npz(files, "machines.npz")
            for i, (name, described) in enumerate(member(document, "machines", dict).items()):
                own = {key.removeprefix(f"{i}."): array for key, array in arrays.items() if key.startswith(f"{i}.")}
                loaded._machines[name] = _read(described, own, loaded._parameters().constant)
        self.__dict__.update(loaded.__dict__)
        return self


@dataclass(frozen=True, slots=True, eq=False)
class _Others:
    """Points of other ops that an op's forecast is conditioned on. `rows` of the points are positions in `own`
    (similarity to the op itself) and in `each` (to one another)."""

    points: Points
    own: tuple[Floats, Floats]
    each: tuple[Floats, Floats]

    @classmethod
    def of(cls, known: _Known, similarity: Similarity, asked: int, without: int) -> _Others:
        """Points of the known ops that are most similar to the op in row `asked`, but for those of the op `without`."""
        points, shapes = known.points, similarity.shapes[asked]
        ranks = np.argsort(np.argsort(-shapes, kind="stable"), kind="stable")
        allowed = np.flatnonzero(points.rows != without)
        chosen = allowed[np.argsort(ranks[points.rows[allowed]], kind="stable")[:NEAREST]]
        points = points.some(chosen)
        rows, local = np.unique(points.rows, return_inverse=True)
        each = known.similarity
        return cls(
            replace(points, rows=local.astype(np.int64)), (similarity.levels[asked][rows], shapes[rows]),
            (each.levels[np.ix_(rows, rows)], each.shapes[np.ix_(rows, rows)]),
        )  # fmt: skip


def _conditioned(
    parameters: Parameters, own: Points, others: _Others, alike: Floats, asked: NDArray[np.int64]
) -> tuple[Floats, Floats]:
    """Mean (n_asked,) and covariance (n_asked, n_asked) of an op at the cases `asked`, given its points and those of
    other ops; `alike` is the similarity of all cases."""
    from scipy.linalg import cho_factor, cho_solve

    n, m = len(own), len(others.points)
    columns = np.concatenate([own.columns, others.points.columns])
    rows = np.concatenate([np.zeros(n, dtype=np.int64), others.points.rows + 1])
    levels, shapes = (_bordered(*pair) for pair in zip(others.own, others.each, strict=True))
    logs = np.concatenate([own.logs, others.points.logs])
    noise = np.concatenate([own.noise, others.points.noise])

    def between(one: tuple[NDArray[np.int64], NDArray[np.int64]], two: tuple[NDArray[np.int64], ...]) -> Floats:
        (op, case), (to_op, to_case) = one, two
        pairs, places = np.ix_(op, to_op), np.ix_(case, to_case)
        return covariance(
            parameters, levels[pairs], shapes[pairs], op[:, None] == to_op, alike[places], case[:, None] == to_case
        )

    query = np.zeros(len(asked), dtype=np.int64), asked
    alone = between(query, query)
    if n + m == 0:
        return np.zeros(len(asked)), alone
    across = between((rows, columns), query)
    within = between((rows, columns), (rows, columns)) + np.diag(noise)
    factored = cho_factor(within, lower=True)
    gains = cho_solve(factored, across)
    return logs @ gains, alone - across.T @ gains


def _bordered(own: Floats, each: Floats) -> Floats:
    """(1 + n, 1 + n): similarity of an op with itself (1), to others (`own`), and of the others to one another."""
    found = np.empty((len(own) + 1, len(own) + 1))
    found[0, 0], found[0, 1:], found[1:, 0], found[1:, 1:] = 1.0, own, own, each
    return found


def _points(found: Sequence[tuple[int, int, Measurement]], assumed: Floats) -> Points:
    """The points of measurements, which are given with the positions of their op and their case in `assumed`."""
    rows = np.array([row for row, _, _ in found], dtype=np.int64)
    columns = np.array([column for _, column, _ in found], dtype=np.int64)
    logs = np.log(np.array([m.seconds for _, _, m in found], dtype=np.float64))
    return Points(rows, columns, logs - assumed[rows, columns], np.array([_noise(m) for _, _, m in found]))


def _noise(measured: Measurement) -> float:
    """Variance of the log of the median: by its samples where there are some, and at least a quarter of `NOISE`."""
    count = len(measured.samples)
    if count < 3:
        return NOISE / count
    scatter = float(np.var(np.log([sample.seconds for sample in measured.samples]), ddof=1))
    return max(np.pi / 2 * min(scatter, 0.04) / count, NOISE / 4)


def _read(document: Mapping[str, object], arrays: Mapping[str, Floats], constant: float) -> _Known:
    """The stored state of one machine; ArtefactError, or whatever reading raises, on anything else."""
    cases = tuple(Case(threads, affinity) for threads, affinity in member(document, "cases", list))
    keys = tuple(map(str, member(document, "keys", list)))
    kinds: NDArray[np.str_] = np.array(member(document, "kinds", list), dtype=np.str_)
    described, logs, noise = (arrays[name] for name in ("described", "logs", "noise"))
    rows, columns = (arrays[name].astype(np.int64) for name in ("rows", "columns"))
    parameters = Parameters(arrays["parameters"], constant)
    n = len(logs)
    fitting = (
        described.shape == (len(keys), OP_NUMBERS) and kinds.shape == (len(keys),)
        and rows.shape == columns.shape == noise.shape == logs.shape == (n,)
        and parameters.logs.shape == Parameters.before_measuring().logs.shape
        and all(np.all(np.isfinite(array)) for array in arrays.values())
    )  # fmt: skip
    if not fitting or not n or min(rows.min(), columns.min()) < 0 or rows.max() >= len(keys):
        raise ArtefactError("the parts of a machine do not fit each other")
    if columns.max() >= len(cases) or noise.min() <= 0 or np.abs(parameters.logs).max() > 50:
        raise ArtefactError("a machine has points or parameters that are none")
    ops = OpNumbers(described, kinds)
    points = Points(rows, columns, logs, noise)
    return _Known(ops, keys, cases, points, parameters, Similarity.of(parameters, ops, ops))
