"""Calls of nodes pass every form of argument."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils import _pytree as pytree

from threadcast.capture.graph.capture import capture_forward
from threadcast.capture.graph.program import Node
from threadcast.capture.graph.values import Ref


def everything(x: torch.Tensor) -> Any:
    parts = torch.split(x, 2)
    return (
        torch.cat([parts[1], parts[0]], dim=0), torch.full_like(x, float("inf"), dtype=torch.float64),
        torch.nn.functional.pad(x, [1, 1]), x[:, None], torch.std_mean(x, dim=[0], correction=0)[1],
    )  # fmt: skip


def test_every_form_of_argument_arrives() -> None:
    x = torch.randn(4, 3)
    found, expected = capture_forward(everything, x).run(), everything(x)
    assert all(torch.equal(a, b) for a, b in zip(pytree.tree_leaves(found), pytree.tree_leaves(expected), strict=True))


def test_a_plain_function_and_keyword_arguments_arrive() -> None:
    def target(*args: Any, **kwargs: Any) -> Any:
        return args, kwargs

    args = ((Ref(0), 5), [Ref(1, 1), None], "text", {"b": [Ref(1)], 3: None})
    node = Node(target, args, {"from": [Ref(0)], "rest": [1, 2]}, "forward")
    expected = ((("a", 5), ["c", None], "text", {"b": ["bc"], 3: None}), {"from": ["a"], "rest": [1, 2]})
    assert node.call(["a", "bc"]) == expected
