"""What a search is asked for, and what it has built: the two processes tell one another these."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from threadcast.runtime.backends.number_guard import Range
from threadcast.runtime.plans.backend_history import NetworkKind

BEGIN, DONE = b"bd"
"""Bytes that the searching process reads: the program is written, and options follow as a line of JSON; nothing more
is needed of what was built for the last program."""


@dataclass(frozen=True, slots=True)
class Options:
    """What is searched: backends among `among`, for `cores` cores and a network of this kind. `history` is a path.

    A way is reported if its call takes up to `close` times the seconds of the fastest that is known, or of PyTorch's.
    The search keeps to `cpus` (None: to those of its caller), stores the fastest way by `key`, and keeps freed memory
    if its caller does: PyTorch, to which backends are compared, may take two and a half times as long without (Depth
    Anything). What was found for the same network tells what to try first (`shape`).
    """

    among: list[str]
    cores: int
    kind: NetworkKind
    close: float
    history: str | None
    cpus: list[int] | None = None
    keeps_memory: bool = False
    key: str = ""
    shape: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Built:
    """A backend that runs the program from a file, with the seconds of a call and of opening it.

    `gain` is the ratio of PyTorch's seconds to its own; None where other work disturbed the comparison. `integers` are
    the ranges in which the integers of the program's arguments must be; None for others.
    """

    backend: str
    file: str
    call_s: float
    open_s: float
    integers: Sequence[Range | None] = ()
    gain: float | None = None

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Self:
        """Return what `asdict` has made JSON of."""
        return cls(**{**document, "integers": [one and Range(*one) for one in document["integers"]]})
