"""The laws of time over threads, which differ in their terms only (`scaling_law`)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from threadcast.core import Machine
from threadcast.core.curve import Floats
from threadcast.models.scaling_law import ScalingLaw


class Amdahl(ScalingLaw):
    """time(p) = a + b / p: a part that threads divide and a part that they do not.

    Source: Amdahl 1967, "Validity of the single processor approach to achieving large scale computing capabilities".
    The time never rises with p: unless b is 0, the best count is always all threads.
    """

    name = "amdahl"

    def terms(self, threads: Floats, machine: Machine) -> Sequence[Floats]:
        """1 and 1 / p."""
        return [np.stack([np.ones_like(threads), 1 / threads], axis=1)]


class OverheadLaw(ScalingLaw):
    """time(p) = a + b / p + c p, least at p = sqrt(b / c): Amdahl's law with a cost for each thread.

    The term c p is what starting and joining a team costs, thread by thread. Source of the form: Flatt and Kennedy
    1989, "Performance of parallel processors".
    """

    name = "overhead_law"

    def terms(self, threads: Floats, machine: Machine) -> Sequence[Floats]:
        """1, 1 / p and p."""
        return [np.stack([np.ones_like(threads), 1 / threads, threads], axis=1)]


class UniversalScalability(ScalingLaw):
    """time(p) = time(1) (1 + s (p - 1) + k p (p - 1)) / p, with s the contention and k the coherence.

    Written as weights of 1 / p, (p - 1) / p and p - 1, in which it is linear. Source: Gunther 1993, "A simple capacity
    model of massively parallel transaction systems"; Gunther 2007, "Guerrilla Capacity Planning", chapter 4.
    """

    name = "universal_scalability"

    def terms(self, threads: Floats, machine: Machine) -> Sequence[Floats]:
        """1 / p, (p - 1) / p and p - 1."""
        return [np.stack([1 / threads, (threads - 1) / threads, threads - 1], axis=1)]


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
