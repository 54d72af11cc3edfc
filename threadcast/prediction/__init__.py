"""Forecasts how long operations take, by a model in this process or by a prediction service, behind one interface.

`Predictor` is the interface. `LocalPredictor` asks a model in this process, `RemotePredictor` a service over HTTP.
`FirstOf` asks several predictors until one answers. `roofline` forecasts without any model.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from threadcast.prediction.fallback import FirstOf, roofline
    from threadcast.prediction.predictor import LocalPredictor, Predictor
    from threadcast.prediction.remote import RemotePredictor, RemoteStatus

__all__ = ["FirstOf", "LocalPredictor", "Predictor", "RemotePredictor", "RemoteStatus", "roofline"]

_MODULES = {
    "FirstOf": "fallback",
    "LocalPredictor": "predictor",
    "Predictor": "predictor",
    "RemotePredictor": "remote",
    "RemoteStatus": "remote",
    "roofline": "fallback",
}


def __getattr__(name: str) -> object:
    """Return a public name, imported at its first use, so that importing one module does not load the HTTP client."""
    if name in _MODULES:
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
