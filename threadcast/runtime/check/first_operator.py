"""Finds the first operator of a captured graph whose result differs from eager's, by running the step again."""

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

from threadcast.capture.graph.captured import Captured
from threadcast.capture.graph.dependencies import is_random, memories, writes
from threadcast.capture.graph.program import TRANSPARENT, Node, Program, below_autograd
from threadcast.capture.graph.values import Ref, find_refs
from threadcast.core.cost import VIEW_KINDS
from threadcast.runtime.check.differences import Difference, value_difference
from threadcast.runtime.check.running_means import scales_of_means
from threadcast.runtime.engine.engine import Engine

_MEMBERS = {"input": 0, "weight": 1, "bias": 2}
"""For each ending of a split operator's id, the index of the gradient that this part returns (`capture.splitting`)."""


@dataclass(frozen=True, slots=True)
class WrongOperator:
    """An operator whose result differs from eager's: its id, kind and input shapes, and the difference.

    `found_by` says in words in which run the difference shows.
    """

    op: str
    kind: str
    shapes: tuple[tuple[int, ...], ...]
    """Shapes of its inputs."""
    difference: Difference
    found_by: str

    def __str__(self) -> str:
        shapes = ", ".join(str(list(shape)) for shape in self.shapes)
        return f"operator {self.op!r} ({self.kind} of {shapes or 'no tensors'}) {self.found_by}: {self.difference}"


class EagerValues(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A dispatch mode that keeps a copy of every operator call's result, in `values` by the id that capture gives it.

    The calls must be those that `capture.recording` saw, so run the same step under it. It needs memory for all
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
    """Run the program's operators one by one on eager's values, and return the first whose result differs.

    `eager` holds the results of eager's operators (`EagerValues`). `before` and `after` hold the values of the
    program's inputs, by slot, before and after eager's step. The last operator that writes to an input is compared by
    these. None where every operator has eager's result.
    """
    program = captured.program
    last_writer = {
        ref.slot: i for i, node in enumerate(program.nodes) for ref in writes(node) if ref.slot < len(program.inputs)
    }
    scales = scales_of_means({program.inputs[slot].name: value for slot, value in after.items()})
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
                difference = value_difference(name, end, slots[ref.slot], before=start, scale=scales.get(name))
        if difference is not None:
            said = "differs from eager's on the same inputs"
            random = ", from the same state of the random generator" if is_random(node) else ""
            return _wrong(captured, index, difference, said + random)
    return None


def first_wrong_run(
    captured: Captured, start: Callable[[], Sequence[Any]], make_engine: Callable[[Captured], Engine]
) -> WrongOperator | None:
    """Run the program on an engine and on the calling thread; return the first operator whose results differ.

    `start()` restores the state before the step and returns the program's inputs. `make_engine` makes an engine for a
    program that also returns its intermediate results. None where all results agree.
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
    """All results that something reads and nothing later writes to, in the order in which they are computed."""
    first, memory = len(program.inputs), memories(program.nodes, program.inputs)
    written = {memory[ref.slot]: i for i, node in enumerate(program.nodes) for ref in writes(node)}
    refs = {ref for node in program.nodes for ref in node.refs()} | set(find_refs(program.outputs))
    lasting = (ref for ref in refs if ref.slot >= first and written.get(memory[ref.slot], -1) <= ref.slot - first)
    return sorted(lasting, key=lambda ref: (ref.slot, ref.item or 0))


def _eager_result(op_id: str, eager: Mapping[str, Any]) -> Any:
    """The result of eager's call of this id; for a part of a split call, (part, result). None without such a call."""
    base = op_id.removesuffix(".fused")
    if base in eager:
        return eager[base]
    whole, _, part = base.rpartition(".")
    return (part, eager[whole]) if whole in eager else None


def _result_difference(result: Any, wanted: Any, *, is_view: bool) -> Difference | None:
    """The difference of a call's results from eager's. Where there is none, eager's numbers replace the results'."""
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
    """Whether a call sets the numbers of its result; calls that only allocate memory do not."""
    name = node.target._schema.name if isinstance(node.target, OpOverload) else ""
    return not name.removeprefix("aten::").startswith(("empty", "new_empty"))


def _is_view(target: Any) -> bool:
    if not isinstance(target, OpOverload):
        return False
    name = target._schema.name.removeprefix("aten::")
    return name in VIEW_KINDS or any(value.alias_info is not None for value in target._schema.returns)


def _copy(tensor: Tensor) -> Tensor:
    return tensor.detach().clone()
