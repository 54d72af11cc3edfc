"""Which calls PyTorch's default runs, and why."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.utils._device import DeviceContext

from threadcast.capture.graph.program import PLAIN
from threadcast.capture.guards.objects import own_dictionary, slots_of
from threadcast.capture.guards.unsupported import is_plain


@dataclass(frozen=True, slots=True)
class Fallback:
    """PyTorch's default runs calls with these arguments. `reason` tells a user why.

    `short`: they are too short. `hooks`: there are hooks, which most programs keep.
    """

    reason: str
    short: bool = False
    hooks: bool = False


class Told:
    """Warns of graphs of `torch.compile` that run as PyTorch does, once for each reason: a program has many graphs."""

    def __init__(self) -> None:
        self._reasons: set[str] = set()

    def tell(self, *reasons: str, what: str = "a graph") -> None:
        """Warn of those reasons that no warning has given yet."""
        new = [reason for reason in dict.fromkeys(reasons) if reason not in self._reasons]
        if new:
            self._reasons.update(new)
            warnings.warn(f"threadcast runs {what} as PyTorch does: {'; '.join(new)}", stacklevel=3)


BREAKS = '; torch.compile(model, backend="threadcast") runs the parts of it that it can'
"""The end of a reason why a call is left to PyTorch, where a graph of some of it could run otherwise."""
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
FORKED = "it was called in another process, of which this one is a fork without its threads"
WITHIN = "it is called within another optimised call, which runs it"
LONG_AUTOCAST = (
    "weights were written to between calls in one autocast context, in which PyTorch goes on with its first casts; "
    "enter it anew for each call, or with cache_enabled=False"
)

_OF_PYTORCH = "_dynamo_", "_has_dynamo_", "_specialize_on", "_is_buffer", "_is_param"
"""How the names of attributes begin by which PyTorch marks tensors: sizes that vary, buffers, parameters."""


class UpdateApart(Exception):
    """Raised before a training step begins: the optimizer's own `step` must run, after a graph of the gradients."""


class FirstCall:
    """PyTorch's default runs this one call; whether such calls can be captured is known only after it."""


FIRST_CALL = FirstCall()


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
    if not is_plain(leaf):
        return f"an argument is a {type(leaf).__name__}, not an ordinary tensor"
    if leaf.__dict__ and not all(name.startswith(_OF_PYTORCH) for name in leaf.__dict__):
        return "an argument has attributes that a program has set (x.name = ...), which a graph does not see"
    return "an argument requires a gradient, which a captured step does not compute" if leaf.requires_grad else None
