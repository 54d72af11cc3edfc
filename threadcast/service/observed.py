"""How long ops took beside how long the default model said that they would: what drifts."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from threadcast.core import Measurement
from threadcast.core.errors import ThreadcastError
from threadcast.models.drift import MOST_OPS, ratios

if TYPE_CHECKING:
    from threadcast.service.context import Context


def observed_over_predicted(measured: Sequence[Measurement], here: Context) -> dict[str, list[float]]:
    """By "name@number" of the model, observed over predicted seconds of the first `MOST_OPS` ops of these.

    Nothing where the model cannot tell: what was measured is stored nevertheless.
    """
    with suppress(ThreadcastError):
        model, version = here.models.get()
        return {version: ratios(model, measured, most_ops=MOST_OPS)}
    return {}
