"""GraphNet's measures: correctness at each tolerance, and scores that join it with speed (arXiv 2510.24035)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import exp, log
from typing import Any

import torch
from torch import Tensor

TOLERANCES = range(-10, 5)
"""GraphNet's levels t. Below 1 results must agree to 10 ** (a * t), from 1 on wrong results and failures count less."""
_EXPONENTS = {
    torch.float16: (3 / 5, 1.0), torch.bfloat16: (1.796 / 5, 1.0), torch.float32: (5.886 / 5, 1.0),
    torch.float64: (7 / 5, 7 / 5),
}  # fmt: skip
"""For each type how the relative and the absolute tolerance grow with the level; other types must be equal."""
_FAILED = 0.1
"""What counts as the speed-up of a wrong result or a failure."""
_TOLERATED_FROM = {"wrong": 1, "failed": 3}
"""The level from which a wrong result, or a failure, counts as if it were as fast as eager PyTorch."""


def correct_from(found: Sequence[Tensor], wanted: Sequence[Tensor]) -> int | None:
    """The lowest level up to 1 at which all results are correct; None where they are at none, or there are none."""
    if not wanted or [(one.shape, one.dtype) for one in found] != [(one.shape, one.dtype) for one in wanted]:
        return None
    return next((t for t in TOLERANCES if t <= 1 and all(map(_close, found, wanted, [t] * len(found)))), None)


def _close(found: Tensor, wanted: Tensor, t: int) -> bool:
    relative, absolute = (10 ** (t * a) for a in _EXPONENTS.get(wanted.dtype, (0.0, 0.0)))
    if wanted.dtype not in _EXPONENTS:
        return torch.equal(found, wanted)
    return torch.allclose(found, wanted, rtol=relative, atol=absolute, equal_nan=True)


def scores(results: Sequence[Mapping[str, Any]]) -> dict[int, tuple[float, float]]:
    """S(t) and ES(t) at each level, of results with a "speedup" and "correct_from", or with an "error"."""
    return {t: (_mean([_speed(r, t) for r in results]), _mean([_tolerant(r, t) for r in results])) for t in TOLERANCES}


def _speed(result: Mapping[str, Any], t: int) -> float:
    lowest = None if "error" in result else result["correct_from"]
    return float(result["speedup"]) if lowest is not None and lowest <= t else _FAILED


def _tolerant(result: Mapping[str, Any], t: int) -> float:
    if t < 1 or _speed(result, 1) != _FAILED:
        return _speed(result, min(t, 1))
    return 1.0 if t >= _TOLERATED_FROM["failed" if "error" in result else "wrong"] else _FAILED


def _mean(values: Sequence[float]) -> float:
    """The geometric mean."""
    return exp(sum(map(log, values)) / len(values)) if values else 1.0
