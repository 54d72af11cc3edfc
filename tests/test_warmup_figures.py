"""The figures of the warm-up benchmark: what is done after some seconds, how soon, and how far behind eager PyTorch."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
MODULES = ("warmup_others", "warmup_turns", "warmup_figures", "warmup_scripts")

Rows = Callable[..., list[dict[str, Any]]]


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
def record(benchmark: dict[str, ModuleType]) -> Callable[..., Any]:
    """Makes a record of calls beside eager calls of one second."""

    def make(ours_s: Sequence[float], title: str = "Net, training", **options: Any) -> Any:
        known = {"part": "zoo", "way": "optimize", "process": "first"} | options
        return benchmark["warmup_turns"].Record(
            title=title, run="commit 1234567, 2026-01-01, 2 cores", ours_s=ours_s, eager_s=[1.0] * len(ours_s), **known
        )

    return make


@pytest.fixture
def rows(benchmark: dict[str, ModuleType]) -> Rows:
    """The rows of records."""

    def of(*records: Any) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = benchmark["warmup_figures"].rows(records, {})
        return found

    return of


def test_what_is_done_counts_in_seconds_of_eager_calls(rows: Rows, record: Callable[..., Any]) -> None:
    (row,) = rows(record([6.0, *[0.5] * 60]))
    assert row["done_5"] == 0.0  # the first call takes 6 s
    assert row["done_10"] == 0.9  # and 8 more
    assert row["done_30"] == 49 / 30
    assert row["done_60"] is None  # calls ended before
    assert row["behind_10_s"] == 0.5  # 10 calls end after 10.5 s
    assert row["behind_30_s"] == -9.5
    assert row["worst_lag_s"] == 5.0
    assert row["within"] is False
    compiles, ended = rows(record([], until_s=30.0), record([1.0]))
    assert [compiles[f"done_{at}"] for at in (5, 30, 60)] == [0.0, 0.0, None]
    assert (ended["done_5"], ended["settled"], compiles["within"]) == (None, None, None)


def test_behind_by_three_seconds_and_five_percent_is_within(rows: Rows, record: Callable[..., Any]) -> None:
    assert rows(record([1.0, 3.9, *[1.05] * 100]))[0]["within"]
    assert not rows(record([1.0, 4.1, *[1.05] * 100]))[0]["within"]
    assert rows(record([9.0], way="inductor"))[0]["within"] is None  # a promise of threadcast's


def test_speed_is_reached_where_windows_of_the_best_process_say_so(rows: Rows, record: Callable[..., Any]) -> None:
    first, second = rows(record([*[1.0] * 20, *[0.5] * 60]), record([0.5] * 40, process="second"))
    assert (first["settled"], first["to_95_s"], first["of_best"]) == (2.0, 20.0, 1.0)
    assert second["to_95_s"] == 0.0
    slow, _ = rows(record([1.0] * 40), record([0.5] * 40, process="second"))
    assert (slow["settled"], slow["to_95_s"], slow["of_best"]) == (1.0, None, 0.5)


def test_a_function_beside_another_is_compared_with_itself_alone(rows: Rows, record: Callable[..., Any]) -> None:
    alone = record([0.5] * 40, "A, training", part="pairs")
    beside = record([0.8] * 40, "A, training beside B, inference", part="pairs")
    row = rows(alone, beside)[1]
    assert (row["name"], row["mode"], row["beside"]) == ("A", "training", "B, inference")
    assert row["over_alone"] == pytest.approx(0.625)


def test_one_disturbed_block_of_eager_calls_does_not_count(benchmark: dict[str, ModuleType]) -> None:
    eager_of_calls = benchmark["warmup_turns"].eager_of_calls
    assert eager_of_calls([[1.0], [1.0], [9.0], [1.0], [1.0], [1.0]], [1, 1, 2, 1, 1]) == [1.0] * 6
    assert eager_of_calls([[2.0, 4.0]], [3]) == [3.0] * 3  # the calls ended before another eager block


def test_records_are_read_back_and_shown(
    rows: Rows, record: Callable[..., Any], benchmark: dict[str, ModuleType]
) -> None:
    whole = [
        record([0.5] * 80),
        record([0.5] * 80, process="second"),
        record([0.4] * 80, "Net, inference", process="learned"),
        record([0.5] * 80, "Net, inference"),
        record([30.5, *[0.25] * 40], "Net, inference", way="inductor"),
        record([30.5, *[0.4] * 40], "Net, inference", way="inductor, channels last"),
        record([], "Net, training", way="inductor", failed="longer than 240 s"),
        record([], "Other, training", failed="ended with 1"),
        record([1.0] * 40, "VAE, training", part="scripts", way="backend"),
        record([0.5] * 40, "A, training", part="pairs"),
        record([0.8] * 40, "A, training beside B, inference", part="pairs"),
        record([1.0] * 40, "50 sequence lengths (inference)", part="shapes"),
    ]
    read = [type(one).from_json(json.loads(json.dumps(one.to_json()))) for one in whole]
    assert read == whole
    study, stored = importlib.import_module("figures.steps").WARMUP, importlib.import_module("figures.study").stored
    found = rows(*read)
    assert {frozenset(row) for row in found} == {frozenset({*study.columns, "run"})}
    shown = study.show([{name: stored(value) for name, value in row.items()} for row in found])
    assert shown.startswith("Other programs used 0 % of the cores meanwhile (median; most 0 %).")
    assert "- inference, 1 models: 1 within, worst lag 0.0 s; 95 % of settled speed reached by 0." in shown
    assert "- inference, 1 models after 8 s of `learn`: " in shown
    assert "- training, 2 models: 1 within, worst lag 0.0 s; 95 % of settled speed reached by 1 after 0.0 s" in shown
    assert "- training, failed: Other." in shown
    assert (
        "| inference, first process: threadcast | 2.00 | 2.00 (1 of 1; 1 of 1) |" in shown
    )  # ahead of eager, Inductor
    assert "| Inductor | 4.00 | 0.00 | 0.00 | 0.00 | - | - |" in shown
    assert "0 of 1 reach 0.97" in shown
    assert "| VAE | - | 1000 | 0.00 |" in shown


def test_scripts_have_one_line_and_a_path_each(benchmark: dict[str, ModuleType]) -> None:
    scripts = benchmark["warmup_scripts"]
    assert len({script.title for script in scripts.SCRIPTS}) == 10
    for script in scripts.SCRIPTS:
        assert script.repository in scripts.REPOSITORIES
        for how in scripts.HOW.values():
            assert "compile(" in script.line.format(how=how)
            assert "\n" not in script.line
