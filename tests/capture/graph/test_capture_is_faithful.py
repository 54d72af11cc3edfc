"""A captured step does what eager PyTorch does, on other data, step after step, or is refused with the reason."""

from __future__ import annotations

from collections import UserDict, deque
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.utils.checkpoint import checkpoint

from tests.runtime.random_plans import make_random_plan
from threadcast.capture.graph.capture import capture_forward, capture_training
from threadcast.capture.graph.optimizers import NoUpdate
from threadcast.core.errors import CaptureError
from threadcast.runtime.engine.replay import arrange

aten = torch.ops.aten
TABLE = torch.nn.Embedding(4, 2)


class Pair(NamedTuple):
    first: Tensor
    second: Tensor


@dataclass
class Held:
    logits: Tensor


def unbound(x: Tensor) -> tuple[Tensor, Tensor]:
    rows = (x * 1).unbind(0)
    doubled = x * 2
    rows[0].add_(1)
    return doubled, rows[0] + rows[1]


def written_through_parts(x: Tensor) -> tuple[Tensor, Tensor]:
    whole = x + 0
    before = whole.sum()
    one, other = whole.chunk(2, 1)
    one.sigmoid_()
    after = whole.sum()
    torch.split(whole, 1, 0)[1].mul_(3)
    return before + other.sum(), after * whole.sum()


def own_product(x: Tensor) -> tuple[Tensor, Tensor]:
    total = x * 0 + 1
    kept = total.view(-1)
    made = total.addmm_(x, x)
    return made + x @ x, kept + 0


def made_of_numbers(x: Tensor) -> Tensor:
    total = torch.tensor([1.0, 2.0, 3.0, 4.0])
    total += x[0]
    return total


def changed_late(x: Tensor) -> Tensor:
    y = x * 1
    total = y.sum(0)
    return y.unsqueeze_(0) + total


def written_through_a_view(x: Tensor) -> Tensor:
    y = x * 1
    same = y.detach()
    y.transpose_(0, 1)
    y[0] += 1
    return same + y


def gradient_of_rearranged(backward: OpOverload, *settings: Any) -> Callable[[Tensor], Tensor]:
    """Takes the gradient of a loss of numbers that lie in another order, in the order that the operator gives it."""
    return lambda x: backward(x.sum(), x.t(), x.t() * 2, *settings).view(16) + 1


@pytest.mark.parametrize(
    "function",
    [
        unbound, written_through_parts, own_product, made_of_numbers,
        lambda x: Pair(x + 1, x * 2),
        lambda x: deque([(x * 2).tanh(), x + 1]),
        lambda x: (x * 2, x.shape, 7, None),
        lambda x: {"a": [x.sin(), 3], "b": (x,)},
        lambda x: torch.cat([*torch.split(x, 2)][::-1], dim=0) + torch.full_like(x, float("inf"), dtype=torch.float64),
        lambda x: (nn.functional.pad(x, [1, 1]), x[:, None], torch.std_mean(x, dim=[0], correction=0)[1]),
        lambda x: x + torch.from_dlpack(np.arange(4, dtype=np.float32)),
        lambda x: torch.linalg.inv(x + 3 * torch.eye(4)),
        lambda x: (x * 1).unsqueeze_(0) + x,
        changed_late,
        lambda x: torch.view_as_real(torch.view_as_complex(x.view(4, 2, 2)) * 1j + (2 - 3j)),
        lambda x: (x * 1).detach().unsqueeze_(0),
        lambda x: (x * 1).view(16).unsqueeze_(0).squeeze_(0).squeeze_(),
        lambda x: x.detach().t_() * 1,
        lambda x: (x * 1).transpose_(0, 1).add_(x) + torch.arange(4.0, device="cpu:0"),
        written_through_a_view,
        lambda x: nn.functional.adaptive_avg_pool2d(x.reshape(1, 4, 2, 2).to(memory_format=torch.channels_last), 1),
        lambda x: nn.functional.layer_norm(x.detach().clone(), (4,)).sort()[0],
        gradient_of_rearranged(aten.mse_loss_backward.default, 1),
        gradient_of_rearranged(aten.smooth_l1_loss_backward.default, 1, 1.0),
        gradient_of_rearranged(aten.huber_loss_backward.default, 1, 1.0),
        lambda x: aten._log_softmax_backward_data(x.t(), x.t(), 1, torch.float32).view(16) + 1,
        lambda x: aten.log_sigmoid_forward(x.t())[0].view(16) + 1,
    ],
)  # fmt: skip
def test_results_are_those_of_eager_in_every_order_that_edges_allow(function: Callable[..., Any]) -> None:
    captured = capture_forward(function, torch.eye(4))
    for seed in range(5):
        x = torch.randn(4, 4, generator=torch.Generator().manual_seed(seed))
        wanted = function(x.clone())
        for plan in range(8):
            order = arrange(make_random_plan(captured.graph, (0, 1, 2), seed=plan), captured.graph).order
            found = captured.run(x.clone(), order=order)
            assert type(found) is type(wanted)
            torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize(
    ("function", "good", "bad"),
    [
        (lambda x, by: x // by, [3], [0]),
        (lambda x, by: x % by, [3], [0]),
        (lambda x, by: torch.div(x, by, rounding_mode="floor"), [3], [0]),
        (lambda x, by: x.div_(by, rounding_mode="trunc"), [3], [0]),
        (lambda x, order: torch.searchsorted(x, x, sorter=order), [2, 0, 1], [2, 0, 3]),
        (lambda x, last: torch.histogram(x / last, bins=3).hist, [1.0], [0.0]),
        (lambda x, q: torch.quantile(x, q), [0.5], [1.01]),
        (lambda x, factor: torch.linalg.inv(torch.eye(3) * factor), [1.0], [0.0]),
        (lambda x, index: (TABLE(index), x * 2)[1], [1], [7]),  # computed for its errors alone
    ],
)
def test_nothing_is_written_after_an_operator_that_raises(
    function: Callable[..., Any], good: list[Any], bad: list[Any]
) -> None:
    def call(x: Tensor, other: Tensor, count: Tensor) -> Tensor:
        found: Tensor = function(x * 1, other)
        count.add_(1)
        return found

    x, count = torch.arange(3).to(torch.tensor(good).dtype), torch.zeros(())
    with pytest.raises((RuntimeError, IndexError)):
        call(x, torch.tensor(bad), count)
    captured = capture_forward(call, x, torch.tensor(good), count)
    for plan in range(8):
        order = arrange(make_random_plan(captured.graph, (0, 1, 2), seed=plan), captured.graph).order
        with pytest.raises((RuntimeError, IndexError)):
            captured.run(x, torch.tensor(bad), count, order=order)
        assert count == 0


@pytest.mark.parametrize("joined", [False, True], ids=["padded", "joined"])
@pytest.mark.parametrize("known", [False, True], ids=["lengths given", "lengths known"])
def test_ctc_loss_of_targets_of_any_length(joined: bool, known: bool) -> None:
    def loss(scores: Tensor, data: tuple[Tensor, Tensor]) -> Tensor:
        targets, lengths = data
        of_targets = (2, 2, 2) if known else lengths
        of_scores = (9, 9, 9) if known else lengths * 0 + 9
        reduction = "sum" if known else "mean"  # PyTorch has no mean by known lengths on fake tensors
        found: Tensor = nn.functional.ctc_loss(
            scores.log_softmax(-1), targets, of_scores, of_targets, reduction=reduction
        )
        return found

    torch.manual_seed(0)
    model, x = nn.Linear(4, 6), torch.randn(9, 3, 4)
    padded, captured = torch.randint(1, 6, (3, 3)), None
    for lengths in ([2, 2, 2],) if known else ([2, 1, 3], [3, 1, 2], [1, 1, 1]):
        targets = torch.cat([row[:size] for row, size in zip(padded, lengths)]) if joined else padded
        data = targets, torch.tensor(lengths)
        if captured is None or joined:  # one graph for all lengths
            captured = capture_training(model, loss, NoUpdate(), (x,), data)
        wanted = torch.autograd.grad(loss(model(x), data), list(model.parameters()))
        model.zero_grad()
        captured.run((x,), data)
        torch.testing.assert_close([parameter.grad for parameter in model.parameters()], list(wanted))


def test_a_tensor_that_is_also_closed_over_is_told_apart_later() -> None:
    x, z = torch.ones(3), torch.full((3,), 5.0)
    added = capture_forward(lambda a: a * 2 + x, x)
    torch.testing.assert_close(added.run(z), z * 2 + 1)
    model = nn.BatchNorm1d(3)
    summed = capture_forward(lambda a: a * 2 + model.running_mean, model.running_mean)
    torch.testing.assert_close(summed.run(z), z * 2)


def test_strides_without_an_offset_begin_where_the_argument_does() -> None:
    base = torch.arange(9.0)
    captured = capture_forward(lambda x: (x * 1).as_strided((2,), (1,), 1) + x.as_strided((2,), (2,)), base[:4])
    torch.testing.assert_close(captured.run(base[3:7]), torch.tensor([7.0, 10.0]))


def filled(x: Tensor, *, viewed: bool = False) -> Tensor:
    flag = torch.tensor(0.0)
    seen = flag.view(1) if viewed else flag
    torch._foreach_add_([flag], [x.sum()])
    return x if seen > 0 else -x


SHARED, OUTSIDE = torch.zeros(2, 3), torch.ones(2)


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda x: (x * 1).apply_(lambda value: value + 1), "cannot capture"),
        (lambda x: torch.from_dlpack(x) * 2, "cannot capture"),
        (lambda x: x * (2 if x.data_ptr() % 16 == 0 else 3), "cannot capture"),
        (lambda x: Held(x * 2), "a Held is returned"),
        (lambda x: UserDict(a=x * 2), "a UserDict is returned"),
        (lambda x: {x * 2}, "a set is returned"),
        (lambda x: x[:2, :3] * SHARED.t_().shape[0], "t_"),
        (lambda x: x.t_() * 1, "t_"),
        (lambda x: setattr(x, "data", x * 3) or x + 1, "exchanged"),
        (filled, "cannot capture"),
        (lambda x: filled(x, viewed=True), "cannot capture"),
        (lambda x: torch.sparse.mm(torch.eye(4).to_sparse(), x), "cannot capture"),
        (lambda x: x.view(16).as_strided((2, 2), (4, 1), x.storage_offset() + 1) * 2, "storage offset"),
        (lambda x: x, "nothing is computed"),
        (lambda x: torch.ones(int(x.sum().item())), "Control flow"),
        (lambda x: x @ torch.ones(7, 7), "RuntimeError"),
        (lambda x: torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,)), "cond"),
        (lambda x: x.to(torch.uint16) + 1, "uint16"),
        (lambda x: x * float(OUTSIDE.tolist()[0]), "not an argument"),
        (lambda x: x * float(np.asarray(OUTSIDE)[0]), "not an argument"),
        (lambda x: x * float(np.from_dlpack(OUTSIDE)[0]), "not an argument"),
        (lambda x: torch.frombuffer(bytearray(16), dtype=torch.float32).add_(x[0]) * 2, "frombuffer"),
        (lambda x: (x * 2, torch.from_dlpack(np.ones(3, dtype=np.float32))[1:]), "frombuffer"),
    ],
)  # fmt: skip
def test_what_a_graph_cannot_repeat_is_refused(function: Callable[..., Any], reason: str) -> None:
    x = torch.eye(4)
    with pytest.raises(CaptureError, match=reason):
        capture_forward(function, x)
    assert (x.tolist(), SHARED.shape) == (torch.eye(4).tolist(), (2, 3))


@pytest.mark.parametrize("chance", [0.0, 0.5])
def test_recomputation_is_captured_but_not_with_random_numbers(chance: float) -> None:
    inner = nn.Sequential(nn.Linear(4, 4), *([nn.Dropout(chance)] if chance else []))

    def loss(found: Tensor, wanted: Tensor) -> Tensor:
        result: Tensor = checkpoint(inner, found + wanted, use_reentrant=False)
        return result.sum()

    with pytest.raises(CaptureError, match="generator's state is set") if chance else nullcontext():
        capture_training(inner, loss, NoUpdate(), (torch.ones(2, 4),), torch.zeros(2, 4))


def test_parameters_of_the_optimizer_alone_are_not_forgotten() -> None:
    model, other = nn.Linear(4, 4), nn.Parameter(torch.ones(()))
    optimizer = torch.optim.SGD([*model.parameters(), other], lr=0.1)
    unused = capture_training(model, nn.functional.mse_loss, optimizer, (torch.ones(2, 4),), torch.zeros(2, 4))
    assert unused.run(((torch.ones(2, 4),), torch.zeros(2, 4)))
    with pytest.raises(CaptureError, match="parameters that are not the model's"):
        capture_training(model, lambda y, t: ((y - t) * other).sum(), optimizer, (torch.ones(2, 4),), torch.zeros(2, 4))


READS: list[Callable[[Tensor], Any]] = [
    lambda x: float(x.sum()), lambda x: float(x.detach().numpy().sum()), lambda x: x[x > 0].exp(),
]  # fmt: skip


@pytest.mark.parametrize("read", READS)
def test_what_only_recording_raises_is_no_way_for_a_callable_that_catches_it(read: Callable[[Tensor], Any]) -> None:
    def function(x: Tensor) -> Any:
        with suppress(Exception):
            return x * read(x)
        return x * 2.0

    with pytest.raises(CaptureError, match="catches what only recording raises"):
        capture_forward(function, torch.ones(20))


def test_a_callable_may_catch_what_eager_pytorch_raises_too() -> None:
    def reshaped(x: Tensor) -> Tensor:
        try:
            return x.view(7) * 2
        except RuntimeError:
            return x.view(2, 10) * 3

    x = torch.randn(20)
    assert torch.equal(capture_forward(reshaped, torch.ones(20)).run(x), x.view(2, 10) * 3)


@pytest.mark.parametrize("before", [None, torch.ones(3)])
def test_gradients_that_a_call_adds_or_reads_are_refused_and_stay(before: Tensor | None) -> None:
    weight = torch.full((3,), 2.0, requires_grad=True)
    weight.grad = before

    def trains(x: Tensor) -> Tensor:
        with torch.enable_grad():
            (x * weight).sum().backward()  # type: ignore[no-untyped-call]
        return x * 2

    with pytest.raises(CaptureError, match="gradient"):
        capture_forward(trains, torch.ones(3))
    assert weight.grad is before
    if before is not None:
        assert before.tolist() == [1.0] * 3
        with pytest.raises(CaptureError, match=r"a gradient .* is read"):
            capture_forward(lambda x: x * weight.grad, torch.ones(3))


def test_tensors_that_a_callable_holds_may_be_written_and_returned() -> None:
    norm, counts, table = nn.BatchNorm1d(3), torch.zeros(3), {"scale": torch.ones(3)}

    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        counts.add_(1)
        return norm(x) + counts, table["scale"]

    captured = capture_forward(function, torch.ones(2, 3))
    for number in (1, 2):
        _, scale = captured.run(torch.randn(2, 3))
        assert scale is table["scale"]
        assert counts.tolist() == [number] * 3
        assert norm.num_batches_tracked == number


def test_a_number_that_a_custom_operator_returns_is_not_built_in() -> None:
    with torch.library._scoped_library("tested_numbers", "FRAGMENT") as library:
        library.define("overflows(Tensor x) -> bool")
        library.impl("overflows", lambda x: bool((x.abs() > 1e30).any()), "CPU")
        library.impl("overflows", lambda x: False, "Meta")
        overflows = torch.ops.tested_numbers.overflows
        with pytest.raises(CaptureError, match=r"overflows.*returns a number"):
            capture_forward(lambda x: x.clamp(-1, 1) if overflows(x) else x * 2, torch.ones(3))


@pytest.mark.parametrize("call", [lambda x: x.prod(), lambda x: x.prod(1).sum(), lambda x: x.cumprod(0).sum()])
def test_gradients_that_pytorch_computes_otherwise_where_a_number_is_0_are_refused(call: Callable[..., Tensor]) -> None:
    model = nn.Linear(3, 3)
    with pytest.raises(CaptureError, match=r"rodBackward\d: PyTorch computes it otherwise where a number is 0"):
        capture_training(model, lambda result, _: call(result), NoUpdate(), (torch.ones(2, 3),), None)
