"""The figures of the warm-up benchmark: how far calls were behind eager PyTorch, until when, and when it settled."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
MODULES = ("run_facts", "warmup_others", "warmup_turns", "warmup_figures", "warmup_page")


@pytest.fixture(scope="module")
def benchmark() -> Iterator[dict[str, ModuleType]]:
    """The benchmark's modules by name."""
    sys.path.insert(0, str(BENCHMARKS))
    try:
        yield {name: importlib.import_module(name) for name in MODULES}
    finally:
        sys.path.remove(str(BENCHMARKS))
        for name in MODULES:
            sys.modules.pop(name)


@pytest.fixture
def record(benchmark: dict[str, ModuleType]) -> Any:
    """Makes a record of blocks of calls, beside eager steps of one second."""
    turns = benchmark["warmup_turns"]
    facts = benchmark["run_facts"].RunFacts("1234567", "2026-01-01T00:00:00+00:00", "2 cores", "2.13.0")

    def make(*blocks: Sequence[float], changes: Sequence[tuple[int, str]] = ((1, "plan"),)) -> Any:
        found = [turns.Block([1.0, 1.0], list(block)) for block in blocks]
        return turns.Record("Net", "cold", facts, found, [1.0], list(changes), [], [], 0.0)

    return make


def test_break_even_is_the_call_after_the_last_one_behind(benchmark: dict[str, ModuleType], record: Any) -> None:
    found = benchmark["warmup_figures"].figures(record([4.0, 0.5, 0.5], [0.5] * 7))
    assert found.worst_lag_s == 3.0
    assert found.worst_lag_share == 3.0
    assert (found.break_even_call, found.break_even_s) == (7, 7.0)  # 7 calls of eager take 7 s as well
    assert found.end_lag_s == -1.5
    assert found.longest_call_s == 4.0
    assert not found.within


def test_calls_that_never_catch_up_do_not_break_even(benchmark: dict[str, ModuleType], record: Any) -> None:
    found = benchmark["warmup_figures"].figures(record([2.5, 1.0], [1.0, 1.0]))
    assert found.break_even_call is None
    assert found.break_even_s is None
    assert found.within  # 1.5 s behind


def test_being_behind_by_less_than_five_percent_is_within(benchmark: dict[str, ModuleType], record: Any) -> None:
    assert benchmark["warmup_figures"].figures(record([1.049] * 100)).within
    assert not benchmark["warmup_figures"].figures(record([1.051] * 100)).within


def test_it_has_settled_after_the_last_report_that_was_measuring(benchmark: dict[str, ModuleType], record: Any) -> None:
    figures = benchmark["warmup_figures"].figures
    changes = [(1, "measuring"), (2, "plan"), (4, "measuring"), (5, "plan")]
    found = figures(record([1.0] * 3, [1.0] * 3, changes=changes))
    assert (found.settled_call, found.settled_s, found.runs) == (5, 5.0, "plan")
    assert figures(record([1.0] * 6, changes=changes[:3])).settled_call is None
    assert figures(record([1.0], changes=[(1, "plan"), (3, "default")])).settled_call == 1


def test_settled_speed_is_of_steps_after_settling(benchmark: dict[str, ModuleType], record: Any) -> None:
    found = benchmark["warmup_figures"].figures(
        record([2.0, 2.0], [2.0, 2.0], [0.5, 0.5], changes=[(1, "measuring"), (5, "plan")])
    )
    assert (found.step_s, found.ratio) == (0.5, 2.0)


def test_one_disturbed_block_of_eager_steps_does_not_count(benchmark: dict[str, ModuleType], record: Any) -> None:
    turns, figures = benchmark["warmup_turns"], benchmark["warmup_figures"]
    whole = record(*[[1.0]] * 5)
    whole.blocks[2] = turns.Block([9.0], [1.0])
    assert figures.eager_times(whole).tolist() == [1.0] * 5


def test_a_record_is_read_back_and_its_row_names_every_column(benchmark: dict[str, ModuleType], record: Any) -> None:
    whole = record([2.0, 0.25, 0.25, 0.25, 0.25])
    read = benchmark["warmup_turns"].Record.from_json(json.loads(json.dumps(whole.to_json())))
    assert read == whole
    page = benchmark["warmup_page"]
    row = page.row(read, "training")
    study = importlib.import_module("figures.steps").WARMUP
    assert row.keys() == {*study.columns, "run"}
    assert (row["break_even_calls"], row["worst_lag_s"], row["calls"], row["within"]) == (3, 1.0, 5, True)
    stored = importlib.import_module("figures.study").stored
    shown = study.show([{name: stored(value) for name, value in row.items()}])
    assert "- cold: 1 of 1 within, 1 of 1 early, 1 broke even, 1 settled; worst lag 1.0 s" in shown
