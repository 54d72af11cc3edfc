"""A module seen as a function of tensors alone, as backends are that have its parameters as constants."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from threadcast.capture.graph.program import Node
from threadcast.core.errors import CaptureError
from threadcast.runtime.backends.number_guard import NumberGuard
from threadcast.runtime.backends.result_memory import ResultMemory
from threadcast.runtime.check.limits import real_type, shares

RELATIVE, ABSOLUTE = 1e-3, 1e-4
"""Tolerances of a backend's results: `RELATIVE` to each number, or `ABSOLUTE` times the largest number of its tensor or
of its group there (`largest_of_groups`). Kernels in single precision that sum in another order differ by 1e-6 to 1e-4
after a hundred layers."""
DOUBLE = 1e-9
"""The same, both, for numbers in double precision. As for plans (`check.limits`)."""

_logger = logging.getLogger("threadcast")

TensorCall = Callable[[Sequence[Tensor]], Sequence[Tensor]]
"""Takes the tensors among a call's arguments, and returns the tensors of its result, both in flat order."""


class FlatModule:
    """A module seen as a function from tensors to tensors; its other arguments are fixed to those of the example.

    `arguments` are the example: positional arguments and keywords. CaptureError where the module returns anything but
    tensors; it neither writes to its buffers or arguments nor draws random numbers (`program_file`). `result` is the
    module's for the example; without it the module is called once. `returned` are
    the positions of results that are arguments themselves, each with the argument's among the tensors: backends do not
    compute these, and `call` returns the caller's own.
    """

    def __init__(
        self, module: nn.Module, arguments: tuple[tuple[Any, ...], dict[str, Any]], *, result: Any = None,
        returned: Mapping[int, int] = MappingProxyType({}),
    ) -> None:  # fmt: skip
        self.module, self.example, self._returned = module, arguments, returned
        if result is None:
            with torch.no_grad():
                result = module(*arguments[0], **arguments[1])
        results, self.result_structure = pytree.tree_flatten(result)
        self.expected = [one for at, one in enumerate(results) if at not in returned]
        if not all(isinstance(leaf, Tensor) for leaf in self.expected):
            raise CaptureError("the module returns something else than tensors")

    def tensors(self, arguments: Any) -> list[Tensor]:
        """Return the tensors among the nested `arguments` (a pair: positional ones, keywords), in order."""
        args, kwargs = arguments
        if not kwargs and all(isinstance(value, Tensor) for value in args):
            return list(args)
        return [leaf for leaf in pytree.tree_leaves(arguments) if isinstance(leaf, Tensor)]

    def _whole(self, computed: Sequence[Tensor], given: Sequence[Tensor]) -> Sequence[Tensor]:
        """All results of a call."""
        if not self._returned:
            return computed
        own = iter(computed)
        positions = range(len(computed) + len(self._returned))
        return [given[self._returned[at]] if at in self._returned else next(own) for at in positions]

    def check(self, run: TensorCall) -> None:
        """Raise CaptureError where the results of `run` for the example differ from the module's beyond rounding."""
        found = run(self.tensors(self.example))
        for got, wanted in zip(found, self.expected, strict=True):
            if got.shape != wanted.shape or got.dtype != wanted.dtype:
                raise CaptureError(
                    f"an answer is {got.dtype} {list(got.shape)}, not {wanted.dtype} {list(wanted.shape)}"
                )
            if not alike(got, wanted):
                raise CaptureError("the answers differ from the module's")

    def call(
        self, run: TensorCall, guard: NumberGuard, memory: ResultMemory, draws: Sequence[Node] = ()
    ) -> Callable[[tuple[Any, ...], dict[str, Any]], Any]:
        """Return `run` as a callable of `(args, kwargs)` that returns results nested as the module's, and as `memory`.

        Each call by `run` makes `draws` besides, so that random generators are left as the module leaves them. PyTorch
        runs calls whose arguments `guard` does not allow, whose results have NaN or infinities, and at which `run`
        fails: then it raises what PyTorch raises.
        """
        finite, of_one = NumberGuard(self.expected), self.result_structure.is_leaf()

        def called(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            tensors = self.tensors((args, kwargs))
            if guard.allows(tensors):
                try:
                    found = run(tensors)
                except Exception as error:  # noqa: BLE001 - whatever a foreign library raises, PyTorch answers
                    _logger.info("PyTorch runs a call at which a backend failed: %s", error)
                else:
                    if finite.allows(found):
                        for node in draws:
                            node.target(*node.args, **node.kwargs)
                        found = self._whole(memory.laid_out(found), tensors)
                        return found[0] if of_one else pytree.tree_unflatten(found, self.result_structure)
            with torch.no_grad():
                return self.module(*args, **kwargs)

        return called


def alike(found: Tensor, wanted: Tensor, *, least: float = 0.0) -> bool:
    """Return whether two tensors of a shape and type differ by no more than rounding, or `least` as a share.

    Integers and truth values must be equal.
    """
    if not wanted.is_floating_point() and not wanted.is_complex():
        return found.equal(wanted)
    double = real_type(wanted.dtype) is torch.float64
    absolute, relative = (DOUBLE, DOUBLE) if double else (ABSOLUTE, RELATIVE)
    far = shares(wanted, found, gap=absolute) > max(least, absolute)
    if not bool(far.any()):
        return True
    return torch.allclose(found[far], wanted[far], rtol=max(relative, least), atol=0.0, equal_nan=True)
