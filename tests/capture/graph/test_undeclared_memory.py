"""Custom operators that do not say what memory they return or write keep the order of what is written."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from itertools import permutations
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from threadcast.capture.graph.capture import capture_forward
from threadcast.capture.graph.captured import Captured
from threadcast.core.errors import CaptureError


@pytest.fixture(scope="module")
def operators() -> Iterator[Any]:
    """`itself`, which returns its argument, and `into`, which copies to its second one; neither says so."""
    with torch.library._scoped_library("tested_memory", "FRAGMENT") as library:
        library.define("itself(Tensor x) -> Tensor")
        library.define("into(Tensor x, Tensor out) -> ()")
        library.impl("itself", lambda x: x, "CPU")
        library.impl("itself", torch.empty_like, "Meta")
        library.impl("into", lambda x, out: void(out.copy_(x)), "CPU")
        library.impl("into", lambda x, out: None, "Meta")
        yield SimpleNamespace(itself=torch.ops.tested_memory.itself, into=torch.ops.tested_memory.into)


def void(_: Tensor) -> None:
    """What an operator returns that returns nothing."""


def by_all_orders(captured: Captured, *arguments: Tensor) -> set[tuple[float, ...]]:
    """The results of the captured call in all orders that its edges allow."""
    graph, found = captured.graph, set()
    for order in permutations(range(len(graph))):
        places = {op: at for at, op in enumerate(order)}
        if all(places[edge.source] < places[edge.target] for edge in graph.edges):
            run = captured.program.run(captured.bind(*(value.clone() for value in arguments)), order=order)
            found.add(tuple(captured.finish(run).flatten().tolist()))
    return found


def written_before(x: Tensor, of: Any) -> Tensor:
    a = x * 2
    y: Tensor = of.itself(a)
    a.add_(1)
    return y * 3


def written_after(x: Tensor, of: Any) -> Tensor:
    a = x * 2
    y: Tensor = of.itself(a)
    z = y * 3
    a.add_(1)
    return z


def product_of_what_is_written(x: Tensor, of: Any) -> Tensor:
    a = x * 2
    product = a @ x
    of.itself(a).add_(1)
    return x @ x + product


def written_by_what_returns_nothing(x: Tensor, of: Any) -> Tensor:
    out = x * 0
    of.into(x * 2, out)
    return out + 1


def number_through_itself(x: Tensor, of: Any) -> Tensor:
    own = torch.zeros(1)
    of.itself(own).add_(1)
    return x * 2 if own.item() > 0 else x * 3


def number_by_into(x: Tensor, of: Any) -> Tensor:
    own = x * 0
    of.into(x, own)
    return x * 2 if own.sum() > 0 else x * 3


@pytest.mark.parametrize(
    "function",
    [
        written_before, written_after, product_of_what_is_written, written_by_what_returns_nothing,
        number_through_itself, number_by_into,
    ],
)  # fmt: skip
def test_what_is_not_declared_keeps_its_order(function: Callable[[Tensor, Any], Tensor], operators: Any) -> None:
    x = torch.ones(2, 2)
    with contextlib.suppress(CaptureError) if function.__name__.startswith("number") else contextlib.nullcontext():
        captured = capture_forward(lambda x: function(x, operators), x)
        assert by_all_orders(captured, x) == {tuple(function(x, operators).flatten().tolist())}
