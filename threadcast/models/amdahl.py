"""Amdahl's law: a part that threads divide and a part that they do not."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from threadcast.core import Machine
from threadcast.core.curve import Floats
from threadcast.models.scaling_law import ScalingLaw


class Amdahl(ScalingLaw):
    """time(p) = a + b / p.

    Source: Amdahl 1967, "Validity of the single processor approach to achieving large scale computing capabilities".
    The time never rises with p: unless b is 0, the best count is always all threads.
    """

    name = "amdahl"

    def terms(self, threads: Floats, machine: Machine) -> Sequence[Floats]:
        """1 and 1 / p."""
        return [np.stack([np.ones_like(threads), 1 / threads], axis=1)]
