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
from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch._ops import OpOverload

from threadcast.capture.graph.dependencies import may_be_written, memories
from threadcast.capture.graph.program import Call, Input, Result
from threadcast.capture.graph.values import Ref, find_refs, map_refs
from threadcast.core.tensor import TensorSpec

aten = torch.ops.aten


Parts = tuple[list[Call], dict[int | None, Ref]]
"""Calls in place of one, and where each of its results is that there is (None: the only one)."""


def parts_of(call: Call, first: TensorSpec, slot: int) -> Parts:
    """The calls that together do what a recorded call does; their results go into slots from `slot` on.

    `first` describes the first tensor among the arguments.
    """
    whole = [call], {item: Ref(slot, item) for item, _ in items(call.result)}
    return _gradients(call, first, slot) or _by_shape_alone(call, first, slot) or whole


def items(result: Result) -> list[tuple[int | None, TensorSpec | None]]:
    """Results with their numbers where there are several; the only result of an operator has number None."""
    return list(enumerate(result)) if isinstance(result, list) else [(None, result)]


_GRADIENTS = {
    aten.convolution_backward.default: (("input", (0,)), ("weight", (1,)), ("bias", (2,))),
    aten.native_layer_norm_backward.default: (("input", (0,)), ("weight", (1, 2))),
}
"""Operators that compute several gradients, those for which a mask of three asks, and which of them are a task each."""


def _gradients(call: Call, first: TensorSpec, slot: int) -> Parts | None:
    """A part for each task; None where the operator is not split, as for numbers that are not real.

    Autograd itself calls the operators for single gradients, where it needs no others; only the sum for the bias of a
    convolution is another operator.
    """
    if call.target not in _GRADIENTS or call.kwargs or not getattr(torch, first.dtype).is_floating_point:
        return None
    *fixed, mask = call.args
    assert isinstance(call.result, list)
    kind = "layer_norm_backward"
    if call.target is aten.convolution_backward.default:
        if len(fixed[4]) + 2 != len(first.shape):  # one stride for all dimensions: how many there are is not said
            return None
        kind = "convolution_transposed_backward" if fixed[7] else "convolution_backward"
    calls: list[Call] = []
    held: dict[int | None, Ref] = {}
    for name, members in _GRADIENTS[call.target]:
        own = [bool(wanted) and i in members for i, wanted in enumerate(mask)]
        if not any(own):
            continue
        held |= {i: Ref(slot + len(calls), None if name == "bias" else i) for i in members if mask[i]}
        part = replace(call, name=f"{call.name}.{name}", kind=f"{kind}_{name}")
        if name == "bias":  # the operator itself would compute the weight's gradient too and throw it away
            axes = [0, *range(2, len(first.shape))]
            target, args = aten.sum.dim_IntList, (fixed[0], axes)
            calls.append(replace(part, target=target, args=args, result=call.result[2]))
        else:
            result = [spec if wanted else None for spec, wanted in zip(call.result, own, strict=True)]
            calls.append(replace(part, args=(*fixed, own), result=result))
    return calls, held


_EMPTY = {aten.empty_like.default, aten.new_empty.default, aten.new_empty_strided.default}
_BY_SIZE: dict[OpOverload, tuple[OpOverload, int]] = {
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


def _by_shape_alone(call: Call, given: TensorSpec, slot: int) -> Parts | None:
    """Parts of which none reads the first argument, which `given` describes, for its shape; None where the call is
    better as it is."""
    target, args, result = call.target, call.args, call.result

    def part(target: OpOverload, args: tuple[Any, ...], result: Result, name: str = "", **named: Any) -> Call:
        name = f"{call.name}.{name}" if name else call.name
        return replace(call, target=target, args=args, kwargs=named, result=result, name=name)

    def empty(spec: TensorSpec, name: str = "empty") -> Call:
        sides = list(spec.shape), list(spec.laid_out)
        return part(aten.empty_strided.default, sides, spec, name, dtype=getattr(torch, spec.dtype))

    if target is aten.native_dropout.default and given.numel and args[2] is not False:
        assert isinstance(result, list)
        output, mask = result
        assert isinstance(mask, TensorSpec)
        keeps = 1.0 - args[1]
        return [
            empty(mask),
            part(aten.bernoulli_.float, (Ref(slot), keeps), mask, "mask"),
            part(aten.mul.Tensor, (args[0], Ref(slot + 1)), output, "kept"),
            part(aten.mul_.Scalar, (Ref(slot + 2), 1.0 / keeps if keeps else 0.0), output),
        ], {0: Ref(slot + 3), 1: Ref(slot + 1)}  # as PyTorch's kernel does it
    if not isinstance(result, TensorSpec) or call.kwargs.get("layout", torch.strided) not in (torch.strided, None):
        return None
    if target in _EMPTY:
        return [empty(result, "")], {None: Ref(slot)}
    if target in _BY_SIZE and result.strides is None:
        made, more = _BY_SIZE[target]
        values = list(result.shape), *args[len(args) - more :]
        return [part(made, values, result, dtype=getattr(torch, result.dtype))], {None: Ref(slot)}
    if target in _BY_EMPTY:
        return [empty(given), replace(call, args=(Ref(slot), *args[1:]))], {None: Ref(slot + 1)}
    return None


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
    """Simplifies calls, which are in their order; slots are the inputs' first, then one for each call.

    Calls keep their positions; those that nothing refers to any more are removed by a later stage.
    """

    def __init__(self, calls: Sequence[Call], inputs: Sequence[Input], outputs: Sequence[Any]) -> None:
        self.calls, self.outputs = list(calls), list(outputs)
        self._inputs, self._n_inputs = inputs, len(inputs)
        self._sums: set[int] = set()  # calls that this pass has made sums of products

    def run(self) -> None:
        """Simplify; `calls` and `outputs` hold the result afterwards."""
        self._leave_out_views()
        self._add_in_products()

    def _leave_out_views(self) -> None:
        same: dict[Ref, Ref] = {}
        views: dict[Hashable, Ref] = {}

        def swapped(ref: Ref) -> Ref:
            return same.get(ref, ref)

        for i, call in enumerate(self.calls):
            if not same.keys().isdisjoint(call.refs()):
                args, kwargs = map_refs(swapped, call.args), map_refs(swapped, call.kwargs)
                call = self.calls[i] = replace(call, args=args, kwargs=kwargs)
            if call.target not in VIEWS:
                continue
            mine = Ref(self._n_inputs + i)
            base = self._call_of(call.args[0])
            if base is not None and base.target is call.target is aten.t.default:
                same[mine] = base.args[0]
                continue
            known = views.setdefault((call.target, repr(call.args), repr(call.kwargs)), mine)
            if known != mine:
                same[mine] = known
        others = {*find_refs(self.outputs), *map(Ref, range(self._n_inputs))}  # an output is a tensor of its own
        self.outputs = [
            one if not isinstance(one, Ref) or swapped(one) in others else swapped(one) for one in self.outputs
        ]

    def _add_in_products(self) -> None:
        uses = self._uses()
        memory = memories(self.calls, self._inputs, undeclared=True)
        written: defaultdict[int, list[int]] = defaultdict(list)
        for i, call in enumerate(self.calls):
            for ref in may_be_written(call):
                written[memory[ref.slot]].append(i)

        def unchanged(product: Ref, until: int) -> bool:
            """Whether the factors are the same when the sum is made as when the product was."""
            producer = product.slot - self._n_inputs
            factors = [memory[factor.slot] for factor in self.calls[producer].refs()]
            return not any(producer < at < until for factor in factors for at in written[factor])

        for i, call in enumerate(self.calls):
            if call.target is not aten.add.Tensor or call.kwargs or not uses[self._n_inputs + i]:
                continue
            for total, product in (call.args, call.args[::-1]):
                if (
                    self._may_be_added_to(total, uses)
                    and self._is_lone_product(product, uses, like=total)
                    and unchanged(product, i)
                ):
                    factors = self.calls[product.slot - self._n_inputs].args
                    self.calls[i] = replace(call, target=aten.addmm_.default, args=(total, *factors))
                    self._sums.add(i)
                    break

    def _may_be_added_to(self, total: Any, uses: Counter[int]) -> bool:
        call = self._call_of(total)
        if call is None or uses[total.slot] != 1:
            return False
        return call.target in _PRODUCTS or total.slot - self._n_inputs in self._sums

    def _is_lone_product(self, product: Any, uses: Counter[int], *, like: Ref) -> bool:
        call = self._call_of(product)
        if call is None or call.target is not aten.mm.default or uses[product.slot] != 1 or product == like:
            return False
        found, wanted = call.result, self.calls[like.slot - self._n_inputs].result
        return (
            isinstance(found, TensorSpec)
            and isinstance(wanted, TensorSpec)
            and (found.shape, found.dtype) == (wanted.shape, wanted.dtype)
            and found.dtype in _ADDED
        )

    def _call_of(self, value: Any) -> Call | None:
        """The call that computes a value; None for inputs and for one of several results."""
        if not isinstance(value, Ref) or value.item is not None or value.slot < self._n_inputs:
            return None
        return self.calls[value.slot - self._n_inputs]

    def _uses(self) -> Counter[int]:
        """How often each value is used by calls that are not removed, and by the outputs."""
        uses = Counter(ref.slot for ref in find_refs(self.outputs))
        for i in range(len(self.calls) - 1, -1, -1):
            call = self.calls[i]
            if call.target in VIEWS and not uses[self._n_inputs + i]:
                continue
            uses.update(ref.slot for ref in call.refs())
        return uses
