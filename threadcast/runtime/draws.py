"""The random numbers that a call draws once more where it is run again."""

from __future__ import annotations

import torch


class Draws:
    """The state of PyTorch's generator before a call, which draws numbers where it is `random`.

    What runs instead of a call that has failed draws the numbers that the call would have drawn.
    """

    __slots__ = ("_before",)

    def __init__(self, *, random: bool) -> None:
        self._before = torch.default_generator.get_state() if random else None

    def set_back(self) -> None:
        """Let the generator draw the same numbers once more."""
        if self._before is not None:
            torch.default_generator.set_state(self._before)
