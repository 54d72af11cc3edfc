"""The CPUs that this process was asked to keep to, by an arbiter or by hand, for whoever pins threads to others."""

from __future__ import annotations

from collections.abc import Iterable

_given: frozenset[int] | None = None


def set_given(cpus: Iterable[int]) -> None:
    """From now on the process keeps to these."""
    global _given
    _given = frozenset(cpus)


def are_given(cpus: frozenset[int]) -> bool:
    """Whether all of `cpus` may still be used; they may where nobody ever asked for any back."""
    return _given is None or cpus <= _given
