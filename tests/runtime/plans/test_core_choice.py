"""Models that use only some cores get those that the fewest others use, and their steps run at the same time."""

from __future__ import annotations

import gc
import os
import socket
import threading
from contextlib import ExitStack, closing
from dataclasses import replace

import pytest
import torch
from torch import nn

import threadcast
from tests.runtime.failing_op import at_checkpoints, checkpoint
from threadcast.core import read_machine, topology
from threadcast.runtime.calls.shared_learning import planner_for
from threadcast.runtime.doors import optimized_call
from threadcast.runtime.plans import model_cores
from threadcast.runtime.plans.model_cores import CoreChoice, ModelCores
from threadcast.threads.process_cores import ProcessCores

CPUS = sorted(os.sched_getaffinity(0))
needs_two_cores = pytest.mark.skipif(len(read_machine()) < 2, reason="needs two cores")


def of(choice: CoreChoice, cores: int) -> ModelCores:
    machine = choice.machine(cores)
    model = ModelCores(machine, lambda _: None, ProcessCores(), most=cores)
    choice.add(model)
    return model


@needs_two_cores
def test_the_next_model_gets_other_cores_and_those_of_a_model_that_is_gone_are_free() -> None:
    choice, whole = CoreChoice(), read_machine()
    models = [of(choice, 1) for _ in range(len(whole))]
    used = [model.cores[0].cpus for model in models]
    assert sorted(used) == sorted(core.cpus for core in whole.cores), "each another"
    second = models.pop(1)
    cpus = second.cores[0].cpus
    del second
    gc.collect()
    assert choice.machine(1).cores[0].cpus == cpus


@pytest.fixture
def choice(monkeypatch: pytest.MonkeyPatch) -> CoreChoice:
    """The process's, without the models of other tests."""
    made = CoreChoice()
    monkeypatch.setattr(model_cores, "_choice", made)
    return made


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU()).eval()


@needs_two_cores
def test_a_closed_model_gives_its_core_back_until_it_is_called_again(choice: CoreChoice) -> None:
    model, x, own = net(), torch.ones(2, 4), choice.machine(1).cores
    with closing(threadcast.optimize(model, cores=1, backends=False)) as call, torch.no_grad():
        assert choice.machine(1).cores != own
        for _ in range(2):
            torch.testing.assert_close(call(x), model(x))
            assert choice.machine(1).cores != own
            call.close()
            call.close()
            assert choice.machine(1).cores == own


@needs_two_cores
def test_a_model_that_is_measured_anew_on_other_cores_counts_all_the_time(
    choice: CoreChoice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_cores, "UNCHANGED_S", 0.0)
    model, x = net(), torch.ones(2, 4)
    with closing(threadcast.optimize(model, cores=2, backends=False)) as call, torch.no_grad():
        call(x)
        call.resize(1)
        torch.testing.assert_close(call(x), model(x))
        (own,) = call._optimized.machine.cores
        assert choice.machine(1).cores[0].cpus != own.cpus


@needs_two_cores
def test_a_model_knows_whether_it_is_to_use_only_some_cores() -> None:
    last = read_machine().cores[-1].cpus
    for cores, wanted in ((None, None), (CPUS, None), (last, last)):
        with closing(threadcast.optimize(net(), cores=cores, backends=False)) as call:
            assert call._optimized.cores.chosen == wanted


@needs_two_cores
def test_a_model_on_all_cores_that_a_quota_allows_is_not_one_on_some_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = topology.read_cgroup_limits()
    monkeypatch.setattr(topology, "read_cgroup_limits", lambda root: replace(limits, quota=1.0))
    with closing(threadcast.optimize(net(), cores=1, backends=False)) as call:
        assert call._optimized.cores.chosen is None


@needs_two_cores
@pytest.mark.usefixtures("plans_win")
def test_backends_are_searched_for_on_the_models_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []

    def search(*_: object, cpus: object, **options: object) -> None:
        asked.append(cpus)
        raise RuntimeError("there are none")

    monkeypatch.setattr(optimized_call, "BackendSearch", search)
    model, x, last = net(), torch.ones(2, 4), read_machine().cores[-1].cpus
    for cores, wanted in ((last, last), (None, None)):
        with closing(threadcast.optimize(model, cores=cores)) as call, torch.no_grad():
            torch.testing.assert_close(call.learn(x)(x), model(x))
        assert asked == [wanted]
        asked.clear()


@needs_two_cores
@pytest.mark.usefixtures("plans_win")
def test_two_models_run_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THREADCAST_ENGINE_VERIFY_EVERY", "0")  # PyTorch's call would wait for the other model again
    ends = socket.socketpair()

    def meet(x: torch.Tensor) -> None:
        """Wait inside the operator until the other model is there too. While they learn, no input is above 0."""
        if bool(x[0] > 0):
            end = ends[0 if x[0] < 3 else 1]
            end.send(b"here")
            end.recv(4)

    with ExitStack() as stack:
        for end in ends:
            end.settimeout(60.0)
            stack.enter_context(end)
        stack.enter_context(at_checkpoints(meet))  # before the graphs: they watch what the operator's code reads
        calls = [
            stack.enter_context(closing(threadcast.optimize(lambda x: checkpoint(x * 2), cores=[cpu], backends=False)))
            for cpu in CPUS[:2]
        ]
        for call in calls:
            call.learn(-torch.arange(3.0))
        found: dict[int, list[float]] = {}

        def run(number: int) -> None:
            found[number] = calls[number](torch.full((3,), number + 1.0)).tolist()

        threads = [threading.Thread(target=run, args=(number,)) for number in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120.0)
        assert [[report.runs for report in call.reports] for call in calls] == [["plan"], ["plan"]]
    assert found == {0: [3.0] * 3, 1: [5.0] * 3}


@needs_two_cores
def test_equal_cores_have_planners_of_their_own() -> None:
    cpus = sorted(cpu for core in read_machine().cores for cpu in core.cpus[:1])[:2]
    first, second = (read_machine(affinity=[cpu]) for cpu in cpus)
    assert first == second
    assert planner_for(first) is planner_for(read_machine(affinity=cpus[:1]))
    assert planner_for(first) is not planner_for(second)
