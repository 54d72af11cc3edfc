"""Stored measurements that no longer hold are made again, and a campaign checks what its choices cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.collector.test_campaign import FOUR, Scripted, graph_of, watch_of
from threadcast.collector.campaign import Campaign
from threadcast.collector.campaign_checks import DRIFT, CheckedRegret, drift_factor, holding, probes
from threadcast.collector.counters.op_counters import OpCounters
from threadcast.collector.proposers import EveryCase
from threadcast.collector.simulated.source import SimulatedXeonPhi
from threadcast.core import Case, Measurement, Op, OpGraph, Sample, TensorSpec
from threadcast.core.measurement_time import REPLACES
from threadcast.models.following import FollowedModel
from threadcast.models.joint_process import JointProcess
from threadcast.models.measured import by_case
from threadcast.store import Store
from threadcast.store.holding import op_courses
from threadcast.store.machine_changes import MachineChanges

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)
OP = Op("mm", (TensorSpec((8, 8)),))


def measured(*, hours_old: float | None, seconds: float = 1.0, case: Case | None = None, op: Op = OP, **conditions):
    if hours_old is not None:
        conditions["time"] = (NOW - timedelta(hours=hours_old)).isoformat()
    return Measurement(op, FOUR, case or FOUR.cases()[0], (Sample(seconds),), conditions)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "store.db") as opened:
        yield opened


def campaign(measurer: Scripted, store: Store, **options) -> Campaign:
    options = {"proposer": EveryCase(), "now": lambda: NOW, **options}
    return Campaign(measurer, options.pop("proposer"), store, **options)


def first(store: Store, *, hours_old: float, sides=(2, 3, 4, 5)) -> OpGraph:
    """Stores every case of some ops, made so long ago."""
    graph = graph_of(*sides)
    campaign(Scripted(), store).run(graph)
    old = [
        replace(m, conditions={**m.conditions, "time": (NOW - timedelta(hours=hours_old)).isoformat()})
        for m in store.measurements()
    ]
    with Store.open(Path(store.name.removeprefix("sqlite:///")).with_name("dated.db")) as dated:
        dated.add(old)
    return graph


@pytest.fixture
def dated(store: Store, tmp_path: Path):
    """The store that `first` wrote."""
    return lambda: Store.open(tmp_path / "dated.db")


def test_measurements_of_a_certain_age_are_made_again(store, dated):
    graph = first(store, hours_old=100.0)
    with dated() as old:
        report = campaign(Scripted(), old, max_age_days=5.0).run(graph)
        assert (report.reused, report.drift) == (13, 1.0)  # 4 ops at 4 cases, of which three are probes
        report = campaign(Scripted(), old, max_age_days=4.0).run(graph)
        assert (report.reused, report.drift) == (3, None)  # those probes are new


def test_where_times_have_changed_everything_is_made_again_and_stays_so(store, dated):
    graph, cases = first(store, hours_old=2.0), len(FOUR.cases())
    slow = Scripted(seconds=lambda op, case: 3 * op.inputs[0].shape[0] / case.threads)
    with dated() as old:
        report = campaign(slow, old).run(graph)
        assert report.drift == pytest.approx(3.0)
        assert (report.measured, report.reused) == (4 * cases, 0)
        assert all(len(known) == cases for known in report.observed.values())
        assert min(m.seconds for m in report.observed[graph.ops[0].key]) == pytest.approx(3 * 2 / 4)
        later = campaign(slow, old).run(graph)  # what was declared void is not used again
        assert (later.measured, later.drift) == (0, None)
        assert [m.seconds for m in later.observed[graph.ops[0].key]] == pytest.approx([6.0, 3.0, 2.0, 1.5])


@pytest.mark.parametrize("probed", [1, 2, 3])
def test_a_campaign_that_was_stopped_while_it_looked_for_changes_finds_them_when_it_goes_on(store, dated, probed):
    graph = first(store, hours_old=100.0)

    class Slow(Scripted):
        now = NOW

        @contextmanager
        def at(self, case):
            with super().at(case) as measure:
                dated = {"cache": "warm", "time": self.now.isoformat()}
                yield lambda op, goal: replace(measure(op, goal), conditions=dated)

    slow = Slow(seconds=lambda op, case: 3 * op.inputs[0].shape[0] / case.threads)
    with dated() as old:

        def stop(progress) -> None:
            if progress.done == probed:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            campaign(slow, old, on_progress=stop).run(graph)
        slow.now = NOW + timedelta(minutes=1)
        later = campaign(slow, old, now=lambda: slow.now).run(graph)
    for key, found in later.observed.items():
        side = later.observed[key][0].op.inputs[0].shape[0]
        assert {m.case: m.seconds for m in found} == pytest.approx({c: 3 * side / c.threads for c in FOUR.cases()})


def test_a_time_to_come_hides_no_change(store, dated):
    graph = first(store, hours_old=100.0)
    slow = Scripted(seconds=lambda op, case: 3 * op.inputs[0].shape[0] / case.threads)
    with dated() as old:
        old.add([replace(old.measurements()[0], conditions={"time": (datetime.now(UTC) + timedelta(400)).isoformat()})])
        assert campaign(slow, old).run(graph).drift == pytest.approx(3.0)


def test_a_campaign_that_goes_on_soon_makes_nothing_again(store, dated):
    graph = first(store, hours_old=0.5)
    with dated() as recent:
        report = campaign(Scripted(), recent).run(graph)
    assert (report.measured, report.drift) == (0, None)


def test_times_on_a_busy_machine_are_no_change_of_it(store, dated):
    graph, measurer = first(store, hours_old=2.0), Scripted(seconds=lambda op, case: 3 * op.inputs[0].shape[0])
    with dated() as old:
        report = campaign(measurer, old, watch=watch_of(measurer, lambda at_s: 0.5)).run(graph)
    assert report.drift is None


def test_what_holds_is_the_newest_of_each_case_that_is_neither_too_old_nor_void():
    old, new = measured(hours_old=50), measured(hours_old=1, seconds=2.0)
    unknown = measured(hours_old=None, case=FOUR.cases()[1])
    assert holding([old, unknown, new], now=NOW, max_age_days=None) == [unknown, new]
    assert holding([old, unknown], now=NOW, max_age_days=2.0) == [unknown]
    void = measured(hours_old=0, case=FOUR.cases()[2], **{REPLACES: (NOW - timedelta(hours=1.5)).isoformat()})
    other = measured(hours_old=2, case=FOUR.cases()[3])
    assert holding([other, new, void], now=NOW, max_age_days=None) == [new, void]
    assert by_case([other, new, void]) == {new.case: new, void.case: void}
    assert by_case([old, new])[old.case].samples == (*old.samples, *new.samples)


def test_cases_that_were_not_measured_since_the_op_or_the_machine_changed_are_measured_again():
    old = [measured(hours_old=50, case=case) for case in FOUR.cases()]
    new = [measured(hours_old=hours, seconds=3.0) for hours in (3, 2, 1)]
    assert holding([*old, *new[:1]], now=NOW, max_age_days=None) == [*old[1:], new[0]]
    assert holding([*old, *new], now=NOW, max_age_days=None) == [new[-1]]
    others = [replace(OP, inputs=(TensorSpec((side,)),)) for side in range(3)]
    changes = MachineChanges({
        op.key: (op.kind, op_courses([replace(m, op=op) for m in (*old[:1], *new)])) for op in others
    })  # fmt: skip
    assert holding(old, now=NOW, max_age_days=None, elsewhere=changes) == []
    since = [measured(hours_old=0.5, case=case) for case in FOUR.cases()]
    assert holding([*old, *since], now=NOW, max_age_days=None, elsewhere=changes) == since


def test_probes_are_of_the_longest_ops_and_none_where_something_is_new():
    ops = [replace(OP, inputs=(TensorSpec((side, side)),)) for side in (2, 3, 4, 5)]
    known = {op.key: [measured(hours_old=2 + i, seconds=float(i + 1), op=op)] for i, op in enumerate(ops)}
    assert [m.seconds for m in probes(known, now=NOW)] == [4.0, 3.0, 2.0]
    new = {name: [measured(hours_old=0.9)] for name in "wxyz"}
    few = {name: new[name] for name in "xyz"}
    assert [m.seconds for m in probes({**known, **few}, now=NOW)] == [4.0, 3.0, 2.0]
    assert probes({**known, **new}, now=NOW) == []
    assert probes({"x": new["x"]}, now=NOW) == []
    assert [m.seconds for m in probes({**known, "x": [measured(hours_old=-5)]}, now=NOW)] == [4.0, 3.0, 2.0]
    assert probes({"x": [measured(hours_old=None)]}, now=NOW) == []
    pairs = [(measured(hours_old=1), measured(hours_old=0, seconds=s)) for s in (0.5, 0.25, 1.0)]
    assert drift_factor(pairs) == pytest.approx(2.0)
    assert DRIFT < 2.0
    assert drift_factor([]) == 1.0


def test_choices_are_checked_against_more_measured_cases(store):
    phi = SimulatedXeonPhi(samples=3, count=False)
    graph = OpGraph(
        tuple("abcdefgh"),
        tuple(
            Op("add", (TensorSpec((n,)), TensorSpec((n,))), outputs=(TensorSpec((n,)),))
            for n in range(10**4, 8 * 10**5, 10**5)
        ),
    )
    options = {"clock": lambda: 0.0, "now": lambda: NOW}
    report = Campaign(phi, FollowedModel(JointProcess()), store, check=4, **options).run(graph)
    assert report.checked is not None
    assert report.checked.ops == 4
    assert report.checked.mean >= 0
    assert set(Counter((m.op.key, m.case) for m in store.measurements()).values()) == {1}
    again = Campaign(phi, FollowedModel(JointProcess()), store, check=4, **options).run(graph)
    assert (again.measured, again.checked) == (0, None)
    with Store.open(Path(store.name.removeprefix("sqlite:///")).with_name("yesterday.db")) as yesterday:
        time = (NOW - timedelta(days=1)).isoformat()
        yesterday.add([replace(m, conditions={**m.conditions, "time": time}) for m in store.measurements()])
        later = Campaign(phi, FollowedModel(JointProcess()), yesterday, check=4, **options).run(graph)
    assert (later.measured, later.checked) == (3, None)  # three are made again, and nothing else was to be measured


def test_a_checked_regret_is_over_the_best_measured_case():
    cases = FOUR.cases()
    observed = {"a": [measured(hours_old=0, seconds=s, case=c) for s, c in zip((3.0, 2.0), cases)], "b": []}
    found = CheckedRegret.of({"a": cases[0], "b": cases[0]}, observed)
    assert found == CheckedRegret(1, 0.5)
    assert CheckedRegret.of({"b": cases[0]}, observed) is None


def test_a_newer_measurement_without_counters_does_not_hide_one_that_has_them(store):
    class Wanting(OpCounters):
        def lacking(self, measurement: Measurement) -> frozenset[str]:
            return frozenset() if measurement.samples[0].counters else frozenset({"instructions"})

    cases, op = FOUR.cases(), graph_of(2).ops[0]
    for counters in ({"instructions": 1.0}, {}):
        store.add([Measurement(op, FOUR, case, (Sample(1.0, counters),), {"cache": "warm"}) for case in cases])
    report = campaign(Scripted(), store, counters=Wanting()).run(graph_of(2))
    assert (report.measured, report.reused) == (0, len(cases))
