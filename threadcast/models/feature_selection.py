"""Counters as features: normalised, and reduced to the few that a decision tree finds informative.

Source: Liu et al. 2018, III-B "Feature Selection": 26 counters, of which four are selected, normalised by instructions.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Literal

import numpy as np

from threadcast.core import Measurement
from threadcast.core.curve import Floats

Normaliser = Literal["instructions", "flops"]

KEPT = 4
"""Number of counters that are selected, as in the paper: more do not fit into a CPU's counter registers in one run."""

MIN_READ = 0.5
"""Share of measurements in which a counter must have been read to be a candidate. Instructions must have been read in
the same share for counters to be divided by them."""

MOST_COUNTED = 1e12
"""Largest plausible count per instruction or flop. A larger value was misread, and its square would outweigh all
others."""

MIN_LEAF = 3
"""Fewest ops in a leaf of the tree that selects counters: with single ops any counter would look informative."""


def normaliser_of(measurements: Sequence[Measurement]) -> Normaliser:
    """What to divide counters by: instructions where most measurements have them, else the op's flops."""
    read = sum(bool(m.counter("instructions")) for m in measurements)
    return "instructions" if measurements and read >= MIN_READ * len(measurements) else "flops"


def normalised(measurement: Measurement, counter: str, by: Normaliser) -> float:
    """The counter per run, divided by the run's instructions or the op's flops (at least 1); NaN where either was not
    read or the result is above `MOST_COUNTED`."""
    value = measurement.counter(counter)
    divisor = measurement.counter("instructions") if by == "instructions" else max(measurement.op.flops, 1.0)
    return value / divisor if value is not None and divisor and value <= MOST_COUNTED * divisor else np.nan


def candidates(measurements: Sequence[Measurement], by: Normaliser) -> tuple[str, ...]:
    """Names of the counters that most measurements have and that vary, except the one that others are divided by."""
    names = sorted({name for m in measurements for sample in m.samples for name in sample.counters} - {by})
    return tuple(name for name in names if _varies([normalised(m, name, by) for m in measurements]))


def _varies(values: Sequence[float]) -> bool:
    read = np.asarray([value for value in values if not np.isnan(value)])
    return len(read) >= MIN_READ * len(values) and bool(np.ptp(read) > 0)


def select(
    values: Floats, names: Sequence[str], targets: Floats, *, keep: int = KEPT, seed: int = 0
) -> tuple[str, ...]:
    """Up to `keep` names whose columns say most about the targets, most important first.

    `values`: (n_ops, n_names), NaN where not read. `targets`: (n_ops, n_targets), NaN where not measured. A
    decision tree is grown on all columns and the least important one is dropped, again and again: of two redundant
    counters the tree uses one, and the other goes. Names of no importance are dropped even below `keep`.
    """
    from sklearn.tree import DecisionTreeRegressor

    columns, wanted = _filled(values), _filled(targets)
    left = list(range(len(names)))
    while left:
        tree = DecisionTreeRegressor(min_samples_leaf=min(MIN_LEAF, len(columns)), random_state=seed)
        importance = tree.fit(columns[:, left], wanted).feature_importances_
        order = np.argsort(-importance, kind="stable")
        if len(left) <= keep:
            return tuple(names[left[i]] for i in order if importance[i] > 0)
        left.pop(int(order[-1]))
    return ()


def _filled(table: Floats) -> Floats:
    """The table with each NaN replaced by its column's median, 0 where the column has no number."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of columns without a number, which get 0
        medians = np.nan_to_num(np.nanmedian(table, axis=0))
    return np.where(np.isnan(table), medians, table)
