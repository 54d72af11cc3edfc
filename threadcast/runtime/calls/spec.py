"""What is to be optimised: a call in eager PyTorch, how it is captured, and in which other ways it may run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.optim import Optimizer

from threadcast.capture.graph.captured import Captured
from threadcast.runtime.calls.fallback import BREAKS
from threadcast.runtime.check.shadow import Shadowed
from threadcast.runtime.plans.model_format import ModelFormat
from threadcast.runtime.plans.variant import MemoryFormat
from threadcast.runtime.tuner.candidate import MakeBackends


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class CallSpec:
    """A call that is to run by a faster equivalent with the same effect on the model, and what that may be."""

    shadowed: Shadowed
    """The call in eager PyTorch; its `trace` takes the model's memory format before the call's arguments."""
    capture: Callable[[tuple[Any, ...], ModelFormat], Captured]
    """Given a call's arguments, returns its graph in the current memory format."""
    name: str
    """Identifies the call in stored plans, for other processes."""
    title: str
    """Names it for people."""
    watched: tuple[nn.Module | None, Optimizer | None] = (None, None)
    """The model and the optimizer whose tensors the graphs hold."""
    functions: Sequence[Callable[..., Any]] = ()
    """Other callables that the graphs have built in, such as a loss."""
    backends: Callable[[int, Sequence[int] | None], MakeBackends | None] = lambda *_: None
    """Makes searches for further candidates for so many cores, on these CPUs only (None: on any)."""
    among: Callable[[Sequence[int] | None], str] = lambda _: ""
    """Names what such a search on these CPUs looks among."""
    most: int | None = None
    """The largest number of cores to use; None: all that the process has."""
    formats: Sequence[MemoryFormat] | None = None
    """The memory formats to try; None: by the kinds of layers and arguments."""
    reordered: Optimizer | None = None
    """The optimizer whose state takes the model's memory format, too; None: the one that is watched."""
    breaks: str = BREAKS
    """The end of a reason why a call is left to PyTorch: what else may run some of it."""
    is_step: bool = True
    """Whether a call is a step of its own, and no part of one, which the caller counts."""
    gives_back: bool = True
    """Whether its settled steps tell the store how long operators take."""
