"""Amdahl's law with a cost for each thread, so that time has a minimum."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from threadcast.core import Machine
from threadcast.core.curve import Floats
from threadcast.models.scaling_law import ScalingLaw


class OverheadLaw(ScalingLaw):
    """time(p) = a + b / p + c p, least at p = sqrt(b / c).

    The term c p is what starting and joining a team costs, thread by thread. Source of the form: Flatt and Kennedy
    1989, "Performance of parallel processors".
    """

    name = "overhead_law"

    def terms(self, threads: Floats, machine: Machine) -> Sequence[Floats]:
        """1, 1 / p and p."""
        return [np.stack([np.ones_like(threads), 1 / threads, threads], axis=1)]
