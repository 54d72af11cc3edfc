"""Calls that a backend must answer as PyTorch before it runs any: of inputs that are derived from the caller's example.

Numbers are made negative, small, large and 0, rows are made equal, a single number is turned, and integers are set to
the ends of their ranges. NaN and infinities that the example has not are no part of it: PyTorch runs such calls
(`number_guard`), and those whose results have them, so that a backend which returns them does no harm.

How far results may differ follows from PyTorch itself: by what a change of the input in its last digits makes of its
own results. So a network that is chaotic for large numbers loses no backend.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from threadcast.runtime.backends.frozen import TensorCall, alike
from threadcast.runtime.backends.number_guard import NumberGuard, Range
from threadcast.runtime.backends.program_file import ReadProgram
from threadcast.runtime.check.limits import real_type, shares

LARGE, SMALL, TINY = 1e3, 1e-3, 1e-6
"""Factors of the example's numbers. Digits that `log1p` loses in another library show at numbers of 1e-6."""
MIDDLE = 30.0
"""Largest size of numbers that are all below 0: a sigmoid of -20 is 2e-9, and 0 in ONNX Runtime."""
NOISE = 20.0
"""Results may differ by so much times what a change in the last digits of the input makes of PyTorch's."""
_LAST_DIGITS = {torch.float64: 2.0**-44, torch.float16: 2.0**-9, torch.bfloat16: 2.0**-7}
"""Share of a number by which it is changed for that; of single precision 1e-6."""
_WIDTH = 7
"""Different integers at each end of a range."""

_logger = logging.getLogger("threadcast")

_Kind = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class Probe:
    """An input, in words, with PyTorch's results of it, those after a change in its last digits, and what that makes.

    `noise` is by how much each result changes then, as a share of its largest number.
    """

    name: str
    given: Sequence[Tensor]
    wanted: Sequence[Tensor]
    changed: Sequence[Tensor]
    noise: Sequence[float]

    def differs(self, found: Sequence[Tensor]) -> bool:
        """Whether other results differ from PyTorch's in kind, or beyond rounding."""
        return any(
            one.shape != wanted.shape or one.dtype != wanted.dtype or _differs(one, wanted, changed, noise)
            for one, wanted, changed, noise in zip(found, self.wanted, self.changed, self.noise, strict=True)
        )


def _differs(found: Tensor, wanted: Tensor, changed: Tensor, noise: float) -> bool:
    if not _is_real(wanted):
        return bool(((found != wanted) & (wanted == changed)).any())
    return not alike(found, wanted, least=NOISE * noise)


class Probes:
    """What a program's results must be for other inputs than its example.

    `integers` are the ranges of its arguments' integers. It runs the program some twenty times in PyTorch, when it is
    asked first.
    """

    def __init__(self, read: ReadProgram, integers: Sequence[Range | None]) -> None:
        self._read, self._integers = read, integers
        self._guard = NumberGuard(list(read.module(*read.example)))
        self._found: list[Probe] | None = None
        self._raises = ""
        """For which input PyTorch raises, and what."""

    def disagreement(self, run: TensorCall) -> str | None:
        """Return in words at which input a backend does not answer as PyTorch does; None: at none.

        Calls that it leaves to PyTorch, as it raises or returns numbers that the example's results have not, are none.
        """
        for one in self._all():
            try:
                found = run(one.given)
            except Exception as error:  # noqa: BLE001 - whatever a foreign library raises, PyTorch runs the call
                _logger.info("a backend raises for %s: %s", one.name, error)
                continue
            if self._guard.allows(found) and one.differs(found):
                return f"the answers differ from the module's for {one.name}"
        return self._raises or None

    def _all(self) -> Sequence[Probe]:
        if self._found is None:
            self._found = []
            for name, given in derived(self._read.example, self._integers):
                try:
                    wanted = list(self._read.module(*(one.clone() for one in given)))
                    changed = self._read.module(*(_with_other_digits(value) for value in given))
                except Exception as error:  # noqa: BLE001 - whatever an operator raises, calls may raise it
                    self._raises = f"PyTorch raises {type(error).__name__} for {name}"
                    break
                noise = [_noise(one, other) for one, other in zip(wanted, changed, strict=True)]
                self._found.append(Probe(name, given, wanted, list(changed), noise))
        return self._found


def derived(example: Sequence[Tensor], ranges: Sequence[Range | None]) -> Iterator[tuple[str, list[Tensor]]]:
    """Yield inputs that are derived from the example, with a name in words; `ranges` are those of its integers."""
    if any(_is_real(one) or one.dtype is torch.bool for one in example):
        for name, derive in _KINDS.items():
            yield name, [derive(one) if one.numel() else one for one in example]
    if any(one is not None for one in ranges):
        for name, side in (("the largest integers", 1), ("the least integers", 0)):
            yield name, [_end(one, limit, side) for one, limit in zip(example, ranges, strict=True)]


def _is_real(value: Tensor) -> bool:
    return value.is_floating_point() or value.is_complex()


def _numbers(value: Tensor) -> Tensor:
    """The example's numbers, or others in place of those that are all 0."""
    if bool(value.any()):
        return value
    return torch.linspace(-1.0, 1.0, value.numel()).reshape(value.shape).to(value.dtype)


def _largest(value: Tensor) -> Tensor:
    return value.abs().where(value.isfinite(), 0.0).max()


def _of_reals(change: _Kind, of_bools: _Kind = Tensor.clone) -> _Kind:
    """Change the numbers of a tensor, but for its infinities, which stay as a mask has them."""

    def derive(value: Tensor) -> Tensor:
        if value.dtype is torch.bool:
            return of_bools(value)
        if not _is_real(value):
            return value
        return torch.where(value.isfinite(), change(_numbers(value)), value)

    return derive


def _one(value: Tensor, place: float, number: Tensor | float) -> Tensor:
    """A copy with a number at a place, from 0 for the first to 1 for the last."""
    changed = value.clone(memory_format=torch.contiguous_format)
    changed.view(-1)[int(place * (value.numel() - 1))] = number
    return changed


def _rows_alike(value: Tensor) -> Tensor:
    """Rows of one number, the first of each: of one that begins with an infinity nothing else is left."""
    if value.dtype is torch.bool:
        return torch.ones_like(value)
    return value if not _is_real(value) or not value.dim() else value[..., :1].expand(value.shape).clone()


def _zeros(value: Tensor) -> Tensor:
    return torch.zeros_like(value) if _is_real(value) or value.dtype is torch.bool else value


def _one_negative(value: Tensor) -> Tensor:
    """With a large negative number at the end; of a mask with infinities the last row is masked as a whole."""
    if not _is_real(value):
        return value
    infinite = value[value.isinf()]
    if not len(infinite) or not value.dim():
        return _one(_numbers(value), 1.0, -LARGE * _largest(_numbers(value)))
    masked = value.clone()
    masked.view(-1, value.shape[-1])[-1] = infinite[0]
    return masked


_KINDS: dict[str, _Kind] = {
    "negative numbers": _of_reals(lambda x: -x.abs(), torch.logical_not),
    "negative numbers up to 30": _of_reals(lambda x: x.abs() * (-MIDDLE / _largest(x))),
    "small numbers beside a large one": _of_reals(lambda x: _one(x * SMALL, 0.0, LARGE * _largest(x))),
    "large numbers beside a zero": _of_reals(lambda x: _one(x * LARGE, 0.5, 0.0)),
    "tiny numbers": _of_reals(lambda x: x * TINY),
    "zeros": _zeros,
    "equal rows": _rows_alike,
    "one negative number": _one_negative,
}


def _end(value: Tensor, limit: Range | None, side: int) -> Tensor:
    """Integers at one end of their range."""
    if limit is None or not value.numel():
        return value
    steps = torch.arange(value.numel()).remainder(min(_WIDTH, limit.high - limit.low + 1))
    return (limit.high - steps if side else limit.low + steps).reshape(value.shape).to(value.dtype)


def _with_other_digits(value: Tensor) -> Tensor:
    """All numbers times one that is nearly 1, so that equal ones stay equal."""
    return value * (1 + _LAST_DIGITS.get(real_type(value.dtype), 2.0**-20)) if _is_real(value) else value.clone()


def _noise(wanted: Tensor, changed: Tensor) -> float:
    if not wanted.numel() or not _is_real(wanted):
        return 0.0
    found = shares(wanted, changed, gap=1e-4)
    return float(found[found.isfinite()].max()) if bool(found.isfinite().any()) else 0.0
