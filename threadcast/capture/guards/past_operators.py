"""What code does past the operators, and a graph would not do.

It is refused where it takes numbers out of tensors, as `tolist` does, and where it changes its arguments in other ways
than by writing to the tensors' numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from operator import is_
from typing import Any

from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree

from threadcast.capture.guards.one_capture import replaced
from threadcast.core.errors import CaptureError

_READS = ("tolist", "numpy", "__array__", "__dlpack__")
"""Methods of tensors that give their numbers without calling an operator."""


@contextmanager
def refused_reads() -> Iterator[list[str]]:
    """Within the context, CaptureError where this thread takes numbers out of a tensor that is not fake.

    A graph would have them built in. Operators that return numbers, as `item` does, refuse fake tensors by themselves.
    Yields the names of methods that were refused, also by fake tensors: the code may catch what is raised.
    """
    refused = list[str]()

    def refusing(name: str) -> Callable[..., Any]:
        def read(method: Callable[..., Any], tensor: Tensor, *arguments: Any, **named: Any) -> Any:
            try:
                if isinstance(tensor, FakeTensor):
                    return method(tensor, *arguments, **named)
                raise CaptureError(f"cannot capture: numbers of a tensor that is not an argument are read ({name})")
            except Exception:
                refused.append(name)
                raise

        return read

    with replaced(*((Tensor, name, refusing(name)) for name in _READS)):
        yield refused


@contextmanager
def arguments_left_alone(arguments: Any, *, own: int = 0) -> Iterator[None]:
    """At the end of the block, CaptureError where containers among `arguments` hold other objects than before, or
    where their tensors have other Python attributes; those of the first `own` leaves may change.

    A run of a graph takes the tensors out of a caller's containers, and puts nothing into them.
    """
    before, structure = pytree.tree_flatten(arguments)
    attributes = _attributes(before[own:])
    yield
    now, structure_now = pytree.tree_flatten(arguments)
    if structure_now != structure or not all(map(is_, now, before)):
        raise CaptureError(
            "cannot capture: a list, a dictionary or another container among the arguments is changed, which a graph "
            "would not do"
        )
    if _attributes(before[own:]) != attributes:
        raise CaptureError("cannot capture: an attribute of an argument is set, which a graph would not do")


def _attributes(values: Iterable[Any]) -> list[frozenset[str]]:
    """The names of the Python attributes of each tensor among the values."""
    return [frozenset(vars(value)) for value in values if isinstance(value, Tensor)]
