"""The first operator of a captured graph whose result is not eager's, found by running the step again in pieces."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode, autograd_would_have_decomposed

from threadcast.capture.capture import Captured
from threadcast.capture.dependencies import is_random, memories, writes
from threadcast.capture.program import Node, Program, below_autograd
from threadcast.capture.recording import TRANSPARENT
from threadcast.capture.values import Ref, find_refs
from threadcast.core.cost import VIEW_KINDS
from threadcast.runtime.engines.engine import Engine
from threadcast.runtime.verification.differences import Difference, value_difference

_MEMBERS = {"input": 0, "weight": 1, "bias": 2}
"""Which of an operator's gradients a part of it gives by itself, by the end of the part's id (`capture.splitting`)."""


@dataclass(frozen=True, slots=True)
class WrongOperator:
    """An operator whose result differs, in what way, and where that shows."""

    op: str
    kind: str
    shapes: tuple[tuple[int, ...], ...]
    """Of its inputs."""
    difference: Difference
    found_by: str

    def __str__(self) -> str:
        shapes = ", ".join(str(list(shape)) for shape in self.shapes)
        return f"operator {self.op!r} ({self.kind} of {shapes or 'no tensors'}) {self.found_by}: {self.difference}"


class EagerValues(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Keeps a copy of what every operator call returns, by the id that capture gives to the call.

    It must see the calls that `capture.recording` saw, so whoever uses it makes the same step. It needs memory for all
    intermediate results at once.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.values: dict[str, Any] = {}
        self._names: Counter[str] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if not isinstance(func, OpOverload) or func.namespace == "prim":
            return func(*args, **kwargs)
        if autograd_would_have_decomposed(func, pytree.tree_leaves((args, kwargs))):
            with self:
                made = func.decompose(*args, **kwargs)
            if made is not NotImplemented:
                return made
        result = func(*args, **kwargs)
        if func in TRANSPARENT:
            return result
        base = func._schema.name.split("::")[-1]
        self._names[base] += 1
        count = self._names[base] - 1
        self.values[f"{base}_{count}" if count else base] = pytree.tree_map_only(Tensor, _copy, result)
        return result


def first_wrong_call(
    captured: Captured, inputs: Sequence[Any], eager: Mapping[str, Any], after: Mapping[int, Any],
    before: Mapping[int, Any],
) -> WrongOperator | None:  # fmt: skip
    """Run the program one operator after the other, each on the values that eager had, and compare what it gives.

    `eager` are eager's values (`EagerValues`), `after` and `before` those of the program's inputs, by slot, after and
    before eager's step: what writes them last is compared by these. None where every operator gives what eager gave.
    """
    program = captured.program
    last_writer = {
        ref.slot: i for i, node in enumerate(program.nodes) for ref in writes(node) if ref.slot < len(program.inputs)
    }
    slots = program.new_slots(inputs)
    for index, call in enumerate(program.calls):
        node = program.nodes[index]
        with below_autograd():
            result = slots[program.slot_of(index)] = call(slots)
        wanted = _eager_result(captured.graph.ids[index], eager) if _is_defined(node) else None
        difference = _result_difference(result, wanted, is_view=_is_view(node.target))
        for ref in writes(node):
            if difference is None and last_writer.get(ref.slot) == index and ref.slot in after:
                name = program.inputs[ref.slot].name
                start, end = before.get(ref.slot), after[ref.slot]
                difference = value_difference(name, end, slots[ref.slot], before=start)
        if difference is not None:
            said = "differs from eager's on the same inputs"
            random = ", from the same state of the random generator" if is_random(node) else ""
            return _wrong(captured, index, difference, said + random)
    return None


def first_wrong_run(
    captured: Captured, start: Callable[[], Sequence[Any]], make_engine: Callable[[Captured], Engine]
) -> WrongOperator | None:
    """Run the program on the engine and on the calling thread, with all values kept, and compare them one by one.

    `start()` puts the state back and gives the program's inputs. None where they agree.
    """
    refs = _known_values(captured.program)
    structure = pytree.tree_structure([0] * len(refs))
    program = Program(captured.program.inputs, captured.program.nodes, tuple(refs), structure)
    keeping = replace(captured, program=program)
    wanted = [_copy(value) if isinstance(value, Tensor) else value for value in program.run(start())]
    with make_engine(keeping) as engine:
        found = engine.run(start())
    for ref, one, other in zip(refs, wanted, found, strict=True):
        index = ref.slot - len(program.inputs)
        difference = value_difference("its result", one, other) if _is_defined(program.nodes[index]) else None
        if difference is not None:
            return _wrong(captured, index, difference, "differs on the engine from the same call on one thread")
    return None


def _wrong(captured: Captured, index: int, difference: Difference, found_by: str) -> WrongOperator:
    op = captured.graph.ops[index]
    shapes = tuple(spec.shape for spec in op.inputs)
    return WrongOperator(captured.graph.ids[index], op.kind, shapes, difference, found_by)


def _known_values(program: Program) -> list[Ref]:
    """Every result that something refers to and nothing writes to later, in the order in which they are made."""
    first, memory = len(program.inputs), memories(program.nodes, program.inputs)
    written = {memory[ref.slot]: i for i, node in enumerate(program.nodes) for ref in writes(node)}
    refs = {ref for node in program.nodes for ref in node.refs()} | set(find_refs(program.outputs))
    lasting = (ref for ref in refs if ref.slot >= first and written.get(memory[ref.slot], -1) <= ref.slot - first)
    return sorted(lasting, key=lambda ref: (ref.slot, ref.item or 0))


def _eager_result(op_id: str, eager: Mapping[str, Any]) -> Any:
    """What eager's call of this id returned, or the one gradient that a split call gives; None where it made none."""
    base = op_id.removesuffix(".fused")
    if base in eager:
        return eager[base]
    whole, _, part = base.rpartition(".")
    return (part, eager[whole]) if whole in eager else None


def _result_difference(result: Any, wanted: Any, *, is_view: bool) -> Difference | None:
    """The difference of a call's results from eager's; where there is none eager's numbers are put in their place."""
    for mine, theirs in _pairs(result, wanted):
        difference = value_difference("its result", theirs, mine)
        if difference is not None:
            return difference
        if not is_view and not torch.equal(mine, theirs):
            mine.detach().copy_(theirs)
    return None


def _pairs(result: Any, wanted: Any) -> list[tuple[Tensor, Tensor]]:
    part = ""
    if isinstance(wanted, tuple) and len(wanted) == 2 and isinstance(wanted[0], str):
        part, wanted = wanted
    mine = list(result) if isinstance(result, list | tuple) else [result]
    theirs = list(wanted) if isinstance(wanted, list | tuple) else [wanted]
    if len(mine) == 1 and len(theirs) > 1:  # a part that gives one gradient of several
        theirs = theirs[_MEMBERS[part] : _MEMBERS[part] + 1] if part in _MEMBERS else []
    elif len(mine) > len(theirs):  # fused operators return their last result last
        mine = mine[-len(theirs) :]
    return [(a, b) for a, b in zip(mine, theirs) if isinstance(a, Tensor) and isinstance(b, Tensor)]


def _is_defined(node: Node) -> bool:
    """Whether a call defines the numbers that it returns; those that only take memory do not."""
    name = node.target._schema.name if isinstance(node.target, OpOverload) else ""
    return not name.removeprefix("aten::").startswith(("empty", "new_empty"))


def _is_view(target: Any) -> bool:
    if not isinstance(target, OpOverload):
        return False
    name = target._schema.name.removeprefix("aten::")
    return name in VIEW_KINDS or any(value.alias_info is not None for value in target._schema.returns)


def _copy(tensor: Tensor) -> Tensor:
    return tensor.detach().clone()
