"""The process that builds backends reports each as soon as it was compared, and says what it leaves out."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from threadcast.runtime.backends import building
from threadcast.runtime.backends.building import Search
from threadcast.runtime.backends.program_file import ReadProgram
from threadcast.runtime.backends.ways import Options, Way
from threadcast.runtime.plans.backend_history import BackendHistory, Forecast, NetworkKind

Messages = list[dict[str, Any]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Messages]:
    """Runs a search among "numpy" and "math" (cannot be built); numpy's answers are `times` the arguments."""

    def built_by(self: Search, backend: str) -> tuple[Way, Path]:
        if backend == "math":
            raise RuntimeError("it has no such form\nnor any other")
        return Way(backend, "2 threads"), tmp_path

    def searched(
        *, close: float, waiting_s: float = 0.0, history: BackendHistory | None = None,
        answer: Callable[[Tensor], Tensor] = lambda x: x * 2,
    ) -> Messages:  # fmt: skip
        waited = count()
        monkeypatch.setattr(building, "_waited_s", lambda: next(waited) * waiting_s)
        monkeypatch.setattr(building, "opened", lambda *_: lambda tensors: [answer(tensors[0])])
        monkeypatch.setattr(Search, "_built_by", built_by)
        program = ReadProgram(torch.fx.symbolic_trace(lambda x: (x * 2,)), (torch.ones(3),))
        messages: Messages = []
        options = Options(["math", "numpy"], 2, "pointwise", close, None)
        Search(program, options, tmp_path, lambda **one: messages.append(one)).run(history or BackendHistory(None))
        return messages

    return searched


def test_a_way_that_is_near_the_fastest_is_reported(run: Callable[..., Messages]) -> None:
    cannot, built = run(close=1e9)
    assert cannot == {"left_out": "math", "reason": "it has no such form"}
    assert built["built"]["way"] == ("numpy", "2 threads")


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (lambda x: x * 3, "the answers differ from the module's"),
        (lambda x: x.clamp(min=0) * 2, "the answers differ from the module's for negative numbers"),
    ],
)
def test_a_backend_with_other_answers_is_left_out_and_says_nothing_of_others(
    answer: Callable[[Tensor], Tensor], reason: str, run: Callable[..., Messages], tmp_path: Path
) -> None:
    history = BackendHistory(tmp_path / "backends.json")
    assert run(close=1e9, answer=answer, history=history)[-1] == {"left_out": "numpy", "reason": reason}
    assert not (tmp_path / "backends.json").exists(), "what it takes is not known of a backend that is wrong"


def test_a_clock_of_cpu_time_that_stands_still_is_not_believed(
    run: Callable[..., Messages], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "process_time", lambda: 1.0)
    assert run(close=1e9)[-1]["built"]["call_s"] > 0


@pytest.mark.parametrize(("keeps", "regime"), [(True, "kept"), (False, "returned")])
def test_freed_memory_is_kept_where_the_caller_keeps_it(keeps: bool, regime: str) -> None:
    code = (
        "from threadcast.runtime.backends.search_worker import take_conditions\n"
        "from threadcast.runtime.backends.ways import Options\n"
        "from threadcast.threads.memory import memory_regime\n"
        f"take_conditions(Options([], 1, 'products', 1.3, None, keeps_memory={keeps}))\n"
        "print(memory_regime())"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == regime


def test_a_way_that_is_slower_than_the_fastest_is_left_out(run: Callable[..., Messages]) -> None:
    slower = run(close=1e-9)[-1]
    assert slower["left_out"] == "numpy, 2 threads"
    assert "the fastest so far takes" in slower["reason"]


def test_disturbed_times_leave_nothing_out(run: Callable[..., Messages]) -> None:
    assert run(close=1e-9, waiting_s=1e6)[-1]["built"]["gain"] is None


def test_only_undisturbed_times_are_stored(run: Callable[..., Messages], tmp_path: Path) -> None:
    path = tmp_path / "backends.json"
    run(close=1.0, waiting_s=1e6, history=BackendHistory(path))
    assert not path.exists()
    run(close=1.0, history=BackendHistory(path))
    assert '"numpy"' in path.read_text()


@pytest.mark.parametrize(("kind", "wanted"), [("convolutions", True), ("products", False), ("pointwise", False)])
def test_inductor_packs_the_weights_of_convolutions_only(
    kind: NetworkKind, wanted: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[bool] = []

    def write(program: Any, folder: Path, cores: int, *, freezing: bool) -> Path:
        asked.append(freezing)
        return folder / "compiled.so"

    monkeypatch.setattr(building, "write_package", write)
    monkeypatch.setattr(Search, "_program", lambda self: None)
    monkeypatch.setattr(building, "opened", lambda *_: lambda tensors: [tensors[0] * 2])
    program = ReadProgram(torch.fx.symbolic_trace(lambda x: (x * 2,)), (torch.ones(3),))
    messages: Messages = []
    options = Options(["torch.compile"], 2, kind, 1e6, None)
    Search(program, options, tmp_path, lambda **one: messages.append(one)).run(BackendHistory(None))
    assert asked == [wanted]
    assert any("built" in message for message in messages)


@pytest.mark.parametrize("most", [0.5, 2.0])
def test_a_backend_that_is_expected_to_lose_is_never_built(
    most: float, run: Callable[..., Messages], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BackendHistory, "forecast", lambda *_, **__: Forecast(min(1.0, most), most, 1.0))
    messages = run(close=1e9)
    reason = "it is expected to gain 0.5 at most, and 1 is gained already"
    left_out = [{"left_out": name, "reason": reason} for name in ("math", "numpy")]
    assert (messages == left_out) == (most < 1)
