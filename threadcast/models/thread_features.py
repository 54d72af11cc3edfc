"""Features of how a thread count divides an op, because of which curves of real machines are jagged."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from threadcast.core import Affinity, Case, Op
from threadcast.core.curve import Floats
from threadcast.models.static_features import Features, describe

_DIVISORS = (2, 3, 4, 5, 6, 8)


def thread_features(ops: Sequence[Op], cases: Sequence[Case], names: Sequence[str] = ()) -> Features:
    """(n_ops, n_cases, n_features): the thread count and its divisors, and the sides of the matrix that threads divide,
    whole and per thread; so too the attributes `names` of ops without tensors.

    Libraries choose how to cut by thresholds on a thread's share of a side (on MKL's sgemm: 28 and 96 rows per thread),
    and by whether a count splits into two equal factors; trees find both in these numbers. In memory all cases of a
    feature lie side by side, which makes them quick to compute.
    """
    threads = np.array([case.threads for case in cases], dtype=np.float64)
    of_case = _of_cases(tuple(cases))
    described = describe(ops, names)
    sides = np.column_stack(
        [described, described[:, :3].sum(axis=1), described[:, 0] - described[:, 1]]
    )  # rows, columns, work on each, bytes; work; how oblong
    n, m, width = len(ops), of_case.shape[1], of_case.shape[1] + sides.shape[1]
    shares = np.delete(described, 3, axis=1)[:, :, None] - np.log(threads)
    found: Features = np.empty((n, width + shares.shape[1], len(cases)), dtype=np.float32)
    found[:, :m] = of_case.T
    found[:, m:width] = sides[:, :, None]
    found[:, width:] = shares
    return found.transpose(0, 2, 1)


def feature_names(names: Sequence[str] = ()) -> tuple[str, ...]:
    """The names of the features of `thread_features`, in their order."""
    shares = ("log rows of a thread", "log columns of a thread", "log flops of an element and thread")
    return (
        "threads", "log threads", "smaller factor", "divisors", "largest prime", "second bit of threads",
        *(f"threads modulo {divisor}" for divisor in _DIVISORS), "spread", "log rows", "log columns",
        "log flops of an element", "log bytes", *(f"attribute: {name}" for name in names), "log flops",
        "log rows by columns", *shares, *(f"of a thread: {name}" for name in names),
    )  # fmt: skip


@lru_cache(maxsize=64)
def _of_cases(cases: tuple[Case, ...]) -> Floats:
    found = []
    for case in cases:
        count = case.threads
        divisors = [divisor for divisor in range(1, count + 1) if count % divisor == 0]
        primes = [divisor for divisor in divisors[1:] if all(divisor % smaller for smaller in range(2, divisor))]
        small = max(divisor for divisor in divisors if divisor * divisor <= count)
        found.append(
            [
                count, np.log(count), small, len(divisors), max(primes, default=1), count // 2 % 2,
                *(count % divisor for divisor in _DIVISORS), float(case.affinity is Affinity.SPREAD),
            ]
        )  # fmt: skip
    return np.array(found, dtype=np.float64)
