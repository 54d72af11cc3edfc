"""What a framework does by default: its ready queue in order, every op on all cores."""

from __future__ import annotations

from threadcast.scheduler.policies.uniform import Uniform
from threadcast.scheduler.problem import Problem


class Fifo(Uniform):
    """One op after the other in the order in which they become ready, with one global thread count.

    `threads` defaults to all cores and `inter` to 1: what PyTorch does, and what the TensorFlow guide recommends
    on one socket (Liu et al. 2018, section IV).
    """

    name = "fifo"

    def __init__(self, problem: Problem, *, threads: int | None = None, inter: int = 1) -> None:
        super().__init__(problem, inter=inter, intra=len(problem.machine) if threads is None else threads)
