"""How long ops take on given cores, at the affinity that these have."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.scheduler.random_problems import problem_of, problems
from threadcast.core import found_by_cores
from threadcast.core.errors import PlanError
from threadcast.scheduler.policies import Problem


@settings(deadline=None)
@given(problem=problems(), data=st.data())
def test_times_along_cores_are_those_on_the_first_of_them(problem: Problem, data: st.DataObject) -> None:
    cores = data.draw(st.permutations([core.id for core in problem.machine.cores]))
    cores = tuple(cores[: data.draw(st.integers(1, len(cores)))])
    found = problem.times.along(cores)
    for op in range(len(problem.graph)):
        for i, count in enumerate(problem.times.counts):
            try:
                expected = problem.times.on(op, cores[:count], count) if count <= len(cores) else np.inf
            except PlanError:  # not offered
                expected = np.inf
            assert found[op, i] == expected


def test_times_of_ever_new_cores_are_not_all_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(found_by_cores, "MOST", 40)
    problem: Any = problem_of([{1: 1.0, 2: 0.5, 3: 0.4, 4: 0.3}], cores=4)
    for first in range(4):
        for second in range(4):
            for threads in (2, 3, 4):
                if first != second:
                    assert problem.times.on(0, (first, second), threads) == 0.5
    assert 0 < len(problem.times._found) <= 4
