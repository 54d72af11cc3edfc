"""Backends that a search finds answer as the module does, on the CPUs that they are given, or PyTorch does in place."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.runtime.backends.programs import ARGUMENTS, Two
from tests.runtime.backends.searches import found_by, polled, processes_in, search_for, wait_until_gone
from tests.runtime.compiler import needs_compiler
from tests.waiting import eventually
from threadcast.runtime.backends.frozen import TensorCall
from threadcast.runtime.backends.libraries import LIBRARIES, installed
from threadcast.runtime.backends.search import BACKENDS

pytestmark = pytest.mark.usefixtures("folder")
CPUS = sorted(os.sched_getaffinity(0))


@needs_compiler
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_backend_answers_as_the_module_until_its_weights_change(module: Two, backend: str, folder: Path) -> None:
    args, kwargs = ARGUMENTS
    changed = ({"a": args[0]["a"] * 3, "b": args[0]["b"] - 2},)
    (way,) = found_by(search_for(module, ARGUMENTS, among=[backend], close=1e6))
    assert way.name == backend
    with torch.no_grad():
        result, wanted = way.run(changed, kwargs), module(*changed, **kwargs)
    torch.testing.assert_close(result["y"], wanted["y"], rtol=1e-4, atol=1e-5)
    assert way.holds()
    with torch.no_grad():
        module.mix.bias.add_(1)
    assert not way.holds()
    wait_until_gone(folder)


class Drawing(nn.Module):
    """Draws a number that it reads in training only."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        left_out = torch.rand([])
        found: Tensor = x if self.training and left_out < 0.5 else self.mix(x)
        return found


@pytest.mark.system
def test_numbers_that_nothing_reads_are_drawn_beside_a_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    module, x = Drawing().eval(), torch.ones(4, 8)
    (way,) = found_by(search_for(module, ((x,), {}), among=["onnxruntime"], close=1e6))

    def drawn_after(run: Callable[[], object]) -> list[float]:
        torch.manual_seed(3)
        with torch.no_grad():
            run()
        found: list[float] = torch.rand(3).tolist()
        return found

    wanted = drawn_after(lambda: module(x))
    assert drawn_after(lambda: way.run((x * math.inf,), {})) == wanted, "which PyTorch runs"
    monkeypatch.setattr(module, "forward", None)
    assert drawn_after(lambda: way.run((x,), {})) == wanted


class WithLengths(nn.Module):
    """Returns an argument as it came, twice, beside what it computes."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(8, 8)

    def forward(self, x: Tensor, lengths: Tensor) -> dict[str, Any]:
        return {"lengths": lengths, "y": [self.mix(x) * lengths[:, None], lengths]}


@pytest.mark.system
@needs_compiler
@pytest.mark.parametrize("backend", BACKENDS)
def test_arguments_that_are_returned_are_the_callers_own(backend: str) -> None:
    module, example = WithLengths().eval(), (torch.randn(3, 8), torch.tensor([2, 5, 1]))
    (way,) = found_by(search_for(module, (example, {}), among=[backend], close=1e6))
    given = torch.randn(3, 8), torch.tensor([1, 0, 4])
    with torch.no_grad():
        found, wanted = way.run(given, {}), module(*given)
    assert found["lengths"] is given[1]
    assert found["y"][1] is given[1]
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


class Words(nn.Module):
    """Rows of a table, and how they lie: a result, a view of it, and it once more."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.mix = nn.Embedding(10, 8), nn.Linear(8, 8)

    def forward(self, words: Tensor, scale: Tensor) -> tuple[Tensor, ...]:
        y = self.mix(self.table(words) * scale).relu()
        return y, y[:, 0], y, y.sum(1).expand(3, -1, -1)


@pytest.mark.system
@needs_compiler
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_backend_runs_the_calls_only_that_it_was_checked_for(backend: str) -> None:
    torch.manual_seed(0)
    module, words, scale = Words().eval(), torch.arange(128).reshape(32, 4) % 9, torch.ones(8)
    (way,) = found_by(search_for(module, ((words, scale), {}), among=[backend], close=1e6))
    with torch.no_grad():
        found, wanted = way.run((words + 1, scale), {}), module(words + 1, scale)
        for one, other in zip(found, wanted, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
            assert one.stride() == other.stride()
        assert found[2] is found[0]
        found[0].fill_(7)
        assert found[1].eq(7).all()
        for index in (-1, 10, 2**40):
            with pytest.raises(IndexError):
                way.run((words.where(words != 3, index), scale), {})
        for number in (float("nan"), float("inf")):
            odd = scale.where(torch.arange(8) != 2, number)
            for one, other in zip(way.run((words, odd), {}), module(words, odd), strict=True):
                torch.testing.assert_close(one, other, equal_nan=True)


@pytest.mark.system
@needs_compiler
@pytest.mark.parametrize("backend", ["onnxruntime", "torch.compile"])
def test_a_backend_and_the_search_for_it_keep_to_their_cpus(
    module: Two, backend: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    args, kwargs = ARGUMENTS
    masks = []

    opened_by_it = LIBRARIES[backend].open

    def opened(*arguments: Any) -> TensorCall:
        call = opened_by_it(*arguments)

        def run(tensors: Sequence[Tensor]) -> Sequence[Tensor]:
            masks.append(os.sched_getaffinity(0))
            return call(tensors)

        masks.append(os.sched_getaffinity(0))
        return run

    monkeypatch.setitem(LIBRARIES, backend, replace(LIBRARIES[backend], open=opened))
    with closing(search_for(module, ARGUMENTS, among=[backend], close=1e6, cpus=CPUS[-1:])) as found:
        found.start()
        (worker,) = processes_in(folder)
        eventually(lambda: os.sched_getaffinity(worker) == set(CPUS[-1:]))
        (way,) = polled(found)
    with torch.no_grad():
        result, wanted = way.run(args, kwargs), module(*args, **kwargs)
    torch.testing.assert_close(result["y"], wanted["y"], rtol=1e-4, atol=1e-5)
    assert masks == [set(CPUS[-1:])] * 3, "opening, the check, the call"
    assert os.sched_getaffinity(0) == set(CPUS)


@pytest.mark.system
def test_openvino_which_chooses_its_cpus_itself_is_left_out_where_they_are_given(module: Two) -> None:
    search = search_for(module, ARGUMENTS, among=["openvino"], close=1e6, cpus=CPUS[-1:])
    assert not found_by(search)
    assert "chooses CPUs itself" in search.left_out["openvino"]
    assert "openvino" in installed()
    assert "openvino" not in installed(CPUS[-1:]), "plans are stored as compared with others only"


@pytest.mark.system
@pytest.mark.usefixtures("one_thread")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_pytorch_runs_the_calls_of_a_backend_with_cpus_in_a_fork_which_has_no_such_thread(module: Two) -> None:
    args, kwargs = ARGUMENTS
    search = search_for(module, ARGUMENTS, among=["onnxruntime"], close=1e6, cpus=CPUS[-1:])
    (way,) = found_by(search)
    with torch.no_grad():
        wanted = module(*args, **kwargs)["y"]
        child = os.fork()
        if child == 0:
            code = 2
            try:
                code = 0 if torch.allclose(way.run(args, kwargs)["y"], wanted) else 1
            finally:
                os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_result_that_is_not_the_modules_is_refused(module: Two) -> None:
    args, kwargs = ARGUMENTS
    with torch.no_grad():
        wrong = module(*args, **kwargs)
        wrong["y"] += 0.01
    search = search_for(module, ARGUMENTS, among=["onnxruntime"], close=1e6, result=wrong)
    assert not found_by(search)
    assert "the answers differ from the module's" in search.left_out.values()


@pytest.mark.system
def test_only_backends_that_are_opened_come_into_the_process() -> None:
    code = """
import sys, torch
from tests.runtime.backends.programs import ARGUMENTS, Two
from tests.runtime.backends.searches import found_by, search_for
torch.manual_seed(0)
(found,) = found_by(search_for(Two().eval(), ARGUMENTS, among=["openvino"], close=1e6))
assert found.name.startswith("openvino"), found.name
assert "openvino" in sys.modules
assert not {"onnxruntime", "onnxscript", "torch._inductor.compile_fx"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[3])
