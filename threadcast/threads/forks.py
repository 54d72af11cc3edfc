"""Counts the forks from the first process to this one: what has threads asks whether it is still in its own process."""

from __future__ import annotations

import os
from dataclasses import dataclass


@dataclass(slots=True)
class Forks:
    """The number of forks; larger in a forked process than in its parent. Reading it is quicker than `os.getpid`."""

    number: int = 0

    def count(self) -> None:
        """Count one more, in the new process."""
        self.number += 1


forks = Forks()
os.register_at_fork(after_in_child=forks.count)
