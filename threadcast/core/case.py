"""One way to run an op: how many threads, and how they are placed."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from threadcast.core.errors import InvalidInput


class Affinity(StrEnum):
    """How the threads of an op are placed relative to caches."""

    COMPACT = "compact"
    """Neighbouring threads share a cache: whole cache groups are filled one after the other."""
    SPREAD = "spread"
    """One thread for each cache group."""


@dataclass(frozen=True, slots=True, order=True)
class Case:
    """One way to run an op: a number of threads, one for each core, and how they are placed relative to caches."""

    threads: int
    affinity: Affinity = Affinity.COMPACT

    def __post_init__(self) -> None:
        if not isinstance(self.threads, int) or isinstance(self.threads, bool) or self.threads < 1:
            raise InvalidInput(f"threads={self.threads!r}: an op runs on at least 1 thread")
        object.__setattr__(self, "affinity", Affinity(self.affinity))

    def __hash__(self) -> int:
        return self.threads if self.affinity is Affinity.COMPACT else ~self.threads  # the dataclass's takes 3 x as long

    def __str__(self) -> str:
        return f"{self.threads} {self.affinity}"
