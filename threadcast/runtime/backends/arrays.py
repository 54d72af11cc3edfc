"""Calls of models that take and return NumPy's arrays, so that a process without PyTorch can make them, too."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor

    from threadcast.runtime.backends.frozen import TensorCall

Arrays = Sequence[NDArray[Any]]
ArrayCall = Callable[[Arrays], Arrays]


def with_tensors(load: Callable[[], ArrayCall]) -> Callable[[], TensorCall]:
    """Return a function that loads a model, and returns its call with PyTorch's tensors."""

    def loaded() -> TensorCall:
        import torch

        call = load()

        def run(tensors: Sequence[Tensor]) -> list[Tensor]:
            return [torch.from_numpy(one) for one in call([tensor.detach().numpy() for tensor in tensors])]

        return run

    return loaded
