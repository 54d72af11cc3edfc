"""The default of frameworks: ready ops in order of arrival, every op on all cores."""

from __future__ import annotations

from threadcast.scheduler.policies.uniform import Uniform
from threadcast.scheduler.problem import Problem


class Fifo(Uniform):
    """Launches ops in the order in which they become ready, up to `inter` at a time, each with `threads` threads.

    `threads` defaults to all cores and `inter` to 1, as PyTorch does and as the TensorFlow guide recommends for one
    socket (Liu et al. 2018, section IV).
    """

    name = "fifo"

    def __init__(self, problem: Problem, *, threads: int | None = None, inter: int = 1) -> None:
        super().__init__(problem, inter=inter, intra=len(problem.machine) if threads is None else threads)
