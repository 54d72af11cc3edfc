"""A rotated op does the same work on other memory each time."""

from __future__ import annotations

import gc
import platform
import subprocess
import sys
import weakref
from typing import Any

import pytest
import torch

from threadcast.capture.graph.capture import capture_forward
from threadcast.capture.graph.program import below_autograd
from threadcast.collector.operators import PreparedOp, prepare
from threadcast.collector.rotation import MAX_COPIES, RotatedOp
from threadcast.core import Op


def captured_op(function: Any, *inputs: Any, kind: str) -> Op:
    return next(op for op in capture_forward(function, *inputs).graph.ops if op.kind == kind)


def watched(prepared: PreparedOp, seen: list[tuple[int, ...]]) -> PreparedOp:
    """The op, noting where the tensors of each call lie, the output's last."""

    def target(*args: Any, **kwargs: Any) -> Any:
        result = prepared.target(*args, **kwargs)
        seen.append((*[arg.data_ptr() for arg in args if isinstance(arg, torch.Tensor)], result.data_ptr()))
        return result

    return PreparedOp(prepared.op, target, prepared.args, prepared.kwargs, prepared.written)


def test_inputs_and_outputs_lie_elsewhere_until_the_bytes_are_through() -> None:
    prepared = prepare(captured_op(torch.mm, torch.ones(64, 64), torch.ones(64, 64), kind="mm"))
    seen: list[tuple[int, ...]] = []
    one_s_bytes = 2 * 64 * 64 * 4
    with below_autograd():
        rotated = RotatedOp(watched(prepared, seen), 8 * one_s_bytes)
        seen.clear()
        for _ in range(16):
            rotated.run()
    assert rotated.copies == 8
    assert len({pointer for call in seen[:8] for pointer in call}) == 3 * 8
    assert [call[:2] for call in seen[8:]] == [call[:2] for call in seen[:8]]


def test_copies_have_the_values_and_strides_of_the_op() -> None:
    x = torch.arange(12.0).reshape(3, 4).t()
    prepared = prepare(captured_op(lambda t: t.cos(), x, kind="cos"))
    calls: list[torch.Tensor] = []

    def target(tensor: torch.Tensor) -> torch.Tensor:
        calls.append(tensor)
        return tensor.cos()

    rotated = RotatedOp(PreparedOp(prepared.op, target, prepared.args, prepared.kwargs, ()), 3 * 12 * 4)
    for _ in range(3):
        rotated.run()
    assert {call.stride() for call in calls} == {x.stride()}
    assert all(torch.equal(call, calls[0]) for call in calls)


def rotated_gather(rows: int, indices: int, bytes_between: int) -> list[tuple[int, set[int]]]:
    """The address of the table, of `rows` rows of 256 bytes, and the indices of each run until all copies were used."""
    function = lambda table, index: table[index]  # noqa: E731
    prepared = prepare(captured_op(function, torch.ones(rows, 64), torch.zeros(indices).long(), kind="index"))
    seen: list[tuple[int, set[int]]] = []

    def target(table: torch.Tensor, lists: list[torch.Tensor]) -> torch.Tensor:
        seen.append((table.data_ptr(), set(lists[0].tolist())))
        return table[lists[0]]

    rotated = RotatedOp(PreparedOp(prepared.op, target, prepared.args, {}, (), prepared.indices), bytes_between)
    seen.clear()
    for _ in range(rotated.copies):
        rotated.run()
    return seen


def test_every_run_has_other_indices_until_so_many_bytes_of_a_large_table_were_used() -> None:
    runs = rotated_gather(rows=1 << 16, indices=1 << 10, bytes_between=4 << 20)
    assert len({table for table, _ in runs}) == 1, "one copy of 16 MiB is enough"
    used = sum(len(rows) for _, rows in runs)
    assert 2 * used * 256 > 0.95 * (4 << 20), "each row is read and written to an output"
    assert len(set().union(*(rows for _, rows in runs))) > 0.8 * used, "as many as differ by chance"


def test_the_copies_of_a_small_table_have_indices_of_their_own() -> None:
    runs = rotated_gather(rows=1 << 10, indices=1 << 10, bytes_between=2 << 20)
    assert len({table for table, _ in runs}) == len({frozenset(rows) for _, rows in runs}) == len(runs) == 8


def test_indices_that_are_larger_than_the_table_are_not_copied_more_often_than_all_tensors() -> None:
    def add(table: torch.Tensor, index: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return table.clone().index_put_((index,), value, accumulate=True)

    inputs = torch.ones(1000), torch.zeros(1 << 17).long(), torch.tensor(1.0)
    with below_autograd():
        assert RotatedOp(prepare(captured_op(add, *inputs, kind="index_put_")), 4 << 20).copies == 4


def test_every_copy_begins_with_the_first_values() -> None:
    prepared = prepare(captured_op(lambda t: t.clone().log_(), torch.ones(1024), kind="log_"))
    ((_, first),) = prepared.written
    seen: list[torch.Tensor] = []

    def target(tensor: torch.Tensor) -> torch.Tensor:
        seen.append(tensor.clone())
        return tensor.log_()

    rotated = RotatedOp(PreparedOp(prepared.op, target, prepared.args, {}, prepared.written), 4 * 1024 * 4)
    for _ in range(4):
        rotated.run()
    assert all(torch.equal(one, first) for one in seen)


def test_what_runs_change_is_reset_once_every_copy_had_its_turn() -> None:
    prepared = prepare(captured_op(lambda t: t.clone().mul_(0.5), torch.ones(1024), kind="mul_"))
    ((tensor, first),) = prepared.written
    with below_autograd():
        rotated = RotatedOp(prepared, 4 * 1024 * 4)
        rotated.run()
        rotated.reset()
        assert not torch.equal(tensor, first), "a reset of every copy after each run would take longer than the runs"
        for _ in range(4):
            rotated.run()
        rotated.reset()
    assert torch.equal(tensor, first)


@pytest.mark.parametrize(("places", "copies"), [(0, 1), (1, MAX_COPIES), (1 << 20, 1)])
def test_copies_are_as_many_as_are_needed_and_worth_it(places: int, copies: int) -> None:
    prepared = prepare(captured_op(lambda t: t.cos(), torch.ones(places), kind="cos"))
    with below_autograd():
        assert RotatedOp(prepared, 4 << 20).copies == copies


def test_the_copies_are_freed_at_once_and_do_not_wait_for_the_cycle_collector() -> None:
    prepared = prepare(captured_op(lambda t: t.cos(), torch.ones(1024), kind="cos"))
    gc.disable()
    try:
        with below_autograd():
            rotated = RotatedOp(prepared, 4 * 1024 * 4)
            rotated.run()
        alive = weakref.ref(rotated)
        del rotated
        assert alive() is None
    finally:
        gc.enable()


FAULTS_OF_EACH_RUN = """
import resource
import torch
from threadcast.capture.graph.capture import capture_forward
from threadcast.threads.memory import keep_freed_memory
from threadcast.collector.operators import prepare
from threadcast.capture.graph.program import below_autograd
from threadcast.collector.rotation import RotatedOp

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

KEEPING
(op,) = capture_forward(torch.cos, torch.ones(OUTPUT_BYTES // 4)).graph.ops
with below_autograd():
    rotated = RotatedOp(prepare(op), 64 << 20)
    for _ in range(ROUNDS * rotated.copies):
        before = faults()
        rotated.run()
        print(faults() - before)
"""


def faults_of_most_runs(keeping: str, output_bytes: int, rounds: int) -> int:
    """Three of four runs have no more: the system may take pages from any process, which then faults in some runs."""
    program = FAULTS_OF_EACH_RUN.replace("KEEPING", keeping).replace("OUTPUT_BYTES", str(output_bytes))
    program = program.replace("ROUNDS", str(rounds))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120)
    faults = sorted(map(int, done.stdout.split()))
    return faults[len(faults) * 3 // 4 - 1]


@pytest.mark.system
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc")
@pytest.mark.parametrize(("output_bytes", "rounds"), [(256 << 10, 8), (64 << 20, 16)])
def test_no_run_waits_for_the_system_to_give_memory(output_bytes: int, rounds: int) -> None:
    assert faults_of_most_runs("keep_freed_memory(one_heap=True)", output_bytes, rounds) == 0
