"""Compiled calls do what the program's own calls do."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils import _pytree as pytree

from threadcast.collector.capture import capture_forward
from threadcast.collector.program import Node, Ref, below_autograd
from threadcast.scheduler.runtime.calls import compiled


def test_every_form_of_argument_arrives() -> None:
    def everything(x: torch.Tensor) -> Any:
        parts = torch.split(x, 2)
        return (
            torch.cat([parts[1], parts[0]], dim=0), torch.full_like(x, float("inf"), dtype=torch.float64),
            torch.nn.functional.pad(x, [1, 1]), x[:, None], torch.std_mean(x, dim=[0], correction=0)[1],
        )  # fmt: skip

    captured = capture_forward(everything, torch.randn(4, 3))
    slots = captured.program.new_slots(captured.bind())
    with below_autograd():
        for op, node in enumerate(captured.program.nodes):
            slots[captured.program.slot_of(op)] = compiled(node)(slots)
    found, expected = captured.program.collect(slots), captured.run()
    assert all(torch.equal(a, b) for a, b in zip(pytree.tree_leaves(found), pytree.tree_leaves(expected), strict=True))


def test_a_plain_function_and_keyword_arguments_arrive() -> None:
    def target(*args: Any, **kwargs: Any) -> Any:
        return args, kwargs

    node = Node(target, ((Ref(0), 5), [Ref(1, 1), None], "text"), {"from": [Ref(0)], "rest": [1, 2]}, "forward")
    assert compiled(node)(["a", "bc"]) == ((("a", 5), ["c", None], "text"), {"from": ["a"], "rest": [1, 2]})
