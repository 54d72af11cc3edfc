"""Figures of cases, to which measurements are added one by one."""

from __future__ import annotations

import math
import statistics
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import event, select

from threadcast.core import Case, Machine, Measurement, Op, Sample
from threadcast.store import Store, schema
from threadcast.store.case_figures import MOST_NEWEST, NEAR, UNSAID, CaseFigures

seconds = st.floats(1e-9, 1e3)
added = st.lists(
    st.tuples(st.lists(seconds, min_size=1, max_size=9), st.floats(0, 2e9) | st.just(math.nan), st.integers(0, 2)),
    min_size=1, max_size=30,
)  # fmt: skip


def figures_of(parts: list[tuple[list[float], float, int]]) -> CaseFigures:
    found = CaseFigures()
    for samples, time_s, unlike in parts:
        found.add(samples, time_s=time_s, unlikeness=unlike)
    return found


@given(added)
def test_the_median_is_that_of_the_newest_samples_with_caches_most_as_in_a_step(
    parts: list[tuple[list[float], float, int]],
) -> None:
    found = figures_of(parts)
    least = min(unlike for _, _, unlike in parts)
    alike = [(-1.0 if math.isnan(time_s) else time_s, s) for samples, time_s, u in parts if u == least for s in samples]
    newest = [s for _, s in sorted(alike, key=lambda sample: sample[0])[-MOST_NEWEST:]]
    every, last = statistics.median(newest), statistics.median(newest[-3:])
    if every < NEAR * last and last < NEAR * every:
        assert found.median_s == every
    else:  # some may be from before a change
        assert min(newest) <= found.median_s <= max(newest)
    assert (found.measurements, found.samples) == (len(parts), sum(len(samples) for samples, _, _ in parts))
    assert found.oldest_s == min((t for _, t, _ in parts if not math.isnan(t)), default=None)


@pytest.mark.parametrize("factor", [3.0, 1 / 3])
def test_what_was_measured_before_a_change_is_not_in_the_median(factor: float) -> None:
    before = [([1.0] * 3, float(day), 1) for day in range(5)]
    assert figures_of([*before, ([factor] * 3, 9.0, 1)]).median_s == factor
    assert figures_of([*before, *[([factor], 9.0 + i, 1) for i in range(3)]]).median_s == factor
    assert figures_of([*before, ([factor], 9.0, 1)]).median_s == 1.0
    assert figures_of([*before, *[([factor], math.nan, 1)] * 3]).median_s == 1.0  # undated: before all others


def test_a_measurement_that_was_made_earlier_does_not_displace_newer_ones() -> None:
    late, early = [2.0] * MOST_NEWEST, [1.0] * MOST_NEWEST
    assert figures_of([(late, 20.0, 1), (early, 10.0, 1)]).median_s == 2.0
    assert figures_of([(late, 20.0, 1), (early, math.nan, 1)]).median_s == 2.0
    assert figures_of([(early, 10.0, 1), (late, 20.0, 1)]).median_s == 2.0


def test_what_says_nothing_of_its_caches_goes_with_the_newest_samples_whatever_they_are() -> None:
    for rank in (0, 1, 2):
        said, unsaid = ([1.0], 5.0, rank), ([1.1], 6.0, UNSAID)
        for parts in ([said, unsaid], [unsaid, said]):
            assert (figures_of(parts).median_s, figures_of(parts).unlikeness) == (1.05, rank)
    slower = [([3.0], 9.0 + i, UNSAID) for i in range(3)]
    assert figures_of([*[([1.0] * 3, float(day), 0) for day in range(5)], *slower]).median_s == 3.0
    assert figures_of([([1.0], 5.0, 0), ([9.0], 6.0, 1), ([1.1], 7.0, UNSAID)]).median_s == 1.05
    assert figures_of([([9.0], 6.0, 1), ([1.0], 5.0, 0)]).median_s == 1.0


def test_adding_reads_and_writes_as_much_however_much_is_stored(store_url: Path | str, machine: Machine) -> None:
    op = Op("mm")
    statements: list[str] = []

    def note(_c: object, _cursor: object, statement: str, *_rest: object) -> None:
        statements.append(statement)

    def new() -> list[Measurement]:
        return [Measurement(op, machine, Case(n), (Sample(1.0 / n),)) for n in (1, 2, 8)]

    with Store.open(store_url) as store:
        store.add(new() * 50)
        event.listen(store._database._engine, "before_cursor_execute", note)
        store.add(new())
        few = list(statements)
        store.add(new() * 300)
        statements.clear()
        store.add(new())
        assert statements == few
        assert not [text for text in statements if "FROM measurements" in text]
        with store._database.read() as connection:
            longest = max(map(len, connection.execute(select(schema.cases.c.newest)).scalars()))
        assert longest == MOST_NEWEST * 16
        line = store.browse.lines_of(op.key)[machine.fingerprint]
        assert (line.samples, line.best, line.best_s) == (3 * 352, Case(8), 0.125)


def test_no_table_is_scanned_to_add_measurements(store_path: Path, machine: Machine) -> None:
    plans: list[str] = []

    def explain(connection: Any, _cursor: object, statement: str, parameters: Any, context: Any, many: bool) -> None:
        if statement.lstrip().startswith(("SELECT", "WITH", "UPDATE")):
            raw = connection.connection.driver_connection
            first = parameters[0] if many else parameters
            plans.extend(row[3] for row in raw.execute(f"EXPLAIN QUERY PLAN {statement}", first))

    with Store.open(store_path) as store:
        added = [Measurement(Op(f"op{i}"), machine, Case(n), (Sample(1.0),)) for i in range(5) for n in (1, 2)]
        store.add(added)
        event.listen(store._database._engine, "before_cursor_execute", explain)
        store.add(added)
    tables = [table.name for table in schema.metadata.sorted_tables]
    assert {f"SEARCH {name}" for name in ("cases", "summaries")} <= {" ".join(plan.split()[:2]) for plan in plans}
    assert not [plan for plan in plans if plan.startswith("SCAN") and plan.split()[1] in tables]
