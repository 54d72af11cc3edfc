"""`one_hot` in a graph raises where eager PyTorch does; what is written by hand of the same operators does not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from threadcast.capture.graph.capture import capture_forward

CLASSES = 4
X = torch.tensor([[0, 3, 1], [2, 2, 0]])


def by_hand(x: Tensor) -> Tensor:
    classes = torch.arange(CLASSES, dtype=torch.int64)
    return (x.unsqueeze(-1) == classes).to(torch.int64) * 2


def in_steps(x: Tensor) -> Tensor:
    """As by hand, each operator called at the same place of the code."""

    def call(operator: Callable[..., Tensor], *arguments: object, **named: object) -> Tensor:
        return operator(*arguments, **named)

    found = call(torch.arange, CLASSES, dtype=torch.int64)
    found = call(torch.eq, call(torch.unsqueeze, x, -1), found)
    return call(Tensor.to, found, torch.int64) * 2


@pytest.mark.parametrize(
    ("classes", "wrong", "message"),
    [
        (CLASSES, 4, "must be smaller than num_classes"), (CLASSES, -1, "must be non-negative"),
        (-1, -1, "must be non-negative"),
    ],
)  # fmt: skip
def test_a_graph_gives_and_raises_what_eager_pytorch_does(classes: int, wrong: int, message: str) -> None:
    def function(x: Tensor) -> Tensor:
        return one_hot(x, classes) * 2

    for x in (X, X.T):
        captured, wanted = capture_forward(function, x), function(x)
        assert torch.equal(captured.run(x), wanted)
        assert captured.run(x).stride() == wanted.stride()
        outside = x.clone()
        outside[0, 0] = wrong
        for call in (function, captured.run):
            with pytest.raises(RuntimeError, match=message):
                call(outside)


@pytest.mark.parametrize("function", [by_hand, in_steps])
def test_what_is_written_by_hand_raises_nothing(function: Callable[[Tensor], Tensor]) -> None:
    x = X + 1
    assert torch.equal(capture_forward(function, X).run(x), function(x))
