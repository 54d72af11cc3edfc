"""Forecast how long every operation takes at every thread count, and schedule by the forecast."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from threadcast.malleable.attach import attach
    from threadcast.runtime.optimize import optimize, optimize_training

__version__ = "0.1.0"

__all__ = ["__version__", "attach", "optimize", "optimize_training"]


def __getattr__(name: str) -> object:
    """`optimize` and `optimize_training`, which import torch, and `attach`, when they are first asked for."""
    if name in ("optimize", "optimize_training"):
        from threadcast.runtime import optimize as module

        return getattr(module, name)
    if name == "attach":
        from threadcast.malleable.attach import attach

        return attach
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
