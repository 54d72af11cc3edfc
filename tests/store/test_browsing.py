"""What pages ask of a store: summaries that follow the measurements, sorted, filtered and in parts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from threadcast.core import (
    Case,
    Machine,
    Measurement,
    Op,
    OpGraph,
    Placement,
    Plan,
    Sample,
    TensorSpec,
    Trace,
)
from threadcast.store import Store
from threadcast.store.browsing import SORTS, OpFilter, OpLine, Position
from threadcast.store.holding import what_holds

Measure = Callable[..., Measurement]


@pytest.fixture
def store(store_path: Path) -> Iterator[Store]:
    with Store.open(store_path) as opened:
        yield opened


def timed(op: Op, machine: Machine, threads: int, *seconds: float, **conditions: object) -> Measurement:
    return Measurement(op, machine, Case(threads), tuple(map(Sample, seconds)), conditions)


MM = Op("mm", (TensorSpec((8, 3)), TensorSpec((3, 8))))


def test_a_later_measurement_changes_the_line_also_for_the_worse(store: Store, machine: Machine) -> None:
    store.add([timed(MM, machine, 1, 1.0), timed(MM, machine, 2, 0.5)])
    store.add([timed(MM, machine, 2, 3.5)])
    line = store.browse.lines_of(MM.key)[machine.fingerprint]
    assert (line.best, line.best_s, line.samples) == (Case(1), 1.0, 3)


def test_measurements_with_a_cold_cache_count_only_where_there_are_no_others(store: Store, machine: Machine) -> None:
    store.add([timed(MM, machine, 1, 9.0, cache="cold"), timed(MM, machine, 2, 8.0, cache="cold")])
    store.add([timed(MM, machine, 1, 1.0, cache="rotated"), timed(MM, machine, 1, 0.1, cache="warm")])
    line = store.browse.lines_of(MM.key)[machine.fingerprint]
    assert (line.best, line.best_s, line.all_threads) == (Case(1), 1.0, 8.0)


@pytest.mark.parametrize("sort", SORTS)
@pytest.mark.parametrize("descending", [True, False])
def test_pages_put_together_are_all_ops_in_order(
    store: Store, measure: Measure, machine: Machine, sort: str, descending: bool
) -> None:
    store.add([measure(i, kind="relu" if i % 3 else "mm") for i in range(1, 24)])
    which = OpFilter(machine.fingerprint)

    def page(at: Position | None = None) -> tuple[list[OpLine], int]:
        return store.browse.ops(which, sort=sort, descending=descending, at=at, limit=5)

    pages = [page()]
    while pages[-1][0]:
        pages.append(page(Position(pages[-1][0][-1].key)))
    assert [len(found) for found, _ in pages] == [5, 5, 5, 5, 3, 0]
    for earlier, later in pairwise(pages[:-1]):
        assert page(Position(later[0][0].key, before=True)) == earlier
    assert page(Position(before=True))[0] == [*pages[3][0][3:], *pages[4][0]]
    assert page(Position("unknown")) == page(Position("unknown", before=True)) == pages[0]
    lines = [line for page, _ in pages for line in page]
    values = [getattr(line, sort) for line in lines]
    assert {total for _, total in pages} == {23}
    assert len({line.key for line in lines}) == 23
    assert values == sorted(values, reverse=descending)


def test_ops_are_narrowed_by_words_kind_network_and_machine(store: Store, measure: Measure, machine: Machine) -> None:
    other = Machine.uniform("other", 2)
    added = [measure(1), measure(2, kind="relu"), measure(34), measure(5, on=other)]
    store.add(added)
    store.add_graph("net", OpGraph(("a", "b"), (added[1].op, added[2].op)))

    def keys(**which: str) -> set[str]:
        lines, total = store.browse.ops(OpFilter(**{"machine": machine.fingerprint, **which}))
        assert total == len(lines)
        return {line.key for line in lines}

    assert keys() == {m.op.key for m in added[:3]}
    assert keys(machine=other.fingerprint) == {added[3].op.key}
    assert keys(kind="relu") == {added[1].op.key}
    assert keys(network="net") == {added[1].op.key, added[2].op.key}
    assert keys(text="MM 8x34") == {added[2].op.key}
    assert keys(text="8x34", kind="relu") == set()
    assert keys(text=added[0].op.key[-6:]) == {added[0].op.key}
    assert keys(machine="unknown") == set()


@pytest.mark.parametrize("text", ["%", "_", "\\", "'", "8x3%"])
def test_signs_that_sql_gives_a_meaning_are_looked_for_as_they_are(store: Store, machine: Machine, text: str) -> None:
    store.add([timed(MM, machine, 1, 1.0)])
    assert store.browse.ops(OpFilter(machine.fingerprint, text=text)) == ([], 0)


def test_figures_of_machines_kinds_and_networks(store: Store, measure: Measure, machine: Machine) -> None:
    store.add([measure(1), measure(2), measure(3, kind="relu")])
    store.add_graph("net", OpGraph(("a", "b", "c"), (measure(1).op, measure(1).op, measure(3, kind="relu").op)))
    assert store.browse.ops_by_machine() == {machine.fingerprint: (3, 3, 9)}
    assert {line.kind: line.ops for line in store.browse.kinds(machine.fingerprint)} == {"mm": 2, "relu": 1}
    assert store.browse.networks() == [("net", 2)]
    assert store.browse.networks_with(measure(1).op.key) == ["net"]


def test_the_last_run_of_a_graph_on_a_machine_is_kept_with_plan_and_trace(store: Store, machine: Machine) -> None:
    placed = Placement("a", (0,), 1, 0.0, 1.0)
    plan, trace = Plan(8, "fifo", (placed,), 0.5), Trace(8, "fifo", (replace(placed, finish_s=2.0),))
    store.add_run("net", machine, plan=plan, trace=trace, time="2026-01-01T00:00:00+00:00")
    store.add_run("net", machine, plan=plan, trace=replace(trace, steps=3), time="2026-01-02T00:00:00+00:00")
    store.add_run("other", machine, plan=plan, trace=trace, time="2026-01-03T00:00:00+00:00")
    run = store.browse.last_run("net", machine.fingerprint)
    assert run is not None
    assert (run.plan, run.trace, run.time) == (plan, replace(trace, steps=3), "2026-01-02T00:00:00+00:00")
    assert store.browse.last_run("net", "elsewhere") is None


OLD, AHEAD = {"time": "2020-01-01T00:00:00+00:00"}, {"time": "2999-01-01T00:00:00+00:00"}


@pytest.mark.parametrize(
    ("first", "then", "holds_s"), [({}, OLD, 1e-3), (OLD, {}, 5e-3), (AHEAD, {}, 5e-3), ({}, AHEAD, 5e-3)]
)
def test_pages_date_measurements_as_forecasts_do(
    store_url: Path | str, machine: Machine, first: dict[str, str], then: dict[str, str], holds_s: float
) -> None:
    def measured(seconds: float, conditions: dict[str, str]) -> Measurement:
        return Measurement(Op("mm"), machine, Case(1), (Sample(seconds),) * 3, conditions)

    with Store.open(store_url) as store:
        store.add([measured(1e-3, first)] * 4)
        store.add([measured(5e-3, then)] * 4)
        [held] = what_holds(store.measurements()).values()
        assert held.seconds == store.browse.lines_of(Op("mm").key)[machine.fingerprint].best_s == holds_s
