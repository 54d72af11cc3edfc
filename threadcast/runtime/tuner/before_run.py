"""What a run changes before an operator of it raises, to be set back so that PyTorch can run the call again."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from threadcast.capture.graph.captured import Captured


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


class BeforeRun:
    """The random state before a run by a graph, and copies of what the run writes to before an operator raises.

    An operator that raises because of values has all other writes of the graph wait for it, such as the optimizer's
    (`capture.dependencies`), so the copies are of running statistics and their like. `take` makes them anew before each
    run, `set_back` writes them back.
    """

    def __init__(self, captured: Captured) -> None:
        self._captured = captured
        self._held = [captured.held[slot] for slot in captured.early if slot in captured.held]
        self._tensors, self._copies = self._held, _like(self._held)
        self._draws = Draws(random=False)
        self.takes = captured.random or bool(captured.early)
        """Whether there is anything to take note of."""

    def take(self, arguments: tuple[Any, ...]) -> None:
        """Take note of the state before a run on these arguments."""
        self._draws = Draws(random=self._captured.random)
        if not self._captured.early:
            return
        if len(self._held) < len(self._captured.early):
            given = self._captured.written_early(arguments)
            self._tensors, self._copies = [*self._held, *given], [*self._copies[: len(self._held)], *_like(given)]
        with torch.no_grad():
            torch._foreach_copy_(self._copies, self._tensors)

    def suffices(self, error: Exception) -> bool:
        """Whether all that a run which has raised this error may have changed can be set back.

        Where memory runs out, any operator raises, also in the midst of an optimizer's update.
        """
        captured = self._captured
        if captured.written == captured.early:
            return True
        return captured.raises and not isinstance(error, MemoryError) and "allocat" not in str(error)

    def set_back(self) -> None:
        """Set all back to what it was when it was taken."""
        self._draws.set_back()
        if self._captured.early:
            with torch.no_grad():  # by then they may be in another order in memory
                torch._foreach_copy_(self._tensors, self._copies)
        self.forget()

    def forget(self) -> None:
        """Keep no arguments alive."""
        self._tensors, self._copies = self._held, self._copies[: len(self._held)]


def _like(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Empty tensors for copies of these. Those of inference mode could not be written to outside of it."""
    with torch.inference_mode(False) if torch.is_inference_mode_enabled() else nullcontext():
        return [torch.empty_like(tensor.detach()) for tensor in tensors]
