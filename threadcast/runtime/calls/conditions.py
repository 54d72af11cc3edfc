"""What is around a call, and in its arguments and its model, under which PyTorch runs it, of whichever kind it is."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn.utils import parametrize
from torch.utils._device import DeviceContext

from threadcast.capture.graph.program import PLAIN
from threadcast.capture.guards.objects import own_dictionary, slots_of
from threadcast.capture.guards.unsupported import is_plain
from threadcast.runtime.calls.fallback import BREAKS, Fallback
from threadcast.runtime.watching.model import Observation, Watch

AUTOCAST = "autocast is on, and an engine's threads do not have it; turn it on inside of the model"
AUTOCAST_STEP = (
    "autocast is on around a training step, and PyTorch may go on with its casts of the weights in a further step; "
    "turn it on inside of the model, or with cache_enabled=False"
)
ANOMALIES = "torch.autograd.detect_anomaly() is on, which looks at each gradient of PyTorch's own backward pass"
SAVED_BY_HOOKS = (
    "torch.autograd.graph.saved_tensors_hooks are on, which get each tensor that PyTorch's own forward pass saves"
)
CACHED = "torch.nn.utils.parametrize.cached() is active, within which PyTorch computes weights once for several calls"
FORWARD_MODE = "torch.autograd.forward_ad is active, and a graph computes no tangents"
TRACED = "torch.jit.trace is active, and does not see what an engine's threads run"
TRANSFORMED = "a transformation of torch.func (vmap, grad, jvp, functionalize) is active, which a graph does not meet"
LONG_AUTOCAST = (
    "weights were written to between calls in one autocast context, in which PyTorch goes on with its first casts; "
    "enter it anew for each call, or with cache_enabled=False"
)

_OF_PYTORCH = "_dynamo_", "_has_dynamo_", "_specialize_on", "_is_buffer", "_is_param"
"""How the names of attributes begin by which PyTorch marks tensors: sizes that vary, buffers, parameters."""


class CallConditions:
    """Tells which calls of a watched model PyTorch must run; `trains`: calls are training steps with an optimizer.

    It is asked before each call, of which some conditions are those of the call before.
    """

    def __init__(self, watch: Watch, *, trains: bool) -> None:
        self._watch, self._trains = watch, trains
        self._casts = 0, 0
        """The last autocast context around a call, and the versions of the weights at its first call."""

    def why_not_by_graph(self, leaves: Iterable[Any], observed: Observation, *, now: bool) -> Fallback | None:
        """Return why PyTorch runs a call with these leaves of its arguments; None where a graph may.

        `now`: the call only tells what would run it, and does not run.
        """
        reason = why_no_inputs(leaves)
        if reason is None and keeps_casts():
            reason = self._why_other_casts(now=now)
        if reason is None and observed.unsteady is not None:
            reason = f"{observed.unsteady}{BREAKS}"
        if self._trains and not torch.is_grad_enabled():
            reason = "gradients are switched off, by torch.no_grad() or torch.inference_mode()"
        if torch.is_anomaly_enabled() and torch.is_anomaly_check_nan_enabled():  # models may take gradients, too
            reason = ANOMALIES
        if parametrize._cache_enabled:  # weights that PyTorch computes of others are kept for several calls
            reason = CACHED
        if torch.is_grad_enabled() and saves_by_hooks():
            reason = SAVED_BY_HOOKS
        if reason is None and observed.hooked is not None:
            why = f"there are hooks on {observed.hooked}, which a captured step does not call{BREAKS}"
            return Fallback(why, hooks=True)
        return None if reason is None else Fallback(reason)

    def _why_other_casts(self, *, now: bool) -> str | None:
        """Why a graph would cast the weights at another time than eager PyTorch does; None where both are equal.

        In one autocast context PyTorch casts a weight once. Graphs cast in each call, and leave no cast to later calls.
        """
        if self._trains:
            return AUTOCAST_STEP
        if now:
            return None
        context, versions = autocast_contexts().number(), self._watch.versions
        if self._casts[0] != context:
            self._casts = context, versions
        return None if self._casts[1] == versions else LONG_AUTOCAST


class AutocastContexts:
    """Tells the autocast contexts around calls apart.

    In one context PyTorch casts each weight once and keeps the cast, also where the weight is written to afterwards: an
    update of the weights is not seen before the context ends. PyTorch does not say which context is on, so a weight of
    this object's own is written to, and its cast tells.
    """

    def __init__(self) -> None:
        self._weight: nn.Parameter | None = None
        self._found, self._number = 0.0, 0

    def number(self) -> int:
        """Return a number of the autocast context that is on, as long as it is on; another in each other context.

        Where autocast is off, or keeps no casts, the numbers say nothing.
        """
        with torch.inference_mode(False), torch.no_grad():
            if self._weight is None:
                self._weight = nn.Parameter(torch.zeros(1, 1, dtype=torch.float32))
            self._weight.fill_(1.0 - self._found)
            found = float(torch.mm(torch.ones(1, 1, dtype=torch.float32), self._weight))
        if found != self._found:
            self._found = found
            self._number += 1
        return self._number


def keeps_casts() -> bool:
    """Return whether autocast is on for the CPU, and PyTorch casts each weight once in its context."""
    return torch.is_autocast_enabled("cpu") and torch.is_autocast_cache_enabled()


@lru_cache(maxsize=1)
def autocast_contexts() -> AutocastContexts:
    """Return the process's: PyTorch's casts are those of all models."""
    return AutocastContexts()


def why_transformed() -> str | None:
    """Why operators do more now than a graph's do, whatever the arguments: they are transformed; None where not so.

    The model's tensors may be wrapped then, or fake ones in their places, so this is asked before they are looked at.
    """
    return TRANSFORMED if torch._C._functorch.peek_interpreter_stack() is not None else _why_in_a_mode()


def saves_by_hooks() -> bool:
    """Whether hooks get the tensors that a forward pass saves for the backward pass, as within `save_on_cpu`."""
    return torch._C._autograd._top_saved_tensors_default_hooks(True) is not None


def why_not_captured(leaves: Iterable[Any]) -> str | None:
    """Why a call with these leaves of its arguments cannot run by a graph without autocast; None where it may."""
    if torch.is_autocast_enabled("cpu"):
        return AUTOCAST
    return _why_in_a_mode() or why_no_inputs(leaves)


def why_no_inputs(leaves: Iterable[Any]) -> str | None:
    """Why a graph cannot take these leaves of a call's arguments; None where it may."""
    reasons = (_why_no_input(leaf) for leaf in leaves)
    return next((reason for reason in reasons if reason is not None), None)


def _why_in_a_mode() -> str | None:
    if forward_ad._current_level >= 0:
        return FORWARD_MODE
    if torch._C._get_tracing_state() is not None:
        return TRACED
    if torch._C._len_torch_dispatch_stack() or (torch._C._len_torch_function_stack() and _changes_functions()):
        return "a TorchFunctionMode or TorchDispatchMode is active, which a graph's operators do not meet"
    return None


def _changes_functions() -> bool:
    """Whether a mode is active other than the CPU as default device, which changes nothing."""
    modes = torch.overrides._get_current_function_mode_stack()  # type: ignore[no-untyped-call]
    return not all(isinstance(mode, DeviceContext) and mode.device.type == "cpu" for mode in modes)


_PLAIN_TYPES = frozenset(PLAIN)


def _why_no_constant(leaf: Any) -> str | None:
    name, is_member = type(leaf).__name__, isinstance(leaf, Enum)  # one object, watched with its class
    if not isinstance(leaf, PLAIN):
        return f"an argument is a {name}, neither a tensor nor a constant"
    if not is_member and (own_dictionary(leaf) or any(slots_of(type(leaf)))):
        return f"an argument is a {name} with attributes of its own"
    return None


def _why_no_input(leaf: Any) -> str | None:
    if not isinstance(leaf, Tensor):
        return None if type(leaf) in _PLAIN_TYPES else _why_no_constant(leaf)
    if leaf.layout is not torch.strided or leaf.is_nested:
        return f"an argument is a {'nested' if leaf.is_nested else 'sparse'} tensor"
    if torch._C._functorch.is_functorch_wrapped_tensor(leaf):
        return "an argument is a tensor that has left a transformation of torch.func"
    if type(leaf) is not Tensor and not is_plain(leaf):
        return f"an argument is a {type(leaf).__name__}, not an ordinary tensor"
    if leaf.__dict__ and not all(name.startswith(_OF_PYTORCH) for name in leaf.__dict__):
        return "an argument has attributes that a program has set (x.name = ...), which a graph does not see"
    return "an argument requires a gradient, which a captured step does not compute" if leaf.requires_grad else None
