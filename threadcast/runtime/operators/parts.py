"""Views that a loop looks through: it reads a part of a tensor where a node would describe that part to it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from threadcast.capture.graph.program import Program
from threadcast.capture.graph.rewriting import VIEWS
from threadcast.capture.graph.values import Ref, find_refs
from threadcast.core.tensor import TensorSpec

aten = torch.ops.aten

APART = {
    aten.split.Tensor, aten.split_with_sizes.default, aten.chunk.default, aten.unbind.int, aten.unsafe_split.Tensor,
    aten.unsafe_split_with_sizes.default, aten.unsafe_chunk.default,
}  # fmt: skip
"""Operators that return several views of a tensor, or copies that nothing else shares."""


class Part(NamedTuple):
    """What a loop reads of the value `base`: all of it, where `whole` is empty. Strides and offset are in elements."""

    base: Ref
    offset: int = 0
    sizes: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
    whole: tuple[int, ...] = ()
    """The sizes, then the strides of `base`."""
    views: frozenset[int] = frozenset()
    """The nodes that describe the part."""

    @property
    def placed(self) -> tuple[int, tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """Where the part lies, whatever it is a part of."""
        return self.offset, self.sizes, self.strides, self.whole

    def of(self, base: Tensor) -> Tensor:
        """Return this part of a tensor."""
        if not self.whole:
            return base
        return base.as_strided(self.sizes, self.strides, base.storage_offset() + self.offset)


def part_of(program: Program, specs: Mapping[Ref, TensorSpec], ref: Ref) -> Part:
    """Return what a loop reads in place of a value: a part of the value of which that is a view, or the value."""
    base, steps = ref, list[tuple[int, int | None]]()
    while (i := base.slot - len(program.inputs)) >= 0 and program.nodes[i].target in {*VIEWS, *APART}:
        first, *others = program.nodes[i].args
        if not isinstance(first, Ref) or any(True for _ in find_refs((others, program.nodes[i].kwargs))):
            break
        steps.append((i, base.item))
        base = first
    spec = specs.get(base)
    if not steps or base.slot < len(program.inputs) or spec is None or spec.dtype != "float32":
        return Part(ref)
    view: Any = torch.empty_strided(spec.shape, spec.laid_out, dtype=torch.float32, device="meta")
    for i, item in reversed(steps):
        found = program.nodes[i].target(view, *program.nodes[i].args[1:], **program.nodes[i].kwargs)
        view = found if item is None else found[item]
    views = frozenset(i for i, _ in steps)
    return Part(base, view.storage_offset(), tuple(view.shape), view.stride(), (*spec.shape, *spec.laid_out), views)


def bases(parts: Collection[Part]) -> tuple[Ref, ...]:
    """Return the values that are read, each once."""
    return tuple(dict.fromkeys(part.base for part in parts))
