"""Refuses to record code that takes numbers out of tensors past the operators, as `tolist` does."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any
from unittest.mock import patch

from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from threadcast.core.errors import CaptureError

_READS = ("tolist", "numpy", "__array__", "__dlpack__")
"""Methods of tensors that give their numbers without calling an operator."""
_recording = threading.local()
"""Has an attribute `on` in a thread that is recording."""


@contextmanager
def refused_reads() -> Iterator[None]:
    """Within the context, CaptureError where this thread takes numbers out of a tensor that is not fake.

    A graph would have them built in. Operators that return numbers, as `item` does, refuse fake tensors by themselves.
    """
    with ExitStack() as end:
        for name in _READS:
            end.enter_context(patch.object(Tensor, name, _refusing(name)))
        _recording.on = True
        end.callback(delattr, _recording, "on")
        yield


def _refusing(name: str) -> Callable[..., Any]:
    method = getattr(Tensor, name)

    @wraps(method)
    def called(tensor: Tensor, *arguments: Any, **named: Any) -> Any:
        if hasattr(_recording, "on") and not isinstance(tensor, FakeTensor):
            raise CaptureError(f"cannot capture: numbers of a tensor that is not an argument are read ({name})")
        return method(tensor, *arguments, **named)

    return called
