"""The Universal Scalability Law: contention and coherence."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from threadcast.core import Machine
from threadcast.core.curve import Floats
from threadcast.models.scaling_law import ScalingLaw


class UniversalScalability(ScalingLaw):
    """time(p) = time(1) (1 + s (p - 1) + k p (p - 1)) / p, with s the contention and k the coherence.

    Written as weights of 1 / p, (p - 1) / p and p - 1, in which it is linear. Source: Gunther 1993, "A simple capacity
    model of massively parallel transaction systems"; Gunther 2007, "Guerrilla Capacity Planning", chapter 4.
    """

    name = "universal_scalability"

    def terms(self, threads: Floats, machine: Machine) -> Sequence[Floats]:
        """1 / p, (p - 1) / p and p - 1."""
        return [np.stack([1 / threads, (threads - 1) / threads, threads - 1], axis=1)]
