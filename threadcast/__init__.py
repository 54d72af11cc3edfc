"""Forecast how long every operation takes at every thread count, and run networks by the forecast.

optimize(model)                            the model's inference, as fast as it is found to run on this machine
optimize_training(model, loss, optimizer)  the same for a whole training step
attach()                                   let this process use the cores that an arbiter gives it

`threadcast.scheduler` plans graphs without PyTorch, `threadcast.core` has the types. The command line is `threadcast`.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from threadcast.malleable.attach import attach
    from threadcast.runtime.doors.optimize import optimize, optimize_training

__version__ = "0.1.0"

__all__ = ["__version__", "attach", "optimize", "optimize_training"]

_NEED_TORCH = frozenset({"optimize", "optimize_training"})


def __getattr__(name: str) -> object:
    """Return a public function, imported at its first use: `import threadcast` is quick and needs no PyTorch."""
    if name in _NEED_TORCH:
        from threadcast.threads.garbage import without_garbage_collection

        with without_garbage_collection():  # nothing of what is imported is garbage: half of the time
            from threadcast.runtime.doors import optimize as module
        return getattr(module, name)
    if name == "attach":
        from threadcast.malleable.attach import attach

        return attach
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """Names for completion and `help`; functions that need PyTorch are among them only where it is installed."""
    from importlib.util import find_spec

    missing = _NEED_TORCH if find_spec("torch") is None else frozenset()
    return sorted({*globals(), *__all__} - missing - {"TYPE_CHECKING", "_NEED_TORCH"})
