"""Operators of PyTorch's database write, return and draw no more than the edges of a graph are made from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from tests.databases.cases import Call, Case, loss_of, spread
from threadcast.capture.graph.capture import capture_forward, capture_training
from threadcast.capture.graph.captured import Captured
from threadcast.capture.graph.dependencies import is_random, memories, writes
from threadcast.capture.graph.optimizers import NoUpdate
from threadcast.capture.graph.program import Node, below_autograd
from threadcast.capture.graph.values import Ref
from threadcast.core.errors import CaptureError

GROUPS = 4
"""Tests, so that several workers can share them."""


@pytest.mark.parametrize("group", range(GROUPS))
@pytest.mark.filterwarnings("ignore")
def test_nothing_is_written_returned_or_drawn_besides_what_schemas_say(group: int) -> None:
    captured = [(case.name, graph) for case in list(spread("op_db"))[group::GROUPS] if (graph := _captured(case))]
    assert len(captured) > 60
    found = [f"{name}: {what}" for name, graph in captured for what in _undeclared(graph)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("written", "result", "said"),
    [
        (lambda x: x.data.fill_(2), lambda x: x + 1, "writes"),
        (lambda x: None, lambda x: x.data[1:], "returns"),
        (lambda x: None, lambda x: torch.rand_like(x), "draws"),
    ],
)
def test_what_a_schema_does_not_say_is_found(
    written: Any, result: Any, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    captured = capture_forward(torch.sin, torch.ones(3))

    def call(_: Node, slots: Sequence[Any]) -> Tensor:
        written(slots[0])
        found: Tensor = result(slots[0])
        return found

    monkeypatch.setattr(Node, "call", call)
    assert [what.split()[1] for what in _undeclared(captured)] == [said]


def _captured(case: Case) -> Captured | None:
    """The graph of a case; None where there is none."""
    try:
        what = case.build()
        if what is None:
            return None
        if isinstance(what, Call):
            return capture_forward(what.function, *what.tensors)
        return capture_training(what.model, loss_of, NoUpdate(), tuple(what.inputs), None)
    except (CaptureError, RuntimeError, TypeError, ValueError):
        return None


def _undeclared(captured: Captured) -> Iterator[str]:
    """Run a graph op by op; what ops do that the graph does not know of."""
    program = captured.program
    memory = memories(program.nodes, program.inputs)
    slots = program.new_slots(captured.bind())
    with torch.no_grad(), below_autograd():
        for i, node in enumerate(program.nodes):
            slot, refs = program.slot_of(i), list(dict.fromkeys(node.refs()))
            written = {memory[ref.slot] for ref in writes(node)}
            others = [ref for ref in refs if memory[ref.slot] not in written and _is_dense(ref.value(slots))]
            before, state = [_numbers(ref.value(slots)) for ref in others], torch.get_rng_state()
            try:
                slots[slot] = program.nodes[i].call(slots)
            except RuntimeError:  # of a type that an operator cannot write in place: eager raises it too
                return
            if not is_random(node) and not torch.equal(state, torch.get_rng_state()):
                yield f"{node.target} draws random numbers"
            for ref, numbers in zip(others, before, strict=True):
                if not torch.equal(numbers, _numbers(ref.value(slots))):
                    yield f"{node.target} writes to {_argument(node, ref)}"
            for ref in refs:
                if memory[ref.slot] != memory[slot] and _shares(ref.value(slots), slots[slot]):
                    yield f"{node.target} returns memory of {_argument(node, ref)}"


def _is_dense(value: Any) -> bool:
    return isinstance(value, Tensor) and value.layout is torch.strided


def _numbers(tensor: Tensor) -> Tensor:
    """A copy of all bytes of a tensor's memory, also of those beside its own numbers."""
    return torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage()).clone()  # type: ignore[call-overload, no-any-return]


def _shares(value: Any, results: Any) -> bool:
    if not _is_dense(value) or not value.untyped_storage().nbytes():
        return False
    places = [one.untyped_storage()._cdata for one in pytree.tree_leaves(results) if _is_dense(one)]
    return value.untyped_storage()._cdata in places


def _argument(node: Node, ref: Ref) -> str:
    return f"argument {node.args.index(ref)}" if ref in node.args else "a named or nested argument"
