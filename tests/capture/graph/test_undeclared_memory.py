"""Custom operators that do not say what memory they return or write keep the order of what is written."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from itertools import permutations

import pytest
import torch
from torch import Tensor

from threadcast.capture.graph.capture import capture_forward
from threadcast.capture.graph.captured import Captured
from threadcast.core.errors import CaptureError


@pytest.fixture
def itself() -> Iterator[torch._ops.OpOverloadPacket]:
    """An operator that returns its argument, and does not say so."""
    with torch.library._scoped_library("tested_memory", "FRAGMENT") as library:
        library.define("itself(Tensor x) -> Tensor")
        library.impl("itself", lambda x: x, "CPU")
        library.impl("itself", torch.empty_like, "Meta")
        yield torch.ops.tested_memory.itself


def by_all_orders(captured: Captured, *arguments: Tensor) -> set[tuple[float, ...]]:
    """The results of the captured call in all orders that its edges allow."""
    graph, found = captured.graph, set()
    for order in permutations(range(len(graph))):
        places = {op: at for at, op in enumerate(order)}
        if all(places[edge.source] < places[edge.target] for edge in graph.edges):
            run = captured.program.run(captured.bind(*(value.clone() for value in arguments)), order=order)
            found.add(tuple(captured.finish(run).flatten().tolist()))
    return found


@pytest.mark.parametrize("written_first", [True, False])
def test_readers_of_what_a_custom_operator_returns_wait_for_writes(
    itself: torch._ops.OpOverloadPacket, written_first: bool
) -> None:
    def function(x: Tensor) -> Tensor:
        a = x * 2
        y: Tensor = itself(a)
        if written_first:
            a.add_(1)
            return y * 3
        z = y * 3
        a.add_(1)
        return z

    x = torch.ones(3)
    assert by_all_orders(capture_forward(function, x), x) == {tuple(function(x).tolist())}


def test_products_are_not_added_after_what_a_custom_operator_returned_was_written(
    itself: torch._ops.OpOverloadPacket,
) -> None:
    def function(x: Tensor) -> Tensor:
        a = x * 2
        product = a @ x
        y: Tensor = itself(a)
        y.add_(1)
        return x @ x + product

    x = torch.ones(2, 2)
    assert by_all_orders(capture_forward(function, x), x) == {tuple(function(x).flatten().tolist())}


@pytest.fixture
def into() -> Iterator[torch._ops.OpOverloadPacket]:
    """An operator that copies to its second argument, and does not say so."""

    def copied(x: Tensor, out: Tensor) -> None:
        out.copy_(x)

    with torch.library._scoped_library("tested_writes", "FRAGMENT") as library:
        library.define("into(Tensor x, Tensor out) -> ()")
        library.impl("into", copied, "CPU")
        library.impl("into", lambda x, out: None, "Meta")
        yield torch.ops.tested_writes.into


def test_readers_wait_for_a_custom_operator_that_returns_nothing(into: torch._ops.OpOverloadPacket) -> None:
    def function(x: Tensor) -> Tensor:
        out = x * 0
        into(x * 2, out)
        return out + 1

    x = torch.ones(3)
    assert by_all_orders(capture_forward(function, x), x) == {tuple(function(x).tolist())}


def test_numbers_read_after_what_is_not_declared_are_what_was_written(
    itself: torch._ops.OpOverloadPacket, into: torch._ops.OpOverloadPacket
) -> None:
    def through_itself(x: Tensor) -> Tensor:
        own = torch.zeros(1)
        itself(own).add_(1)
        return x * 2 if own.item() > 0 else x * 3

    def by_into(x: Tensor) -> Tensor:
        own = x * 0
        into(x, own)
        return x * 2 if own.sum() > 0 else x * 3

    x = torch.ones(2)
    for function in (through_itself, by_into):
        with contextlib.suppress(CaptureError):
            assert by_all_orders(capture_forward(function, x), x) == {tuple(function(x).tolist())}
