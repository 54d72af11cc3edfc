"""A captured graph with the live tensors that every run takes, and what is done before and after a run.

A run skips autograd, to which a view that was made there is a tensor of its own: where one of both tensors was written
after it was saved, a backward pass would not notice it and compute wrong gradients. So results that are views of inputs
or of each other become views once more (`ResultView`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import increment_version
from torch.utils import _pytree as pytree

from threadcast.capture.graph.dependencies import is_random, lies_in, may_raise, memories, writes
from threadcast.capture.graph.numbers import NumberReads
from threadcast.capture.graph.optimizers import SettingInputs
from threadcast.capture.graph.program import Program
from threadcast.capture.graph.values import Ref, find_refs
from threadcast.core.errors import CaptureError
from threadcast.core.graph import OpGraph


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


OTHERS = "gradients of others"
"""Where a step's result holds gradients of parameters that the optimizer does not train, by name."""
FIXED_ARGUMENT = "fixed argument "
"""Prefix of the names of arguments that are not tensors: their values are part of the graph."""


@dataclass(frozen=True, slots=True, eq=False)
class Captured:
    """A graph, the program that executes it, and the live tensors that every run takes.

    `held` maps slots to the values of all inputs that are not the caller's: parameters, buffers, optimizer state and
    constants. They are the same objects as the model's, so that a run of a training step updates the model itself.
    """

    graph: OpGraph
    program: Program
    held: Mapping[int, Any]
    arguments: tuple[Tensor, ...]
    """The example arguments, flat, in the order in which `bind` takes them."""
    settings: SettingInputs | None = None
    """The optimizer's numbers, such as the learning rate, which `bind` reads anew; None for a forward pass."""
    others: Mapping[str, Tensor] = field(default_factory=dict)
    """Parameters, by name, that require a gradient and are not the optimizer's: `finish` adds to their `.grad`."""
    reads: NumberReads | None = None
    """The numbers that calls must read out of tensors for the graph to be right; None where it is right for all."""
    weakly: bool = False
    """Whether `held` does not keep the caller's tensors alive."""
    apart: tuple[int, ...] = ()
    """Positions of results to be detached from what a run returns: that is another result or an input, or may require a
    gradient."""
    restore: Callable[[Any], Any] | None = None
    """What gives the results of a run the strides that they have in PyTorch; None where they have them."""
    stored: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By the id of an op that computes several others' results: the ids of these, in its order."""
    random: bool = field(init=False)
    """Whether a run draws random numbers."""
    written: tuple[int, ...] = field(init=False)
    """Slots of inputs that a run writes to."""
    raises: bool = field(init=False)
    """Whether an operator may raise because of values."""
    early: tuple[int, ...] = field(init=False)
    """Those of `written` that a run may have written to when an operator raises because of values."""
    _held: list[Any] = field(init=False)
    """By slot, what `held` has; None for what the caller gives. Empty where `held` keeps nothing alive."""
    _given: tuple[int, ...] = field(init=False)
    """Slots of what the caller gives, in their order."""
    _fixed: tuple[int, ...] = field(init=False)
    """Slots of arguments that are not tensors, and that must have the example's values."""
    _views: tuple[ResultView, ...] = field(init=False)
    """Results that lie in the memory of an input or of an earlier result."""
    _fresh: frozenset[str] = field(init=False)
    """Those of `others` whose gradient is in memory of its own, which nothing else refers to after a run."""

    def __post_init__(self) -> None:
        nodes, inputs = self.program.nodes, self.program.inputs
        object.__setattr__(self, "random", any(map(is_random, nodes)))
        memory = memories(nodes, inputs)
        written = {memory[ref.slot] for node in nodes for ref in writes(node)}
        object.__setattr__(self, "written", tuple(slot for slot in range(len(inputs)) if memory[slot] in written))
        last = max((i for i, node in enumerate(nodes) if may_raise(node)), default=0)
        written = {memory[ref.slot] for node in nodes[:last] for ref in writes(node)}  # others wait (`dependencies`)
        object.__setattr__(self, "raises", any(map(may_raise, nodes)))
        object.__setattr__(self, "early", tuple(slot for slot in self.written if memory[slot] in written))
        slots = () if self.weakly else range(len(inputs))
        object.__setattr__(self, "_held", [self.held.get(slot) for slot in slots])
        object.__setattr__(self, "_given", tuple(slot for slot, one in enumerate(inputs) if one.role == "input"))
        fixed = tuple(slot for slot, one in enumerate(inputs) if one.name.startswith(FIXED_ARGUMENT))
        object.__setattr__(self, "_fixed", fixed)
        object.__setattr__(self, "_views", tuple(views_among(self.program)))
        object.__setattr__(self, "_fresh", _in_own_memory(self.program) if self.others else frozenset())

    def bind(self, *arguments: Any) -> list[Any]:
        """The inputs of one run on these arguments, nested as at capture; without arguments, on the example's.

        CaptureError where a tensor has another shape or type than the example's, or another argument has another value,
        or where a number that is read out of a tensor is another: the graph has these built in. A training step drops
        the gradients that its parameters have, as `zero_grad` does before it. The version counters of tensors that the
        run will write to are incremented, which operators below autograd do not do. By these counters code with a copy
        of the weights notices that it is stale.
        """
        given = self._checked(arguments) if arguments else self.arguments
        if self.reads is not None and not self.reads.hold(given):
            raise CaptureError("the graph was captured for other numbers in tensors; capture it again for these")
        if self.settings is not None:
            self.settings.begin_step()
        inputs = self._held.copy()
        for slot, tensor in zip(self._given, given, strict=True):
            inputs[slot] = tensor
        increment_version([inputs[slot] for slot in self.written])
        return inputs

    def written_early(self, arguments: tuple[Any, ...]) -> list[Tensor]:
        """Those of a run's arguments that are in the slots `early`."""
        if not any(self.program.inputs[slot].role == "input" for slot in self.early):
            return []
        given = dict(zip(self._given, self._checked(arguments), strict=True))
        return [given[slot] for slot in self.early if slot in given]

    def finish(self, result: Any, inputs: Sequence[Any] = ()) -> Any:
        """Do what is left to do with the result of a run on `inputs`, and return the result.

        Views of inputs and of other results become views to autograd, too, which so notices where one of both is
        written. Results `apart` become tensors of their own, detached from what they are, and `restore` has its effect.
        The gradients of `others` are removed and added to their `.grad`, as PyTorch does.
        """
        if self.apart or (self._views and inputs):
            found, structure = pytree.tree_flatten(result)
            for view in self._views if inputs else ():
                view.let_see(found, inputs)
            result = pytree.tree_unflatten(self._apart(found), structure)
        if self.restore is not None:
            result = self.restore(result)
        for name, gradient in (result.pop(OTHERS, {}) if self.others else {}).items():
            parameter = self.others[name]
            if parameter.grad is None and name in self._fresh and _fills_memory_as(gradient, parameter):
                parameter.grad = gradient
            elif parameter.grad is None:
                parameter.grad = torch.empty_like(parameter).copy_(gradient)
            else:
                parameter.grad += gradient
        return result

    def _apart(self, found: list[Any]) -> list[Any]:
        for position in self.apart:
            found[position] = found[position].detach()
        return found

    def run(self, *arguments: Any, order: Sequence[int] | None = None, threads: Sequence[int] | None = None) -> Any:
        """Execute the graph once on the calling thread; return what the captured callable would return.

        `order` is any topological order of the graph (None: the captured one), `threads` how many each op has.
        """
        inputs = self.bind(*arguments)
        return self.finish(self.program.run(inputs, order=order, threads=threads), inputs)

    def _checked(self, arguments: tuple[Any, ...]) -> list[Tensor]:
        leaves = pytree.tree_leaves(arguments)
        tensors = [value for value in leaves if isinstance(value, Tensor)]
        others = [value for value in leaves if not isinstance(value, Tensor)]
        captured = [self.held[slot] for slot in self._fixed]
        if len(tensors) != len(self.arguments):
            raise CaptureError(f"{len(tensors)} tensors given, the graph takes {len(self.arguments)}")
        if list(map(repr, others)) != list(map(repr, captured)):  # 1 is not 1.0 or True, nor 0.0 -0.0
            raise CaptureError(f"the graph was captured for the arguments {captured}, not {others}; capture it again")
        for i, (given, example) in enumerate(zip(tensors, self.arguments, strict=True)):
            if given.dtype != example.dtype or given.shape != example.shape:
                raise CaptureError(
                    f"tensor {i} is {given.dtype} of shape {tuple(given.shape)}, the graph was captured for "
                    f"{example.dtype} of shape {tuple(example.shape)}; capture it again for this one"
                )
        return tensors


def _in_own_memory(program: Program) -> frozenset[str]:
    """Names of the gradients of `OTHERS` that share memory with no input and no other result."""
    memory = memories(program.nodes, program.inputs, undeclared=True)
    results = pytree.tree_unflatten(list(program.outputs), program.structure)
    uses = Counter(memory[ref.slot] for ref in find_refs(program.outputs))
    return frozenset(
        name
        for name, ref in results.get(OTHERS, {}).items()
        if memory[ref.slot] >= len(program.inputs) and uses[memory[ref.slot]] == 1
    )


def _fills_memory_as(gradient: Tensor, parameter: Tensor) -> bool:
    """Whether the gradient fills its memory, in the order in which the parameter fills its own."""
    whole = gradient.untyped_storage().nbytes() == gradient.nbytes
    return whole and gradient.stride() == parameter.stride() and gradient.dtype == parameter.dtype


@dataclass(frozen=True, slots=True, eq=False)
class CapturedGraph(Captured):
    """A captured graph that reads its arguments and weights alone, as `capture_graph` returns it."""

    weights: int = 0
    """Number of inputs that are weights; they are the first slots."""

    def bind(self, *arguments: Any) -> list[Any]:
        """The inputs of one run on these arguments, flat, which must have the shapes, types and values of capture.

        The caller has checked that: looking at each of some hundred weights once more takes longer than a small graph.
        """
        slots = range(len(self.program.inputs))
        others = [self.held[slot] for slot in slots[self.weights + len(arguments) :]]
        return [*[self.held[slot] for slot in slots[: self.weights]], *arguments, *others]

    def constants(self, arguments: int) -> list[Any] | None:
        """What a run takes after so many arguments; None where it takes weights before them."""
        slots = range(arguments, len(self.program.inputs))
        return None if self.weights else [self.held[slot] for slot in slots]

    def finish(self, result: Any, inputs: Sequence[Any] = ()) -> Any:
        """Return the results as a list, each that is a tensor of its own in the graph as one: autograd marks them."""
        found = self._apart(list(result))
        return found if self.restore is None else self.restore(found)
