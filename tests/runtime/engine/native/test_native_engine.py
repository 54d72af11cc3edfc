"""The native engine's threads, and that OpenMP in operators is served by them and nobody else."""

from __future__ import annotations

import ctypes
import gc
import os
import subprocess
import sys
import threading
from collections import deque
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.runtime.compiler import needs_compiler
from tests.runtime.failing_op import Seen, at_checkpoints, checkpoint
from tests.runtime.random_plans import make_random_plan
from tests.waiting import eventually, is_asleep
from threadcast.capture.graph.capture import capture_forward
from threadcast.capture.graph.captured import Captured
from threadcast.core import Case, Machine, Placement, Plan
from threadcast.core.errors import ExecutionError, PlanError
from threadcast.runtime.engine.engine import Engine
from threadcast.runtime.plans.sequential import sequential
from threadcast.threads.affinity import thread_ids
from threadcast.threads.openmp import end_idle_workers

pytestmark = needs_compiler


def many_kernels(x: Tensor) -> list[Tensor]:
    """Loops of torch, MKL and oneDNN that all ask OpenMP for threads."""
    rows = x.reshape(256, 512)
    image = x.reshape(2, 16, 64, 64)
    return [
        (x * 2).sum(), rows @ rows.T, torch.nn.functional.conv2d(image, image[:, :, :3, :3].contiguous()),
        rows.softmax(1), torch.sort(x)[0][:3], torch.linalg.qr(rows)[1][0, :3].abs(), rows.cumsum(0)[-1],
    ]  # fmt: skip


@pytest.fixture(scope="module")
def captured() -> Captured:
    made = torch.Generator().manual_seed(0)
    return capture_forward(many_kernels, torch.randn(1 << 17, generator=made))


def wide(captured: Captured, machine: Machine, threads_per_core: int = 1) -> Plan:
    cores = tuple(core.id for core in machine.cores)
    threads = threads_per_core * len(cores)
    ops = (Placement(op, cores, threads, float(i), i + 1.0) for i, op in enumerate(captured.graph.ids))
    return Plan(len(cores), "wide", tuple(ops))


def threads_without_pool() -> int:
    """How many threads there are once the calling one leads no OpenMP workers."""
    end_idle_workers()
    found: deque[int] = deque(maxlen=6)

    def steady() -> bool:
        found.append(len(thread_ids()))
        return len(found) == found.maxlen and len(set(found)) == 1

    assert eventually(steady)  # the kernel needs a moment until those that have ended are gone
    return found[-1]


def threads_are(expected: int) -> bool:
    """Whether there are so many threads, now or soon."""
    return eventually(lambda: len(thread_ids()) == expected)


def close_to(found: list[Tensor], expected: list[Tensor]) -> bool:
    return all(torch.allclose(a, b, rtol=1e-3, atol=1e-3) for a, b in zip(found, expected, strict=True))


def test_operators_of_any_width_are_right_and_start_no_workers(captured: Captured, machine: Machine) -> None:
    expected = captured.run()
    before = threads_without_pool()
    cores = tuple(core.id for core in machine.cores)
    with Engine(captured, wide(captured, machine), machine) as engine:
        for seed in range(4):
            with Engine(captured, make_random_plan(captured.graph, cores, seed=seed), machine) as other:
                assert close_to(other.run(captured.bind()), expected)
        assert close_to(engine.run(captured.bind()), expected)
        assert threads_without_pool() - before in (len(machine) - 1, len(machine)), "one thread for each core at most"
    assert threads_are(before)


def test_regions_of_other_libraries_get_one_thread_in_a_step(machine: Machine) -> None:
    """More would be more than libtorch tells an extension, whose results for each thread would lie beyond their end."""
    # The functions of libgomp that extensions call, not those that libtorch is led to.
    openmp = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
    captured = capture_forward(lambda x: [checkpoint(x + number) for number in range(4)], torch.zeros(3))
    before, cores = openmp.omp_get_max_threads(), tuple(core.id for core in machine.cores)
    seen: list[int] = []
    openmp.omp_set_num_threads(7)
    try:
        for plan in (wide(captured, machine), make_random_plan(captured.graph, cores, seed=0)):
            with (
                Engine(captured, plan, machine) as engine,
                at_checkpoints(lambda _: seen.append(openmp.omp_get_max_threads())),
            ):
                engine.run(captured.bind())
            assert seen == [1] * 4
            assert openmp.omp_get_max_threads() == 7
            seen.clear()
    finally:
        openmp.omp_set_num_threads(before)


def test_a_step_within_a_step_is_refused(captured: Captured, machine: Machine) -> None:
    """As where a custom operator calls what threadcast runs; it would wait for the cores of the step around it."""
    outer = capture_forward(lambda x: checkpoint(x.sin()).exp(), torch.randn(64, 64))
    said: list[str] = []
    with Engine(captured, wide(captured, machine), machine) as inner:

        def run_within(_: Tensor) -> None:
            try:
                inner.run(captured.bind())
            except RuntimeError as error:
                said.append(str(error))

        with Engine(outer, wide(outer, machine), machine) as engine, at_checkpoints(run_within):
            assert torch.equal(engine.run(outer.bind()), outer.run())
        assert close_to(inner.run(captured.bind()), captured.run())
    assert said[:1] == ["an operator of a step runs a step of its own"]


def test_the_caller_keeps_its_thread_count_and_its_cpus(captured: Captured, machine: Machine) -> None:
    before = torch.get_num_threads()
    cpus = os.sched_getaffinity(0)
    try:
        torch.set_num_threads(3)
        counts: list[int] = []
        with Engine(captured, wide(captured, machine), machine) as engine:
            engine.run(captured.bind())
            thread = threading.Thread(target=lambda: counts.append(torch.get_num_threads()))
            thread.start()
            thread.join()
            assert (torch.get_num_threads(), os.sched_getaffinity(0)) == (3, cpus)
        assert counts == [3]
    finally:
        torch.set_num_threads(before)


def test_threads_sleep_between_steps(captured: Captured, machine: Machine) -> None:
    with Engine(captured, wide(captured, machine), machine) as engine:
        engine.run(captured.bind())
        end_idle_workers()
        assert eventually(lambda: all(map(is_asleep, set(thread_ids()) - {threading.get_native_id()})))


@pytest.mark.parametrize("closed", [True, False])
def test_engines_that_are_closed_or_garbage_end_their_threads(
    closed: bool, captured: Captured, machine: Machine
) -> None:
    before = threads_without_pool()
    for _ in range(50 if closed else 1):
        engine = Engine(captured, wide(captured, machine), machine)
        engine.run(captured.bind())
        if closed:
            engine.close()
    del engine
    gc.collect()
    assert threads_are(before)


def test_a_closed_engine_says_so_and_may_be_closed_again(captured: Captured, machine: Machine) -> None:
    engine = Engine(captured, wide(captured, machine), machine)
    engine.close()
    engine.close()
    with pytest.raises(ExecutionError, match="closed"):
        engine.run(captured.bind())
    with pytest.raises(ExecutionError, match="closed"):
        engine.change(engine.plan, machine, machine.cores)


def test_cores_that_the_machine_lacks_are_refused(captured: Captured, machine: Machine) -> None:
    ops = tuple(Placement(op, (97,), 1, float(i), i + 1.0) for i, op in enumerate(captured.graph.ids))
    with pytest.raises(PlanError, match=r"cores \[97\] are not among"):
        Engine(captured, Plan(1, "elsewhere", ops), machine)


def chain(x: Tensor) -> Tensor:
    for _ in range(8):
        x = checkpoint(x)
    return x


def test_values_are_freed_after_their_last_use(machine: Machine) -> None:
    captured = capture_forward(chain, torch.ones(4))
    seen = Seen()
    most = 0

    def count(_: Tensor) -> None:
        nonlocal most
        most = max(most, seen.alive())

    with (
        Engine(captured, sequential(captured.graph, machine, Case(1)), machine) as engine,
        at_checkpoints(seen),
        at_checkpoints(count),
    ):
        result = engine.run(captured.bind())
    assert result.tolist() == [9.0] * 4
    assert most <= 2, "the input, which the caller holds, and the value just made"
    assert seen.alive() <= 1


STEPS = """
import torch
from tests.runtime.random_plans import make_random_plan
from threadcast.capture.graph.capture import capture_forward
from threadcast.core import read_machine
from threadcast.runtime.engine.engine import Engine

def resident_pages():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1])

found = read_machine()
machine = found.limited_to([core.id for core in found.cores[:2]])
small = capture_forward(lambda x: [x + i for i in range(6)], torch.ones(8))
plan = make_random_plan(small.graph, tuple(core.id for core in machine.cores), seed=3)
with Engine(small, plan, machine) as engine:
    inputs = small.bind()
    grown = []
    for _ in range(4):
        before = resident_pages()
        for _ in range(2_500):
            result = engine.run(inputs)
        grown.append(resident_pages() - before)
assert [value[0].item() for value in result] == [1, 2, 3, 4, 5, 6]
print(min(grown))
"""


@pytest.mark.system
def test_10000_steps_neither_hang_nor_grow() -> None:
    """In a process of its own: in the heap that a thousand tests have left, more pages are touched at every turn."""
    done = subprocess.run(
        [sys.executable, "-c", STEPS], check=True, capture_output=True, text=True, cwd=Path(__file__).parents[4],
        timeout=300,
    )  # fmt: skip
    assert int(done.stdout) < 32, "one lost value a step is 40 pages in each quarter"
