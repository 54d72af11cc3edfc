"""Modules that cannot be captured faithfully, because a call does more than call operators on their tensors."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.nn.utils import parametrize

from threadcast.capture.guards.objects import attribute_of
from threadcast.core.errors import CaptureError

_REFUSED = {
    "torch.nn.parallel.distributed": "exchanges gradients between processes during the backward pass",
    "torch.nn.parallel.data_parallel": "divides its batch among devices",
    "torch.distributed.fsdp": "gathers its parameters from other processes",
    "torch._dynamo.eval_frame": "was compiled by torch.compile; pass the module that it was made from",
    "torch.jit": "is a TorchScript program; pass the module that it was made from",
    "torch.ao.nn.quantized": "is quantised",
    "torch.ao.nn.intrinsic.quantized": "is quantised",
}
"""Why classes of these modules of PyTorch, and subclasses of them, cannot be captured."""

_BETWEEN_PROCESSES = frozenset(
    ("c10d", "c10d_functional", "_c10d_functional", "_c10d_functional_autograd", "symm_mem", "_dtensor")
)
"""Namespaces of PyTorch's operators that exchange data with other processes."""

_PLAIN_TENSORS = (Tensor, nn.Parameter, nn.Buffer)


class Collective(CaptureError):
    """A callable exchanges data with other processes.

    Each of them must do so as often and in the same order, so no process may time, repeat or divide a call by itself.
    """


def check_supported(module: nn.Module) -> None:
    """CaptureError where `module` or one in it cannot be captured faithfully; the message says which and why."""
    for part in module.modules():
        for base in type(part).__mro__:
            if why := next((why for where, why in _REFUSED.items() if base.__module__.startswith(where)), None):
                raise CaptureError(f"cannot capture: {type(part).__name__} {why}")
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        if not is_plain(tensor):
            raise CaptureError(f"cannot capture: {name} is a {type(tensor).__name__}, not an ordinary tensor")
        if tensor.is_quantized:
            raise CaptureError(f"cannot capture: {name} is quantised")
        if tensor.device.type != "cpu":
            raise CaptureError(f"cannot capture: {name} is on {tensor.device}, not on the CPU")


def check_function(function: Any) -> None:
    """CaptureError where a module or function cannot be captured faithfully; the message says why.

    A module is checked with `check_supported`; a function must not come from `torch.compile` or `torch.jit`.
    """
    if isinstance(function, nn.Module):
        check_supported(function)
    elif isinstance(function, torch.jit.ScriptFunction):
        raise CaptureError("cannot capture: a function of TorchScript; pass the one that it was made from")
    elif attribute_of(function, "_torchdynamo_orig_callable") is not None:
        raise CaptureError("cannot capture: the function was compiled by torch.compile; pass the one it was made from")


def check_operator(operator: OpOverload) -> None:
    """Raise Collective where an operator exchanges data with other processes."""
    if operator.namespace in _BETWEEN_PROCESSES:
        raise Collective(
            f"cannot capture {operator}: it exchanges data with other processes, each of which must do so as often and "
            "in the same order"
        )


def may_exchange() -> bool:
    """Whether this process may exchange data with others now, by `torch.distributed`."""
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def has_cached_weights() -> bool:
    """Whether weights that PyTorch computes of others are kept for several calls now, by `parametrize.cached()`."""
    return bool(parametrize._cache_enabled)


def unsupported(function: Any) -> str | None:
    """Why `function`, a module or a plain function, cannot be captured; None where it may be."""
    try:
        check_function(function)
    except CaptureError as error:
        return str(error)
    return None


def is_plain(tensor: Tensor) -> bool:
    """Whether a tensor is a plain one and not of a subclass such as `DTensor`, whose data may be elsewhere."""
    return type(tensor) in _PLAIN_TENSORS or (isinstance(tensor, nn.Parameter) and type(tensor.data) is Tensor)
