"""Work that threads divide, and memory traffic that a few of them saturate."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from threadcast.core import Machine
from threadcast.core.curve import Floats
from threadcast.models.scaling_law import ScalingLaw


class RooflineSaturation(ScalingLaw):
    """time(p) = a / p + b / min(p, s) + c log2(2 p), with s the threads that use up the memory's bandwidth.

    This is the roofline over threads: compute scales to the last core, bandwidth to s of them, and a team is started as
    a tree. s is tried at 1, at powers of two and at all threads; the value that fits best is used. Source of the
    saturation: Williams, Waterman, Patterson 2009, "Roofline"; Suleman, Qureshi, Patt 2008, "Feedback-driven
    threading", section 5.
    """

    name = "roofline_saturation"

    def terms(self, threads: Floats, machine: Machine) -> Sequence[Floats]:
        """One set of terms for each s."""
        most = max(case.threads for case in machine.cases())
        saturated = sorted({min(2**i, most) for i in range(most.bit_length() + 1)})
        tree = np.log2(2 * threads)
        return [np.stack([1 / threads, 1 / np.minimum(threads, s), tree], axis=1) for s in saturated]
