"""Results that say that PyTorch's default runs a call, and why."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Fallback:
    """PyTorch's default runs calls with these arguments. `reason` is a text for the user."""

    reason: str


class FirstCall:
    """PyTorch's default runs this one call; whether such calls can be captured is known only after it."""


FIRST_CALL = FirstCall()
