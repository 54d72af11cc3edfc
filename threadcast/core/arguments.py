"""Checks of arguments: a message says which one, what was given, what is wanted, and the likely slip."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from numbers import Real

from threadcast.core.errors import InvalidInput

_LONGEST = 80
"""Most characters of a value that a message shows; of others it names the type."""


def check(allowed: object, name: str, value: object, wanted: str, slip: str = "") -> None:
    """Raise InvalidInput unless the argument is `allowed`; the message says what is `wanted`, and the likely `slip`.

    Where a class was given, that is the slip.
    """
    if not allowed:
        slip = slip or ("that is a class, give an object of it" if isinstance(value, type) else "")
        raise InvalidInput(f"{name}={_shown(value)} must be {wanted}{slip and f'; {slip}'}")


def check_switch(name: str, value: object) -> None:
    """Raise InvalidInput unless the argument is True or False, or counts as one of them: 1, or what is empty."""
    check(not value or value == 1, name, value, "True or False")


def check_whole(name: str, value: object, least: int = 1) -> None:
    """Raise InvalidInput unless the argument is a whole number of at least so many."""
    check(is_whole(value, least), name, value, f"a whole number of at least {least}")


def is_whole(value: object, least: int = 1) -> bool:
    """Whether it is a whole number (`int`) of at least so many; True and False are none."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def is_number(value: object) -> bool:
    """Whether it is a number, also one of NumPy; True and False are none."""
    return isinstance(value, Real) and not isinstance(value, bool)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A hint at the known name that is nearest, to put before what comes next; empty where none is near."""
    near = nearest(name, known, cutoff=0.6)
    return f"did you mean {near[0]!r}? " if near else ""


def nearest(name: str, known: Iterable[str], *, most: int = 1, cutoff: float = 0.5) -> list[str]:
    """The known names that may be meant, in whatever case, the nearest first; `cutoff`: the least likeness, 0 to 1."""
    folded = {one.casefold(): one for one in known}
    return [folded[one] for one in difflib.get_close_matches(name[:200].casefold(), folded, most, cutoff)]


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST and text.isprintable() else f"<{type(value).__name__}>"
