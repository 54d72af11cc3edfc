"""Ops that start are given fewer threads, or more, than they were to have."""

from __future__ import annotations

import numpy as np
import pytest

from tests.scheduler.random_problems import problem_of
from threadcast.scheduler.kernels.dispatching import dispatch
from threadcast.scheduler.kernels.instance import Instance


@pytest.mark.parametrize(
    ("second", "adapt", "starts", "threads"),
    [
        ({1: 6.0, 2: 4.0}, True, 0.0, 1),
        ({1: 9.0, 2: 4.0}, True, 3.0, 2),
        ({1: 6.0, 2: 4.0}, False, 3.0, 2),
    ],
    ids=["as early with fewer", "later with fewer", "as it was told"],
)
def test_an_op_that_does_not_fit_starts_with_fewer_threads_if_it_so_ends_no_later(
    second: dict[int, float], adapt: bool, starts: float, threads: int
) -> None:
    instance = Instance.of(problem_of([{1: 3.0}, second], cores=2))
    choice, start = np.array([0, 1], dtype=np.int64), np.empty(2)
    makespan_s = dispatch(instance, np.array([0.0, 1.0]), adapt, choice, start)
    assert (start[1], instance.width[1, choice[1]]) == (starts, threads)
    assert makespan_s == starts + second[threads]


def test_ops_get_the_cores_that_would_stay_idle() -> None:
    instance = Instance.of(problem_of([{1: 3.0, 2: 2.0}] * 2, cores=4))
    choice, start = np.zeros(2, dtype=np.int64), np.empty(2)
    assert dispatch(instance, np.array([0.0, 1.0]), True, choice, start) == 2.0
    assert choice.tolist() == [1, 1]
