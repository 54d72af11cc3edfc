"""Keeps `optimizer.state` as eager PyTorch has it before the first update, though captured steps need more."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor
from torch.optim import Optimizer


class FirstUpdate:
    """A context around a step: state that capturing makes for a first update stays only if that update is made.

    A capture puts tensors of zeros into `optimizer.state` for parameters that have none. Where a step raises before
    their first update they go again, and the next step is captured anew. Those of a capture that runs nothing are kept
    here until a step begins (`awaited`).
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        self.entries: dict[Any, Any] = {}
        """The entries that captures have made for a step that is still to come."""
        self._known = 0
        """Number of entries when the context was entered; later ones come after them."""

    def __enter__(self) -> None:
        state = self._optimizer.state
        self._known = len(state)
        if self.entries:
            groups = self._optimizer.param_groups
            trained = {id(parameter) for group in groups for parameter in group["params"]}
            if all(id(one) in trained and one not in state for one in self.entries):  # else it is captured anew
                state.update(self.entries)
            self.entries = {}

    def __exit__(self, error: object, *_: object) -> None:
        if error is not None:
            self._take_out()

    @contextmanager
    def awaited(self) -> Iterator[None]:
        """Within the context steps are captured and none is run."""
        with self:
            yield
            self.entries = self._take_out()

    def _take_out(self) -> dict[Any, Any]:
        """Remove the entries that came within the context, and that no update has changed; return them."""
        state = self._optimizer.state
        new = {one: state[one] for one in list(state)[self._known :] if _is_as_made(state[one])}
        for one in new:
            del state[one]
        return new


def _is_as_made(entries: Any) -> bool:
    return not any(isinstance(value, Tensor) and bool(value.any()) for value in entries.values())
