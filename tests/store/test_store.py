from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import event

from tests.store.strategies import measurements
from threadcast.core import Case, Edge, Machine, Measurement, Op, OpGraph, Sample
from threadcast.core.errors import InvalidInput, NotFound, StoreError
from threadcast.store import Store
from threadcast.store.paging import MeasurementFilter
from threadcast.store.store import Counts

Measure = Callable[..., Measurement]


def test_everything_measured_comes_back_equal_and_in_order(store_url: Path | str, measure: Measure) -> None:
    added = [measure(3), measure(1), measure(2, threads=4), measure(1)]
    with Store.open(store_url) as store:
        assert store.add(added) == 4
    with Store.open(store_url) as store:
        read = store.measurements()
    assert read == added
    assert [m.op.key for m in read] == [m.op.key for m in added]
    assert [m.op.outputs for m in read] == [m.op.outputs for m in added]
    assert [m.op.flops for m in read] == [m.op.flops for m in added]


def test_a_machine_of_tables_has_the_cases_of_all_of_them(store_url: Path | str) -> None:
    whole = Machine.uniform("m", 8)
    with Store.open(store_url) as store:
        for only in ((Case(1), Case(8)), (Case(2),), (Case(2), Case(8))):
            machine = replace(whole, only=only)
            store.add([Measurement(Op("a"), machine, case, (Sample(1.0),)) for case in only])
        assert [machine.cases() for machine in store.machines()] == [(Case(1), Case(2), Case(8))]
        assert not store.check()
    assert len(whole.cases()) == 8


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(measurements(), max_size=5))
def test_any_measurement_survives_the_store(tmp_path_factory: pytest.TempPathFactory, added: list[Measurement]) -> None:
    with Store.open(tmp_path_factory.mktemp("store") / "s.sqlite") as store:
        store.add(added)
        assert store.measurements() == added


def test_a_counter_that_only_some_samples_have_is_none_in_the_others(store_url: Path | str, machine: Machine) -> None:
    ragged = Measurement(Op("relu"), machine, Case(1), (Sample(1.0, {"cycles": 5.0}), Sample(2.0)))
    with Store.open(store_url) as store:
        store.add([ragged])
        assert [s.counters for s in store.measurements()[0].samples] == [{"cycles": 5.0}, {"cycles": None}]


def test_measurements_are_narrowed_by_machine_key_kind_and_network(store_url: Path | str, measure: Measure) -> None:
    other = Machine.uniform("other", 4)
    here, there = [measure(i) for i in (1, 2)], [measure(i, on=other) for i in (1, 3)]
    relu = measure(4, kind="relu")
    with Store.open(store_url) as store:
        store.add([*here, *there, relu])
        store.add_graph("tiny", OpGraph(("a", "b"), (here[1].op, relu.op)))
        assert store.measurements(machine=other.fingerprint) == there
        assert store.measurements(keys=[here[0].op.key]) == [here[0], there[0]]
        assert store.measurements(keys={here[0].op.key}, machine=other.fingerprint) == [there[0]]
        assert store.measurements(kinds=["relu"]) == [relu]
        assert store.measurements(network="tiny") == [here[1], relu]
        assert store.measurements(network="tiny", kinds=["mm"]) == [here[1]]
        assert store.measurements(keys=[]) == store.measurements(machine="unknown") == []
        assert store.machines() == [here[0].machine, other]
        assert store.ops(kinds=["relu"]) == store.ops(network="tiny", kinds=["relu"]) == [relu.op]
        assert store.ops() == [here[0].op, here[1].op, there[1].op, relu.op]


@pytest.mark.parametrize("few", [0, 20_000])
def test_pages_go_on_where_the_one_before_ended_also_when_more_is_stored_meanwhile(
    store_url: Path | str, measure: Measure, monkeypatch: pytest.MonkeyPatch, few: int
) -> None:
    monkeypatch.setattr("threadcast.store.paging.FEW", few)
    other = Machine.uniform("other", 4)
    here = [measure(1 + i % 3, kind="relu" if i % 2 else "mm") for i in range(12)]
    there = [measure(1 + i % 3, on=other) for i in range(7)]
    mixed = [m for pair in zip(here, there, strict=False) for m in pair] + here[7:]
    with Store.open(store_url) as store:
        store.add(mixed)
        store.add_graph("net", OpGraph(("a", "b"), (measure(1).op, measure(2).op)))
        key, relu, net = measure(1).op.key, ["relu"], {measure(i).op.key for i in (1, 2)}
        for which, expected in (
            (MeasurementFilter(), mixed),
            (MeasurementFilter(machine=other.fingerprint), there),
            (MeasurementFilter(op=key), [m for m in mixed if m.op.key == key]),
            (MeasurementFilter(other.fingerprint, key), [m for m in there if m.op.key == key]),
            (MeasurementFilter(kind="relu"), [m for m in mixed if m.op.kind in relu]),
            (MeasurementFilter(network="net"), [m for m in mixed if m.op.key in net]),
            (MeasurementFilter(other.fingerprint, kind="mm", network="net"), [m for m in there if m.op.key in net]),
            (MeasurementFilter(kind="conv"), []),
            (MeasurementFilter("unknown"), []),
            (MeasurementFilter(op="unknown"), []),
        ):
            after, found = 0, []
            while after is not None:
                total, page, after = store.page(which, after=after, limit=3)
                assert total == len(expected)
                assert len(page) == 3 or after is None
                found += page
            assert found == expected
        after = store.page(MeasurementFilter(), limit=18)[2]
        assert after is not None
        store.add([measure(9)])
        assert store.page(MeasurementFilter(), after=after, limit=18) == (20, [*mixed[18:], measure(9)], None)


@pytest.mark.parametrize("few", [0, 20_000])
def test_pages_and_curves_read_no_more_than_an_index_gives_them(
    store_path: Path, measure: Measure, monkeypatch: pytest.MonkeyPatch, few: int
) -> None:
    monkeypatch.setattr("threadcast.store.paging.FEW", few)
    plans: list[str] = []

    def explain(connection: Any, _cursor: object, statement: str, parameters: Any, *_rest: object) -> None:
        if "FROM measurements" in statement:
            raw = connection.connection.driver_connection
            plans.append("; ".join(row[3] for row in raw.execute(f"EXPLAIN QUERY PLAN {statement}", parameters)))

    with Store.open(store_path) as store:
        store.add([measure(1 + i % 5) for i in range(40)])
        event.listen(store._database._engine, "before_cursor_execute", explain)
        machine, op = measure().machine.fingerprint, measure().op.key
        for which, index in (
            (MeasurementFilter(), "PRIMARY KEY"),
            (MeasurementFilter(machine), "ix_measurements_machine"),
            (MeasurementFilter(machine, op), "ix_measurements_op"),
            (MeasurementFilter(op=op), "ix_measurements_op" if few else "PRIMARY KEY"),
            (MeasurementFilter(kind="mm"), "ix_measurements_op" if few else "PRIMARY KEY"),
        ):
            store.page(which, after=3, limit=5)
            assert index in plans[-1], which
        store.measurements(machine=machine, keys=[op])
        store.last_measurement()
        assert len(plans) == 7
        assert not [plan for plan in plans if "SCAN measurements" in plan]


def test_a_batch_with_a_key_is_added_once(store_url: Path | str, measure: Measure) -> None:
    with Store.open(store_url) as store:
        assert store.add([measure(1), measure(2)], idempotency_key="k") == 2
        assert store.add([measure(1), measure(2)], idempotency_key="k") == 0
        assert store.add([measure(1)], idempotency_key="other") == 1
        assert store.counts() == Counts(machines=1, ops=2, measurements=3, samples=9, graphs=0)


def test_a_batch_that_fails_leaves_its_key_free(store_url: Path | str, measure: Measure, machine: Machine) -> None:
    unstorable = Measurement(Op("mm"), machine, Case(1), (Sample(1.0),), {"bad": object()})
    with Store.open(store_url) as store:
        with pytest.raises(InvalidInput, match="object"):
            store.add([measure(), unstorable], idempotency_key="k")
        assert store.counts() == Counts(0, 0, 0, 0, 0)
        assert store.add([measure()], idempotency_key="k") == 1


def test_a_graph_comes_back_and_says_which_ops_are_in_it(store_url: Path | str, measure: Measure) -> None:
    a, b, c = (measure(i).op for i in (1, 2, 3))
    graph = OpGraph(("x", "y", "z"), (a, b, a), (Edge(0, 1), Edge(1, 2, True)), {"x": {1: 0.5, 2: 0.3}})
    with Store.open(store_url) as store:
        store.add_graph("net", graph)
        store.add_graph("other", OpGraph(("q",), (b,)))
        assert store.graph("net").to_json() == graph.to_json()
        assert store.graphs() == ["net", "other"]
        assert store.networks_of() == {a.key: {"net"}, b.key: {"net", "other"}}
        store.add_graph("net", OpGraph(("only",), (c,)))
        assert store.networks_of() == {c.key: {"net"}, b.key: {"other"}}
        assert store.counts().graphs == 2
        with pytest.raises(NotFound, match=r"'absent'.*net, other"):
            store.graph("absent")


def test_a_closed_store_says_so(store_url: Path | str) -> None:
    store = Store.open(store_url)
    store.close()
    store.close()
    with pytest.raises(StoreError, match="closed"):
        store.measurements()
