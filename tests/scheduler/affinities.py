"""Problems whose ops are faster, or slower, on cores of different cache groups."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

from tests.scheduler.random_problems import problems
from threadcast.core import Affinity
from threadcast.scheduler.policies import Problem


def with_affinities(problem: Problem, *, seed: int, farthest: float = 2.0) -> Problem:
    """The problem with the seconds of every SPREAD case off by a factor of up to `farthest`, either way."""
    table = problem.curves
    random = np.random.default_rng(seed)
    spread = np.array([case.affinity is Affinity.SPREAD and case.threads > 1 for case in table.cases])
    factor = np.exp(random.uniform(-np.log(farthest), np.log(farthest), table.seconds.shape))
    seconds = np.where(spread, table.seconds * factor, table.seconds)
    return Problem(problem.graph, replace(table, seconds=seconds, low=seconds, high=seconds), problem.machine)


@st.composite
def two_affinity_problems(draw: st.DrawFn, *, max_cores: int = 8) -> Problem:
    """Those of `problems`, with affinities that differ where the machine has cache groups."""
    return with_affinities(draw(problems(max_cores=max_cores)), seed=draw(st.integers(0, 99)))
