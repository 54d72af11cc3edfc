"""Whether a generated loop gives what the operators in its place give: found out by value, once a process.

The loop runs on numbers of many sizes and on special ones, in a small operator of its own, since it does not depend on
shapes. Whether the operator of the real shape reads and writes at the right places, the first step by a plan shows
(`check`).

Results may differ as far as they do when each operator's result is rounded otherwise: these results come from runs in
which each one is changed by some rounding errors (Parker, Monte Carlo arithmetic, 1997), so that a difference of nearly
equal numbers may differ more than a product.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from threadcast.capture.graph.program import Input, Node, Program
from threadcast.capture.graph.values import Ref, map_refs
from threadcast.core.tensor import TensorSpec
from threadcast.runtime.operators.clusters import MAX_NODES, Clusters
from threadcast.runtime.operators.kernels import Kernel
from threadcast.runtime.operators.library import FusedOperators
from threadcast.runtime.operators.parts import Part
from threadcast.runtime.operators.pointwise import ONEDNNS

aten = torch.ops.aten

LENGTH = 4_109
"""Elements of the small operator: vectors of any length with some left over, and each pair of special values."""
SPECIAL = (0.0, -0.0, float("inf"), -float("inf"), float("nan"), 1e-40, 3e38, 1.0)
_EPS = torch.finfo(torch.float32).eps
_RUNS, _CHANGE, _FACTOR, _ULPS = 6, 8 * _EPS, 8.0, 8
"""Runs with changed roundings, by how much they change, and how far results may differ: by `_FACTOR` times what these
do, and by `_ULPS` roundings."""
_SHIFT = 131
"""Elements from where one operand's numbers begin to where the next one's do: it has others at the same place."""
_CHAOTIC = 500
"""Where `_is_chaotic`, one element of so many may differ: of a quotient above 1e7 that is rounded down nothing can be
said."""


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
        small = replace(
            kernel, shape=(LENGTH,), parts=tuple(map(Part, kernel.inputs)),
            outputs=tuple(TensorSpec((LENGTH,)) for _ in values),
        )  # fmt: skip
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
    exact = _program(clusters, kernel, wanted, None).run(inputs)
    generator = torch.Generator().manual_seed(2)
    rounded = _program(clusters, kernel, wanted, generator)
    others = [rounded.run(inputs) for _ in range(_RUNS)]
    chaotic = any(_is_chaotic(clusters.program.nodes[i]) for i in _needed(clusters, kernel, wanted))
    return _first_difference(found if isinstance(found, Sequence) else (found,), exact, others, chaotic=chaotic)


def _is_chaotic(node: Node) -> bool:
    """Whether a node rounds a quotient down, which a rounding of it may change by as much as the divisor."""
    return node.kwargs.get("rounding_mode") == "floor"


def _program(clusters: Clusters, kernel: Kernel, wanted: Sequence[Ref], noise: torch.Generator | None) -> Program:
    """What the nodes compute that give `wanted`; each of their results changed by some roundings, by `noise`."""
    renumbered = {ref: Ref(n) for n, ref in enumerate(kernel.inputs)}
    nodes: list[Node] = []
    for i in _needed(clusters, kernel, wanted):
        node = clusters.program.nodes[i]
        changed = noise is not None and i in clusters.terms
        target = _rounded(node.target, noise) if changed and noise is not None else node.target
        args, kwargs = (map_refs(renumbered.__getitem__, part) for part in (node.args, node.kwargs))
        renumbered[Ref(clusters.program.slot_of(i))] = Ref(len(kernel.inputs) + len(nodes))
        nodes.append(Node(target, args, kwargs, node.phase))
    inputs = tuple(Input("input", f"x{n}") for n in range(len(kernel.inputs)))
    _, structure = pytree.tree_flatten([0] * len(wanted))
    return Program(inputs, tuple(nodes), tuple(renumbered[ref] for ref in wanted), structure)


def _rounded(target: Callable[..., Any], noise: torch.Generator) -> Callable[..., Tensor]:
    def call(*args: Any, **kwargs: Any) -> Tensor:
        result: Tensor = target(*args, **kwargs)
        change = (torch.rand(result.shape, generator=noise, dtype=torch.float32) * 2 - 1).mul_(_CHANGE)
        return result + args[0] * change if target in ONEDNNS else result * change.add_(1)

    return call


def _first_difference(
    found: Sequence[Tensor], wanted: Sequence[Tensor], others: Sequence[Any], *, chaotic: bool
) -> str | None:
    """As text, the first element that is another than `wanted` beyond what `others` show to be rounding."""
    for n, (mine, eager, *rounded) in enumerate(zip(found, wanted, *others, strict=True)):
        if (mine.shape, mine.dtype) != (eager.shape, eager.dtype):
            return f"result {n} is {mine.dtype} of shape {tuple(mine.shape)}, not {eager.dtype} {tuple(eager.shape)}"
        bound = _ULPS * _EPS * eager.double().abs()
        steady = torch.ones_like(eager, dtype=torch.bool)
        for other in rounded:
            steady &= _same_class(other, eager)
            bound = torch.maximum(bound, _FACTOR * (other.double() - eager.double()).abs().nan_to_num(0.0))
        near = (mine.double() - eager.double()).abs() <= bound
        wrong = ~(_same_class(mine, eager) & (near | ~eager.isfinite())) & steady
        if int(wrong.sum()) > (eager.numel() // _CHAOTIC if chaotic else 0):
            position = tuple(wrong.nonzero()[0].tolist())
            return f"result {n} is {mine[position].item():.9g} at {position}, not {eager[position].item():.9g}"
    return None


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
