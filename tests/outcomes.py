"""What becomes of cases and programs that run by eager PyTorch and by threadcast, and how that is summed up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Status = Literal["right", "refused", "different", "PyTorch's own", "eager cannot"]
STATUSES: tuple[Status, ...] = ("right", "refused", "different", "PyTorch's own", "eager cannot")
COMMONEST = 12
"""Reasons that a summary names."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a case or program of this name; `reason` says why it was refused, or what differs."""

    name: str
    status: Status
    reason: str = ""


def in_short(error: BaseException) -> str:
    """The first line of an error's message, cut; its type where it has none."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


def commonest_reasons(outcomes: Sequence[tuple[str, Outcome]]) -> list[str]:
    """Lines with the commonest reasons of what was refused or differs; each outcome comes with a name for it."""
    lines: list[str] = []
    for status in ("refused", "different", "PyTorch's own"):
        reasons = Counter(
            outcome.reason if status == "refused" else f"{name}: {outcome.reason}"
            for name, outcome in outcomes
            if outcome.status == status
        )
        lines += [f"\n{status}:"] if reasons else []
        lines += [f"{count:8}  {reason}" for reason, count in reasons.most_common(COMMONEST)]
    return lines


def part(text: str) -> tuple[int, int]:
    """Read "I/N", which stands for every N-th case from the I-th on."""
    number, _, of = text.partition("/")
    return int(number), int(of)
