"""Fewer, larger calls: repeated views are removed, and sums of matrix products become products that add.

A weight that is used at every time step gets its gradient as a chain of sums of products. Each sum reads and writes as
much memory as the weight has; `addmm_` adds while it multiplies, and needs one buffer where the chain had one per step.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Any

import torch

from threadcast.capture.graph.dependencies import may_be_written, memories
from threadcast.capture.graph.program import Input, Node
from threadcast.capture.graph.recording import Result
from threadcast.capture.graph.splitting import Part
from threadcast.capture.graph.values import Ref, find_refs, map_refs
from threadcast.core.tensor import TensorSpec

aten = torch.ops.aten

VIEWS = {
    aten.t.default, aten.view.default, aten.permute.default, aten.transpose.int, aten.unsqueeze.default,
    aten.squeeze.dim, aten.slice.Tensor, aten.select.int, aten.expand.default, aten._unsafe_view.default,
}  # fmt: skip
"""Operators that only describe memory: of equal calls on one value the first one is enough."""

_PRODUCTS = {aten.mm.default, aten.addmm.default}
"""Operators whose result is a new matrix, which may be written to where no other call reads it."""
_ADDED = {"float32", "float64"}
"""Types in which `addmm_` adds as `mm` and `add` do. In half precision `mm` rounds the product, which may be infinite
then, where the sum is not."""


class Simplifier:
    """Simplifies the parts of a recorded program, given in order; slots are the inputs' first, then one for each part.


    `results[i]` is what part i returns. Parts keep their positions; parts that nothing refers to any more are removed
    by a later stage.
    """

    def __init__(
        self, parts: Sequence[Part], results: Sequence[Result], inputs: Sequence[Input], outputs: Sequence[Any]
    ) -> None:
        self.parts, self.outputs = list(parts), list(outputs)
        self._results, self._inputs, self._n_inputs = results, inputs, len(inputs)
        self._sums: set[int] = set()  # parts that this pass has made sums of products

    def run(self) -> None:
        """Simplify; `parts` and `outputs` hold the result afterwards."""
        self._leave_out_views()
        self._add_in_products()

    def _leave_out_views(self) -> None:
        same: dict[Ref, Ref] = {}
        views: dict[Hashable, Ref] = {}

        def swapped(ref: Ref) -> Ref:
            return same.get(ref, ref)

        for i, part in enumerate(self.parts):
            args, kwargs = map_refs(swapped, part.args), map_refs(swapped, part.kwargs)
            part = self.parts[i] = replace(part, args=args, kwargs=kwargs)
            if part.target not in VIEWS:
                continue
            mine = Ref(self._n_inputs + i)
            base = self._part_of(part.args[0])
            if base is not None and base.target is part.target is aten.t.default:
                same[mine] = base.args[0]
                continue
            known = views.setdefault((part.target, repr(part.args), repr(part.kwargs)), mine)
            if known != mine:
                same[mine] = known
        others = {*find_refs(self.outputs), *map(Ref, range(self._n_inputs))}  # an output is a tensor of its own
        self.outputs = [
            one if not isinstance(one, Ref) or swapped(one) in others else swapped(one) for one in self.outputs
        ]

    def _add_in_products(self) -> None:
        uses = self._uses()
        nodes = [Node(part.target, part.args, part.kwargs, "forward") for part in self.parts]
        memory = memories(nodes, self._inputs, undeclared=True)
        written: defaultdict[int, list[int]] = defaultdict(list)
        for i, node in enumerate(nodes):
            for ref in may_be_written(node):
                written[memory[ref.slot]].append(i)

        def unchanged(product: Ref, until: int) -> bool:
            """Whether the factors are the same when the sum is made as when the product was."""
            producer = product.slot - self._n_inputs
            factors = [memory[factor.slot] for factor in find_refs(self.parts[producer].args)]
            return not any(producer < at < until for factor in factors for at in written[factor])

        for i, part in enumerate(self.parts):
            if part.target is not aten.add.Tensor or part.kwargs or not uses[self._n_inputs + i]:
                continue
            for total, product in (part.args, part.args[::-1]):
                if (
                    self._may_be_added_to(total, uses)
                    and self._is_lone_product(product, uses, like=total)
                    and unchanged(product, i)
                ):
                    factors = self.parts[product.slot - self._n_inputs].args
                    self.parts[i] = Part(aten.addmm_.default, (total, *factors), {})
                    self._sums.add(i)
                    break

    def _may_be_added_to(self, total: Any, uses: Counter[int]) -> bool:
        part = self._part_of(total)
        if part is None or uses[total.slot] != 1:
            return False
        return part.target in _PRODUCTS or total.slot - self._n_inputs in self._sums

    def _is_lone_product(self, product: Any, uses: Counter[int], *, like: Ref) -> bool:
        part = self._part_of(product)
        if part is None or part.target is not aten.mm.default or uses[product.slot] != 1 or product == like:
            return False
        found, wanted = self._results[product.slot - self._n_inputs], self._results[like.slot - self._n_inputs]
        return (
            isinstance(found, TensorSpec)
            and isinstance(wanted, TensorSpec)
            and (found.shape, found.dtype) == (wanted.shape, wanted.dtype)
            and found.dtype in _ADDED
        )

    def _part_of(self, value: Any) -> Part | None:
        """The part that computes a value; None for inputs and for one of several results."""
        if not isinstance(value, Ref) or value.item is not None or value.slot < self._n_inputs:
            return None
        return self.parts[value.slot - self._n_inputs]

    def _uses(self) -> Counter[int]:
        """How often each value is used by parts that are not removed, and by the outputs."""
        uses = Counter(ref.slot for ref in find_refs(self.outputs))
        for i in range(len(self.parts) - 1, -1, -1):
            part = self.parts[i]
            if part.target in VIEWS and not uses[self._n_inputs + i]:
                continue
            uses.update(ref.slot for ref in find_refs((part.args, part.kwargs)))
        return uses
