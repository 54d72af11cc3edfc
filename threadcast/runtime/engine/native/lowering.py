"""Translates a captured program and a plan for the native engine: into numbers instead of names and references."""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType
from typing import Any

from torch._ops import OpOverload

from threadcast.capture.graph.captured import Captured
from threadcast.capture.graph.program import Node, Program
from threadcast.capture.graph.values import AsNumber, Ref, find_refs
from threadcast.core import Machine
from threadcast.core.errors import ExecutionError
from threadcast.runtime.engine.lifetimes import Lifetimes
from threadcast.runtime.engine.replay import Replay, Seat, seats_of


@dataclass(frozen=True, slots=True, eq=False)
class Values:
    """Numbers of a program's values: a slot whose operator returns several values gets as many numbers."""

    first: tuple[int, ...]
    """The number of each slot's first value, and at the end the number of values in all."""

    @classmethod
    def of(cls, program: Program) -> Values:
        """Number the values of `program`."""
        members = [1] * len(program.inputs) + [_results(node) for node in program.nodes]
        for node in program.nodes:
            for ref in node.refs():
                _widen(members, ref)
        for ref in find_refs(program.outputs):
            _widen(members, ref)
        first = [0]
        for count in members:
            first.append(first[-1] + count)
        return cls(tuple(first))

    def of_ref(self, ref: Ref) -> int:
        """Return the number of the value that `ref` refers to; ExecutionError where it refers to several."""
        if ref.item is None and self.first[ref.slot + 1] - self.first[ref.slot] != 1:
            raise ExecutionError("an operator takes a list of tensors whole, which the native engine cannot pass on")
        return self.first[ref.slot] + (ref.item or 0)

    def of_slot(self, slot: int) -> range:
        """Return the numbers of all values of `slot`."""
        return range(self.first[slot], self.first[slot + 1])

    def touches(self, program: Program) -> list[list[int]]:
        """Return for each node the values that it reads, writes or returns, each once."""
        return [
            list({*map(self.of_ref, node.refs()), *self.of_slot(program.slot_of(i))})
            for i, node in enumerate(program.nodes)
        ]

    def returned(self, program: Program) -> set[int]:
        """Return the values that the program returns."""
        return {self.of_ref(ref) for ref in find_refs(program.outputs)}


def _results(node: Node) -> int:
    return max(len(node.target._schema.returns), 1) if isinstance(node.target, OpOverload) else 1


def _widen(members: list[int], ref: Ref) -> None:
    if ref.item is not None:
        members[ref.slot] = max(members[ref.slot], ref.item + 1)


def native_program(native: ModuleType, captured: Captured, values: Values) -> Any:
    """Return the native `Program`; ExecutionError for calls of anything but operators of torch's dispatcher."""
    program, returned = captured.program, values.returned(captured.program)
    return native.Program(
        calls=native_calls(program, values), values=values.first[-1],
        successors=[list(after) for after in captured.graph.successors],
        touches=[[value for value in touched if value not in returned] for touched in values.touches(program)],
        grad=program.grad,
    )  # fmt: skip


def native_calls(program: Program, values: Values) -> list[tuple[str, str, list[Any], int, int]]:
    """Return for each node (operator, overload, arguments, first value, count): `count` values for its results.

    Arguments are in the schema's order. An argument is one of: None for the schema's default; ("constant", object);
    ("value", number of a value); ("number", number of a value) for the Python number in a tensor of one element;
    ("values", numbers of values) for a list, with -1 for None. ExecutionError for calls of anything but operators of
    torch's dispatcher.
    """
    calls = []
    for i, node in enumerate(program.nodes):
        if not isinstance(node.target, OpOverload):
            raise ExecutionError(
                f"{node.target!r} is no operator of torch's dispatcher; the native engine cannot call it"
            )
        schema = node.target._schema
        given = [
            node.args[at] if at < len(node.args) else node.kwargs.get(argument.name, _ABSENT)
            for at, argument in enumerate(schema.arguments)
        ]
        result = values.of_slot(program.slot_of(i))
        arguments = [_argument(value, values) for value in given]
        calls.append((schema.name, schema.overload_name, arguments, result.start, len(result)))
    return calls


_ABSENT = object()


def _argument(given: Any, values: Values) -> tuple[str, Any] | None:
    """The argument for the native engine."""
    if given is _ABSENT:
        return None
    if isinstance(given, Ref):
        return "value", values.of_ref(given)
    if isinstance(given, AsNumber):
        return "number", values.of_ref(given.ref)
    if not any(True for _ in find_refs(given)):
        return "constant", given
    if not isinstance(given, list | tuple) or not all(part is None or isinstance(part, Ref) for part in given):
        raise ExecutionError(f"the native engine cannot pass on the argument {given!r}")
    return "values", [-1 if part is None else values.of_ref(part) for part in given]


def script_of(replay: Replay, lives: Lifetimes, values: Values, machine: Machine) -> tuple[list[Seat], dict[str, Any]]:
    """Return the seats of all lanes, and the members of the native `Script`; PlanError for cores the machine lacks."""
    seats = [seats_of(team, machine) for team in replay.teams]
    lanes: dict[Seat, list[tuple[int, int]]] = {}
    for op in replay.order:
        for rank, seat in enumerate(seats[replay.team_of[op]]):
            lanes.setdefault(seat, []).append((op, rank))
    order = sorted(lanes)  # the calling thread takes the first, in every plan the same where it can
    number = {seat: i for i, seat in enumerate(order)}
    lanes_of = [[number[seat] for seat in team] for team in seats]
    return order, {
        "lanes": [lanes[seat] for seat in order], "teams": [lanes_of[team] for team in replay.team_of],
        "waits": [len(ops) for ops in replay.waits], "tells": [list(ops) for ops in replay.tells],
        "last": list(map(list, lives.last)), "counted": list(map(list, lives.counted)),
        "users": [lives.users.get(value, 0) for value in range(values.first[-1])],
    }  # fmt: skip
