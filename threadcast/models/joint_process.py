"""The joint process: one Gaussian process over all ops and cases of a machine, for few measurements at any cases."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from copy import copy
from itertools import chain
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from threadcast.core import Case, CurveTable, Machine, Measurement, Op, Source
from threadcast.core.arguments import check, check_whole
from threadcast.core.curve import Floats
from threadcast.core.errors import ModelError
from threadcast.core.json_reading import check_schema, member
from threadcast.models.artefacts import json_bytes, npz_bytes, read_json, read_npz, reading
from threadcast.models.base import BatchModel, PerformanceModel
from threadcast.models.case_similarity import AlikeCases, case_features, from_nearest
from threadcast.models.choosing import NOISE, Outlook, outlook
from threadcast.models.curve_learning import some_of_each_machine
from threadcast.models.interpolation import forecast_table, refuse_defect
from threadcast.models.intervals import NORMAL_95
from threadcast.models.joint_conditioning import KnownOps, Posterior, points_of, read_known
from threadcast.models.joint_kernel import OpNumbers, Parameters, tuned
from threadcast.models.linear_scaling import measured_or_forecast
from threadcast.models.machine_limits import UNIT_S, has_tensors_or_work
from threadcast.models.measured import by_case, by_machine, group, usable
from threadcast.models.nominal_roofline import CALL_S
from threadcast.models.op_features import OpFeatures
from threadcast.models.parallel import one_blas_thread
from threadcast.models.prior import Prior, shipped
from threadcast.models.smooth_curves import SERIAL
from threadcast.models.static_features import work

SCHEMA = "threadcast.joint_process/1"

MANY = 10
"""From so many ops on linear algebra is limited to one thread, which takes as long as the forecasts of two or three."""

FEW_OPS = 30
"""With so many measured ops of a machine the joint process chooses better without the prior, also among ops of kinds of
which none was measured there (docs/figures/forecasts.md)."""

AWAY = 0.15
"""Beside a prior, a further standard deviation of log times for each unit of log threads between a case and the nearest
one in which the op was measured: what the process takes for certain by other ops, and is not on a new machine. Chosen
so that 90 % intervals hold with one to three samples on the machines of decision 30."""

BEYOND = 0.3
"""A further standard deviation of log times for each unit of a size's logarithm outside of what was measured: by how
much the exponent that sizes suggest may be wrong there, as where a call's overhead hides how an op grows. A
convention."""

UNSEEN = 2.353 / NORMAL_95
"""How much wider intervals are on a machine of which nothing was measured: how far off a prior is follows from three
families of machines, so that the 95th percentile is that of Student's t with three degrees of freedom."""


class JointProcess(BatchModel):
    """Forecasts ops from few measurements, which may lie at other cases from op to op.

    One Gaussian process covers all ops and cases of a machine (`joint_kernel`), so that each measurement says something
    about the other cases of its op and about other ops. Its parameters follow from the measurements; before there are
    any, from conventions. It needs no case that many ops have in common, and learns in a second from a hundred ops;
    from ops that were measured everywhere the learned curve learns more.

    Before anything is measured, times are assumed to follow from the work, or, on machines of which fewer than
    `FEW_OPS` ops are known, to be those that `prior` forecasts (True: the shipped one). Campaigns do as well without:
    where the prior's curves are wrong for a family of ops, they stop too early (decision 30). What is forecast of an op
    is `extrapolated` where no op of its kind was measured on the machine: it comes from the prior and other kinds. Ops
    of tables that have sizes alone get the work that follows from the sizes of those measured (`OpFeatures`), and are
    `extrapolated` outside of these.

    It proposes the case that lowers the expected regret most, until that is `enough` (a share of the best case's time)
    or `samples` cases were measured. For that, the curves of single ops are taken to differ from others' by a t
    distribution: an op whose own measurements were surprising is less certain than the rest. Limits: what was measured
    on one machine tells nothing of another; of more than `curve_learning.MOST_OPS` ops some are drawn at random.
    ModelError for an op without tensors, FLOPs and bytes of which nothing was measured, on a machine that was not
    learned from; FeatureError for one that has sizes alone, and not those that its kind has.
    """

    name = "joint_process"

    def __init__(
        self,
        *,
        samples: int = 12,
        enough: float = 0.02,
        prior: Prior | bool = False,
        seed: int = 0,
    ) -> None:
        check_whole("samples", samples)
        check(enough >= 0, "enough", enough, "at least 0, a share of the best case's time")
        check(isinstance(prior, (Prior, bool)), "prior", prior, "true, false or a prior")
        self.samples, self.enough, self.seed = samples, float(enough), seed
        self._chosen_prior = prior
        self._machines: dict[str, KnownOps] = {}
        self.notes = ()
        """What was left out of the last fit, a sentence each."""

    def fit(self, measurements: Sequence[Measurement]) -> Self:
        """Learn the measurements, and choose the parameters of each machine by them."""
        return self.learn(measurements, tune=True)

    def learn(self, measurements: Sequence[Measurement], *, tune: bool) -> Self:
        """Learn the measurements in place of those learned before; without `tune` a machine's parameters stay.

        Without tuning it takes milliseconds. ModelError on data that cannot be learned from.
        """
        entries, self.notes = some_of_each_machine(usable(group(measurements))[0], seed=self.seed)
        machines = {}
        for fingerprint, own in by_machine(entries).items():
            before, prior = self._machines.get(fingerprint), bool(self._chosen_prior) and len(own) < FEW_OPS
            if before is not None and before.prior != prior:
                before = None
            features, measured_ops = OpFeatures.learned(own), [entry.op for entry in own]
            known = KnownOps.none(self._parameters(prior), prior, features)
            with_work = known.with_work(measured_ops)
            ops, cases = OpNumbers.of(with_work), tuple(sorted({case for entry in own for case in entry.by_case}))
            position = {case: i for i, case in enumerate(cases)}
            found = [(row, position[case], m) for row, entry in enumerate(own) for case, m in entry.by_case.items()]
            points = points_of(found, self._assumed(measured_ops, with_work, own[0].machine, cases, prior))
            parameters = before.parameters if before else known.parameters
            if tune:
                placed, start = case_features(own[0].machine, cases), before.parameters if before else None
                parameters = tuned(points, ops, placed, assumed=known.parameters, start=start, seed=self.seed)
            keys = tuple(entry.op.key for entry in own)
            machines[fingerprint] = KnownOps(ops, keys, cases, points, parameters, prior, features)
        self._machines = machines
        return self

    def to_register(self) -> JointProcess:
        """One with the shipped prior for machines of which few ops are known, unless this one has a prior."""
        prior = self._chosen_prior or True
        return JointProcess(samples=self.samples, enough=self.enough, prior=prior, seed=self.seed)

    def fit_key(self) -> Hashable | None:
        """What is learned depends on the seed and the prior."""
        return None if self._machines else (self.name, self.seed, self.prior)

    def as_fitted(self, fitted: PerformanceModel) -> JointProcess:
        """A copy with what `fitted` has learned."""
        assert isinstance(fitted, JointProcess)
        found = copy(self)
        found._machines = fitted._machines
        return found

    def following(self, measurements: Sequence[Measurement], machine: Machine, *, tune: bool) -> JointProcess:
        """A process without a prior, after `learn`: it learns nothing of one machine from others."""
        without = JointProcess(samples=self.samples, enough=self.enough, seed=self.seed) if self._chosen_prior else self
        return without.learn([m for m in measurements if m.machine.fingerprint == machine.fingerprint], tune=tune)

    def adapts_to(self, machine: Machine) -> bool:
        """Whether nothing was learned of the machine."""
        return machine.fingerprint not in self._machines

    def adapted(self, measurements: Sequence[Measurement]) -> JointProcess:
        """A copy that has also learned what was measured on machines of which this one has learned nothing."""
        new = [measured for measured in measurements if self.adapts_to(measured.machine)]
        learned = copy(self)
        learned._machines = {}
        try:
            learned.learn(new, tune=True)
        except ModelError:  # too few measurements
            return self
        learned._machines = self._machines | learned._machines
        return learned

    def propose_among(
        self, op: Op, observed: Sequence[Measurement], machine: Machine, cases: Sequence[Case]
    ) -> Case | None:
        """The one of `cases` that lowers the expected regret of a choice among them most; None once that is
        `enough`."""
        if len(by_case(observed)) >= self.samples:
            return None
        (found,) = self._outlooks([op], [observed], tuple(cases), machine)
        if found.ask is None or (observed and found.expected_regret <= self.enough):
            return None
        return cases[found.ask]

    def distributions(
        self, ops: Sequence[Op], observed: Sequence[Sequence[Measurement]], machine: Machine
    ) -> Iterator[tuple[Floats, Floats]]:
        """For each op log seconds (n_cases,) at the machine's cases, and their covariance (n_cases, n_cases)."""
        for found in self._posteriors(ops, observed, machine.cases(), machine):
            yield found.logs, found.scaled()

    def outlooks(
        self, ops: Sequence[Op], observed: Sequence[Sequence[Measurement]], machine: Machine, *, widened: float = 1.0
    ) -> list[Outlook]:
        """What choosing among the machine's cases may cost each op, and which case to measure next."""
        return list(self._outlooks(ops, observed, machine.cases(), machine, widened))

    def _outlooks(
        self, ops: Sequence[Op], observed: Sequence[Sequence[Measurement]], cases: tuple[Case, ...], machine: Machine,
        widened: float = 1.0,
    ) -> Iterator[Outlook]:  # fmt: skip
        for row, found in enumerate(self._posteriors(ops, observed, cases, machine)):
            measured_at = by_case(observed[row])
            complete = len(measured_at) >= self.samples
            allowed = np.array([not complete and case not in measured_at for case in cases])
            yield outlook(
                found.logs, widened**2 * found.scaled(), allowed, NOISE, freedom=found.freedom, seed=self.seed
            )

    def predict_many(
        self, ops: Sequence[Op], observed: Sequence[Sequence[Measurement]], cases: Sequence[Case], *, machine: Machine
    ) -> CurveTable:
        """The curves of many ops, one row each; ModelError where a time cannot be real."""
        self.check_batch(ops, observed)

        def forecast(rows: Sequence[int], known: Sequence[Mapping[Case, Measurement]]) -> CurveTable:
            return self._curves([ops[row] for row in rows], [[*of_op.values()] for of_op in known], cases, machine)

        return measured_or_forecast(observed, cases, self.name, forecast)

    def _curves(
        self, ops: Sequence[Op], observed: Sequence[Sequence[Measurement]], cases: Sequence[Case], machine: Machine
    ) -> CurveTable:
        """Forecasts, also where something was measured."""
        learned = self._known(machine)
        seconds, low, high = np.ones((3, len(ops), len(cases)))
        table = forecast_table(cases, seconds, low, high, self.name)
        with one_blas_thread() if len(ops) >= MANY else nullcontext():
            posteriors = self._posteriors(ops, observed, table.cases, machine)
            for row, (op, own, found) in enumerate(zip(ops, observed, posteriors, strict=True)):
                away = from_nearest(cases, [measured.case for measured in own]) if learned.prior else 0.0
                source = Source.LEARNED if own else learned.source(op)
                beyond = 0.0 if own else learned.beyond(op)
                spread = NORMAL_95 * np.sqrt(np.diag(found.covariance) + (AWAY * away) ** 2 + (BEYOND * beyond) ** 2)
                spread *= UNSEEN if learned.prior and not (own or learned.keys) else 1.0
                table.seconds[row] = np.exp(found.logs)
                table.low[row], table.high[row] = np.exp(found.logs - spread), np.exp(found.logs + spread)
                table.source[row] = list(Source).index(source)
        return table

    def _known(self, machine: Machine) -> KnownOps:
        """What was learned of the machine."""
        prior = bool(self._chosen_prior)
        return self._machines.get(machine.fingerprint) or KnownOps.none(self._parameters(prior), prior)

    def _posteriors(
        self, ops: Sequence[Op], observed: Sequence[Sequence[Measurement]], cases: tuple[Case, ...], machine: Machine
    ) -> Iterator[Posterior]:
        """What is known of each op: log seconds (n_cases,) and their covariance. All covariances together would take
        hundreds of megabytes for thousands of ops."""
        known = self._known(machine)
        measured = [by_case(of_op) for of_op in observed]
        for op, measured_at in zip(ops, measured, strict=True):
            if not (known.keys or measured_at or has_tensors_or_work(op)):
                raise ModelError(f"{op.key} has no tensors, FLOPs or bytes, and nothing was measured: no forecast")
        for known_measurement in chain.from_iterable(measured_at.values() for measured_at in measured):
            refuse_defect(known_measurement)
        every = tuple(sorted({*cases, *known.cases, *(case for measured_at in measured for case in measured_at)}))
        position = {case: i for i, case in enumerate(every)}
        alike = AlikeCases.of(known.parameters.case_lengths, case_features(machine, every))
        known = known.placed(position)
        asked = np.array([position[case] for case in cases])
        own_row = {key: row for row, key in enumerate(known.keys)}
        with_work = known.with_work(ops)
        numbers, assumed = OpNumbers.of(with_work), self._assumed(ops, with_work, machine, every, known.prior)
        for i, (op, measured_at) in enumerate(zip(ops, measured, strict=True)):
            own = points_of([(0, position[case], m) for case, m in measured_at.items()], assumed[i : i + 1])
            without = own_row.get(op.key, -1)
            found = known.posterior(numbers.some(slice(i, i + 1)), own, alike, asked, without=without)
            yield found._replace(logs=found.logs + assumed[i, asked])

    @property
    def prior(self) -> Prior | None:
        """What times are assumed to be before anything is measured; the shipped prior is read at first use."""
        if isinstance(self._chosen_prior, Prior):
            return self._chosen_prior
        return shipped() if self._chosen_prior else None

    def _parameters(self, prior: bool) -> Parameters:
        """Those that are assumed before anything is measured, by the prior or without."""
        return Parameters.assumed(self.prior.transfer if prior and self.prior else None)

    def _assumed(
        self, ops: Sequence[Op], with_work: Sequence[Op], machine: Machine, cases: Sequence[Case], prior: bool
    ) -> Floats:
        """(n_ops, n_cases) log seconds before anything is measured, of ops and of what `KnownOps.with_work` made of
        them; without the prior but for a factor that all share.

        The prior knows nothing of work that follows from sizes: such ops have one curve, times their work.
        """
        found: Floats
        if prior and self.prior:
            found = self.prior.log_seconds(ops, machine, cases)
            if made := [i for i, (op, sized) in enumerate(zip(ops, with_work, strict=True)) if op is not sized]:
                found[made] += np.log(UNIT_S * work([with_work[i] for i in made]))[:, None]
            return found
        threads = np.array([case.threads for case in cases], dtype=np.float64)
        found = np.log(np.outer(UNIT_S * work(with_work), SERIAL + (1 - SERIAL) / threads) + CALL_S)
        return found

    def to_files(self) -> dict[str, bytes]:
        """The options, and what was measured on each machine."""
        document = {
            "schema": SCHEMA, "samples": self.samples, "enough": self.enough, "seed": self.seed,
            "prior": self.prior is not None,
            "machines": {
                name: {
                    "cases": [[case.threads, case.affinity] for case in known.cases], "keys": known.keys,
                    "kinds": known.ops.kinds.tolist(), "prior": known.prior, "features": known.features.to_json(),
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
            has_prior = member(document, "prior", bool)
            loaded = JointProcess(
                samples=member(document, "samples", int), enough=float(document["enough"]),
                prior=has_prior and Prior.from_files(files), seed=member(document, "seed", int),
            )  # fmt: skip
            arrays = read_npz(files, "machines.npz")
            for i, (name, described) in enumerate(member(document, "machines", dict).items()):
                own = {key.removeprefix(f"{i}."): array for key, array in arrays.items() if key.startswith(f"{i}.")}
                if "features" not in described and not own["described"].any(axis=1).all():
                    continue  # stored before sizes were learned: to be learned anew
                loaded._machines[name] = read_known(described, own, loaded._parameters)
        self.__dict__.update(loaded.__dict__)
        return self
