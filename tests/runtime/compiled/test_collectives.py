"""Calls that exchange data with other processes run as PyTorch does, aloud: no process times or repeats them alone."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.distributed._functional_collectives import all_reduce
from torch.nn.functional import mse_loss

import threadcast
from tests.runtime.compiled.running import run_until_settled, runners
from threadcast.runtime.doors.compile_backend import backend, compiled_calls

pytestmark = [
    pytest.mark.usefixtures("one_thread", "plans_win"),
    pytest.mark.filterwarnings("ignore:The .grad attribute"),  # of Dynamo's own look at inputs
]

CALLS = 12
REASON = "it exchanges data with other processes"


@pytest.fixture(autouse=True)
def one_process(tmp_path: Path) -> Iterator[None]:
    """A process group of this process alone."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


class Summed(nn.Module):
    """Two layers, between which all processes' numbers are added up."""

    def __init__(self, *, in_place: bool = False, broken: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 3)
        self.in_place, self.broken = in_place, broken
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x).tanh().sin()
        if self.broken:
            torch._dynamo.graph_break()
        if self.in_place:
            hidden = hidden.clone()
            dist.all_reduce(hidden)
        else:
            hidden = all_reduce(hidden, "sum", "0")
        if self.broken:
            torch._dynamo.graph_break()
        result: Tensor = self.last(hidden).tanh()
        return result


def rows(seed: int) -> Tensor:
    return torch.randn(5, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def looked_at(call: Callable[[int], object], *, calls: int = CALLS) -> tuple[list[str], int]:
    """What threadcast says in some calls, and how often they have added up numbers of all processes."""
    before = exchanges()
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        for number in range(calls):
            call(number)
    said = [str(one.message) for one in found if "threadcast" in str(one.message)]
    return said, exchanges() - before


def exchanges() -> int:
    """How often this process has exchanged data so far."""
    group: Any = dist.group.WORLD
    return int(group._get_sequence_number_for_group())


@pytest.mark.parametrize("in_place", [False, True])
def test_inference(in_place: bool) -> None:
    model = Summed(in_place=in_place).eval()
    with closing(threadcast.optimize(model, backends=False)) as fast, torch.no_grad():

        def call(number: int) -> None:
            torch.testing.assert_close(fast(rows(number)), model.last(model.first(rows(number)).tanh().sin()).tanh())

        said, exchanged = looked_at(call)
        assert [report.runs for report in fast.reports] == ["default"]
    (message,) = said
    assert REASON in message
    assert exchanged == CALLS


def test_training_steps() -> None:
    mine, eager = Summed(), Summed()
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9) for model in (mine, eager)]
    with closing(threadcast.optimize_training(mine, mse_loss, optimizers[0])) as step:
        said, exchanged = looked_at(lambda number: step(rows(number), torch.ones(5, 3).double()))
        assert [report.runs for report in step.reports] == ["default"]
    (message,) = said
    assert REASON in message
    _, wanted = looked_at(lambda number: train(eager, optimizers[1], number))
    assert exchanged == wanted
    torch.testing.assert_close(mine.state_dict(), eager.state_dict())


def train(model: Any, optimizer: torch.optim.Optimizer, number: int) -> None:
    optimizer.zero_grad()
    torch.autograd.backward(mse_loss(model(rows(number)), torch.ones(5, 3).double()))
    optimizer.step()


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("in_place", [False, True])
def test_a_compiled_graph(in_place: bool, training: bool) -> None:
    if in_place and training:
        pytest.skip("PyTorch has no gradient of an exchange in place")
    mine, eager = Summed(in_place=in_place), Summed()
    compiled = torch.compile(mine, backend="threadcast")
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9) for model in (mine, eager)]

    def call(number: int) -> None:
        if training:
            train(compiled, optimizers[0], number)
        else:
            with torch.no_grad():
                torch.testing.assert_close(compiled(rows(number)), eager(rows(number)))

    said, _ = looked_at(call)
    (message,) = said
    assert REASON in message
    assert compiled_calls() == []
    if training:
        for number in range(CALLS):
            train(eager, optimizers[1], number)
    torch.testing.assert_close(mine.state_dict(), eager.state_dict())


def test_graphs_before_and_after_an_exchange_run_by_plans() -> None:
    model = Summed(broken=True).eval()
    compiled = torch.compile(model, backend="threadcast")
    with torch.no_grad(), pytest.warns(UserWarning, match=REASON):
        run_until_settled(lambda number: torch.testing.assert_close(compiled(rows(number)), model(rows(number))))
    assert runners() == {"inference": ["plan", "plan"]}


def exchange(rank: int, meeting: str, results: str) -> None:
    """Train on this process's part of the data, one process with more time to learn than the other."""
    torch.set_num_threads(1)
    os.environ.update(
        THREADCAST_ENGINE_FEEDBACK="off", THREADCAST_ENGINE_LEAST_STEP_US="0",
        THREADCAST_ENGINE_TUNING_SHARE=("1", "0.001")[rank], THREADCAST_ENGINE_PLANS=f"{results}/plans{rank}",
    )  # fmt: skip
    dist.init_process_group(
        "gloo", init_method=f"file://{meeting}", rank=rank, world_size=2, timeout=timedelta(seconds=240)
    )
    found: dict[str, Any] = {}
    for way in ("eager", "step", "compiled"):
        model = Summed(broken=way == "compiled")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        step: Any = threadcast.optimize_training(model, mse_loss, optimizer)
        called = torch.compile(model, backend=backend)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for number in range(rank, 2 * CALLS, 2):
                if way == "step":
                    step(rows(number), torch.ones(5, 3).double())
                else:
                    train(model if way == "eager" else called, optimizer, number)
        step.close()
        found[way] = model.state_dict()
    torch.save(found, f"{results}/{rank}")
    dist.destroy_process_group()


@pytest.mark.system
def test_two_processes_that_learn_at_their_own_pace_wait_for_each_other_rightly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    mp.spawn(exchange, (str(tmp_path / "meeting"), str(tmp_path)), nprocs=2)
    for rank in range(2):
        found = torch.load(tmp_path / str(rank))
        for way in ("step", "compiled"):
            torch.testing.assert_close(found[way], found["eager"], rtol=1e-8, atol=1e-10)
