"""Plans follow from what steps have shown of ops, here or in a store; looks are proposed where they are worth it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from threadcast.core import Case, CurveTable, Edge, Machine, Op, OpGraph, Source, TensorSpec
from threadcast.core.settings import Settings
from threadcast.runtime.plans import step_forecasts
from threadcast.runtime.plans.forecasting_planner import ForecastingPlanner
from threadcast.runtime.plans.service_feedback import add_rows
from threadcast.runtime.plans.step_forecasts import Question, answered, is_there
from threadcast.runtime.plans.step_rows import IN_STEP, measurements
from threadcast.scheduler.problem.engine_costs import NATIVE_ENGINE
from threadcast.store import Store

MACHINE = Machine.uniform("sixteen cores", 16)
ALL = Case(16)


def product(rows: int) -> Op:
    spec = TensorSpec((rows, rows), "float32")
    return Op("mm", (spec, spec), outputs=(spec,))


def chain(*sizes: int) -> OpGraph:
    ids = tuple(f"op{i}" for i in range(len(sizes)))
    return OpGraph(ids, tuple(map(product, sizes)), tuple(Edge(i, i + 1) for i in range(len(sizes) - 1)))


def seconds(op: Op, case: Case) -> float:
    """Amdahl's law with a cost for each thread: large products gain by threads, small ones lose."""
    return op.flops * 1e-10 * (0.02 + 0.98 / case.threads) + 2e-6 * case.threads


def question(graph: OpGraph, cases: Sequence[Case] = (), **more: object) -> Question:
    observed = {op.key: {case: [seconds(op, case)] * 2 for case in cases} for op in graph.ops} if cases else {}
    return replace(Question(graph, MACHINE, NATIVE_ENGINE, observed, options={"budget_s": 0.1}), **more)  # type: ignore[arg-type]


def test_where_nothing_is_known_there_is_neither_plan_nor_look() -> None:
    answer = answered(question(chain(64, 512)))
    assert (answer.plan, answer.curves, answer.pessimistic_s, answer.look) == (None,) * 4


def test_given_curves_are_planned_as_they_are() -> None:
    graph, cases = chain(64, 512), (Case(1), Case(2))
    times = np.array([[1e-3, 2e-3], [4e-3, 2e-3]])
    measured = np.full(times.shape, list(Source).index(Source.MEASURED), dtype=np.int8)
    curves = CurveTable(cases, times, times * 0.9, times * 1.2, measured, "in-step")
    answer = answered(question(graph, curves=curves, machine=MACHINE))
    assert answer.plan is not None
    assert answer.pessimistic_s is not None
    assert answer.plan.makespan_s == pytest.approx(3e-3, rel=0.01)
    assert [placed.threads for placed in sorted(answer.plan.ops, key=lambda placed: placed.start_s)] == [1, 2]
    assert answer.plan.makespan_s <= answer.pessimistic_s <= 1.3 * answer.plan.makespan_s


def test_looks_are_at_other_thread_counts_and_end_once_they_are_worth_nothing() -> None:
    graph = chain(32, 64, 128, 256, 512, 1024)
    cases: list[dict[str, Case]] = [dict.fromkeys((op.key for op in graph.ops), ALL)]
    observed = {op.key: {ALL: [seconds(op, ALL)] * 2} for op in graph.ops}
    for _ in range(8):
        answer = answered(question(graph, observed=observed, looks=True))
        if answer.look is None:
            break
        assert len(answer.look) == len(graph)
        assert set(answer.look) <= set(MACHINE.cases())
        asked = {op.key: case for op, case in zip(graph.ops, answer.look, strict=True)}
        assert asked not in cases, "a look shows something new"
        cases.append(asked)
        for op, case in zip(graph.ops, answer.look, strict=True):
            observed[op.key][case] = [seconds(op, case)] * 2
    assert answer.plan is not None
    assert len(cases) > 1
    best_s = sum(min(seconds(op, case) for case in MACHINE.cases()) for op in graph.ops)
    chosen = {placed.id: Case(placed.threads) for placed in answer.plan.ops}
    taken_s = sum(seconds(op, chosen[op_id]) for op_id, op in zip(graph.ids, graph.ops, strict=True))
    all_cores_s = sum(seconds(op, ALL) for op in graph.ops)
    assert taken_s < best_s + 0.25 * (all_cores_s - best_s)


def test_what_is_stored_makes_plans_of_other_graphs(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path / 'known.db'}"
    known = chain(64, 128, 256, 512, 1024)
    asked = question(known, (Case(1), Case(4), ALL), store=store)
    assert not is_there(store)
    rows = [row for op in known.ops for row in measurements(op, MACHINE, asked.observed[op.key])]
    add_rows(rows, store, Settings.read())
    assert is_there(store)
    with Store.open(store) as opened:
        found = opened.measurements(machine=MACHINE.fingerprint)
    assert {measured.conditions["cache"] for measured in found} == {IN_STEP}
    assert len(found) == 15
    answer = answered(question(chain(96, 384, 768), store=store))
    assert answer.plan is not None
    assert answer.curves is not None
    for row, op in enumerate(chain(96, 384, 768).ops):
        for column, case in enumerate(answer.curves.cases):
            if case.threads in (1, 4, 16):
                assert answer.curves.seconds[row, column] == pytest.approx(seconds(op, case), rel=1.0)


def test_of_a_large_store_the_graphs_own_ops_and_the_last_ones_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, sizes = f"sqlite:///{tmp_path / 'large.db'}", (64, *range(65, 105))
    graph = chain(*sizes)
    other = Machine.uniform("another machine", 16)
    for machine in (MACHINE, other):
        rows = [row for op in graph.ops for row in measurements(op, machine, {ALL: [seconds(op, ALL)] * 2})]
        add_rows(rows, store, Settings.read())
    monkeypatch.setattr(step_forecasts, "RECENT", 10)
    read = [measured.op for measured in step_forecasts._known(question(chain(64, 103), store=store))]
    assert read == [product(64), product(103), *(product(rows) for rows in (*range(95, 103), 104))]


def test_a_store_that_cannot_be_read_counts_as_none(tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.db"
    damaged.write_bytes(b"no database" * 100)
    assert answered(question(chain(64, 512), store=f"sqlite:///{damaged}")).plan is None


def test_the_process_answers_as_the_function_does(tmp_path: Path) -> None:
    asked = question(chain(64, 512), (Case(1), ALL), store=f"sqlite:///{tmp_path / 'known.db'}")
    with closing(ForecastingPlanner()) as process:
        process.ask_forecast(asked)
        found, wanted = process.forecast(60.0), answered(asked)
        assert found is not None
        assert found.plan == wanted.plan
        assert found.pessimistic_s == wanted.pessimistic_s
        assert found.curves is not None
        assert wanted.curves is not None
        np.testing.assert_array_equal(found.curves.seconds, wanted.curves.seconds)
        process.ask_forecast(replace(asked, looks=True, observed=question(asked.graph, (ALL,)).observed))
        assert process.forecast(60.0) is not None
