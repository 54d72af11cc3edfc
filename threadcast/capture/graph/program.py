"""An op graph that can be executed: which operator each op calls, on which values.

Values are in numbered slots: first the program's inputs, then one slot for each node. A slot is emptied after its last
use, so that memory does not grow beyond that of eager execution. A `Recording` is what a program is made of: the calls
of one callable, as `recorder.Recorder` notes them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils import _pytree as pytree

from threadcast.capture.graph.values import Ref, filled, find_refs
from threadcast.core.errors import ExecutionError, InvalidInput
from threadcast.core.tensor import TensorSpec
from threadcast.threads.openmp import torch_threads

_AUTOCAST = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)

Role = Literal["parameter", "buffer", "state", "setting", "input", "constant"]
Phase = Literal["forward", "backward", "update"]


@dataclass(frozen=True, slots=True)
class Input:
    """One value that a run is given. Role "state" is a state tensor of the optimizer, "setting" one of its numbers.

    `shares` is the slot of an earlier input whose memory this one shares, None where there is none.
    """

    role: Role
    name: str
    shares: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """One call of an operator. `args` and `kwargs` contain a `Ref` in place of each value; node i belongs to op i."""

    target: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    phase: Phase
    _refs: tuple[Ref, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_refs", tuple(find_refs((self.args, self.kwargs))))

    def refs(self) -> tuple[Ref, ...]:
        """Every value that the call reads or writes, as often as it is used."""
        return self._refs

    def call(self, slots: Sequence[Any] | Mapping[int, Any]) -> Any:
        """Return what the operator returns for the values in these slots (`program`)."""
        operator = self.target._op if isinstance(self.target, OpOverload) else self.target
        return operator(*[filled(one, slots) for one in self.args], **filled(self.kwargs, slots))


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """Nodes in the order of eager execution, their inputs, and where the outputs are."""

    inputs: tuple[Input, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[Any, ...]
    """`Ref`s and constants, flat."""
    structure: pytree.TreeSpec
    """The nested form of which `outputs` are the leaves."""
    uses: tuple[int, ...] = field(init=False)
    """How many nodes use each slot, plus one for an output."""
    touches: tuple[tuple[int, ...], ...] = field(init=False)
    """The slots that each node reads, writes or fills, each once."""

    def __post_init__(self) -> None:
        touches = tuple(tuple({*(ref.slot for ref in n.refs()), self.slot_of(i)}) for i, n in enumerate(self.nodes))
        object.__setattr__(self, "touches", touches)
        counts = Counter(slot for touched in touches for slot in touched)
        counts.update({ref.slot for ref in find_refs(self.outputs)})
        object.__setattr__(self, "uses", tuple(counts[slot] for slot in range(len(self.inputs) + len(self.nodes))))

    @property
    def grad(self) -> bool:
        """Whether it runs with gradients enabled, as a training step does: kernels of LSTMs compute otherwise then."""
        return any(node.phase != "forward" for node in self.nodes)

    def slot_of(self, node: int) -> int:
        """The slot that node number `node` fills."""
        return len(self.inputs) + node

    def new_slots(self, inputs: Sequence[Any]) -> list[Any]:
        """Slots for one run, filled with its inputs; InvalidInput when their number is wrong."""
        if len(inputs) != len(self.inputs):
            raise InvalidInput(f"the program takes {len(self.inputs)} inputs, got {len(inputs)}")
        return [*inputs, *[None] * len(self.nodes)]

    def collect(self, slots: Sequence[Any]) -> Any:
        """The outputs of a finished run."""
        found = [output.value(slots) if isinstance(output, Ref) else output for output in self.outputs]
        return pytree.tree_unflatten(found, self.structure)

    def run(
        self, inputs: Sequence[Any], *, order: Sequence[int] | None = None, threads: Sequence[int] | None = None
    ) -> Any:
        """Execute every node once on the calling thread and return the outputs.

        `order` is any topological order of the graph (None: the captured one), and `threads` how many each node has
        (None: as many as PyTorch has now). ExecutionError when it leaves out or repeats a node; an exception of an
        operator is passed on, and no value of the failed run stays in memory.
        """
        order = range(len(self.nodes)) if order is None else order
        if len(order) != len(self.nodes) or len(set(order)) != len(order):
            raise ExecutionError(
                f"the order has {len(order)} entries; it must have each of {len(self.nodes)} nodes once"
            )
        slots, left = self.new_slots(inputs), list(self.uses)
        with below_autograd(grad=self.grad):
            for index in order:
                with torch_threads(threads[index]) if threads is not None else nullcontext():
                    slots[self.slot_of(index)] = self.nodes[index].call(slots)
                for slot in self.touches[index]:
                    left[slot] -= 1
                    if left[slot] == 0:
                        slots[slot] = None
        return self.collect(slots)


@contextmanager
def below_autograd(*, grad: bool = False) -> Iterator[None]:
    """A context in which the calling thread's operators skip autograd and autocast: nothing is recorded or cast.

    `grad`: whether kernels that look at it find gradients enabled.
    """
    with (
        torch._C._AutoDispatchBelowAutograd(), torch._C._ExcludeDispatchKeyGuard(_AUTOCAST),
        torch.set_grad_enabled(grad),
    ):  # fmt: skip
        yield


aten = torch.ops.aten

TRANSPARENT = {aten.detach.default, aten.detach_.default, aten.alias.default, aten.lift.default}
"""Operators that return their argument; below autograd they have no effect and are left out."""

PLAIN = (
    bool, int, float, complex, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format,
    torch.Size,
)  # fmt: skip
"""Types that arguments and results may have besides tensors: a graph has such values built in, they must not change."""

Result = TensorSpec | None | list[TensorSpec | None]
"""The results of a call: the spec of a tensor, None for anything else, or a list of these for several results."""


@dataclass(frozen=True, slots=True, eq=False)
class Call(Node):
    """A recorded call, or one of several in its place: what it returns, and what its op is called."""

    target: OpOverload
    name: str
    result: Result
    kind: str = ""
    """The op's kind; "" where the operator and its arguments tell it."""
    number: int = -1
    """The slot number in refs to its results, of a recorded call."""


@dataclass(slots=True, eq=False)
class Recording:
    """Operator calls in the order in which they were made; their refs are to arguments, constants and earlier results.

    The first slots are the arguments', by position. `constants` are the tensors of the callable's closure, by slot.
    `specs` are the specs of all tensors. `outputs` is the flat list of refs and plain values that the callable
    returned, `structure` its nested form. `returned` identifies the tensors among the outputs, None for others, and
    `given` by slot those of the arguments and constants: two numbers are equal where it is one tensor. `detached` are
    the positions of outputs that require no gradient.
    """

    specs: dict[Ref, TensorSpec] = field(default_factory=dict)
    calls: list[Call] = field(default_factory=list)
    constants: dict[int, Tensor] = field(default_factory=dict)
    outputs: list[Any] = field(default_factory=list)
    returned: list[int | None] = field(default_factory=list)
    given: dict[int, int] = field(default_factory=dict)
    detached: set[int] = field(default_factory=set)
    structure: pytree.TreeSpec = field(default_factory=lambda: pytree.tree_structure(()))
