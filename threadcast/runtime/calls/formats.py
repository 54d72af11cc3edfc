"""The memory formats in which calls of one model are tried, and which calls reorder the model's tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from torch import nn

from threadcast.runtime.calls.fallback import Fallback
from threadcast.runtime.plans.model_format import ModelFormat
from threadcast.runtime.plans.variant import MemoryFormat
from threadcast.runtime.tuner.tuning import Tuning

GIVEN_ONLY = (MemoryFormat.AS_GIVEN,)
"""The formats of calls for which the model's tensors stay as they are."""


class CallFormats:
    """The memory formats to try for calls of `model`, and what `model_format` is asked before one changes it.

    `wanted` are the formats to try; None: by the kinds of layers and arguments. `verified`: some calls also run in
    eager PyTorch, in the format as given.
    """

    def __init__(
        self, model: nn.Module | None, model_format: ModelFormat, wanted: Sequence[MemoryFormat] | None, *,
        verified: bool,
    ) -> None:  # fmt: skip
        self.model, self.model_format = model, model_format
        self._wanted, self._verified = wanted, verified

    def of_call(self, arguments: Any) -> tuple[MemoryFormat, ...]:
        """Return the formats that are worth trying for a call with these arguments, the likeliest first."""
        return tuple(self._wanted or self.model_format.worth_trying(arguments))

    def why_stays(self, found: Tuning | Fallback | None) -> str | None:
        """Return why tensors that a call by `found` may reorder must stay in the order that they have.

        None where they need not, and where the call reorders none. Without `found` it is still to be made what runs it.
        """
        runs_in = found.runs_in if isinstance(found, Tuning) else MemoryFormat.AS_GIVEN
        verifies = self._verified and runs_in is not MemoryFormat.AS_GIVEN
        return self.model_format.why_fixed() if verifies or runs_in is not self.model_format.current else None

    def keep_given(self) -> None:
        """From now on the only format is the present order of the model's tensors."""
        self._wanted = GIVEN_ONLY
        self.model_format.reset()

    def reference(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """Return `run` in the format as given; afterwards tensors have that in which the compared call ran."""
        return partial(self._as_given, run)

    def _as_given(self, run: Callable[..., Any], *arguments: Any) -> Any:
        with self.model_format.as_given():
            return run(*arguments)
