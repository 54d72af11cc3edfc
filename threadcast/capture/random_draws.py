"""Draws of random numbers that are made once more before a call, to find out which numbers the call will draw.

`if torch.rand([]) < p` decides by the state of the random generator, which all draws before it have moved on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from threadcast.capture.calls import compiled
from threadcast.capture.program import Node
from threadcast.capture.values import AsNumber, Ref, map_refs
from threadcast.core.tensor import TensorSpec

aten = torch.ops.aten

MOST_DRAWN = 1 << 22
"""Most numbers that are drawn once more before a call: some milliseconds of a step that does more with each of them."""
_BY_SHAPE = {
    aten.bernoulli_.float, aten.bernoulli.p, aten.native_dropout.default, aten.rand.default, aten.rand_like.default,
    aten.uniform_.default, aten.randn.default, aten.randn_like.default, aten.normal_.default, aten.randint.default,
    aten.randint.low, aten.randint_like.default, aten.randint_like.low_dtype, aten.randperm.default,
}  # fmt: skip
"""Operators that move the generator on by as much whatever their tensors hold."""
_NOTHING = {aten._scaled_dot_product_flash_attention_for_cpu.default}
"""Operators that PyTorch says draw numbers, and that raise where they would have to."""


def of_global_generator(node: Node) -> bool:
    """Whether a node that draws random numbers draws them from PyTorch's global generator."""
    return not any(isinstance(leaf, torch.Generator) for leaf in pytree.tree_leaves((node.args, node.kwargs)))


def drawing(node: Node, specs: Mapping[Ref, TensorSpec]) -> Callable[[], object] | None:
    """Return a function that moves the global generator on as the call of a node does; None where that is unknown.

    `specs` are those of all tensors. The function reads none of them, and writes to memory of its own.
    """
    if node.target in _NOTHING:
        return lambda: None
    numbers = (isinstance(leaf, AsNumber) for leaf in (*node.args, *node.kwargs.values()))
    if node.target not in _BY_SHAPE or any(numbers) or not of_global_generator(node):
        return None
    refs = list(dict.fromkeys(node.refs()))
    if not all(ref in specs for ref in refs):
        return None
    given, numbered = [specs[ref] for ref in refs], {ref: Ref(i) for i, ref in enumerate(refs)}
    args, kwargs = (map_refs(numbered.__getitem__, part) for part in (node.args, node.kwargs))
    call = compiled(node.target, args, kwargs)
    return lambda: call([_empty(spec) for spec in given])


@contextmanager
def generator_kept() -> Iterator[None]:
    """After the context, PyTorch's global generator is as it was before."""
    before = torch.default_generator.get_state()
    try:
        yield
    finally:
        torch.default_generator.set_state(before)


def _empty(spec: TensorSpec) -> Tensor:
    return torch.empty_strided(spec.shape, spec.laid_out, dtype=getattr(torch, spec.dtype))
