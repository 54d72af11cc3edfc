"""Once a thread has run a step, lanes run its own parallel regions: no OpenMP workers beside them."""

from __future__ import annotations

import _ctypes
import ctypes
import os
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import pytest
import torch
from torch import Tensor

from tests.runtime.compiler import needs_compiler
from tests.waiting import eventually
from threadcast.capture.graph.capture import capture_forward
from threadcast.capture.graph.captured import Captured
from threadcast.core import Machine, Placement, Plan
from threadcast.runtime.engine.engine import Engine, lender
from threadcast.runtime.engine.native.library import compiler, lead_to_lanes
from threadcast.threads.affinity import thread_ids
from threadcast.threads.openmp import end_idle_workers

pytestmark = needs_compiler

T = TypeVar("T")
X = torch.randn(1 << 20, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def captured() -> Captured:
    return capture_forward(lambda x: x.sin() + x.cos(), torch.randn(64))


def wide_engine(captured: Captured, machine: Machine, *, most: int | None = None) -> Engine:
    """An engine that runs every operator on all cores of `machine`, or on the first `most`."""
    if len(machine) < 2:
        pytest.skip("one core has no lane beside the caller")
    cores = tuple(core.id for core in machine.cores)[:most]
    ops = (Placement(op, cores, len(cores), float(i), i + 1.0) for i, op in enumerate(captured.graph.ids))
    return Engine(captured, Plan(len(cores), "wide", tuple(ops)), machine)


@pytest.fixture(params=[None, 1], ids=["all cores", "one core"])
def engine(request: pytest.FixtureRequest, captured: Captured, machine: Machine) -> Iterator[Engine]:
    with wide_engine(captured, machine, most=request.param) as made:
        yield made


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    """PyTorch uses two threads, also in threads that are new."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def in_a_thread(work: Callable[[], T]) -> T:
    """What `work` returns in a thread that has led no OpenMP workers before."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result()


def workers_of(op: Callable[[], object]) -> set[int]:
    """The threads that there are more after `op`, without the pinned ones of engines."""
    before = set(thread_ids())
    op()
    return {made for made in set(thread_ids()) - before if not name_of(made).startswith("tc-cpu")}


def name_of(thread: int) -> str:
    try:
        with open(f"/proc/self/task/{thread}/comm") as file:
            return file.read().strip()
    except OSError:
        return ""


ROWS, IMAGE = X.reshape(1024, 1024), X.reshape(4, 16, 128, 128)
OPERATORS: dict[str, Callable[[], Tensor]] = {
    "sum": lambda: X.sum(),
    "product": lambda: X * 2,
    "few": lambda: X[:40_000].exp(),
    "softmax": lambda: ROWS.softmax(1),
    "cumulative sum": lambda: ROWS.cumsum(0),
    "sort": lambda: torch.sort(ROWS[:100])[0],
    "product of matrices": lambda: ROWS[:300] @ ROWS.T,
    "convolution": lambda: torch.nn.functional.conv2d(IMAGE, IMAGE[:, :, :3, :3].contiguous()),
    "decomposition": lambda: torch.linalg.qr(ROWS[:, :64])[1],
}
"""Loops of torch, MKL and oneDNN, with several forms of work sharing."""


@pytest.mark.parametrize("op", OPERATORS.values(), ids=OPERATORS.keys())
def test_an_operator_after_a_step_starts_no_workers_and_gives_the_same_bits(
    op: Callable[[], Tensor], engine: Engine, captured: Captured
) -> None:
    expected = in_a_thread(op)

    def work() -> set[int]:
        torch.get_num_threads()  # else oneDNN would use as many as there are CPUs
        engine.run(captured.bind())  # ends OpenMP's workers of this thread
        found: list[Tensor] = []
        made = workers_of(lambda: found.append(op()))
        assert torch.equal(found[0], expected)
        return made

    assert not in_a_thread(work)


def test_after_a_step_the_threads_of_an_operator_have_cores_of_their_own(
    engine: Engine, captured: Captured, machine: Machine
) -> None:
    """The caller, which a step moves, may be anywhere again. Free workers were left on its core for 0.1 s at a time."""

    def work() -> None:
        before, others = os.sched_getaffinity(0), set(thread_ids())
        engine.run(captured.bind())
        for size in range(2, len(machine) + 1):
            torch.set_num_threads(size)
            assert torch.equal(X * 2, X + X)
        masks = [os.sched_getaffinity(thread) for thread in lanes() | set(thread_ids()) - others]
        assert masks
        assert all(len(mask) == 1 for mask in masks)
        assert len(set().union(*masks)) == len(masks)
        assert os.sched_getaffinity(0) == before

    in_a_thread(work)


def lanes() -> set[int]:
    return {thread for thread in thread_ids() if name_of(thread).startswith("tc-cpu")}


def test_operators_run_on_lanes_for_as_long_as_their_lender_lives(machine: Machine) -> None:
    if len(machine) < 2:
        pytest.skip("one core has no lane beside the caller")

    def work() -> None:
        before = lanes()
        lend = lender(machine)
        end_idle_workers()
        lend()
        assert not workers_of(lambda: X * 2)
        assert lanes() - before
        del lend
        assert eventually(lambda: not lanes() - before)
        assert torch.equal(X * 2, X + X)

    in_a_thread(work)


def test_threads_that_step_and_run_operators_at_once_wait_for_nobody(engine: Engine, captured: Captured) -> None:
    """Each finds the other's step on the lanes now and then, and the other's region."""
    expected = in_a_thread(lambda: (X * 2).sum())

    def work(_: int) -> bool:
        right = True
        for _ in range(200):
            engine.run(captured.bind())
            right = right and torch.equal((X * 2).sum(), expected)
        return right

    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(work, range(3))) == [True] * 3


@pytest.mark.parametrize("flushes", [True, False])
def test_lanes_take_small_numbers_for_zero_where_the_calling_thread_does(
    flushes: bool, engine: Engine, machine: Machine
) -> None:
    """The mode is the calling thread's; the lanes were made in another one."""
    small = torch.full((1 << 20,), 1e-40)
    doubled = capture_forward(lambda x: x * 2, small)

    def work() -> tuple[Tensor, Tensor]:
        if not torch.set_flush_denormal(flushes):
            pytest.skip("this CPU cannot take small numbers for zero")
        with wide_engine(doubled, machine) as other:
            by_lanes = other.run(doubled.bind())
            return by_lanes, small * 2

    by_step, after_it = in_a_thread(work)
    assert (by_step == 0).all() == flushes
    assert torch.equal(by_step == 0, after_it == 0)
    assert len((by_step == 0).unique()) == 1


_SOURCE = """
#include <sys/syscall.h>
#include <unistd.h>
#include <omp.h>
extern "C" void ids(long* found) {
  #pragma omp parallel num_threads(2)
  found[omp_get_thread_num()] = syscall(SYS_gettid);
}
extern "C" long sum(const long* values, long count) {
  long found = 0;
  #pragma omp parallel for num_threads(2) reduction(+ : found)
  for (long i = 0; i < count; ++i) found += values[i];
  return found;
}
"""
_ANOTHER = """
extern "C" void GOMP_parallel(void (*body)(void*), void* data, unsigned, unsigned) { body(data); }
extern "C" int omp_get_thread_num() { return 0; }
extern "C" int omp_get_num_threads() { return 1; }
"""
"""An OpenMP library whose regions have one thread."""


def library_with_regions(folder: Path, *linked: str) -> Path:
    """A shared library whose parallel regions have two threads, as Inductor compiles them."""
    (folder / "regions.cpp").write_text(_SOURCE)
    built = folder / "regions.so"
    command = [*compiler(), "-O1", "-fPIC", "-fopenmp", "-c", "regions.cpp", "-o", "regions.o"]
    subprocess.run(command, cwd=folder, check=True)
    subprocess.run([*compiler(), "-shared", "regions.o", *linked, "-o", built], cwd=folder, check=True)
    return built


def ids_of(library: ctypes.CDLL) -> list[int]:
    """The threads that run a region."""
    found = (ctypes.c_long * 2)()
    library.ids(found)
    return list(found)


def test_lanes_run_the_regions_of_a_library_until_it_is_unloaded(machine: Machine, tmp_path: Path) -> None:
    if len(machine) < 2:
        pytest.skip("one core has no lane beside the caller")
    built = library_with_regions(tmp_path, "-lgomp")
    library = ctypes.CDLL(str(built))
    values = torch.arange(1001)

    def work() -> None:
        lend = lender(machine)
        end_idle_workers()
        lend()
        assert lead_to_lanes(built)
        assert not workers_of(lambda: ids_of(library))
        assert [name_of(thread).startswith("tc-cpu") for thread in ids_of(library)] == [False, True]
        assert library.sum(ctypes.c_void_p(values.data_ptr()), 1001) == 500_500

    in_a_thread(work)
    _ctypes.dlclose(library._handle)
    assert str(built) not in Path("/proc/self/maps").read_text()
    assert torch.equal(X * 2, X + X)


def test_a_library_with_another_openmp_keeps_it(machine: Machine, tmp_path: Path) -> None:
    (tmp_path / "another.cpp").write_text(_ANOTHER)
    another = ["-O1", "-fPIC", "-shared", "another.cpp", "-o", "libanother.so"]
    subprocess.run([*compiler(), *another], cwd=tmp_path, check=True)
    built = library_with_regions(tmp_path, "libanother.so", f"-Wl,-rpath,{tmp_path}")
    library = ctypes.CDLL(str(built), mode=os.RTLD_NOW | os.RTLD_DEEPBIND)

    def work() -> None:
        lend = lender(machine)
        lend()
        assert lead_to_lanes(built)
        assert ids_of(library)[1] == 0

    in_a_thread(work)
