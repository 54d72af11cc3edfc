"""Python numbers that a recorded call reads out of tensors itself, which a graph has built in.

The graph is right for calls that read the same ones (`momentum.item()`, `if mask.all()`, the size of `x[mask]`). They
are found out before a call: the few operators between the inputs and each number are recorded, too, and run again on
the call's own tensors (`NumberReads`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes

from threadcast.capture.graph.dependencies import is_random, may_be_returned, may_be_written
from threadcast.capture.graph.program import Call, Node, Recording, below_autograd
from threadcast.capture.graph.values import Ref, map_refs

aten = torch.ops.aten

READS = {aten._local_scalar_dense.default, aten.equal.default}
"""Operators that return a Python number."""
MOST_CALLS = 24
"""Most operators between the inputs and a number. With more of them, finding the numbers out takes too long."""
MOST_ELEMENTS = 16_384
"""Most floating-point numbers in each tensor of these operators. PyTorch divides smaller ones among no threads, so that
equal tensors give equal numbers each time."""
MOST_INTEGERS = 1 << 17
"""Most numbers in each tensor of integers or conditions: their results are equal however they are divided. A comparison
and a count of as many take some 50 us, which calls on masks of that size last many times."""
MOST_SETTINGS = 8
"""Most floating-point numbers in an argument that is taken for settings, as are strides and rates; more are data, which
differ from call to call."""


@dataclass(frozen=True, slots=True, eq=False)
class NumberReads:
    """The numbers that a graph has built in, and how a call would read them.

    `sources` are the tensors that these are read from, each with its slot: one of the graph's own, or the position of
    an argument among the tensors of a call. `steps` are run in their order.
    """

    sources: tuple[tuple[int, Tensor | int], ...]
    steps: tuple[_Step, ...]

    def of_any(self, tensors: Iterable[Any]) -> bool:
        """Return whether a number is read out of the memory of any of the tensors."""
        memory = {source.untyped_storage()._cdata for _, source in self.sources if isinstance(source, Tensor)}
        return any(isinstance(value, Tensor) and value.untyped_storage()._cdata in memory for value in tensors)

    def hold(self, tensors: Sequence[Tensor]) -> bool:
        """Return whether a call with these tensors as arguments reads the graph's numbers. Nothing is written."""
        slots = {slot: tensors[source] if isinstance(source, int) else source for slot, source in self.sources}
        with below_autograd():
            try:
                return all(step.holds(slots) for step in self.steps)
            except (RuntimeError, IndexError):  # of an operator that was not captured for such numbers
                return False


class _Step(NamedTuple):
    """A call of an operator, into `slot`; without one it returns a number, which must be shown as `number`: 1 is not
    1.0 or True, 0.0 is not -0.0, and NaN is NaN."""

    node: Node
    slot: int | None
    number: str = ""

    def holds(self, slots: dict[int, Any]) -> bool:
        """Make the call; return whether its number is the graph's."""
        if self.node.target is aten._local_scalar_dense.default:
            found = self.node.args[0].value(slots).item()  # takes a quarter of the operator's time
        else:
            found = self.node.call(slots)
        if self.slot is None:
            return repr(_number(found)) == self.number
        slots[self.slot] = found
        return True


class ReadRecorder:
    """Finds the numbers that a callable reads while it is recorded; `given` are the real arguments of the recording.

    The leaves of the arguments of a call begin at slot `first`; those before are the graph's own. Without `of_inputs`,
    numbers must not depend on arguments or on tensors of the callable's closure.
    """

    def __init__(self, recording: Recording, given: Sequence[Any], *, first: int, of_inputs: bool) -> None:
        self._recording, self._given, self._first, self._of_inputs = recording, given, first, of_inputs
        self._memory: dict[int, int] = {}
        """For a slot one of the slots with which it shares memory; for the last of them itself."""
        self._calls: list[tuple[Call, list[Ref]]] = []
        """Each recorded call, and what it writes."""
        self._made_by: dict[int, int] = {}
        """The number of the call that fills a slot."""
        self._reads: list[tuple[int, Node, Any]] = []
        """The number of calls before each read, the read, and its number."""
        self._needed: set[int] = set()
        """Numbers of the calls that reads need."""
        self._storages: dict[int, int] = {}
        """The first slot with a tensor in each storage."""
        for slot, value in enumerate(given):
            self._add_input(slot, value)

    def number(self, target: OpOverload, args: tuple[Any, ...]) -> Any:
        """Return the number that `target` returns, plain or in a tensor, for the example; None where that is unknown.

        It is unknown where too much is computed before it, where that writes to inputs or draws random numbers (but
        none is less than 0), and where it depends on arguments with many floating-point numbers, which are others in
        each call.
        """
        self._look_at_calls()
        read = Node(target, args, {}, "forward")
        if self._asks_for_less_than_0(read):  # no layer is left out, as by default in most models that may do so
            return False
        needed = self._calls_before(list(read.refs()))
        inputs = None if needed is None else self._inputs([*(self._calls[i][0] for i in needed), read])
        if needed is None or inputs is None or (inputs and not self._of_inputs):
            return None
        slots: dict[int, Any] = dict(inputs)
        with _disable_current_modes(), torch.autocast("cpu", enabled=False), torch.no_grad(), below_autograd():
            for call, _ in map(self._calls.__getitem__, needed):
                slots[call.number] = call.call(slots)
            number = _number(read.call(slots))
        if inputs:  # the others are the same in each call
            self._needed.update(needed)
            self._reads.append((len(self._calls), read, number))
        return number

    def found(self) -> NumberReads | None:
        """Return the numbers that depend on inputs; None where there are none."""
        if not self._reads:
            return None
        steps = self._steps()
        if not any(written for i in self._needed for written in self._calls[i][1]):
            steps = _without_repeats(steps)
        inputs = self._inputs([step.node for step in steps]) or {}
        leaves = [slot for slot in range(self._first, len(self._given)) if isinstance(self._given[slot], Tensor)]
        positions = {slot: i for i, slot in enumerate(leaves)}
        sources = tuple((slot, positions.get(slot, tensor)) for slot, tensor in inputs.items())
        return NumberReads(sources, tuple(steps))

    def _steps(self) -> list[_Step]:
        """All calls that reads need and all reads, in their order."""
        needed = [(i, _Step(call, call.number)) for i, (call, _) in enumerate(self._calls) if i in self._needed]
        reads = [(i - 0.5, _Step(read, None, repr(number))) for i, read, number in self._reads]
        return [step for _, step in sorted([*needed, *reads], key=itemgetter(0))]

    def _add_input(self, slot: int, value: Any) -> None:
        if isinstance(value, Tensor) and not isinstance(value, FakeTensor):
            first = self._storages.setdefault(value.untyped_storage()._cdata, slot)
            self._memory.setdefault(slot, self._root(first))

    def _look_at_calls(self) -> None:
        """Note what the calls since the last read do to memory."""
        for slot, value in self._recording.constants.items():
            self._add_input(slot, value)
        for i in range(len(self._calls), len(self._recording.calls)):
            call = self._recording.calls[i]
            self._calls.append((call, may_be_written(call)))
            self._made_by[call.number] = i
            for ref in may_be_returned(call):
                self._memory[self._root(ref.slot)] = self._root(call.number)

    def _root(self, slot: int) -> int:
        while (next_one := self._memory.get(slot, slot)) != slot:
            slot = next_one
        return slot

    def _calls_before(self, refs: Sequence[Ref]) -> list[int] | None:
        """The numbers of the calls that the values of `refs` depend on, ascending; None for too many or unknown."""
        slots = {ref.slot for ref in refs}
        memory = {self._root(slot) for slot in slots}
        found: list[int] = []
        for i in range(len(self._calls) - 1, -1, -1):
            call, written = self._calls[i]
            if call.number not in slots and not any(self._root(ref.slot) in memory for ref in written):
                continue
            if len(found) == MOST_CALLS or not self._may_be_called(call):
                return None
            found.append(i)
            slots.update(ref.slot for ref in call.refs())
            memory.update(self._root(ref.slot) for ref in call.refs())
        inputs = {self._root(slot) for slot in slots if slot not in self._made_by}
        if any(self._root(ref.slot) in inputs for i in found for ref in self._calls[i][1]):
            return None  # a call writes to an input
        return found[::-1]

    def _asks_for_less_than_0(self, read: Node) -> bool:
        """Whether what is read is the answer to the question whether a number of `torch.rand` is less than 0."""
        if read.target is not aten._local_scalar_dense.default:
            return False
        made = {call.number: call for call, _ in self._calls}
        (answer,) = read.refs()
        asked = made.get(answer.slot)
        if asked is None or asked.target is not aten.lt.Scalar:
            return False
        drawn, bound = asked.args
        random = made.get(drawn.slot) if isinstance(drawn, Ref) else None
        if random is None or random.target is not aten.rand.default:
            return False
        changed = {self._root(ref.slot) for _, written in self._calls for ref in written}
        same = not changed & {self._root(drawn.slot), self._root(answer.slot)}
        return same and type(bound) in (int, float) and bound <= 0

    def _may_be_called(self, call: Call) -> bool:
        """Whether the call may be made once more before a step: it is quick, and each time the same."""
        if call.target.namespace != "aten" or is_random(call):
            return False
        results = call.result if isinstance(call.result, list) else [call.result]
        specs = [*results, *(self._recording.specs.get(ref) for ref in call.refs())]
        return all(spec is not None and _is_small(spec.shape, spec.dtype) for spec in specs)

    def _inputs(self, nodes: Sequence[Node]) -> dict[int, Tensor] | None:
        """The tensors, by slot, that these calls take and none of them makes; None where one has no known values."""
        found: dict[int, Tensor] = {}
        for ref in (ref for node in nodes for ref in node.refs()):
            if ref.slot in self._made_by:
                continue
            known = ref.slot < len(self._given)
            value = self._given[ref.slot] if known else self._recording.constants.get(ref.slot)
            if not isinstance(value, Tensor) or isinstance(value, FakeTensor):
                return None
            if known and ref.slot >= self._first and value.is_floating_point() and value.numel() > MOST_SETTINGS:
                return None
            if not _is_small(value.shape, str(value.dtype).removeprefix("torch.")):
                return None
            found[ref.slot] = value
        return found


def _without_repeats(steps: Sequence[_Step]) -> list[_Step]:
    """The steps, which write nothing, without those that were made before: each layer of a model may find one mask."""
    same: dict[int, int] = {}
    first: dict[tuple[Any, str], int | None] = {}
    found = []

    def kept(ref: Ref) -> Ref:
        return ref._replace(slot=same.get(ref.slot, ref.slot))

    for step in steps:
        args, kwargs = (map_refs(kept, part) for part in (step.node.args, step.node.kwargs))
        key = step.node.target, repr((args, kwargs))
        if key not in first:
            first[key] = step.slot
            found.append(step._replace(node=replace(step.node, args=args, kwargs=kwargs)))
        elif step.slot is not None and (other := first[key]) is not None:
            same[step.slot] = other
    return found


def _number(found: Any) -> Any:
    return found.item() if isinstance(found, Tensor) else found


def _is_small(shape: Sequence[int], dtype: str) -> bool:
    """Whether a tensor has few numbers, in an order that no memory format of a model changes."""
    size = 1
    for side in shape:
        size *= side
    rounds = "float" in dtype or "complex" in dtype
    return size <= MOST_ELEMENTS and len(shape) < 4 if rounds else size <= MOST_INTEGERS
