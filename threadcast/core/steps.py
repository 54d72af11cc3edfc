"""How the optimised models of this process get on, for whoever wants to know: steps made, and steps to be expected."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from threading import local

_made = 0
_expected: dict[int, float] = {}


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


def expect(per_s: Mapping[int, float]) -> None:
    """The model that runs now makes so many steps a second, by number of cores."""
    global _expected
    _expected = dict(per_s)


def expected() -> Mapping[int, float]:
    """Steps a second by number of cores, as far as they are known; only their ratios count."""
    return _expected
