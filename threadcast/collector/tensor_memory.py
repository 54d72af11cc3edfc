"""The memory of a tensor, whatever its strides."""

from __future__ import annotations

from torch import Tensor


def all_memory(tensor: Tensor) -> Tensor:
    """All of the tensor's memory as a tensor of one dimension; it can be written even if the elements overlap."""
    return tensor.as_strided((tensor.untyped_storage().nbytes() // tensor.element_size(),), (1,), 0)
