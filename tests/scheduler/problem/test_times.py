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


class Counting(dict[int, int]):
    """Counts how often something is looked up."""

    looked_up = 0

    def __getitem__(self, key: int) -> int:
        self.looked_up += 1
        return super().__getitem__(key)


def test_the_cores_of_a_wide_machine_are_looked_at_once() -> None:
    """For each count anew it would be 512 times 512 / 2."""
    times = problem_of([{1: 1.0, 512: 0.5}], cores=512, group_size=2).times
    times._group_of = Counting(times._group_of)
    times.along(tuple(range(0, 512, 2)) + tuple(range(1, 512, 2)))
    assert 0 < times._group_of.looked_up <= 4 * 512


def test_times_of_ever_new_cores_are_not_all_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(found_by_cores, "MOST", 40)
    problem: Any = problem_of([{1: 1.0, 2: 0.5, 3: 0.4, 4: 0.3}], cores=4)
    for first in range(4):
        for second in range(4):
            for threads in (2, 3, 4):
                if first != second:
                    assert problem.times.on(0, (first, second), threads) == 0.5
    assert 0 < len(problem.times._found) <= 4


def test_times_of_few_cores_of_a_wide_machine_are_all_kept() -> None:
    """Each of them once counted as all cores of the machine."""
    problem: Any = problem_of([{1: 1.0, 2: 0.5}], cores=2048)
    for core in range(2048):
        assert problem.times.on(0, (core,), 1) == 1.0
    assert len(problem.times._found) == 2048
