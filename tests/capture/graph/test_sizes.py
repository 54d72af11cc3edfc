"""A graph captured for several sizes gives eager's results for all of them, or says for which it is not right."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

from tests.capture.eager_training import train
from threadcast.capture.graph.capture import capture_forward, capture_training
from threadcast.capture.graph.captured import Captured
from threadcast.capture.graph.values import Dynamic
from threadcast.core import Case, Machine, read_machine
from threadcast.core.errors import CaptureError
from threadcast.runtime.engine.engine import Engine
from threadcast.runtime.plans.sequential import sequential


class Attention(nn.Module):
    """Attention with a cache that grows by one in each call."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(16, 16) for _ in range(3))

    def forward(self, x: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, ...]:
        def heads(t: Tensor) -> Tensor:
            return t.view(t.shape[0], t.shape[1], 4, 4).transpose(1, 2)

        keys, values = torch.cat([keys, heads(self.k(x))], 2), torch.cat([values, heads(self.v(x))], 2)
        found = scaled_dot_product_attention(heads(self.q(x)), keys, values)
        return found.transpose(1, 2).reshape(x.shape[0], x.shape[1], 16), keys, values


def numbers(x: Tensor, n: int) -> Tensor:
    """Sizes as numbers, in lists and as tensors."""
    return (x[:, :n] * 2 + n).sum() * torch.arange(n) + torch.full((2, n), n) + x.view(-1, 4).shape[0]


def mixed(x: Tensor) -> Tensor:
    """Equal sizes that are equal by chance in the example: rows are fixed, columns vary."""
    return (
        torch.cat([x.reshape(8, -1), x.view(8, x.shape[1])]).view(2 * 8 * x.shape[1]) + x.reshape(-1, x.shape[1])[0, 0]
    )


CALLS: dict[str, tuple[Callable[..., Any], Dynamic, Callable[[int], tuple[Any, ...]]]] = {
    "batch": (nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)), {0: (0,)}, lambda n: (torch.randn(n, 6),)),
    "images": (
        nn.Sequential(
            nn.Conv2d(3, 4, 3, 2, 1), nn.BatchNorm2d(4), nn.MaxPool2d(2), nn.AdaptiveAvgPool2d(1), nn.Flatten()
        ),
        {0: (0, 2)}, lambda n: (torch.randn(n, 3, 4 * n, 12),),
    ),
    "cache": (
        Attention(), {1: (2,), 2: (2,)}, lambda n: (torch.randn(3, 1, 16), *(torch.randn(3, 4, n, 4) for _ in range(2)))
    ),
    "integer": (numbers, {1: ()}, lambda n: (torch.randn(2, 40), n)),
    "by chance": (mixed, {0: (1,)}, lambda n: (torch.randn(8, n),)),
}  # fmt: skip


@pytest.fixture(scope="module")
def machine() -> Machine:
    return read_machine(cores=1)


@pytest.mark.parametrize("native", [False, True], ids=["program", "engine"])
@pytest.mark.parametrize("name", CALLS)
def test_a_graph_for_several_sizes_gives_eagers_results(name: str, native: bool, machine: Machine) -> None:
    function, dynamic, arguments = CALLS[name]
    if isinstance(function, nn.Module):
        function.eval()
    captured = capture_forward(function, *arguments(8), dynamic=dynamic)
    engine = Engine(captured, sequential(captured.graph, machine, Case(1)), machine) if native else None
    for size in (8, 5, 13, 2, 32):
        given = arguments(size)
        with torch.no_grad():
            wanted = function(*given)
        found = captured.run(*given) if engine is None else captured.finish(engine.run(captured.bind(*given)))
        torch.testing.assert_close(found, wanted)
    if engine is not None:
        engine.close()


def test_a_training_step_for_several_batches_trains_as_eager_does() -> None:
    def net() -> tuple[nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 3)).double()
        return model, torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)

    (mine, my_optimizer), (eager, optimizer) = net(), net()

    def batch(n: int) -> tuple[Tensor, Tensor]:
        return torch.randn(n, 6, dtype=torch.float64), torch.randint(3, (n,))

    for model, one in ((mine, my_optimizer), (eager, optimizer)):  # makes the momentum
        torch.manual_seed(1)
        x, y = batch(4)
        train(model, one, lambda model, x=x, y=y: cross_entropy(model(x), y))
    captured = capture_training(
        mine, cross_entropy, my_optimizer, (batch(4)[0],), batch(4)[1], dynamic={0: (0,), 1: (0,)}
    )
    for n in (4, 7, 2, 19):
        x, y = batch(n)
        found = captured.run((x,), y)["loss"]
        wanted, _ = train(eager, optimizer, lambda model, x=x, y=y: cross_entropy(model(x), y))
        torch.testing.assert_close(found, wanted)
    for one, other in zip(mine.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(one, other)


def by_its_size(x: Tensor) -> Tensor:
    return x * 2 if x.shape[0] > 10 else x + 1


def halves(x: Tensor) -> Tensor:
    return x.view(2, -1).sum(0)


@pytest.mark.parametrize(
    ("function", "right", "wrong"), [(by_its_size, (4, 10), (11, 30, 1)), (halves, (4, 8), (5, 11))]
)  # fmt: skip
def test_sizes_for_which_the_callable_takes_another_way_are_refused(
    function: Callable[[Tensor], Tensor], right: tuple[int, ...], wrong: tuple[int, ...]
) -> None:
    captured = capture_forward(function, torch.ones(6), dynamic={0: (0,)})
    for size in right:
        torch.testing.assert_close(captured.run(torch.arange(float(size))), function(torch.arange(float(size))))
    for size in wrong:
        with pytest.raises(CaptureError, match="not right for sizes"):
            captured.run(torch.ones(size))


def refused(call: Callable[[], Captured]) -> str:
    with pytest.raises(CaptureError) as error:
        call()
    return str(error.value)


def test_what_cannot_be_captured_for_several_sizes_says_so() -> None:
    x = torch.ones(6)
    assert "a way of its own" in refused(lambda: capture_forward(lambda x: x * len(x), x, dynamic={0: (0,)}))
    assert "tensor values" in refused(lambda: capture_forward(lambda x: x[x > 0] * 2, x, dynamic={0: (0,)}))
    assert "SymInt" in refused(lambda: capture_forward(lambda x: (x * 2, 2 * x.shape[0]), x, dynamic={0: (0,)}))


def test_a_size_in_a_text_is_fixed() -> None:
    by_text = {"4": 2.0}

    def scaled(x: Tensor) -> Tensor:
        return x * by_text.get(str(x.shape[0]), 1.0)

    assert "a way of its own" in refused(lambda: capture_forward(scaled, torch.ones(6), dynamic={0: (0,)}))
    halves_in_text = capture_forward(lambda x: x * len(f"{x.shape[0] // 2}"), torch.ones(6), dynamic={0: (0,)})
    torch.testing.assert_close(halves_in_text.run(torch.ones(7)), torch.ones(7))
    with pytest.raises(CaptureError, match="not right for sizes"):
        halves_in_text.run(torch.ones(20))


def test_operators_that_cannot_be_captured_for_several_sizes_log_no_tracebacks(
    caplog: pytest.LogCaptureFixture,
) -> None:
    square, logger = torch.ones(4, 4), logging.getLogger("torch._subclasses.fake_tensor")
    logger.addHandler(caplog.handler)
    try:
        refused(lambda: capture_forward(lambda x: torch.trace(x) * x, square, dynamic={0: (0, 1)}))
    finally:
        logger.removeHandler(caplog.handler)
    assert logger.name not in {record.name for record in caplog.records}
    assert not logger.disabled


def test_only_what_varies_may_differ_from_the_example() -> None:
    captured = capture_forward(lambda x, y: x @ y, torch.ones(4, 3), torch.ones(3, 2), dynamic={0: (0,)})
    assert captured.run(torch.ones(9, 3), torch.ones(3, 2)).shape == (9, 2)
    for x, y in (
        (torch.ones(4, 5), torch.ones(3, 2)), (torch.ones(4, 3), torch.ones(3, 7)),
        (torch.ones(3, 4).T, torch.ones(3, 2)), (torch.ones(4, 3, dtype=torch.float64), torch.ones(3, 2)),
        (torch.ones(4, 3, 1), torch.ones(3, 2)),
    ):  # fmt: skip
        with pytest.raises(CaptureError):
            captured.run(x, y)
    torch.testing.assert_close(captured.run(), torch.full((4, 2), 3.0), msg="the example's")
