"""The laws of time over threads, which differ in their terms only (`scaling_law`)."""

from __future__ import annotations

import numpy as np

from threadcast.core.curve import Floats
from threadcast.models.scaling_law import ScalingLaw


class Amdahl(ScalingLaw):
    """time(p) = a + b / p: a part that threads divide and a part that they do not.

    Source: Amdahl 1967, "Validity of the single processor approach to achieving large scale computing capabilities".
    The time never rises with p: unless b is 0, the best count is always all threads.
    """

    name = "amdahl"

    def terms(self, threads: Floats) -> Floats:
        """1 and 1 / p."""
        return np.stack([np.ones_like(threads), 1 / threads], axis=1)


class OverheadLaw(ScalingLaw):
    """time(p) = a + b / p + c p, least at p = sqrt(b / c): Amdahl's law with a cost for each thread.

    The term c p is what starting and joining a team costs, thread by thread. Source of the form: Flatt and Kennedy
    1989, "Performance of parallel processors".
    """

    name = "overhead_law"

    def terms(self, threads: Floats) -> Floats:
        """1, 1 / p and p."""
        return np.stack([np.ones_like(threads), 1 / threads, threads], axis=1)


class UniversalScalability(ScalingLaw):
    """time(p) = time(1) (1 + s (p - 1) + k p (p - 1)) / p, with s the contention and k the coherence.

    Written as weights of 1 / p, (p - 1) / p and p - 1, in which it is linear. Source: Gunther 1993, "A simple capacity
    model of massively parallel transaction systems"; Gunther 2007, "Guerrilla Capacity Planning", chapter 4.
    """

    name = "universal_scalability"

    def terms(self, threads: Floats) -> Floats:
        """1 / p, (p - 1) / p and p - 1."""
        return np.stack([1 / threads, (threads - 1) / threads, threads - 1], axis=1)
