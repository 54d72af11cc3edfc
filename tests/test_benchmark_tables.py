"""Benchmarks import what there is; a table names its run; a row that was measured again keeps its earlier values."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import math
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.mark.parametrize("path", sorted(BENCHMARKS.glob("*.py")), ids=lambda path: path.name)
def test_a_benchmark_imports_only_names_that_exist(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("threadcast"):
            module = importlib.import_module(node.module)
            for name in (alias.name for alias in node.names if not hasattr(module, alias.name)):
                importlib.import_module(f"{node.module}.{name}")


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    for name in ("run_facts", "server_attacks", "server_kinds", "servers"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return importlib.import_module("servers")


def test_readings_differ_where_the_next_request_begins_elsewhere(servers: ModuleType) -> None:
    reading = servers.Reading
    found = {
        "a": [
            reading(True, (b"q", b"hidden")),
            reading(True, (b"q",)),
            reading(True, (b"", b"hidden")),
            reading(False),
        ],
        "b": [
            reading(True, (b"", b"hidden")),
            reading(True, (b"qGET",)),
            reading(True, (b"",)),
            reading(True, (b"q",)),
        ],
    }
    assert servers.differ("a", found) == (2, {"b": 2})
    assert servers.differ("b", found) == (2, {"a": 2})
    assert (servers.lost("a", found), servers.lost("b", found)) == (0, 1)


def test_what_must_be_refused_is_what_servers_may_read_in_two_ways(servers: ModuleType) -> None:
    attacks = sys.modules["server_attacks"]
    for odd in attacks.odd_requests(5000):
        head = odd.sent.partition(b"POST")[2].partition(b"q")[0]
        twice = b"\nContent-Length: 3, 3" in head or b"Content-Length: 3\r\nContent-Length: 3\r" in head
        coded = b"ransfer-Encoding" in head
        if coded and b"\nContent-Length: " in head and b"X: a\r" not in head:
            assert odd.ambiguous
        if not coded and twice and b"\r\r\n" not in head:
            assert not odd.ambiguous, odd


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    for name in ("run_facts", "engine"):
        spec = importlib.util.spec_from_file_location(name, BENCHMARKS / f"{name}.py")
        monkeypatch.setitem(sys.modules, name, importlib.util.module_from_spec(spec))
        spec.loader.exec_module(sys.modules[name])
    return sys.modules["engine"]


def row(run: Any, *, case: str, ours_s: float, then_s: float) -> dict[str, Any]:
    return {
        "case": case, "mode": "training", "run": run, "usual_s": 2.0, "best_eager": "eager, 2 threads",
        "best_eager_s": 2.0, "compiled": None, "compiled_s": math.nan, "ours_s": ours_s, "predicted_s": 1.0,
        "then_s": then_s, "runs": "plan", "layout": "as given", "direct": math.nan, "memory": 1.0, "spread": 0.1,
    }  # fmt: skip


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_both_values_are_shown_and_means_are_of_the_first(engine: ModuleType) -> None:
    first = engine.RunFacts("1111111", "2026-01-01T00:00:00+00:00", "2 cores of a machine", "2.13.0")
    later = replace(first, commit="2222222+", started="2026-01-02T00:00:00+00:00")
    rows = [
        row(first, case="a", ours_s=1.0, then_s=1.5),
        row(later, case="a", ours_s=0.5, then_s=1.0),
        row(first, case="b", ours_s=1.0, then_s=0.9),
    ]
    *_, one, again, other, mean = engine.table(rows).splitlines()
    assert [cells(line)[0] for line in (one, again, other)] == ["a", "a [2]", "b"]
    assert [cells(line)[12] for line in (one, again, other)] == ["50%", "0%", "10%"]  # sizes of errors, without sign
    assert (cells(mean)[8], cells(mean)[12]) == ("2.00", "30%")
    runs = engine.Runs(r["run"] for r in rows)
    assert str(runs) == "commit 1111111, 2026-01-01, 2 cores of a machine, PyTorch 2.13.0"
    assert "- [2]: measured later; commit 2222222+, 2026-01-02" in runs.legend()


def test_a_table_of_one_run_has_no_marks(engine: ModuleType) -> None:
    run = engine.RunFacts.now()
    runs = engine.Runs([run, engine.RunFacts.from_json(run.to_json())])
    assert (runs.mark(run), runs.legend()) == ("", "")
    assert run.commit
    assert " cores of " in str(runs)


def test_recorded_slowdowns_are_forecast_better_than_by_none_and_by_the_mean(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    corun = importlib.import_module("corun")
    try:
        lines = [[float(cell.rstrip(" %")) for cell in cells(line)] for line in corun.judged(list(corun.recorded()), 4)]
    finally:
        for name in ("corun", "paper_networks", "run_facts"):
            sys.modules.pop(name, None)
    for measured, _, of_forecast, of_none, of_mean, inside, _ in lines:
        assert inside >= 86
        if 0 < measured <= 4:
            assert of_forecast < min(of_none, of_mean)


def test_a_section_on_speed_takes_the_place_of_the_earlier_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    with_speed = importlib.import_module("model_speed").with_speed
    once = with_speed("# Models\n\n## Sgemm\n", "## Speed\n\n1 s\n")
    assert once == "# Models\n\n## Sgemm\n\n## Speed\n\n1 s\n"
    assert with_speed(once, "## Speed\n\n2 s\n") == "# Models\n\n## Sgemm\n\n## Speed\n\n2 s\n"
