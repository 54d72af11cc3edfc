"""Results of a run that are views of its inputs or of each other: autograd has to know that they share memory.

A run skips autograd, and to autograd a view that was made there is a tensor of its own: where one of both tensors was
written after it was saved, a backward pass would not notice it and compute wrong gradients.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from threadcast.capture.graph.dependencies import lies_in
from threadcast.capture.graph.program import Program
from threadcast.capture.graph.values import Ref


class ResultView(NamedTuple):
    """A result that may lie in the memory of another value: of the input in slot `of`, or of result number `of`."""

    position: int
    """Which of the results it is."""
    of_input: bool
    of: int

    def let_see(self, results: list[Any], inputs: Sequence[Any]) -> None:
        """Make it a view of the other value to autograd; does nothing where it is none, or has another type."""
        base, result = (inputs if self.of_input else results)[self.of], results[self.position]
        if isinstance(base, Tensor) and isinstance(result, Tensor) and base is not result and _sees(result, base):
            results[self.position] = base.as_strided(result.shape, result.stride(), result.storage_offset())


def views_among(program: Program) -> Iterator[ResultView]:
    """Yield the results that may lie in the memory of an input that requires no gradient, or of an earlier result."""
    n, results = len(program.inputs), dict[int, int]()
    for position, ref in enumerate(program.outputs):
        if not isinstance(ref, Ref) or ref.slot < n:
            continue
        lies = lies_in(program.nodes, program.inputs, ref)
        inputs = [slot for slot in lies if slot < n]
        if inputs and program.inputs[inputs[-1]].role in ("input", "buffer"):
            yield ResultView(position, True, inputs[-1])
        elif not inputs and (first := results.setdefault(lies[-1], position)) != position:
            yield ResultView(position, False, first)


def _sees(result: Tensor, base: Tensor) -> bool:
    """Whether the result lies in the memory of `base`, and sees the same numbers there as strides alone can tell."""
    if base.requires_grad or result.requires_grad or result.dtype != base.dtype or result.is_complex():
        return False
    if not (base.layout is result.layout is torch.strided):
        return False
    same = result.untyped_storage()._cdata == base.untyped_storage()._cdata
    return same and result.is_neg() == base.is_neg()
