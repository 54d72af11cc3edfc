"""Whether a generated loop gives what the operators in its place give: found out by value, once a process.

The loop runs on numbers of many sizes and on special ones, in a small operator of its own, since it does not depend on
shapes. Whether the operator of the real shape reads and writes at the right places, the first step by a plan shows
(`check`), on numbers that are seldom special.

Most loops have the bits of their operators. Where a formula rounds otherwise, results may differ by roundings of the
largest number on their way, so that a difference of nearly equal numbers may differ more than a product.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor

from threadcast.capture.graph.program import below_autograd
from threadcast.capture.graph.values import Ref, map_refs
from threadcast.core.tensor import TensorSpec
from threadcast.runtime.operators.clusters import MAX_NODES, Clusters
from threadcast.runtime.operators.kernels import Kernel
from threadcast.runtime.operators.library import FusedOperators

LENGTH = 4_109
"""Elements of the small operator: vectors of any length with some left over, and each pair of special values."""
SPECIAL = (0.0, -0.0, float("inf"), -float("inf"), float("nan"), 1e-40, 3e38, 1.0)
_ROUNDINGS = 64 * torch.finfo(torch.float32).eps
"""By how much results may differ, as a share of the largest number on their way."""
_SHIFT = 131
"""Elements from where one operand's numbers begin to where the next one's do: it has others at the same place."""


@dataclass(slots=True)
class LoopChecks:
    """Compares loops with the nodes that they are for, each once."""

    operators: FusedOperators
    _found: dict[object, str | None] = field(default_factory=dict)

    def difference(self, clusters: Clusters, kernel: Kernel) -> str | None:
        """Where the kernel's results differ from those of the nodes in its place; None where they do not."""
        nodes = tuple(
            str(clusters.program.nodes[i].target) for i in _needed(clusters, kernel, _stored(clusters, kernel))
        )
        loop = kernel.source, nodes
        if loop not in self._found:
            self._found[loop] = self._of_loop(clusters, kernel)
        return self._found[loop]

    def _of_loop(self, clusters: Clusters, kernel: Kernel) -> str | None:
        values = _stored(clusters, kernel)
        small = replace(kernel, shape=(LENGTH,), outputs=tuple(TensorSpec((LENGTH,)) for _ in values))
        (operator,) = self.operators.of([small])
        numbers = [_numbers()[n * _SHIFT :][: 2 * LENGTH] for n in range(len(kernel.inputs))]
        dense, strided = [x[:LENGTH] for x in numbers], [x[::2] for x in numbers]
        strided[0] = strided[0][:1].expand(LENGTH)
        found = (_compare(clusters, kernel, values, operator, inputs) for inputs in (dense, strided))
        return next((difference for difference in found if difference is not None), None)


def _stored(clusters: Clusters, kernel: Kernel) -> list[Ref]:
    """The values that the loop stores, in its order."""
    return [Ref(clusters.program.slot_of(i)) for i in kernel.nodes]


def _needed(clusters: Clusters, kernel: Kernel, wanted: Sequence[Ref]) -> list[int]:
    """The nodes that compute `wanted` from the kernel's inputs, in the program's order."""
    needed: set[int] = set()
    pending = list(wanted)
    while pending:
        ref = pending.pop()
        node = ref.slot - clusters.n_inputs
        if ref not in kernel.inputs and node not in needed:
            needed.add(node)
            pending.extend(clusters.program.nodes[node].refs())
    return sorted(needed)


def _compare(
    clusters: Clusters, kernel: Kernel, wanted: Sequence[Ref], operator: Callable[..., Any], inputs: Sequence[Tensor]
) -> str | None:
    """Compare the operator's results with the nodes'."""
    found = operator(*inputs)
    inputs = [x.contiguous() for x in inputs]  # strided, eager computes some operators one by one, and rounds otherwise
    values = dict(zip(kernel.inputs, inputs, strict=True))
    largest = torch.zeros_like(inputs[0], dtype=torch.float64)
    with below_autograd():
        for i in _needed(clusters, kernel, wanted):
            node = clusters.program.nodes[i]
            args, kwargs = map_refs(values.__getitem__, (node.args, node.kwargs))
            values[Ref(clusters.program.slot_of(i))] = node.target(*args, **kwargs)
        for value in values.values():
            largest = torch.maximum(largest, value.double().abs().nan_to_num(0.0, posinf=0.0))
    room = _ROUNDINGS * largest + torch.finfo(torch.float32).tiny
    pairs = zip(found if isinstance(found, Sequence) else (found,), map(values.__getitem__, wanted), strict=True)
    differences = (_difference(f"result {n}", mine, eager, room) for n, (mine, eager) in enumerate(pairs))
    return next((difference for difference in differences if difference is not None), None)


def _difference(name: str, found: Tensor, wanted: Tensor, room: Tensor) -> str | None:
    """As text, the first element that is another than `wanted` by more than `room`, or of another class."""
    if (found.shape, found.dtype) != (wanted.shape, wanted.dtype):
        return f"{name} is {found.dtype} of shape {tuple(found.shape)}, not {wanted.dtype} {tuple(wanted.shape)}"
    near = (found.double() - wanted.double()).abs() <= room
    wrong = ~(_same_class(found, wanted) & (near | ~wanted.isfinite()))
    if not bool(wrong.any()):
        return None
    position = tuple(wrong.nonzero()[0].tolist())
    return f"{name} is {found[position].item():.9g} at {position}, not {wanted[position].item():.9g}"


def _same_class(one: Tensor, other: Tensor) -> Tensor:
    """By element: both finite, both nan, the same infinity, and of zeros the same sign."""
    zeros = (one == 0) & (other == 0) & (one.signbit() != other.signbit())
    return ((one == other) | (one.isnan() & other.isnan()) | (one.isfinite() & other.isfinite())) & ~zeros


@cache
def _numbers() -> Tensor:
    """Half of them special, the others of both signs and of sizes from 1e-3 to 30."""
    generator, count = torch.Generator().manual_seed(0), 2 * LENGTH + 3 * MAX_NODES * _SHIFT
    size = torch.tensor([1e-3, 0.5, 1.0, 30.0], dtype=torch.float32)[torch.randint(4, (count,), generator=generator)]
    plain = torch.randn(count, generator=generator, dtype=torch.float32) * size
    special = torch.tensor(SPECIAL, dtype=torch.float32)[torch.randint(len(SPECIAL), (count,), generator=generator)]
    return torch.where(torch.rand(count, generator=generator) < 0.5, special, plain)
