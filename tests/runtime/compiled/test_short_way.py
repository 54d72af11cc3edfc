"""Settled training calls go the short way around AOTAutograd's wrappers, and do what eager PyTorch does."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from threading import Event
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo import compiled_autograd

from tests.runtime.compiled.running import perceptron, rows, runners
from tests.runtime.conftest import Decided, DefaultWins
from tests.runtime.small_training import same_state
from tests.runtime.test_forks import in_a_fork
from tests.waiting import attempts
from threadcast.core.errors import ExecutionError
from threadcast.runtime.compiled.compiled_call import CompiledCall
from threadcast.runtime.compiled.short_way import CALLS, Passes
from threadcast.runtime.doors.compile_backend import compiled_calls, compiled_graphs
from threadcast.runtime.engine.engine import Engine
from threadcast.runtime.tuner import candidates

pytestmark = pytest.mark.usefixtures("one_thread", "planned_at_once")


by_both = pytest.mark.parametrize("kept", ["plan", "default"], indirect=True)


@pytest.fixture(autouse=True)
def kept(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """What runs both graphs once they have settled; no call is verified, which none by the short way can be."""
    found = str(getattr(request, "param", "plan"))
    monkeypatch.setattr(candidates, "Tournament", Decided if found == "plan" else DefaultWins)
    monkeypatch.setenv("THREADCAST_ENGINE_VERIFY_EVERY", "0")
    return found


class Pair:
    """A compiled model and an eager copy, trained with the same steps; `call` and `train` compare both."""

    def __init__(self, make: Callable[[], nn.Module], inputs: Callable[[int], Tensor] = rows) -> None:
        self.mine, self.eager, self.inputs = make(), make(), inputs
        self.compiled: Any = torch.compile(self.mine, backend="threadcast")
        self.optimizers = [
            torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9) for model in (self.mine, self.eager)
        ]
        self.step = 0

    def train(self, loss: Callable[[Any, Tensor], Tensor | None] = lambda model, x: model(x).square().mean()) -> None:
        for model, optimizer in zip((self.compiled, self.eager), self.optimizers, strict=True):
            torch.manual_seed(self.step)
            optimizer.zero_grad()
            value = loss(model, self.inputs(self.step))
            if value is not None:
                value.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        same_state(self.mine, self.eager)
        self.step += 1

    def settle(self) -> Pair:
        """Train until calls go the short way."""
        for _ in attempts():
            if short_calls() > 3:
                break
            self.train()
        return self


def short_calls() -> int:
    """How many calls went the short way so far."""
    return sum(call.short_calls for call in compiled_calls())


class Normalised(nn.Module):
    """Convolution and batch norm: buffers are written in each call."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3))

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.layers(x)
        return found


def normalised() -> nn.Module:
    torch.manual_seed(0)
    return Normalised().double()


def images(seed: int) -> Tensor:
    return torch.randn(5, 2, 6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def with_dropout() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.5), nn.Linear(16, 4)).double()


@by_both
@pytest.mark.parametrize(("make", "inputs"), [(perceptron, rows), (normalised, images), (with_dropout, rows)])
def test_training_is_eagers(make: Callable[[], nn.Module], inputs: Callable[[int], Tensor], kept: str) -> None:
    pair, before = Pair(make, inputs).settle(), short_calls()
    for _ in range(2 * CALLS):
        pair.train()
    assert short_calls() - before >= CALLS
    assert runners() == {"forward": [kept], "backward": [kept]}


def added_to_those_that_are_there(model: Any, x: Tensor) -> None:
    for part in (x, 2 * x):
        model(part).sum().backward()


def of_two_forward_passes(model: Any, x: Tensor) -> Any:
    return model(x).square().sum() + model(x + 1).sum()


def that_lie_otherwise(model: Any, x: Tensor) -> Any:
    return (model(x).t() * torch.arange(4.0).double()[:, None]).sum()


@by_both
@pytest.mark.parametrize("loss", [added_to_those_that_are_there, of_two_forward_passes, that_lie_otherwise])
def test_gradients_are_eagers(loss: Callable[[Any, Tensor], Any]) -> None:
    pair = Pair(perceptron).settle()
    for _ in range(5):
        pair.train(loss)
        pair.train()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_fork_waits_for_no_thread_that_did_not_come_along() -> None:
    pair, held, over = Pair(perceptron).settle(), Event(), Event()

    def hold() -> None:
        with ExitStack() as locks:
            for part in compiled_graphs():
                locks.enter_context(part._lock)
            held.set()
            over.wait()

    def is_eagers() -> bool:
        return all(torch.equal(pair.compiled(rows(step)), pair.eager(rows(step))) for step in range(2 * CALLS))

    with ThreadPoolExecutor(1) as pool:
        holder = pool.submit(hold)
        held.wait()
        try:
            assert in_a_fork(is_eagers)
        finally:
            over.set()
            holder.result()


@pytest.mark.filterwarnings("ignore:Anomaly Detection", "ignore:Error detected")
def test_anomalies_are_found_in_compiled_programs() -> None:
    def root(model: Any, x: Tensor) -> Tensor:
        found = model(x)
        return (torch.where(found > 1e3, found, 0.0).sqrt() * 0).sum()  # its nan does not reach the weights

    model = perceptron()
    compiled = torch.compile(lambda x: root(model, x), backend="threadcast")
    for step in range(10):
        compiled(rows(step)).backward()
    with torch.autograd.detect_anomaly(), pytest.raises(RuntimeError, match="returned nan values"):
        compiled(rows(0)).backward()
    compiled(rows(0)).backward()


@by_both
def test_every_so_often_a_call_goes_the_long_way() -> None:
    pair, before = Pair(perceptron).settle(), short_calls()
    for _ in range(4 * (CALLS + 1)):
        pair.train()
    assert short_calls() - before == 4 * CALLS


@pytest.mark.compared
def test_whole_calls_are_compared_by_the_short_way(monkeypatch: pytest.MonkeyPatch) -> None:
    before, compared = CompiledCall._observe, list[int]()

    def observed(self: CompiledCall, sample: Any, backward_s: float) -> None:
        if sample.turn.compared and sample.turn.by_graphs:
            compared.append(self.short_calls)
        before(self, sample, backward_s)

    monkeypatch.setattr(CompiledCall, "_observe", observed)
    pair = Pair(perceptron)
    for _ in attempts():
        pair.train()
        if compiled_calls() and not any(call.measuring for call in compiled_calls()):
            break
    assert not any(call.measuring for call in compiled_calls())
    assert compared[0] == 1
    assert compared[-1] >= len(compared) * CALLS // (CALLS + 1) - 1


@by_both
def test_an_input_that_requires_a_gradient_gets_it() -> None:
    pair = Pair(perceptron).settle()
    for _ in range(8):
        found = []
        for model in (pair.compiled, pair.eager):
            x = rows(1).requires_grad_()
            model(x).square().sum().backward()
            found.append(x.grad)
        torch.testing.assert_close(*found)


@by_both
def test_a_second_backward_pass_needs_the_graph_retained() -> None:
    pair = Pair(perceptron).settle()
    before = short_calls()
    for model in (pair.compiled, pair.eager):
        value = model(rows(0)).sum()
        value.backward(retain_graph=True)
        value.backward()
        with pytest.raises(RuntimeError, match="second time"):
            value.backward()
    for mine, eager in zip(pair.mine.parameters(), pair.eager.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, eager.grad)
    assert short_calls() == before + 1


def test_backward_passes_of_several_threads_end_with_one_that_frees() -> None:
    """One of them gets the gradients, which frees the graph; of the others each gets them too, or autograd's error."""
    pair = Pair(perceptron).settle()
    weights = list(pair.mine.parameters())
    wanted = torch.autograd.grad(pair.eager(rows(0)).sum(), list(pair.eager.parameters()))

    def gradients(result: Tensor) -> tuple[Tensor, ...] | None:
        try:
            return torch.autograd.grad(result, weights)
        except RuntimeError as error:
            if "second time" not in str(error):
                raise
            return None

    with ThreadPoolExecutor(4) as threads:
        for _ in range(20):
            result = pair.compiled(rows(0)).sum()
            found = list(threads.map(gradients, [result] * 4))
            right = [one for one in found if one is not None]
            assert right
            for one in right:
                torch.testing.assert_close(one, wanted)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
def test_compiled_autograd_is_given_the_long_way() -> None:
    pair, before = Pair(perceptron).settle(), short_calls()
    with compiled_autograd._enable(torch.compile(backend="eager")):
        pair.train()
    assert short_calls() == before
    pair.train()
    assert short_calls() == before + 1


@by_both
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
def test_backward_passes_alone_may_be_traced_by_compiled_autograd() -> None:
    pair, before = Pair(perceptron).settle(), short_calls()

    def train(model: Any, x: Tensor) -> None:
        loss = model(x).square().mean()
        with compiled_autograd._enable(torch.compile(backend="eager")):
            loss.backward()

    for _ in range(3):
        pair.train(train)
    assert short_calls() == before + 3


def test_a_backward_pass_that_does_not_begin_keeps_what_was_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    def lend(*_: Any) -> None:
        raise ExecutionError("broken")

    pair, before = Pair(perceptron).settle(), short_calls()

    def train(model: Any, x: Tensor) -> None:
        loss = model(x).square().mean()
        with monkeypatch.context() as broken:
            broken.setattr(Engine, "lend", lend)
            loss.backward()

    pair.train(train)
    assert short_calls() == before + 1


def test_what_is_raised_after_a_pass_has_run_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal handler may raise there: run once more, the call would write the statistics twice."""
    pair, run = Pair(normalised, images).settle(), Passes.run_forward
    batches, before = pair.mine.state_dict()["layers.1.num_batches_tracked"], short_calls()
    wanted = batches + 1

    def run_forward(passes: Passes, arguments: tuple[Any, ...]) -> Any:
        run(passes, arguments)
        raise TimeoutError("too late")

    monkeypatch.setattr(Passes, "run_forward", run_forward)
    with pytest.raises(TimeoutError, match="too late"):
        pair.compiled(images(0))
    assert short_calls() == before + 1
    assert pair.mine.state_dict()["layers.1.num_batches_tracked"] == wanted


def test_deterministic_algorithms_cannot_be_asked_for_between_both_passes() -> None:
    pair, before = Pair(perceptron).settle(), short_calls()
    result = pair.compiled(rows(0)).sum()
    assert short_calls() == before + 1
    torch.use_deterministic_algorithms(True)
    try:
        with pytest.raises(RuntimeError, match="use_deterministic_algorithms"):
            result.backward()
    finally:
        torch.use_deterministic_algorithms(False)


@by_both
@pytest.mark.parametrize("written", ["weight", "result"])
def test_what_is_saved_and_was_written_before_the_backward_pass_raises(written: str) -> None:
    def make() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(8, 4), nn.Linear(4, 4), nn.Tanh()).double()

    pair, before = Pair(make).settle(), short_calls()
    for model, layers in ((pair.compiled, pair.mine), (pair.eager, pair.eager)):
        result = model(rows(0))
        with torch.no_grad():
            (layers[1].weight if written == "weight" else result.detach()).zero_()  # type: ignore[index]
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            result.sum().backward()
    assert short_calls() == before + 1


@by_both
def test_second_derivatives_raise_as_by_the_long_way() -> None:
    pair = Pair(perceptron).settle()
    parameters = list(pair.mine.parameters())
    gradients = torch.autograd.grad(pair.compiled(rows(0)).square().sum(), parameters, create_graph=True)
    with pytest.raises(RuntimeError, match="double backward"):
        gradients[0].sum().backward()  # type: ignore[no-untyped-call]


def test_hooks_of_saved_tensors_are_called() -> None:
    pair, before = Pair(perceptron).settle(), short_calls()
    seen: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        seen.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        pair.train()
    assert seen
    assert short_calls() == before


def test_a_result_without_its_backward_pass_frees_what_was_kept() -> None:
    pair = Pair(perceptron).settle()
    x = rows(0)
    kept = weakref.ref(x)
    pair.compiled(x)
    del x
    assert kept() is None


def test_autocast_and_other_default_types_go_the_long_way() -> None:
    pair, before = Pair(perceptron).settle(), short_calls()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        pair.compiled(rows(0))
    assert short_calls() == before


class HalfCast(nn.Module):
    """A layer that the caller's autocast computes in bfloat16, and one for which it is off."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x).tanh()
        with torch.autocast("cpu", enabled=False):
            found: Tensor = self.last(hidden.float())
        return found


@by_both
def test_what_autocast_is_off_for_is_not_cast() -> None:
    mine, eager = HalfCast(), HalfCast()
    compiled: Any = torch.compile(mine, backend="threadcast")
    for step in attempts():
        if short_calls() > 3:
            return
        for called, model in ((compiled, mine), (eager, eager)):
            model.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                result = called(rows(step).float())
            assert result.dtype is torch.float32
            result.square().mean().backward()
        for one, other in zip(mine.parameters(), eager.parameters(), strict=True):
            torch.testing.assert_close(one.grad, other.grad, rtol=2e-2, atol=1e-3)


@pytest.mark.parametrize("draws", [False, True])
def test_a_model_whose_plan_raises_goes_on(draws: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def lend(*_: Any) -> None:
        torch.rand(100)
        raise ExecutionError("broken")

    pair = Pair(with_dropout if draws else perceptron).settle()
    monkeypatch.setattr(Engine, "lend", lend)
    for _ in range(3):
        pair.train()
