"""How alike a machine's cases are, for the errors of forecasts at them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from threadcast.core import Case, Machine
from threadcast.core.curve import Floats

CASE_NUMBERS = 3

MIDDLE = 0.7
"""Where errors of a slope are 0, as a share of the logarithm of all cores: most choices are near there."""


class AlikeCases(NamedTuple):
    """Between all pairs of cases, (n_cases, n_cases): `shapes` is their similarity from 0 to 1, `slopes` the product of
    their distances in log threads from `MIDDLE`."""

    shapes: Floats
    slopes: Floats

    @classmethod
    def of(cls, lengths: Floats, features: Floats) -> AlikeCases:
        """From what `case_features` returned and its length scales (CASE_NUMBERS,)."""
        from scipy.spatial.distance import cdist

        placed = features / lengths
        apart = apart_from_middle(features)
        return cls(matern(cdist(placed, placed)), np.outer(apart, apart))

    def between(self, rows: NDArray[np.int64], columns: NDArray[np.int64]) -> AlikeCases:
        """The part for these positions."""
        places = np.ix_(rows, columns)
        return AlikeCases(self.shapes[places], self.slopes[places])


@lru_cache(maxsize=16)
def case_features(machine: Machine, cases: tuple[Case, ...]) -> Floats:
    """(n_cases, CASE_NUMBERS) logarithms of the threads and of the cache groups that they use, and the share of all
    cores; read-only, as it is cached for the next op."""
    group = {core.id: core.group for core in machine.cores}
    found: Floats = np.array(
        [
            [
                np.log(case.threads), np.log(len({group[core] for core in machine.place(case)})),
                2 * case.threads / len(machine),
            ]
            for case in cases
        ]
    )  # fmt: skip
    found.flags.writeable = False
    return found


def apart_from_middle(features: Floats) -> Floats:
    """(n_cases,) distance in log threads from `MIDDLE`, from what `case_features` returned."""
    threads, share = features[:, 0], features[:, 2]
    found: Floats = threads - MIDDLE * (threads - np.log(share / 2))
    return found


def from_nearest(cases: Sequence[Case], measured: Sequence[Case]) -> Floats:
    """(n_cases,) distance in log threads from the nearest of the `measured` cases; 0 where there are none."""
    if not measured:
        return np.zeros(len(cases))
    threads, at = (np.log([case.threads for case in some]) for some in (cases, measured))
    found: Floats = np.abs(threads[:, None] - at).min(axis=1)
    return found


def matern(distance: Floats) -> Floats:
    """The Matern 3/2 correlation at these distances."""
    scaled = np.sqrt(3) * distance
    found: Floats = (1 + scaled) * np.exp(-scaled)
    return found
