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


def given(x: Tensor) -> Tensor:
    return one_hot(x, CLASSES) * 2


def of_data(x: Tensor) -> Tensor:
    return one_hot(x) * 2


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


@pytest.mark.parametrize("function", [given, of_data])
@pytest.mark.parametrize("x", [X, X.T])
def test_a_graph_gives_what_eager_pytorch_gives(function: Callable[[Tensor], Tensor], x: Tensor) -> None:
    found, wanted = capture_forward(function, x).run(x), function(x)
    assert torch.equal(found, wanted)
    assert found.stride() == wanted.stride()


@pytest.mark.parametrize(
    ("function", "wrong", "message"),
    [
        (given, 4, "must be smaller than num_classes"),
        (given, -1, "must be non-negative"),
        (of_data, -1, "must be non-negative"),
    ],
)
def test_a_graph_raises_what_eager_pytorch_raises(
    function: Callable[[Tensor], Tensor], wrong: int, message: str
) -> None:
    captured, x = capture_forward(function, X), X.clone()
    x[0, 0] = wrong
    with pytest.raises(RuntimeError, match=message):
        function(x)
    with pytest.raises(RuntimeError, match=message):
        captured.run(x)


@pytest.mark.parametrize("function", [by_hand, in_steps])
def test_what_is_written_by_hand_raises_nothing(function: Callable[[Tensor], Tensor]) -> None:
    x = X + 1
    assert torch.equal(capture_forward(function, X).run(x), function(x))
