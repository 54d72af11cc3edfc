"""How a campaign shares its time among ops: ops that take more of a step get more."""

from __future__ import annotations

from collections.abc import Sequence

from threadcast.core import Case, Measurement, Op

EQUAL_SHARE = 0.3
"""Part of the time that is shared equally; the rest is shared by weight. Equal shares give small ops the few batches
that a median needs (6 of 0.2 ms and their warm-up are 2 ms). Weights make the ops accurate that take most of a step."""

MIN_MEANS, MAX_MEANS = 0.1, 20.0
"""Least and most time for one op, as multiples of the mean time, so that one large op does not take all of it."""

_CALL_S, _FLOPS_PER_S, _BYTES_PER_S = 5e-6, 2e10, 5e9
"""Orders of magnitude of one core in float32, for ops that were never measured. They only set weights."""


def guess_s(op: Op, case: Case, observed: Sequence[Measurement]) -> float:
    """Estimated seconds of one run: the last measurement's, or without one from FLOPs and bytes. For weights only."""
    if observed:
        return observed[-1].seconds
    return _CALL_S + op.flops / (_FLOPS_PER_S * case.threads) + op.bytes_moved / _BYTES_PER_S


def shares(weights: Sequence[float]) -> list[float]:
    """Each op's share of the time, by its weight (its runs in a step times seconds of one run); shares add up to 1."""
    total = sum(weights)
    if total <= 0:
        return [1 / len(weights) for _ in weights]
    return [EQUAL_SHARE / len(weights) + (1 - EQUAL_SHARE) * weight / total for weight in weights]


def allotment_s(left_s: float, share: float, shares_left: float, mean_s: float) -> float:
    """Seconds that the next op may take of the `left_s` that are left.

    `shares_left` is the sum of the shares of the next op and of those after it, `share` that of the next op. Time that
    earlier ops did not use goes to later ones; time that they used too much is taken from later ones. No op gets less
    than a tenth of `mean_s`, or more than 20 times as much.
    """
    fair_s = left_s * share / shares_left if shares_left > 0 else 0.0
    return min(max(fair_s, MIN_MEANS * mean_s), MAX_MEANS * mean_s)
