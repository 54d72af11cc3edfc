"""Optimised models whose cores go and come back: by hand, with those of their process, or too many for their plan."""

from __future__ import annotations

import os
import threading
from contextlib import closing
from typing import Any

import pytest
import torch

import threadcast
from tests.runtime.random_plans import make_random_plan
from tests.runtime.small_training import batch, net, run_until_settled, same_state, train_eagerly
from threadcast.core import OpGraph, read_machine
from threadcast.core.errors import InvalidInput
from threadcast.malleable.thread_masks import ThreadMasks
from threadcast.runtime.plans import model_cores
from threadcast.runtime.plans.plan_store import PlanStore, StoredPlan
from threadcast.runtime.plans.variant import MemoryFormat
from threadcast.threads.this_process import this_process

pytestmark = pytest.mark.usefixtures("one_thread")
CORES = len(read_machine())
needs_two_cores = pytest.mark.skipif(CORES < 2, reason="one core has nothing to give")


@pytest.fixture
def settled_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every graph has a plan that is kept from before, and is never slower than it was."""
    cores = tuple(core.id for core in read_machine().cores)

    def kept(_: PlanStore, graph: OpGraph) -> StoredPlan:
        plan = make_random_plan(graph, cores, seed=1, max_width=1)
        return StoredPlan(plan, MemoryFormat.AS_GIVEN, 1e9)

    monkeypatch.setattr(PlanStore, "read", kept)
    monkeypatch.setenv("THREADCAST_ENGINE_FUSE", "false")  # the plan is of the graph as it was captured
    monkeypatch.setattr(PlanStore, "formats_first", lambda *_: (MemoryFormat.AS_GIVEN,))


@needs_two_cores
def test_resized_training_trains_as_eager_does(settled_at_once: None, trained: Any) -> None:
    step, mine, _, eager, eager_optimizer = trained
    wanted = [CORES, 1, CORES, 1, None, 1, None]
    ending = threading.Event()

    def resize() -> None:
        while not ending.is_set():
            for size in wanted:
                used = step.resize(size)
                assert len(used) == (size or CORES)

    thread = threading.Thread(target=resize)
    x, y = batch(0)
    torch.testing.assert_close(step(x, y), train_eagerly(eager, eager_optimizer, x, y))
    thread.start()
    try:
        for seed in range(120):
            x, y = batch(seed)
            torch.testing.assert_close(step(x, y), train_eagerly(eager, eager_optimizer, x, y), rtol=1e-8, atol=1e-10)
    finally:
        ending.set()
        thread.join()
    assert [report.runs for report in step.reports] == ["plan"]
    same_state(mine, eager)


@needs_two_cores
def test_resizing_to_nothing_or_beyond_the_machine_is_refused(trained: Any) -> None:
    step = trained[0]
    for wrong in (0, -1, CORES + 1, True, [], [4096]):
        with pytest.raises(InvalidInput, match="cores="):
            step.resize(wrong)
    last = read_machine().cores[-1].cpus
    assert step.resize(last) == (last,)
    assert len(step.resize(None)) == CORES


@needs_two_cores
def test_a_model_follows_the_cores_of_its_process(settled_at_once: None, trained: Any) -> None:
    step, _, _, eager, eager_optimizer = trained
    cores = read_machine().cores
    masks, threads = list[set[int]](), ThreadMasks(cores=this_process().cores)
    all_cpus = os.sched_getaffinity(0)
    x, y = batch(9)
    torch.testing.assert_close(step(x, y), train_eagerly(eager, eager_optimizer, x, y))
    try:
        for given in (cores[-1:], cores, cores[:1]):
            this_process().cores.assign(cpu for core in given for cpu in core.cpus)
            threads.restrict(cpu for core in given for cpu in core.cpus)
            x, y = batch(len(masks))
            torch.testing.assert_close(step(x, y), train_eagerly(eager, eager_optimizer, x, y), rtol=1e-8, atol=1e-10)
            masks.append(os.sched_getaffinity(0))
        assert masks == [set(cores[-1].cpus), all_cpus, set(cores[0].cpus)]
        assert step.reports[0].runs == "plan"
    finally:
        this_process().cores.assign(all_cpus)
        os.sched_setaffinity(0, all_cpus)


@needs_two_cores
def test_what_does_not_follow_runs_as_before_until_the_cores_have_stayed(
    monkeypatch: pytest.MonkeyPatch, planned_at_once: None
) -> None:
    model = net().eval()
    x, _ = batch(0)
    with closing(threadcast.optimize(model, backends=False)) as call, torch.no_grad():
        call(x)
        call.resize(1)
        with pytest.warns(UserWarning, match="other cores than it was measured on"):
            torch.testing.assert_close(call(x), model(x))
        monkeypatch.setattr(model_cores, "UNCHANGED_S", 0.0)

        def check(_: int) -> None:
            torch.testing.assert_close(call(x), model(x), rtol=1e-8, atol=1e-10)

        for size in (1, CORES):
            call.resize(size)
            run_until_settled(call, check)
            (report,) = call.reports
            assert report.plan is None or report.plan.cores == size
