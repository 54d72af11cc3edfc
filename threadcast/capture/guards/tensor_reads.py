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
"""Has an attribute `refused`, the names of refused methods, in a thread that is recording."""


@contextmanager
def refused_reads() -> Iterator[list[str]]:
    """Within the context, CaptureError where this thread takes numbers out of a tensor that is not fake.

    A graph would have them built in. Operators that return numbers, as `item` does, refuse fake tensors by themselves.
    Yields the names of methods that were refused, also by fake tensors: the code may catch what is raised.
    """
    with ExitStack() as end:
        for name in _READS:
            end.enter_context(patch.object(Tensor, name, _refusing(name)))
        _recording.refused = []
        end.callback(delattr, _recording, "refused")
        yield _recording.refused


def _refusing(name: str) -> Callable[..., Any]:
    method = getattr(Tensor, name)

    @wraps(method)
    def called(tensor: Tensor, *arguments: Any, **named: Any) -> Any:
        refused = getattr(_recording, "refused", None)
        if refused is None:
            return method(tensor, *arguments, **named)
        if isinstance(tensor, FakeTensor):
            try:
                return method(tensor, *arguments, **named)
            except Exception:
                refused.append(name)
                raise
        refused.append(name)
        raise CaptureError(f"cannot capture: numbers of a tensor that is not an argument are read ({name})")

    return called
