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

from tests.runtime.backends.programs import passed_on
from threadcast.core.errors import CaptureError
from threadcast.runtime.backends import building
from threadcast.runtime.backends.building import Search
from threadcast.runtime.backends.exported import Exported
from threadcast.runtime.backends.libraries import LIBRARIES, Library
from threadcast.runtime.backends.program_file import ReadProgram
from threadcast.runtime.backends.ways import Options
from threadcast.runtime.plans.backend_history import BackendHistory, Forecast, NetworkKind

Messages = list[dict[str, Any]]


def fake(name: str, convolved: list[bool], answer: Callable[[Tensor], Tensor] | None) -> Library:
    """Answers with what `answer` makes of the argument; without one it cannot build anything."""

    def build(program: Exported, cores: int, convolves: bool) -> Path:
        convolved.append(convolves)
        if answer is None:
            raise RuntimeError("it has no such form\nnor any other")
        return program.folder

    return Library(name, build, lambda *_: lambda tensors: [answer(tensors[0])])  # type: ignore[misc]


CONVOLVED = list[bool]()
"""What "numpy" was told of each program."""


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Messages]:
    """Runs a search of `x * 2` among "math", which cannot be built, and "numpy"."""

    def searched(
        *, close: float, waiting_s: float = 0.0, history: BackendHistory | None = None,
        answer: Callable[[Tensor], Tensor] = lambda x: x * 2, kind: NetworkKind = "pointwise",
    ) -> Messages:  # fmt: skip
        waited = count()
        monkeypatch.setattr(building, "_waited_s", lambda: next(waited) * waiting_s)
        monkeypatch.setitem(LIBRARIES, "math", fake("math", [], None))
        monkeypatch.setitem(LIBRARIES, "numpy", fake("numpy", CONVOLVED, answer))
        program = ReadProgram(torch.fx.symbolic_trace(lambda x: (x * 2,)), (torch.ones(3),))
        messages: Messages = []
        options = Options(["math", "numpy"], 2, kind, close, None)
        Search(program, options, tmp_path, lambda **one: messages.append(one)).run(history or BackendHistory(None))
        return messages

    return searched


def test_a_program_without_a_form_in_onnx_is_not_exported_for_a_second_library(tmp_path: Path) -> None:
    program = Exported(passed_on(torch.special.bessel_j0, torch.ones(3)), tmp_path)
    errors = list[Exception]()
    for _ in range(2):
        with pytest.raises(CaptureError, match="cannot be exported to ONNX") as raised:
            program.onnx  # noqa: B018 - which writes it
        errors.append(raised.value)
    assert errors[0] is errors[1]


@pytest.mark.parametrize(("kind", "convolves"), [("convolutions", True), ("products", False)])
def test_a_way_that_is_near_the_fastest_is_reported(
    run: Callable[..., Messages], kind: NetworkKind, convolves: bool
) -> None:
    cannot, built = run(close=1e9, kind=kind)
    assert cannot == {"left_out": "math", "reason": "it has no such form"}
    assert built["built"]["backend"] == "numpy"
    assert CONVOLVED[-1] == convolves


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


def test_a_way_that_is_slower_than_the_fastest_is_left_out_unless_others_disturbed_it(
    run: Callable[..., Messages], tmp_path: Path
) -> None:
    path = tmp_path / "backends.json"
    assert run(close=1e-9, waiting_s=1e6, history=BackendHistory(path))[-1]["built"]["gain"] is None
    assert not path.exists(), "nothing is known"
    slower = run(close=1e-9, history=BackendHistory(path))[-1]
    assert slower["left_out"] == "numpy"
    assert "the fastest so far takes" in slower["reason"]
    assert '"numpy"' in path.read_text()


@pytest.mark.parametrize(("most", "built"), [(0.5, False), (1.0, False), (1.03, False), (2.0, True)])
def test_a_backend_that_is_expected_to_gain_too_little_is_never_built(
    most: float, built: bool, run: Callable[..., Messages], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BackendHistory, "forecast", lambda *_, **__: Forecast(min(0.9, most), most, 1.0))
    messages = run(close=1e9)
    reasons = [message.get("reason", "") for message in messages]
    assert all("beyond a gain of 1 it is expected to gain 0" in reason for reason in reasons) != built
