"""Campaigns that follow a model: what is measured next, when it is enough, and what comes of it when simulated."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from threadcast.collector.campaign import Campaign
from threadcast.collector.proposers import Choice
from threadcast.collector.rounds import RegretRounds
from threadcast.collector.simulated.source import SimulatedXeonPhi
from threadcast.core import Case, Machine, Measurement, Op, OpGraph, Sample, TensorSpec
from threadcast.core.errors import InvalidInput
from threadcast.models.choosing import interval_covariance, outlook
from threadcast.models.following import UNKNOWN_REGRET, FollowedModel
from threadcast.models.hill_climb import HillClimb
from threadcast.models.joint_process import JointProcess
from threadcast.models.learned_curve import LearnedCurve
from threadcast.store import Store

PHI = SimulatedXeonPhi(samples=5, count=False)
CASES = PHI.machine.cases()


def product(rows: int, inner: int, columns: int) -> Op:
    left, right = TensorSpec((rows, inner)), TensorSpec((inner, columns))
    return Op("mm", (left, right), outputs=(TensorSpec((rows, columns)),))


def addition(numel: int) -> Op:
    return Op("add", (TensorSpec((numel,)), TensorSpec((numel,))), outputs=(TensorSpec((numel,)),))


OPS = [
    *(product(*sides) for sides in np.random.default_rng(0).integers(32, 1024, (14, 3)).tolist()),
    *(addition(int(numel)) for numel in np.geomspace(1e3, 1e7, 8)),
]
GRAPH = OpGraph(tuple(f"op{i}" for i in range(len(OPS))), tuple(OPS))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "store.db") as opened:
        yield opened


def follow(proposer: object, store: Store, *, enough: float = 0.02, **more: object) -> Campaign:
    """A campaign whose clock stands still: nothing depends on how long learning takes."""
    more = {"clock": lambda: 0.0, **more}
    return Campaign(PHI, proposer, store, enough=enough, **more)  # type: ignore[arg-type]


def stored(store: Store) -> Counter[tuple[str, Case]]:
    return Counter((found.op.key, found.case) for found in store.measurements())


def true_regret(op: Op, chosen: Case) -> float:
    times = {case: PHI.model.seconds(op, case) for case in CASES}
    return times[chosen] / min(times.values()) - 1


def test_few_cases_of_a_many_core_machine_are_measured_and_choices_are_good(store):
    report = follow(FollowedModel(JointProcess()), store).run(GRAPH)
    regrets = [true_regret(op, report.choices[op.key].case) for op in OPS]
    assert report.measured <= 0.15 * len(OPS) * len(CASES)
    assert np.mean(regrets) < 0.03
    assert report.expected is not None
    assert report.expected.larger <= 0.02
    assert set(stored(store)) == {(m.op.key, m.case) for found in report.observed.values() for m in found}
    assert set(stored(store).values()) == {1}
    assert all(report.observed[op.key] for op in OPS)


def test_what_a_campaign_learned_helps_the_next_network(store):
    """In sum over both halves of a network, each after the other one."""
    first = follow(FollowedModel(JointProcess()), store).run(GRAPH)
    alone = helped = 0
    for part in (0, 1):
        half = OpGraph(GRAPH.ids[part::2], GRAPH.ops[part::2])
        known = [m for op in GRAPH.ops[1 - part :: 2] for m in first.observed[op.key]]
        for learned in ([], known):
            with Store.open(store_path(store) / f"{part}{len(learned)}.db") as other:
                measured = follow(FollowedModel(JointProcess(), learned), other).run(half).measured
            alone, helped = (alone, helped + measured) if learned else (alone + measured, helped)
    assert helped < alone, (helped, alone)


def store_path(store: Store) -> Path:
    return Path(store.name.removeprefix("sqlite:///")).parent


@pytest.mark.parametrize("model", [HillClimb(), LearnedCurve(samples=2, trees=5)], ids=lambda model: model.name)
def test_any_model_is_followed_to_its_last_proposal(store, model):
    small = OpGraph(GRAPH.ids[:6], GRAPH.ops[:6])
    report = follow(FollowedModel(model), store, enough=0.0001).run(small)
    assert all(len(found) >= 1 for found in report.observed.values())
    assert set(report.choices) == {op.key for op in small.ops}
    assert set(stored(store).values()) == {1}


def test_a_model_that_cannot_forecast_yet_is_asked_what_to_measure():
    [choice] = FollowedModel(LearnedCurve()).choices([OPS[0]], [[]], PHI.machine)
    assert choice.expected_regret == UNKNOWN_REGRET
    assert choice.next_case in CASES


def test_a_certain_forecast_has_no_regret_and_an_uncertain_one_asks_where_it_may_be_wrong():
    logs, allowed = np.log([2.0, 1.0, 1.02, 3.0]), np.array([True, True, True, True])
    assert outlook(logs, 1e-12 * np.eye(4), allowed, 1e-4).expected_regret < 1e-4
    doubtful = outlook(logs, np.diag([1e-6, 1e-6, 0.04, 1e-6]), allowed, 1e-4)
    assert (doubtful.best, doubtful.ask) == (1, 2)
    assert doubtful.expected_regret > 0.01
    level = outlook(logs, np.full((4, 4), 0.5) + 1e-9 * np.eye(4), allowed, 1e-4)  # all cases off by the same factor
    assert level.expected_regret < 1e-3
    nothing = outlook(logs, np.eye(4), np.zeros(4, dtype=bool), 1e-4)
    assert nothing.ask is None


def test_intervals_become_a_covariance_with_their_widths():
    cases = [Case(1), Case(2), Case(64)]
    left = interval_covariance(np.full(3, 0.5), np.full(3, 2.0), cases)
    assert np.sqrt(np.diag(left)) == pytest.approx(np.log(4) / 2 / 1.645)
    assert left[0, 1] > left[0, 2] > 0


class Scripted:
    """Has these regrets, whatever is measured; an op of regret 0 asks for nothing."""

    def __init__(self, regrets: Sequence[float], seconds: Sequence[float]) -> None:
        self.regrets, self.seconds = regrets, seconds

    def propose(self, op: Op, observed: Sequence[Measurement], machine: Machine) -> Case | None:
        raise AssertionError("choices say what is measured next")

    def choices(self, ops: Sequence[Op], observed: Sequence[Sequence[Measurement]], machine: Machine) -> list[Choice]:
        return [
            Choice(CASES[0], seconds, regret, CASES[len(known)] if regret else None)
            for known, seconds, regret in zip(observed, self.seconds, self.regrets, strict=True)
        ]

    def learn(self, measurements: Sequence[Measurement], *, tune: bool) -> None:
        pass


def asked(
    regrets: Sequence[float], seconds: Sequence[float], *, enough: float = 0.02, measured: bool = True
) -> list[int]:
    ops = {op.key: op for op in OPS[: len(regrets)]}
    known = [Measurement(OPS[0], PHI.machine, CASES[0], (Sample(1.0),))] if measured else []
    rounds = RegretRounds(Scripted(regrets, seconds), enough=enough, clock=lambda: 0.0)
    found = rounds.next(ops, dict.fromkeys(ops, 1), dict.fromkeys(ops, known), PHI.machine)
    return [list(ops).index(key) for key in found]


def test_the_largest_regret_times_weight_is_measured_first():
    assert asked([0.1, 0.2, 0.1], [1.0, 1.0, 100.0]) == [2]
    assert asked([0.1, 0.3, 0.1], [1.0, 1.0, 1.0]) == [1]


def test_an_op_that_is_good_enough_is_left_alone_and_the_end_comes_when_the_step_is():
    assert asked([0.01, 0.5, 0.0], [100.0, 1.0, 1.0]) == [1]
    assert asked([0.019, 0.02, 0.0], [1.0, 1.0, 1.0]) == []
    assert asked([0.5, 0.5], [1.0, 1.0], enough=0.5) == []


def test_every_op_is_measured_once_whatever_the_forecast_says():
    assert asked([0.001, 0.002, 0.001], [1.0, 1.0, 1.0], measured=False) == [1]


@pytest.mark.parametrize(
    "options", [{"samples": 0}, {"samples": 1.5}, {"enough": -1}, {"enough": float("nan")}, {"prior": "some"}]
)
def test_impossible_options_are_refused(options):
    with pytest.raises(InvalidInput, match="must be"):
        JointProcess(**options)


def test_a_table_with_few_cases_is_proposed_from_alone() -> None:
    few = CASES[::9]
    model = JointProcess(samples=4, enough=0.0).fit([PHI(op, case) for op in OPS[5:] for case in few])
    observed: list[Measurement] = []
    while (case := model.propose_among(OPS[0], observed, PHI.machine, few)) is not None:
        assert case in few
        observed.append(PHI(OPS[0], case))
    assert len({m.case for m in observed}) == 4
