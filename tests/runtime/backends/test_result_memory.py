"""Results of a backend lie in memory as the module's do."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from threadcast.core.errors import CaptureError
from threadcast.runtime.backends.result_memory import ResultMemory


def given(seed: int) -> Tensor:
    return torch.randn(2, 3, 4, 4, generator=torch.Generator().manual_seed(seed))


RESULTS: dict[str, Callable[[Tensor], Sequence[Tensor]]] = {
    "plain": lambda x: [x, x + 1],
    "permuted": lambda x: [(x + 1).transpose(1, 2), x.sum(1)],
    "channels last": lambda x: [(x * 2).contiguous(memory_format=torch.channels_last)],
    "with gaps": lambda x: [x[:, 0], x[..., ::2] * 1],
    "expanded": lambda x: [(x.sum(1, keepdim=True)).expand(2, 5, 4, 4)],
    "twice": lambda x: [y := x + 1, x * 2, y],
    "views of one": lambda x: [y := x + 1, y[:, 0], y.flatten(1), y.permute(3, 0, 1, 2)[1:]],
    "parts of what is no result": lambda x: list((x + 1).chunk(3, 1)),
    "interleaved": lambda x: [(y := x + 1)[..., ::2], y[..., 1::2]],
    "empty": lambda x: [x[:0], x * 1],
}


@pytest.mark.parametrize("name", RESULTS)
def test_results_have_strides_and_share_memory_as_the_modules_do(name: str) -> None:
    memory = ResultMemory(RESULTS[name](given(1)))
    wanted = RESULTS[name](given(2))
    found = memory.laid_out([one.contiguous().clone() for one in wanted])
    for one, other in zip(found, wanted, strict=True):
        assert torch.equal(one, other)
        assert one.stride() == other.stride() or other.numel() == 0
    if name not in ("expanded", "empty"):
        wanted[0].add_(1)
        found[0].add_(1)
    for one, other in zip(found, wanted, strict=True):
        assert torch.equal(one, other), "what the caller writes to one result shows in the same others"
    same = [[one is other for other in wanted] for one in wanted]
    assert [[one is other for other in found] for one in found] == same


@pytest.mark.parametrize(
    "function",
    [
        lambda x: [(y := (x + 1).flatten())[:40], y[20:]],
        lambda x: [(x + 1).flatten().unfold(0, 4, 1)],
        lambda x: [y := x + 1, y.view(torch.int32)],
    ],
)
def test_memory_that_is_shared_in_other_ways_is_refused(function: Callable[[Tensor], Sequence[Tensor]]) -> None:
    with pytest.raises(CaptureError, match="memory"):
        ResultMemory(function(given(1)))


def test_results_that_lie_right_are_not_copied() -> None:
    memory = ResultMemory([torch.ones(1, 3, 4).transpose(0, 1)])
    value = torch.ones(3, 1, 4)
    (found,) = memory.laid_out([value])
    assert found.data_ptr() == value.data_ptr()
    assert found.stride() == (4, 12, 1)
