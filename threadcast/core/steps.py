"""How many steps optimised models of this process have made, for whoever wants to know how it gets on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import local

_made = 0


class _Inside(local):
    depth = 0


_inside = _Inside()


@contextmanager
def one_step() -> Iterator[None]:
    """What happens inside is one step, also where an optimizer of torch's makes one."""
    global _made
    _inside.depth += 1
    try:
        yield
    finally:
        _inside.depth -= 1
    _made += 1


def inside_step() -> bool:
    """Whether the calling thread is in a step that is counted already."""
    return _inside.depth > 0


def steps_made() -> int:
    """How many there were."""
    return _made
