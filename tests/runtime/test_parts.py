"""Calls that cannot be captured as wholes are divided by `torch.compile`, and their parts run by plans."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from weakref import WeakSet

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from torch.nn.modules.module import register_module_forward_hook

import threadcast
from threadcast.core import read_machine
from threadcast.runtime import compile_backend, parts
from threadcast.runtime.calls_left_alone import CALLS
from threadcast.runtime.compiled_call import CompiledCall
from threadcast.runtime.parts import Parts
from threadcast.runtime.tuning.contender_id import ContenderId, Kind
from threadcast.runtime.tuning.guard import Guard, Verdict
from threadcast.runtime.tuning.warm_up import Allowance

pytestmark = [pytest.mark.divided, pytest.mark.usefixtures("one_thread", "planned_at_once", "nothing_compiled")]


class PartsWin(Guard):
    """Ends a comparison before it begins."""

    def __init__(self) -> None:
        super().__init__()
        self.verdict = Verdict("plan", 2.0, 1.5, 2.5, 6)


class DefaultWins(Guard):
    """Ends a comparison before it begins: PyTorch's default is kept."""

    def __init__(self) -> None:
        super().__init__()
        self.verdict = Verdict("default", 0.5, 0.4, 0.6, 6)


@pytest.fixture
def nothing_compiled(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each test begins and ends without compiled code, and has a list of graphs of its own; parts win comparisons."""
    monkeypatch.setattr(compile_backend, "_graphs", WeakSet())
    torch._dynamo.reset()
    monkeypatch.setattr(parts, "Guard", PartsWin)
    monkeypatch.setattr(CompiledCall, "measuring", False)
    yield
    torch._dynamo.reset()


class Net(nn.Module):
    """Two layers; `between` computes what comes between them."""

    def __init__(self, between: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 4)
        self.between = between

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.last(self.between(self.first(x)))
        return result


def positive_rows(x: Tensor) -> Tensor:
    return x[torch.nonzero(x.sum(1) > 0).squeeze(1)]


CASES = {
    "control flow": lambda x: x * 2 if x.sum() > 0 else x - 1,
    "item": lambda x: x * round(float(x.detach().abs().max().item()), 3),
    "nonzero": positive_rows,
    "mask": lambda x: x[x[:, 0] > 0],
    "unique": lambda x: x + torch.unique(x.detach().round()).numel(),
    "tolist": lambda x: x + sum(x.detach()[0].tolist()),
}


@pytest.mark.filterwarnings("ignore:threadcast runs")
@pytest.mark.parametrize("name", CASES)
def test_parts_give_the_results_of_eager(name: str) -> None:
    torch.manual_seed(0)
    model = Net(CASES[name]).eval()
    with closing(threadcast.optimize(model)) as call, torch.no_grad():
        for seed in range(30):
            x = torch.randn(5, 4, generator=torch.Generator().manual_seed(seed))
            torch.testing.assert_close(call(x), model(x))
        (report,) = call.reports
        assert report.contender == ContenderId(Kind.PARTS)
        assert report.reason


class Counting(Net):
    """Counts its calls, and uses the count."""

    def __init__(self) -> None:
        super().__init__(torch.tanh)
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return super().forward(x) * self.calls


@pytest.mark.filterwarnings("ignore:threadcast runs")
def test_parts_run_on_the_cores_of_their_model() -> None:
    model, last = Net(CASES["control flow"]).eval(), read_machine().cores[-1]
    with closing(threadcast.optimize(model, cores=last.cpus)) as call, torch.no_grad():
        for seed in range(30):
            x = torch.randn(5, 4, generator=torch.Generator().manual_seed(seed))
            torch.testing.assert_close(call(x), model(x))
        assert {core.cpus for graph in compile_backend.compiled_graphs() for core in graph.cores.cores} == {last.cpus}


def test_filters_for_warnings_that_are_set_while_a_part_is_compiled_stay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def compiled(_program: object, graph: Any, _inputs: object) -> Any:
        warnings.filterwarnings("ignore", message="of the program's own")
        return graph

    monkeypatch.setattr(compile_backend, "graph_call", compiled)
    before, whole = (
        len(warnings.filters),
        Parts(abs, lambda backend: backend(abs, ()), Allowance(1.0), least_s=0.0, machine=read_machine, most=None),
    )
    assert [whole(-number) for number in range(10)] == list(range(10))
    assert whole.begun
    assert len(warnings.filters) == before + 1


@pytest.mark.filterwarnings("ignore:threadcast runs")
def test_parts_set_attributes_that_every_call_sets() -> None:
    model = Counting().eval()
    with closing(threadcast.optimize(model)) as call, torch.no_grad():
        for number in range(1, 60):
            result = call(torch.full((2, 4), float(number)))
            assert model.calls == number
            torch.testing.assert_close(result, Net.forward(model, torch.full((2, 4), float(number))) * number)
        assert call.reports[-1].contender == ContenderId(Kind.PARTS)


@pytest.mark.filterwarnings("ignore:threadcast runs")
def test_a_step_in_parts_trains_as_eager_does() -> None:
    torch.manual_seed(0)
    mine, theirs = Net(CASES["control flow"]), Net(CASES["control flow"])
    theirs.load_state_dict(mine.state_dict())
    optimizer = torch.optim.SGD(theirs.parameters(), lr=0.1, momentum=0.9)
    own = torch.optim.SGD(mine.parameters(), lr=0.1, momentum=0.9)
    with closing(threadcast.optimize_training(mine, mse_loss, own)) as step:
        for seed in range(10):
            x, y = torch.randn(2, 5, 4, generator=torch.Generator().manual_seed(seed))
            optimizer.zero_grad()
            loss = mse_loss(theirs(x), y)
            loss.backward()
            optimizer.step()
            torch.testing.assert_close(step(x, y), loss.detach())
        assert step.reports[0].contender == ContenderId(Kind.PARTS)
    torch.testing.assert_close(list(mine.parameters()), list(theirs.parameters()))


@pytest.mark.filterwarnings("ignore:threadcast runs")
def test_hooks_are_called_by_parts() -> None:
    model, found = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).eval(), []
    model[1].register_forward_hook(lambda module, inputs, output: found.append(output.shape) or output + 1)
    with closing(threadcast.optimize(model)) as call, torch.no_grad():
        for number in range(30):
            x = torch.full((2, 4), float(number))
            torch.testing.assert_close(call(x), model(x))
        assert len(found) == 60
        assert call.reports[0].contender == ContenderId(Kind.PARTS)


@pytest.mark.filterwarnings("ignore:threadcast runs")
@pytest.mark.parametrize("own", [False, True])
def test_hooks_of_all_modules_are_called_once_for_each(own: bool) -> None:
    """Not for `torch.compile`'s own module around the model, too; also where a module has a hook of its `own`."""
    model, seen = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).eval(), []
    if own:
        model[0].register_forward_hook(lambda module, inputs, output: output + 1)
    handle = register_module_forward_hook(lambda module, inputs, output: seen.append(type(module)) or output * 2)
    try:
        with closing(threadcast.optimize(model)) as call, torch.no_grad():
            for number in range(30):
                torch.testing.assert_close(call(torch.ones(2, 4) * number), model(torch.ones(2, 4) * number))
    finally:
        handle.remove()
    assert seen == 60 * [nn.Linear, nn.ReLU, nn.Sequential]


@pytest.mark.filterwarnings("ignore:threadcast runs")
@pytest.mark.parametrize("stance", ["fail_on_recompile", "force_eager", "another backend"])
def test_a_stance_of_the_program_towards_what_it_compiles_is_not_for_parts(stance: Any) -> None:
    def zeros(graph: Any, inputs: Any) -> Any:
        return lambda *arguments: [torch.zeros_like(one) for one in graph(*arguments)]

    model = Net(CASES["control flow"]).eval()
    x = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    with closing(threadcast.optimize(model)) as call, torch.no_grad():
        for _ in range(30):
            call(x)
        assert call.reports[0].contender == ContenderId(Kind.PARTS)
        another = stance == "another backend"
        with torch.compiler.set_stance(force_backend=zeros) if another else torch.compiler.set_stance(stance):
            for size in (3, 4, 9) * 10:
                torch.testing.assert_close(call(x[:1].expand(size, 4)), model(x[:1].expand(size, 4)))
        torch.testing.assert_close(call(x), model(x))


@pytest.mark.filterwarnings("ignore:threadcast runs")
@pytest.mark.parametrize("exchanged", [False, True])
def test_nothing_is_divided_where_calls_may_exchange_data_with_other_processes(exchanged: bool, tmp_path: Path) -> None:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    try:
        model = Net(torch.tanh if exchanged else CASES["tolist"]).eval()
        if exchanged:
            model.last.register_forward_hook(lambda module, inputs, output: dist.all_reduce(output))
        with closing(threadcast.optimize(model)) as call, torch.no_grad():
            for seed in range(30):
                x = torch.randn(5, 4, generator=torch.Generator().manual_seed(seed))
                torch.testing.assert_close(call(x), model(x))
            assert call._optimized._last.divisible
            assert not call._optimized._parts.begun
            assert not call.learning
    finally:
        dist.destroy_process_group()


@pytest.mark.filterwarnings("ignore:threadcast runs")
def test_an_error_of_the_callers_own_is_raised_by_parts() -> None:
    def fails(x: Tensor) -> Tensor:
        if x.sum() > 100:
            raise KeyError("own")
        return x * 2

    with closing(threadcast.optimize(fails)) as call:
        for _ in range(8):
            assert call(torch.ones(3)).tolist() == [2, 2, 2]
        with pytest.raises(KeyError, match="own"):
            call(torch.full((3,), 100.0))
        assert call(torch.ones(3)).tolist() == [2, 2, 2]


def test_calls_too_short_to_gain_are_left_alone() -> None:
    def divide(backend: Any) -> Any:
        raise AssertionError(backend)

    short = Parts(lambda x: x, divide, Allowance(), least_s=10.0, machine=read_machine, most=None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [short(number) for number in range(5)] == list(range(5))
    assert not short.learning
    assert "too short to gain" in short.report("it branches").reason


class PlannedPart:
    """Stands for a graph of a part."""

    disturbed = True


def test_nothing_is_compared_beside_a_plan_that_is_being_made() -> None:
    ran: list[str] = []

    def run(name: str) -> None:
        ran.append(name)
        time.sleep(0.002)

    call = Parts(run, lambda backend: abs, Allowance(1.0), least_s=0.0, machine=read_machine, most=None)
    call._call, call._guard = lambda _: run("parts"), Guard()
    planned = PlannedPart()
    call._compiled.append(CompiledCall(abs, abs, [planned]))  # type: ignore[list-item]
    for _ in range(50):
        call("eager")
    assert set(ran) == {"eager"}
    planned.disturbed = False
    while "parts" not in ran[-2:]:
        call("eager")
    planned.disturbed = True
    for _ in range(10):
        call("eager")
    assert set(ran[-10:]) == {"eager"}


class GraphConvolution(nn.Module):
    """A layer of a graph convolutional network (Kipf and Welling 2017); its edges are found in each call."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor, adjacency: Tensor) -> Tensor:
        source, target = torch.nonzero(adjacency, as_tuple=True)
        weight = adjacency.sum(1)[target].rsqrt()
        messages = torch.relu(self.linear(x))[source] * weight.unsqueeze(1)
        result: Tensor = torch.zeros_like(x).scatter_add_(0, target.unsqueeze(1).expand(-1, 4), messages)
        return result


def graph(nodes: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    adjacency = torch.eye(nodes) + (torch.rand(nodes, nodes, generator=generator) > 0.5)
    return torch.randn(nodes, 4, generator=generator), (adjacency > 0).float()


@pytest.mark.filterwarnings("ignore:threadcast runs")
def test_hooks_and_modules_that_come_later_are_seen_by_parts() -> None:
    model = GraphConvolution().eval()
    with closing(threadcast.optimize(model)) as call, torch.no_grad():
        for seed in range(60):
            torch.testing.assert_close(call(*graph(6, seed)), model(*graph(6, seed)))
        assert call.reports[0].runs == "parts"
        model.linear = nn.Linear(4, 4)
        torch.testing.assert_close(call(*graph(6)), model(*graph(6)))
        found: list[Any] = []
        handle = model.linear.register_forward_hook(lambda module, inputs, output: found.append(1) or output * 3)
        torch.testing.assert_close(call(*graph(6)), model(*graph(6)))
        assert len(found) == 2
        handle.remove()
        torch.testing.assert_close(call(*graph(9)), model(*graph(9)))


@pytest.mark.filterwarnings("ignore:threadcast runs")
def test_calls_by_default_are_left_alone_once_nothing_is_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "Guard", DefaultWins)
    monkeypatch.setattr(parts, "LOOKING_SHARE", 0.0)
    model = GraphConvolution().eval()
    with closing(threadcast.optimize(model)) as call, torch.no_grad():
        for _ in range(40):
            call(*graph(6))
        looks: list[int] = []
        observe = call._optimized._watch.observe
        monkeypatch.setattr(call._optimized._watch, "observe", lambda: looks.append(1) or observe())
        for seed in range(10 * (CALLS + 1)):
            torch.testing.assert_close(call(*graph(6, seed)), model(*graph(6, seed)))
        assert len(looks) == 10
        model.linear = nn.Linear(4, 4)
        for _ in range(CALLS + 1):
            torch.testing.assert_close(call(*graph(6)), model(*graph(6)))


class TwoHeads(nn.Module):
    """A layer whose result no loss uses, in a model that is divided."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head, self.unused = nn.Linear(4, 4), nn.Linear(4, 2), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.body(x)
        h = h * 2 if h.sum() > 0 else h - 1
        return self.head(h.tanh()), self.unused(h)


@pytest.mark.filterwarnings("ignore:threadcast runs")
def test_what_a_loss_does_not_use_is_not_trained_by_parts() -> None:
    torch.manual_seed(0)
    mine, eager = TwoHeads().double(), TwoHeads().double()
    eager.load_state_dict(mine.state_dict())
    optimizers = [torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1) for model in (mine, eager)]

    def loss(found: tuple[Tensor, Tensor], target: Tensor) -> Tensor:
        return mse_loss(found[0], target)

    with closing(threadcast.optimize_training(mine, loss, optimizers[0])) as step:
        for seed in range(30):
            made = torch.Generator().manual_seed(seed)
            x, y = (torch.randn(5, n, dtype=torch.float64, generator=made) for n in (4, 2))
            step(x, y)
            optimizers[1].zero_grad()
            torch.autograd.backward(loss(eager(x), y))
            optimizers[1].step()
            for one, other in zip(mine.parameters(), eager.parameters(), strict=True):
                torch.testing.assert_close(one, other)
        (report,) = step.reports
        assert report.contender == ContenderId(Kind.PARTS)


@pytest.mark.filterwarnings("ignore:threadcast runs")
def test_a_loss_that_takes_something_out_of_its_batch_does_so_once() -> None:
    torch.manual_seed(0)
    mine, eager = Net(torch.tanh).double(), Net(torch.tanh).double()
    eager.load_state_dict(mine.state_dict())
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in (mine, eager)]

    def loss(output: Tensor, target: dict[str, Tensor]) -> Tensor:
        return mse_loss(output * target.pop("weight"), target["wanted"])

    with closing(threadcast.optimize_training(mine, loss, optimizers[0])) as step:
        for seed in range(30):
            made = torch.Generator().manual_seed(seed)
            x, y, weight = (torch.randn(5, 4, dtype=torch.float64, generator=made) for _ in range(3))
            target = {"wanted": y, "weight": weight}
            step(x, target)
            assert list(target) == ["wanted"]
            optimizers[1].zero_grad()
            torch.autograd.backward(loss(eager(x), {"wanted": y, "weight": weight}))
            optimizers[1].step()
            for one, other in zip(mine.parameters(), eager.parameters(), strict=True):
                torch.testing.assert_close(one, other)
        (report,) = step.reports
        assert report.contender == ContenderId(Kind.PARTS)
