"""What a tuning machine does next, and what it has to be told before the next step."""

from __future__ import annotations

from typing import TypeVar

from threadcast.runtime.plans.variant import Variant
from threadcast.runtime.tuning import instructions as do
from threadcast.runtime.tuning.instructions import Instruction
from threadcast.runtime.tuning.states import Moves

_Asked = TypeVar("_Asked", do.Capture, do.Open)


class Agenda:
    """The instruction that comes next, or the one that was given and has to be answered."""

    def __init__(self, moves: Moves) -> None:
        self._moves = moves
        self.pending: Instruction | None = None
        """What comes next, as soon as learning may take the time."""
        self.awaited: Instruction | None = None
        """The instruction that must be answered before the next step; None where there is none."""

    @property
    def empty(self) -> bool:
        """Whether nothing comes next, and nothing has to be answered."""
        return self.pending is None and self.awaited is None

    @property
    def variant(self) -> Variant | None:
        """The variant that is to be captured as soon as learning may take the time for it."""
        return self.pending.variant if isinstance(self.pending, do.Capture) else None

    def begin(self, instruction: Instruction) -> None:
        """Record that `instruction`, which was pending, is given now."""
        self.pending = None
        if isinstance(instruction, do.Capture | do.Open):
            self.awaited = instruction

    def answer(self, event: str, kind: type[_Asked]) -> _Asked:
        """Record the answer to an instruction of this kind, and return that; IllegalMove where none is awaited."""
        awaited = self.awaited
        if not isinstance(awaited, kind):
            raise self._moves.illegal(f"{event}, awaiting {awaited}")
        self.awaited = None
        return awaited

    def clear(self) -> None:
        """Do nothing next, and wait for no answer."""
        self.pending = self.awaited = None
