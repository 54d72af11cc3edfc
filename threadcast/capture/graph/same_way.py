"""Whether a graph for several sizes takes the way that the callable takes for its example's sizes as plain integers.

Symbols stand for sizes while such a graph is recorded. Code that asks of what type they are (`isinstance(n, int)`) gets
another answer than for an integer, and no guard notes it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from threadcast.capture.graph.capture import Captured
from threadcast.capture.graph.simplify import VIEWS
from threadcast.capture.graph.values import AsNumber, Ref


def takes_the_same_way(captured: Captured, plain: Captured) -> bool:
    """Return whether `captured`, for several sizes, calls the operators of `plain` with the same numbers.

    `plain` is captured for the same arguments alone. Equal views of one value may be one in either of them.
    """
    assert captured.sizes is not None
    slots = [slot for slot, entry in enumerate(captured.program.inputs) if entry.role == "size"]
    sizes = dict(zip(slots, captured.sizes.values(*captured.sizes.example), strict=True))
    return _calls(captured, sizes) == _calls(plain, {})


def _calls(captured: Captured, sizes: Mapping[int, int]) -> tuple[Counter[str], set[str]]:
    """The calls of operators with their numbers, in words: how often each comes, and which views there are."""
    others: Counter[str] = Counter()
    views = set()
    for node in captured.program.nodes:
        text = f"{node.target} {_without_refs(node.args, sizes)!r} {_without_refs(node.kwargs, sizes)!r}"
        if node.target in VIEWS:
            views.add(text)
        else:
            others[text] += 1
    return others, views


def _without_refs(template: Any, sizes: Mapping[int, int]) -> Any:
    if isinstance(template, Ref):
        return sizes.get(template.slot, "value")
    if isinstance(template, AsNumber):
        return "number"
    if isinstance(template, list | tuple):
        return [_without_refs(part, sizes) for part in template]
    if isinstance(template, dict):
        return {key: _without_refs(part, sizes) for key, part in template.items()}
    return template
