"""What one machine's measured ops tell of an op: the joint process's Gaussian, conditioned on measured points."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from threadcast.core import Case, Measurement, Op, Source
from threadcast.core.curve import Floats
from threadcast.core.errors import ArtefactError
from threadcast.core.json_reading import member
from threadcast.models.case_similarity import AlikeCases
from threadcast.models.choosing import NOISE
from threadcast.models.doubts import variance
from threadcast.models.intervals import LONE_SAMPLE_SPREAD, NORMAL_95
from threadcast.models.joint_kernel import OP_NUMBERS, OpNumbers, Parameters, Points, Similarity, covariance
from threadcast.models.machine_limits import has_tensors_or_work
from threadcast.models.op_features import OpFeatures

NEAREST = 300
"""Most points of other ops that an op's forecast is conditioned on, those of the most similar ops."""

FREEDOM = 5.0
"""Degrees of freedom by which ops differ in how far their curves are from what others' suggest: a few are four times as
far off as the rest. From 4 to 6 campaigns on simulated machines end with nearly the same regret."""


MOST_SCALE = 9.0
"""By how much the covariance of a surprising op is scaled at most: where its points are further off than three standard
deviations, the parameters are wrong, and a larger scale would not tell where to measure."""


LONE_SAMPLE_NOISE = (LONE_SAMPLE_SPREAD / NORMAL_95) ** 2
"""Variance of the log of a single sample: what intervals around one assume, too."""


class Posterior(NamedTuple):
    """What is known of an op: the mean (n_cases,) of log seconds less what is assumed, and their covariance (n_cases,
    n_cases), of an op whose curve differs from others' as much as is usual. `surprise` is the squared distance of the
    op's `measured` points from their forecast by other ops, in variances."""

    logs: Floats
    covariance: Floats
    surprise: float
    measured: int

    def scaled(self) -> Floats:
        """The covariance for this op: larger where its own points lie further from their forecast than is usual.

        Of a Student-t process with `FREEDOM` degrees of freedom. Source: Shah, Wilson, Ghahramani 2014, Student-t
        processes as alternatives to Gaussian processes.
        """
        return min((FREEDOM - 2 + self.surprise) / (FREEDOM - 2 + self.measured), MOST_SCALE) * self.covariance

    @property
    def freedom(self) -> float:
        """The degrees of freedom of the t distribution whose covariance is `scaled`."""
        return FREEDOM + self.measured


@dataclass(frozen=True, slots=True, eq=False)
class KnownOps:
    """What was measured on one machine. `rows` of the points are positions in `ops`, `columns` in `cases`. `prior`:
    whether their logs are relative to the process's prior. `features`: how ops are described that have neither tensors
    nor FLOPs and bytes, but sizes."""

    ops: OpNumbers
    keys: tuple[str, ...]
    cases: tuple[Case, ...]
    points: Points
    parameters: Parameters
    prior: bool
    features: OpFeatures = field(default_factory=OpFeatures)

    @classmethod
    def none(cls, parameters: Parameters, prior: bool, features: OpFeatures | None = None) -> Self:
        """No op is known."""
        empty, whole = np.empty(0), np.empty(0, dtype=np.int64)
        return cls(
            OpNumbers.of([]), (), (), Points(whole, whole, empty, empty), parameters, prior, features or OpFeatures()
        )

    def with_work(self, ops: Sequence[Op]) -> list[Op]:
        """`ops`, those that have sizes alone with the work that measured ops of their kind suggest."""
        return [op if has_tensors_or_work(op) else self.features.translated([op])[0] for op in ops]

    def source(self, op: Op) -> Source:
        """What a forecast is of an op that was not measured: learned, or extrapolated where no op of its kind was
        measured, or none of such sizes. FeatureError for an op that has sizes alone, and not those that its kind has.
        """
        known = op.kind in self.ops.kinds
        found = Source.LEARNED if has_tensors_or_work(op) else self.features.kinds.knows(op)
        return found if known and found else Source.EXTRAPOLATED

    def beyond(self, op: Op) -> float:
        """How far the sizes of an op that was not measured, and has sizes alone, are outside of what was measured."""
        return 0.0 if has_tensors_or_work(op) else self.features.kinds.beyond(op)

    def placed(self, position: Mapping[Case, int]) -> Self:
        """The same with other columns: those that each case has in `position`."""
        moved = np.array([position[case] for case in self.cases], dtype=np.int64)
        return replace(self, points=replace(self.points, columns=moved[self.points.columns]))

    def posterior(
        self, op: OpNumbers, own: Points, alike: AlikeCases, asked: NDArray[np.int64], *, without: int = -1
    ) -> Posterior:
        """What is known of one op at the cases `asked`, given its `own` points and those of the ops most similar to it,
        but for the op in row `without`; `alike` is the similarity of all cases."""
        others = self._others(op, without)
        return _conditioned(self.parameters, own, others, alike, asked)

    def _others(self, op: OpNumbers, without: int) -> _Others:
        points, similar = self.points, Similarity.of(self.parameters, op, self.ops)
        levels, shapes = similar.levels[0], similar.shapes[0]
        ranks = np.argsort(np.argsort(-shapes, kind="stable"), kind="stable")
        allowed = np.flatnonzero(points.rows != without)
        points = points.some(allowed[np.argsort(ranks[points.rows[allowed]], kind="stable")[:NEAREST]])
        rows, local = np.unique(points.rows, return_inverse=True)
        some = self.ops.some(rows)
        each = Similarity.of(self.parameters, some, some)
        return _Others(replace(points, rows=local.astype(np.int64)), Similarity(levels[rows], shapes[rows]), each)


@dataclass(frozen=True, slots=True, eq=False)
class _Others:
    """Points of other ops that an op's forecast is conditioned on. `rows` of the points are positions in `own`
    (similarity to the op itself) and in `each` (to one another)."""

    points: Points
    own: Similarity
    each: Similarity


def _conditioned(
    parameters: Parameters, own: Points, others: _Others, alike: AlikeCases, asked: NDArray[np.int64]
) -> Posterior:
    from scipy.linalg import cholesky, solve_triangular

    n, m = len(own), len(others.points)
    columns = np.concatenate([others.points.columns, own.columns])
    rows = np.concatenate([others.points.rows + 1, np.zeros(n, dtype=np.int64)])
    levels = _bordered(others.own.levels, others.each.levels)
    shapes = _bordered(others.own.shapes, others.each.shapes)
    logs = np.concatenate([others.points.logs, own.logs])
    noise = np.concatenate([others.points.noise, own.noise])

    def between(one: tuple[NDArray[np.int64], NDArray[np.int64]], two: tuple[NDArray[np.int64], ...]) -> Floats:
        (op, case), (to_op, to_case) = one, two
        pairs = np.ix_(op, to_op)
        return covariance(
            parameters, levels[pairs], shapes[pairs], op[:, None] == to_op, alike.between(case, to_case),
            case[:, None] == to_case,
        )  # fmt: skip

    query = np.zeros(len(asked), dtype=np.int64), asked
    alone = between(query, query)
    if n + m == 0:
        return Posterior(np.zeros(len(asked)), alone, 0.0, 0)
    across = between((rows, columns), query)
    within = between((rows, columns), (rows, columns)) + np.diag(noise)
    root = cholesky(within, lower=True, overwrite_a=True)
    white = solve_triangular(root, np.column_stack([logs, across]), lower=True)
    errors, gains = white[:, 0], white[:, 1:]  # of each point, given those before it: the op's own are the last
    surprise = float(errors[m:] @ errors[m:])
    return Posterior(errors @ gains, alone - gains.T @ gains, surprise, n)


def _bordered(own: Floats, each: Floats) -> Floats:
    """(1 + n, 1 + n): similarity of an op with itself (1), to others (`own`), and of the others to one another."""
    found = np.empty((len(own) + 1, len(own) + 1))
    found[0, 0], found[0, 1:], found[1:, 0], found[1:, 1:] = 1.0, own, own, each
    return found


def points_of(found: Sequence[tuple[int, int, Measurement]], assumed: Floats) -> Points:
    """The points of measurements, which are given with the positions of their op and their case in `assumed`."""
    rows = np.array([row for row, _, _ in found], dtype=np.int64)
    columns = np.array([column for _, column, _ in found], dtype=np.int64)
    logs = np.log(np.array([m.seconds for _, _, m in found], dtype=np.float64))
    return Points(rows, columns, logs - assumed[rows, columns], np.array([_noise(m) for _, _, m in found]))


def _noise(measured: Measurement) -> float:
    """Variance of the log of the median: by its samples where there are some, and at least a quarter of `NOISE`; and by
    its doubt."""
    count = len(measured.samples)
    if count < 3:
        return LONE_SAMPLE_NOISE / count + variance(measured)
    scatter = float(np.var(np.log([sample.seconds for sample in measured.samples]), ddof=1))
    return max(np.pi / 2 * min(scatter, 0.04) / count, NOISE / 4) + variance(measured)


def read_known(
    document: Mapping[str, object], arrays: Mapping[str, Floats], assumed: Callable[[bool], Parameters]
) -> KnownOps:
    """The stored state of one machine, where `assumed` are the parameters before any measurement, with the prior or
    without; ArtefactError, or whatever reading raises, on anything else."""
    cases = tuple(Case(threads, affinity) for threads, affinity in member(document, "cases", list))
    keys = tuple(map(str, member(document, "keys", list)))
    kinds: NDArray[np.str_] = np.array(member(document, "kinds", list), dtype=np.str_)
    described, logs, noise = (arrays[name] for name in ("described", "logs", "noise"))
    rows, columns = (arrays[name].astype(np.int64) for name in ("rows", "columns"))
    prior = member(document, "prior", bool)
    features = OpFeatures.from_json(document["features"]) if "features" in document else OpFeatures()
    parameters = replace(assumed(prior), logs=arrays["parameters"])
    n = len(logs)
    fitting = (
        described.shape == (len(keys), OP_NUMBERS) and kinds.shape == (len(keys),)
        and rows.shape == columns.shape == noise.shape == logs.shape == (n,)
        and parameters.logs.shape == Parameters.assumed().logs.shape
        and all(np.all(np.isfinite(array)) for array in arrays.values())
    )  # fmt: skip
    if not fitting or not n or min(rows.min(), columns.min()) < 0 or rows.max() >= len(keys):
        raise ArtefactError("the parts of a machine do not fit each other")
    if columns.max() >= len(cases) or noise.min() <= 0 or np.abs(parameters.logs).max() > 50:
        raise ArtefactError("a machine has points or parameters that are none")
    ops = OpNumbers(described, kinds)
    points = Points(rows, columns, logs, noise)
    return KnownOps(ops, keys, cases, points, parameters, prior, features)
