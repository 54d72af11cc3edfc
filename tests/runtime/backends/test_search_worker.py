"""The process that builds backends reports each as soon as it was compared, and says what it leaves out."""

from __future__ import annotations

import math
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.runtime.backends.recorded import facts
from threadcast.runtime.backends import search_worker
from threadcast.runtime.backends.frozen import FlatModule, TensorCall
from threadcast.runtime.backends.library_facts import Facts, LibraryFacts
from threadcast.runtime.backends.program_file import ReadProgram
from threadcast.runtime.backends.search_worker import Caller, Options, Search
from threadcast.runtime.backends.ways import Way
from threadcast.runtime.plans.backend_history import BackendHistory, Forecast, NetworkKind

Messages = list[dict[str, Any]]


class Listening(Caller):
    """Keeps what it is sent, and gives turns at once."""

    def __init__(self) -> None:  # it has no folder
        self.messages: Messages = []

    def send(self, **message: Any) -> None:
        self.messages.append(message)

    def in_turn(self, measure: Callable[[], Any]) -> Any:
        return measure()


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Messages]:
    """Runs a search among "numpy" (two settings, the second of which is wrong) and "math" (cannot be built)."""
    monkeypatch.setattr(LibraryFacts, "asked", lambda self, library: facts())

    def files(self: Search, backend: str) -> Iterator[tuple[Way, Path]]:
        if backend == "math":
            raise RuntimeError("it has no such form\nnor any other")
        yield Way(backend, "2 threads"), tmp_path / "right"
        yield Way(backend, "1 thread"), tmp_path / "wrong"
        yield Way(backend, "odd"), tmp_path / "right"

    def opened(way: Way, file: Path, cores: int, flat: FlatModule) -> TensorCall:
        return lambda tensors: [tensors[0] * (2 if file.name == "right" else 3)]

    def searched(
        *, close: float, waiting_s: float = 0.0, long_s: float = math.inf, history: BackendHistory | None = None
    ) -> Messages:
        waited = count()
        monkeypatch.setattr(search_worker, "_waited_s", lambda: next(waited) * waiting_s)
        monkeypatch.setattr(search_worker, "opened", opened)
        monkeypatch.setattr(search_worker, "LONG_S", long_s)
        monkeypatch.setattr(Search, "_files", files)
        program = ReadProgram(torch.fx.symbolic_trace(lambda x: (x * 2,)), (torch.ones(3),))
        caller = Listening()
        options = Options(["math", "numpy"], 2, "pointwise", close, None)
        Search(program, options, tmp_path, caller).run(history or BackendHistory(None))
        return caller.messages

    return searched


def test_a_way_that_is_near_the_fastest_is_reported_and_a_wrong_one_is_not(run: Callable[..., Messages]) -> None:
    cannot, wrong, built = run(close=1e9)
    assert cannot == {"left_out": "math", "reason": "it has no such form"}
    assert wrong == {"left_out": "numpy, 1 thread", "reason": "the answers differ from the module's"}
    assert "built" in built, built
    assert built["built"]["way"][0] == "numpy"
    assert built["built"]["way"][1] in ("2 threads", "odd")


def test_a_clock_of_cpu_time_that_stands_still_is_not_believed(
    run: Callable[..., Messages], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "process_time", lambda: 1.0)
    assert run(close=1e9)[-1]["built"]["call_s"] > 0


def test_long_calls_are_tried_in_one_setting(run: Callable[..., Messages]) -> None:
    messages = run(close=1e6, long_s=0.0)
    assert [message["built"]["way"] for message in messages if "built" in message] == [("numpy", "2 threads")]
    assert not any("1 thread" in str(message.get("left_out")) for message in messages)


@pytest.mark.parametrize(("keeps", "regime"), [(True, "kept"), (False, "returned")])
def test_freed_memory_is_kept_where_the_caller_keeps_it(keeps: bool, regime: str) -> None:
    code = (
        "from threadcast.runtime.backends.search_worker import Options, take_conditions\n"
        "from threadcast.threads.memory import memory_regime\n"
        f"take_conditions(Options([], 1, 'products', 1.3, None, keeps_memory={keeps}))\n"
        "print(memory_regime())"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == regime


def test_a_way_that_is_slower_than_the_fastest_is_left_out(run: Callable[..., Messages]) -> None:
    slower = run(close=1e-9)[-1]
    assert slower["left_out"].startswith("numpy, ")
    assert "the fastest so far takes" in slower["reason"]


def test_disturbed_times_leave_nothing_out_and_choose_the_first_setting(run: Callable[..., Messages]) -> None:
    built = run(close=1e-9, waiting_s=1e6)[-1]["built"]
    assert built["way"] == Way("numpy", "2 threads")


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

    monkeypatch.setattr(search_worker, "write_package", write)
    monkeypatch.setattr(Search, "_program", lambda self: None)
    monkeypatch.setattr(LibraryFacts, "asked", lambda self, library: facts())
    monkeypatch.setattr(search_worker, "opened", lambda *_: lambda tensors: [tensors[0] * 2])
    program = ReadProgram(torch.fx.symbolic_trace(lambda x: (x * 2,)), (torch.ones(3),))
    caller = Listening()
    Search(program, Options(["torch.compile"], 2, kind, 1e6, None), tmp_path, caller).run(BackendHistory(None))
    assert asked == [wanted]
    assert any("built" in message for message in caller.messages)


@pytest.mark.parametrize("known", [False, True])
def test_a_backend_is_tried_before_it_is_asked_and_left_out_by_its_answers(
    known: bool, run: Callable[..., Messages], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is known from before saves the trial."""
    monkeypatch.setattr(LibraryFacts, "stored", lambda self, library: Facts({}) if known else None)
    monkeypatch.setattr(LibraryFacts, "asked", lambda self, library: Facts({}))
    messages = run(close=1e9)
    assert not any("built" in message for message in messages)
    reason = "it gives no answer about what its operators compute on this machine"
    assert messages[-1] == {"left_out": "numpy", "reason": reason}
    assert any(message["left_out"] == "numpy, 1 thread" for message in messages) is not known


@pytest.mark.parametrize("most", [0.5, 2.0])
def test_a_backend_that_is_expected_to_lose_is_never_built(
    most: float, run: Callable[..., Messages], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BackendHistory, "forecast", lambda *_, **__: Forecast(min(1.0, most), most, 1.0))
    messages = run(close=1e9)
    reason = "it is expected to gain 0.5 at most, and 1 is gained already"
    left_out = [{"left_out": name, "reason": reason} for name in ("math", "numpy")]
    assert (messages == left_out) == (most < 1)
