"""A turn to capture that never comes."""

from __future__ import annotations


class Taken:
    """A turn that another thread has for ever, and for how many seconds captures were ready to wait for it."""

    def __init__(self) -> None:
        self.waits_s: list[float] = []

    def acquire(self, timeout: float) -> bool:
        self.waits_s.append(timeout)
        return False
