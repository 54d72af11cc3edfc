"""Where PyTorch's default runs calls of one kind, and why."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Fallback:
    """The default runs these calls. `reason` is what the user reads."""

    reason: str


class FirstCall:
    """The default runs this one call: only after it can be known whether such calls can be captured."""


FIRST_CALL = FirstCall()
