"""Measured over predicted seconds of new measurements, a metric that shows drift."""

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
    """Return measured over predicted seconds of the first `MOST_OPS` ops, by the "name@number" of the default model.

    It is empty where there is no such model or it cannot predict; that does not keep measurements from being stored.
    """
    with suppress(ThreadcastError):
        model, version = here.models.get()
        return {version: ratios(model, measured, most_ops=MOST_OPS)}
    return {}
