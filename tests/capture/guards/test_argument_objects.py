"""What a callable does with its arguments besides computing with their numbers is refused, or is as in PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from threadcast.capture.graph.capture import capture_forward, capture_training
from threadcast.capture.graph.optimizers import NoUpdate
from threadcast.core.errors import CaptureError
from threadcast.runtime.doors.optimized_model import Formatted
from threadcast.runtime.plans.model_format import ModelFormat
from threadcast.runtime.plans.variant import MemoryFormat


class Registered:
    """A class of the user's own that PyTorch takes apart, as caches of attention are."""

    def __init__(self, value: Tensor) -> None:
        self.value = value


pytree.register_pytree_node(Registered, lambda held: ([held.value], None), lambda parts, _: Registered(*parts))

IMAGE = torch.ones(1, 2, 3, 3)
CHANGES: dict[str, tuple[Callable[[], Any], Callable[[Any, Tensor], Any], str]] = {
    "put": (lambda: {"last": IMAGE}, lambda held, x: held.update(next=x), "among the arguments is changed"),
    "exchanged": (lambda: {"last": IMAGE}, lambda held, x: held.update(last=x), "among the arguments is changed"),
    "appended": (lambda: [IMAGE], lambda held, x: held.append(x), "among the arguments is changed"),
    "set": (lambda: Registered(IMAGE), lambda held, x: setattr(held, "value", x), "among the arguments is changed"),
    "marked": (lambda: [IMAGE], lambda held, x: setattr(held[0], "mask", x), "an attribute of an argument is set"),
}


class OfBatch(nn.Module):
    """Does something with what it is given and what it computes."""

    def __init__(self, change: Callable[[Any, Tensor], Any]) -> None:
        super().__init__()
        self.layer, self.change = nn.Conv2d(2, 2, 1), change

    def forward(self, image: Tensor, held: Any) -> Tensor:
        result: Tensor = self.layer(image)
        self.change(held, result)
        return result.sum((2, 3))


@pytest.mark.parametrize("memory_format", MemoryFormat)
@pytest.mark.parametrize("name", CHANGES)
def test_a_model_that_changes_its_arguments_is_refused_and_leaves_them(name: str, memory_format: MemoryFormat) -> None:
    make, change, reason = CHANGES[name]
    held, model = make(), OfBatch(change)
    before, structure = pytree.tree_flatten(held)
    owner = ModelFormat(model)
    owner.set(memory_format)
    with pytest.raises(CaptureError, match=reason):
        capture_forward(Formatted(model, owner), (IMAGE, held), {})
    with pytest.raises(CaptureError, match=reason):
        capture_training(model, nn.functional.mse_loss, NoUpdate(), [IMAGE, held], torch.zeros(1, 2))
    now, structure_now = pytree.tree_flatten(held)
    assert structure_now == structure
    assert all(one is other for one, other in zip(now, before, strict=True))
    assert not vars(IMAGE)


def test_a_container_that_is_left_as_it_was_given_is_no_obstacle() -> None:
    def function(x: Tensor, held: dict[str, Tensor]) -> Tensor:
        held["doubled"] = x * 2
        return held.pop("doubled") + held["last"]

    captured = capture_forward(function, torch.ones(3), {"last": torch.ones(3)})
    assert captured.run(torch.full((3,), 2.0), {"last": torch.full((3,), 5.0)}).tolist() == [9.0] * 3


def asks(a: Tensor, b: Tensor) -> Tensor:
    return a * 2 if a is b else a + b


def test_a_tensor_that_comes_twice_may_be_one_written_and_returned() -> None:
    def function(a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        before = b + 1
        a.add_(1)
        return before, b * 2, a, b

    x, y = torch.ones(3), torch.full((3,), 5.0)
    assert capture_forward(asks, x, x).run(y, y).tolist() == [10.0] * 3
    assert capture_forward(asks, x, x.view_as(x)).run(x, y).tolist() == [6.0] * 3
    before, doubled, first, second = capture_forward(function, x, x).run(y, y)
    assert (before.tolist(), doubled.tolist(), y.tolist()) == ([6.0] * 3, [12.0] * 3, [6.0] * 3)
    assert first is second is y
    assert x.tolist() == [1.0] * 3


@pytest.mark.parametrize("memory_format", MemoryFormat)
def test_an_image_that_comes_twice_is_one_in_each_format(memory_format: MemoryFormat) -> None:
    model = nn.Conv2d(2, 2, 1)
    model.register_forward_pre_hook(lambda _, given: asks(*given))
    owner = ModelFormat(model)
    owner.set(memory_format)
    captured = capture_forward(Formatted(model, owner), (IMAGE, IMAGE), {})
    targets = [node.target for node in captured.program.nodes]
    assert torch.ops.aten.mul.Tensor in targets
    assert torch.ops.aten.add.Tensor not in targets


def test_attributes_that_are_set_on_results_are_refused() -> None:
    def marked(x: Tensor) -> dict[str, Tensor]:
        y = x * 2
        y.scale = 3.0  # type: ignore[attr-defined]
        return {"y": y}

    with pytest.raises(CaptureError, match="an attribute of a result is set"):
        capture_forward(marked, torch.ones(3))
    found = capture_forward(lambda x: [x * 2, x, x[:1], x.detach(), *x.topk(2)], torch.ones(3))
    assert found.run()[0].tolist() == [2.0] * 3
