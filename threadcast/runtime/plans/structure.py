"""Whether two graphs are the same but for the shapes of their tensors, so that a plan of one is a plan of the other."""

from __future__ import annotations

from threadcast.core import OpGraph


def same_structure(one: OpGraph, other: OpGraph) -> bool:
    """Return whether both graphs have the same ids, the same edges, and ops of the same kinds."""
    if one.ids != other.ids or one.edges != other.edges:
        return False
    return all(mine.kind == theirs.kind for mine, theirs in zip(one.ops, other.ops, strict=True))
