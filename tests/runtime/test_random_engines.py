"""Random engines are of both kinds, with one lane and several; the Python engine takes what the native one refuses."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tests.runtime import random_engines as module
from tests.runtime.random_engines import RandomEngines, random_engines
from threadcast.capture.graph.capture import capture_forward
from threadcast.core.errors import ExecutionError
from threadcast.runtime.engine.python_engine import PythonEngine


@pytest.fixture
def engines() -> Iterator[RandomEngines]:
    with random_engines(2, native=True) as found:
        yield found


def test_one_engine_has_one_lane_and_the_other_several(engines: RandomEngines) -> None:
    names = {tuple(engine.name for engine in engines.both(seed)) for seed in range(4)}
    assert names == {
        ("native engine, one lane", "python engine, several lanes"),
        ("native engine, several lanes", "python engine, one lane"),
    }
    python_only = RandomEngines(engines.machine, engines.executors, native=False, all_lanes=True)
    assert {engine.name for seed in range(4) for engine in python_only.both(seed)} == {"python engine, several lanes"}


def test_what_the_native_engine_refuses_runs_by_the_python_engine(
    engines: RandomEngines, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refusing(*_: object) -> None:
        raise ExecutionError("it has complex numbers")

    monkeypatch.setattr(module, "NativeEngine", refusing)
    x = torch.ones(3)
    captured = capture_forward(torch.sin, x)
    for seed in range(8):
        with engines.one(seed, captured) as engine:
            assert isinstance(engine, PythonEngine)
            assert torch.equal(captured.finish(engine.run(captured.bind(x))), x.sin())
