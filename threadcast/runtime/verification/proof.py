"""What the compared steps of a plan have shown so far: whether its results are eager PyTorch's."""

from __future__ import annotations

from dataclasses import dataclass

from threadcast.runtime.verification.differences import Difference

_MOST_DOUBTS = 3
"""How many steps may differ by what may be chance before one agrees. A plan that is wrong differs in all of them;
ResNet-18 in channels last, which is right, differed in about every second step (decision 25)."""


@dataclass(slots=True)
class Proof:
    """Counts compared steps of one plan until one that tells agrees, or the plan is refused."""

    untold_left: int
    """How many more steps are compared at most where none shows anything (`telling.tells`)."""
    known: bool = False
    """Whether it is known that the plan is right, or that it is not."""
    doubts: int = 0
    """Steps that differed by what may be chance."""

    @property
    def over(self) -> bool:
        """Whether no more steps need to be compared."""
        return self.known or self.untold_left <= 0

    def doubted(self, difference: Difference) -> bool:
        """Note a step that differed. Returns True where it may be chance, and more steps are to be compared."""
        self.doubts += 1
        if not difference.may_be_chance or self.doubts > _MOST_DOUBTS:
            self.known = True
            return False
        return True

    def agreed(self, *, tells: bool) -> None:
        """Note a step whose results agreed; `tells`: wrong results would have shown."""
        self.known = tells
        self.untold_left -= not tells
