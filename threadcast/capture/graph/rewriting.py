"""Calls in place of the recorded ones, which give the same numbers and wait for less, or are fewer.

- An operator that computes several gradients is split into one task for each: the rest of the backward pass waits for
  the gradient of the input, those of weight and bias are needed only by their update. Source: TurboDL's fine-grained
  sub-tasks.
- A call that needs only the shape of its first argument gets an empty tensor, or none: a mask of dropout is drawn into
  `empty_like(x)`, and would wait until `x` is computed.
- Repeated views are left out, and sums of matrix products become products that add. A weight that is used at every time
  step gets its gradient as a chain of sums; `addmm_` adds while it multiplies, in one buffer.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from threadcast.capture.graph.dependencies import may_be_written, memories
from threadcast.capture.graph.program import Input, Node, Result
from threadcast.capture.graph.values import Ref, find_refs, map_refs
from threadcast.core.tensor import TensorSpec

aten = torch.ops.aten


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """One operator call. `members` are the positions of those results of the unsplit operator that it computes."""

    target: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)
    kind: str = ""
    suffix: str = ""
    members: tuple[int, ...] = ()
    single: int | None = None
    """The position of the result that the call returns alone; None where it returns as many results as the unsplit
    operator, and leaves out those that are not its own."""


def split_call(
    target: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], first: TensorSpec
) -> list[Part]:
    """The parts that together compute what the call computes; `first` describes the first tensor among `args`.

    An empty list where the operator is not split, as for numbers that are not real. Autograd itself calls the operators
    for single gradients, where it needs no others; only the sum for the bias of a convolution is another operator.
    """
    if kwargs or not getattr(torch, first.dtype).is_floating_point:
        return []
    if target is aten.convolution_backward.default:
        if len(args[4]) + 2 != len(first.shape):  # one stride for all dimensions: how many there are is not said
            return []
        return _convolution_backward(args)
    return _layer_norm_backward(args) if target is aten.native_layer_norm_backward.default else []


def _convolution_backward(args: tuple[Any, ...]) -> list[Part]:
    *fixed, mask = args
    gradient, weight_rank, transposed = args[0], len(args[4]) + 2, args[7]
    prefix = "convolution_transposed_backward" if transposed else "convolution_backward"
    target = aten.convolution_backward.default
    parts = []
    if mask[0]:
        parts.append(Part(target, (*fixed, [True, False, False]), kind=f"{prefix}_input", suffix="input", members=(0,)))
    if mask[1]:
        parts.append(
            Part(target, (*fixed, [False, True, False]), kind=f"{prefix}_weight", suffix="weight", members=(1,))
        )
    if mask[2]:
        # The operator asked for the bias alone would compute the weight's gradient too and throw it away.
        axes = [0, *range(2, weight_rank)]
        parts.append(
            Part(
                aten.sum.dim_IntList, (gradient, axes), kind=f"{prefix}_bias", suffix="bias", members=(2,), single=2
            )
        )  # fmt: skip
    return parts


def _layer_norm_backward(args: tuple[Any, ...]) -> list[Part]:
    *fixed, mask = args
    target = aten.native_layer_norm_backward.default
    parts = []
    if mask[0]:
        first = (*fixed, [True, False, False])
        parts.append(Part(target, first, kind="layer_norm_backward_input", suffix="input", members=(0,)))
    if mask[1] or mask[2]:
        rest = (*fixed, [False, mask[1], mask[2]])
        members = tuple(i for i in (1, 2) if mask[i])
        parts.append(Part(target, rest, kind="layer_norm_backward_weight", suffix="weight", members=members))
    return parts if len(parts) > 1 else []


_EMPTY = {aten.empty_like.default, aten.new_empty.default, aten.new_empty_strided.default}
_BY_SIZE: dict[Callable[..., Any], tuple[Callable[..., Any], int]] = {
    aten.zeros_like.default: (aten.zeros.default, 0), aten.new_zeros.default: (aten.zeros.default, 0),
    aten.ones_like.default: (aten.ones.default, 0), aten.new_ones.default: (aten.ones.default, 0),
    aten.full_like.default: (aten.full.default, 1), aten.new_full.default: (aten.full.default, 1),
    aten.rand_like.default: (aten.rand.default, 0), aten.randn_like.default: (aten.randn.default, 0),
}  # fmt: skip
"""Operators that give the same by sizes alone where the result is contiguous, and how many arguments come after."""
_BY_EMPTY = {
    *_BY_SIZE, aten.randint_like.default, aten.randint_like.low_dtype, aten.bernoulli.p, aten.normal_functional.default,
    aten.uniform.default, aten.exponential.default, aten.geometric.default, aten.cauchy.default,
    aten.log_normal.default,
}  # fmt: skip
"""Operators that read nothing of their first argument but how it lies in memory."""


PREVIOUS = Ref(-1)
"""In the arguments of a part: the result of the part before."""


def by_shape_alone(
    target: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], given: TensorSpec, result: Any
) -> tuple[list[tuple[Part, TensorSpec]], tuple[int, ...]]:
    """Parts that together do what the call does, each with what it returns, of which none reads the first argument for
    its shape; and which of the parts return the call's results.

    `given` describes the first argument, and `result` what the call returns. No parts where the call needs none.
    """
    if target is aten.native_dropout.default and given.numel and args[2] is not False:
        output, mask = result
        keeps = 1.0 - args[1]
        return [
            (_empty(mask), mask),
            (Part(aten.bernoulli_.float, (PREVIOUS, keeps), suffix="mask"), mask),
            (Part(aten.mul.Tensor, (args[0], PREVIOUS), suffix="kept"), output),
            (Part(aten.mul_.Scalar, (PREVIOUS, 1.0 / keeps if keeps else 0.0)), output),
        ], (3, 1)  # as PyTorch's kernel does it
    if not isinstance(result, TensorSpec) or kwargs.get("layout", torch.strided) not in (torch.strided, None):
        return [], ()
    if target in _EMPTY:
        return [(replace(_empty(result), suffix=""), result)], (0,)
    if target in _BY_SIZE and result.strides is None:
        made, more = _BY_SIZE[target]
        values = args[len(args) - more :]
        part = Part(made, (list(result.shape), *values), {"dtype": getattr(torch, result.dtype)})
        return [(part, result)], (0,)
    if target in _BY_EMPTY:
        return [(_empty(given), given), (Part(target, (PREVIOUS, *args[1:]), kwargs), result)], (1,)
    return [], ()


def _empty(spec: TensorSpec) -> Part:
    sides = list(spec.shape), list(spec.laid_out)
    return Part(aten.empty_strided.default, sides, {"dtype": getattr(torch, spec.dtype)}, suffix="empty")


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
