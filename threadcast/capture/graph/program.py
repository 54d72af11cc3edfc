"""An op graph that can be executed: which operator each op calls, on which values.

Values are in numbered slots: first the program's inputs, then one slot for each node. A slot is emptied after its last
use, so that memory does not grow beyond that of eager execution.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch.utils import _pytree as pytree

from threadcast.capture.graph.calls import Call, compiled
from threadcast.capture.graph.values import Ref, find_refs
from threadcast.core.errors import ExecutionError, InvalidInput

_AUTOCAST = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)

Role = Literal["parameter", "buffer", "state", "setting", "input", "constant", "size"]
Phase = Literal["forward", "backward", "update"]


@dataclass(frozen=True, slots=True)
class Input:
    """One value that a run is given. Role "state" is a state tensor of the optimizer, "setting" one of its numbers.

    Role "size" is an integer that follows from the sizes of the arguments.

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

    def refs(self) -> Iterator[Ref]:
        """Every value that the call reads or writes, as often as it is used."""
        return find_refs((self.args, self.kwargs))


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
    _compiled: list[tuple[Call, ...]] = field(init=False, default_factory=list, repr=False)

    def __post_init__(self) -> None:
        touches = tuple(tuple({*(ref.slot for ref in n.refs()), self.slot_of(i)}) for i, n in enumerate(self.nodes))
        object.__setattr__(self, "touches", touches)
        counts = Counter(slot for touched in touches for slot in touched)
        counts.update({ref.slot for ref in find_refs(self.outputs)})
        object.__setattr__(self, "uses", tuple(counts[slot] for slot in range(len(self.inputs) + len(self.nodes))))

    @property
    def calls(self) -> tuple[Call, ...]:
        """For each node a function of the slots that calls its operator.

        They are compiled when this is first read; native engines never read it.
        """
        if not self._compiled:
            self._compiled.append(tuple(compiled(n.target, n.args, n.kwargs) for n in self.nodes))
        return self._compiled[0]

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

    def run(self, inputs: Sequence[Any], *, order: Sequence[int] | None = None) -> Any:
        """Execute every node once on the calling thread and return the outputs.

        `order` is any topological order of the graph (None: the captured one). ExecutionError when it leaves out or
        repeats a node; an exception of an operator is passed on, and no value of the failed run stays in memory.
        """
        order = range(len(self.nodes)) if order is None else order
        if len(order) != len(self.nodes) or len(set(order)) != len(order):
            raise ExecutionError(
                f"the order has {len(order)} entries; it must have each of {len(self.nodes)} nodes once"
            )
        slots, left, calls = self.new_slots(inputs), list(self.uses), self.calls
        with below_autograd():
            for index in order:
                slots[self.slot_of(index)] = calls[index](slots)
                for slot in self.touches[index]:
                    left[slot] -= 1
                    if left[slot] == 0:
                        slots[slot] = None
        return self.collect(slots)


@contextmanager
def below_autograd() -> Iterator[None]:
    """A context in which the calling thread's operators skip autograd and autocast: nothing is recorded or cast."""
    with torch._C._AutoDispatchBelowAutograd(), torch._C._ExcludeDispatchKeyGuard(_AUTOCAST):
        yield
