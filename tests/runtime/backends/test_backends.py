"""Backends answer as the module does, or do not take part."""

from __future__ import annotations

import math
import os
import threading
from contextlib import closing
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import threadcast
from tests.runtime.backends.programs import ARGUMENTS, ONNX, Two, call_by, exported, passed_on
from tests.runtime.compiler import needs_compiler
from tests.runtime.small_training import run_until_settled
from tests.waiting import eventually, is_asleep
from threadcast.runtime.backends.compiled import package_call, write_package
from threadcast.runtime.backends.exported import write_onnx
from threadcast.runtime.backends.frozen import FlatModule
from threadcast.runtime.backends.number_guard import NumberGuard, Range
from threadcast.runtime.backends.onnx_libraries import session, write_optimised
from threadcast.runtime.backends.result_memory import ResultMemory
from threadcast.threads.affinity import PinnedThread, thread_ids

ANY = NumberGuard([])


def test_what_a_backend_may_compute_otherwise_or_fails_at_pytorch_runs() -> None:
    module, table = nn.Sequential(nn.Linear(3, 3), nn.ReLU()).eval(), nn.Embedding(5, 2).eval()
    flat = FlatModule(module, ((torch.ones(2, 3),), {}))
    with torch.no_grad():
        guard, memory = NumberGuard(flat.tensors(flat.example)), ResultMemory(flat.expected)
        call = flat.call(lambda tensors: [torch.full((2, 3), 8.0)], guard, memory)
        assert call((torch.zeros(2, 3),), {}).eq(8).all()
        given = torch.tensor([[1.0, math.nan, 2.0], [1.0, 1.0, 1.0]])
        torch.testing.assert_close(call((given,), {}), module(given), equal_nan=True)
        failing = flat.call(lambda tensors: [torch.full((2, 3), math.nan)], ANY, memory)
        torch.testing.assert_close(failing((torch.ones(2, 3),), {}), module(torch.ones(2, 3)))
        words = FlatModule(table, ((torch.tensor([1, 2]),), {}))
        guard, memory = NumberGuard(words.tensors(words.example), [Range(0, 4)]), ResultMemory(words.expected)
        indexed = words.call(lambda tensors: [torch.zeros(2, 2)], guard, memory)
        assert indexed((torch.tensor([0, 4]),), {}).eq(0).all()
        with pytest.raises(IndexError):
            indexed((torch.tensor([-1, 2]),), {})
        raising = words.call(lambda tensors: 1 / 0, ANY, memory)  # type: ignore[arg-type,return-value]
        with pytest.raises(IndexError):
            raising((torch.tensor([7, 2]),), {})


@pytest.mark.system
@needs_compiler
def test_inductors_code_reads_arguments_with_any_strides(tmp_path: Path) -> None:
    module, example = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).eval(), torch.randn(6, 4)
    path = write_package(torch.export.export(module, (example,)), tmp_path, 1, freezing=False)
    call = package_call(path, [example])
    wide = torch.randn(6, 9)
    for given in (example, wide[:, 1:5], wide[:, ::2][:, :4], torch.randn(4, 6).t(), torch.randn(4).expand(6, 4)):
        with torch.no_grad():
            torch.testing.assert_close(call([given])[0], module(given))
    negative = torch.randn(6, 4, dtype=torch.complex64).conj().imag
    with torch.no_grad():
        torch.testing.assert_close(call([negative])[0], module(negative))


@pytest.mark.usefixtures("planned_at_once")
def test_an_optimised_call_follows_its_parameters_whatever_runs_it(module: Two) -> None:
    args, kwargs = ARGUMENTS
    with closing(threadcast.optimize(module, cores=1)) as call, torch.no_grad():

        def check(_: int) -> None:
            torch.testing.assert_close(call(*args, **kwargs)["y"], module(*args, **kwargs)["y"], rtol=1e-4, atol=1e-5)

        run_until_settled(call, check)
        module.mix.weight.mul_(2)
        for number in range(3):
            check(number)


class SmallSums(nn.Module):
    """What is computed from sums with numbers that are nearly 0, and from positions of equal numbers."""

    def forward(self, x: Tensor, words: Tensor) -> tuple[Tensor, ...]:
        flags = 1.0 - words
        return torch.sign(x + 1e-9), torch.sign(1e-9 - x), flags, words.argmax(-1), words.to(torch.int32).argmin(-1)


@pytest.mark.parametrize("backend", ONNX)
def test_numbers_near_0_and_the_first_of_equal_numbers_count(backend: str) -> None:
    module, x = SmallSums().eval(), torch.zeros(2, 3)
    words = torch.tensor([[1, 4, 4, 4], [2, 2, 0, 0]])
    call = call_by(backend, exported(passed_on(module, x, words)))
    for given in (words, words.flip(-1), torch.full((2, 4), 7)):
        for found, wanted in zip(call([x, given]), module(x, given), strict=True):
            assert torch.equal(found.to(wanted.dtype), wanted)


WIDE, ROWS = nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 512)).eval(), torch.ones(64, 512)


def test_threads_of_onnx_runtime_leave_the_cores_after_a_call() -> None:
    before = set(thread_ids())
    call = call_by("onnxruntime", torch.export.export(WIDE, (ROWS,)), 2)
    threads, spun_s = set(thread_ids()) - before, []
    assert threads
    for _ in range(5):
        call([ROWS])
        ran_s = sum(map(cpu_s, threads))
        eventually(lambda: all(map(is_asleep, threads)))
        spun_s.append(sum(map(cpu_s, threads)) - ran_s)
    assert min(spun_s) < 0.01, "on CPUs, not on the clock; they would spin for 0.05 s"


def cpu_s(thread: int) -> float:
    """Seconds for which a thread of this process has had a CPU."""
    return int(Path(f"/proc/self/task/{thread}/schedstat").read_text().split()[0]) / 1e9


def named() -> str:
    """Give the calling thread a name of its own, and return it."""
    name = f"own-{threading.get_native_id()}"
    Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text(name)
    return name


def mask_of(thread: int, name: str) -> set[int] | None:
    """The CPUs of a thread of this name; None for one of another name, and for one that has ended."""
    try:
        has_name = Path(f"/proc/self/task/{thread}/comm").read_text().strip() == name
        return os.sched_getaffinity(thread) if has_name else None
    except (FileNotFoundError, ProcessLookupError):
        return None


def test_threads_of_onnx_runtime_have_the_cpus_of_the_thread_that_opens_it(tmp_path: Path) -> None:
    write_onnx(torch.export.export(WIDE, (ROWS,)), tmp_path / "model.onnx")
    file, last = write_optimised(tmp_path / "model.onnx"), max(os.sched_getaffinity(0))
    with torch.no_grad():
        wanted = WIDE(ROWS)
    thread = PinnedThread([last], threads=2)
    name = thread.run(named)  # which the threads inherit that it starts, and no others
    leader = thread.run(threading.get_native_id)
    call = thread.run(session, file, 2)
    found = [thread.run(call, [ROWS])[0] for _ in range(3)]
    masks = {one: mask for one in thread_ids() if one != leader and (mask := mask_of(one, name)) is not None}
    assert masks
    assert list(masks.values()) == [{last}] * len(masks)
    for result in found:
        torch.testing.assert_close(result, wanted, rtol=1e-4, atol=1e-5)
