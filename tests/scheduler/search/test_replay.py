"""A replay of a plan takes as long as the plan, whoever replays it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from tests.scheduler.random_problems import problems
from threadcast.scheduler.planner import SEARCH, plan
from threadcast.scheduler.policies import Problem
from threadcast.scheduler.search.replay import Replay


@settings(max_examples=30, deadline=None)
@given(problem=problems())
def test_a_replay_with_the_plans_own_times_takes_as_long_as_the_plan(problem: Problem) -> None:
    planned = plan(problem, policy=SEARCH)
    by_id = planned.by_id()
    seconds = np.array([by_id[op_id].duration_s for op_id in problem.graph.ids])
    assert Replay.of(problem.graph, planned.ops).run(seconds)[0] == pytest.approx(planned.makespan_s)
