"""The figures of the benchmark of compiled programs."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture(scope="module")
def compiled() -> Iterator[Any]:
    """The benchmark's module."""
    before = set(sys.modules)
    sys.path.insert(0, str(BENCHMARKS))
    try:
        yield importlib.import_module("engine")
    finally:
        sys.path.remove(str(BENCHMARKS))
        for name in set(sys.modules) - before:
            if (getattr(sys.modules[name], "__file__", None) or "").startswith(str(BENCHMARKS)):
                sys.modules.pop(name)


def record(compiled: Any, title: str, **turns_s: list[float]) -> Any:
    facts = compiled.RunFacts("1234567", "2026-01-01T00:00:00+00:00", "2 cores", "2.13.0")
    return compiled.Record(title, facts, turns_s, {"backend": ["plan", "plan", "default"]}, None, {}, 0.02)


def test_ratios_are_medians_of_neighbouring_turns(compiled: Any) -> None:
    found = record(compiled, "U-Net, training", eager=[4.0, 9.0, 8.0], backend=[2.0, 3.0, 8.0], optimize=[])
    assert found.ratio("eager", "backend") == 2.0
    assert found.ratio("backend", "optimize") is None
    assert found.ratio("inductor", "backend") is None


def test_a_row_names_each_runner_once_and_leaves_out_what_failed(compiled: Any) -> None:
    row = compiled.program_row(record(compiled, "U-Net, training", eager=[0.002] * 3, backend=[0.001] * 3))
    assert row.keys() == {*compiled.COMPILED.columns, "run"}
    assert (row["program"], row["mode"], row["runs"], row["others_percent"]) == (
        "U-Net",
        "training",
        "plan, default",
        2,
    )
    assert (row["eager_ms"], row["backend_ms"], row["inductor_ms"]) == (2.0, 1.0, None)
    assert (row["eager_over_backend"], row["inductor_over_backend"]) == (2.0, None)


def test_what_is_shown_counts_the_rows_that_are_as_asked(compiled: Any) -> None:
    ways = {"eager": [2.0] * 3, "inductor": [4.0] * 3, "optimize": [1.0] * 3}
    found = [
        record(compiled, "ResNet-18, training", **ways, backend=[1.1] * 3),
        record(compiled, "U-Net, training", **ways, backend=[2.2] * 3),
    ]
    rows = [{name: str(value) for name, value in compiled.program_row(one).items()} for one in found]
    shown = compiled.COMPILED.show(rows)
    assert "training: 1 of 2 within 1.15 of *optimize*; 1 below 0.97 of eager's speed" in shown
    assert "geometric mean 1.29 over eager PyTorch, 2.57 over Inductor." in shown
    assert compiled.Record.from_json(json.loads(json.dumps(asdict(found[0])))) == found[0]


def test_the_width_of_vectors_is_read_from_what_the_machine_is_called(compiled: Any) -> None:
    facts = compiled.RunFacts("1234567", "2026-01-01T00:00:00+00:00", "2 cores with AVX2 (Zen 3)", "2.13.0")
    assert compiled.vectors_of(facts) == "AVX2"


def test_every_case_has_a_title_of_its_own(compiled: Any) -> None:
    titles = [case.title for case in compiled.COMPILED_CASES]
    assert len(titles) == len(set(titles))
    assert len({title.split(", ")[0] for title in titles}) == 12
