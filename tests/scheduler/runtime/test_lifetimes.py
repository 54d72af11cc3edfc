"""Values are emptied after their last use, never before, in any interleaving."""

from __future__ import annotations

import random

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.scheduler.runtime.random_plans import make_random_plan
from tests.scheduler.runtime.test_replay import run_somehow
from threadcast.collector.capture import Captured, capture_forward
from threadcast.collector.values import find_refs
from threadcast.core import Placement, Plan
from threadcast.scheduler.runtime.lifetimes import lifetimes
from threadcast.scheduler.runtime.replay import arrange


def branches(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    a, b = x.sin(), x.cos()
    c = torch.cat([a, b, a + b])
    left, right = c.split(x.shape[0], 0)[:2]
    return (left * right).sum(), torch.sort(c)[0]


CAPTURED: Captured = capture_forward(branches, torch.ones(8))


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([(0,), (0, 1), (0, 1, 2)]))
def test_values_live_exactly_until_their_last_use(seed: int, cores: tuple[int, ...]) -> None:
    program = CAPTURED.program
    replay = arrange(make_random_plan(CAPTURED.graph, cores, seed=seed), CAPTURED.graph)
    lives = lifetimes(program, replay)
    users = dict(lives.users)
    full: set[int] = set()
    for what, op in run_somehow(replay, random.Random(seed)):
        read = {ref.slot for ref in program.nodes[op].refs() if ref.slot >= len(program.inputs)}
        assert read <= full, "a value was emptied before its last use"
        if what == "finish":
            full.add(program.slot_of(op))
            full.difference_update(lives.last[op])
            for slot in lives.counted[op]:
                users[slot] -= 1
                if users[slot] == 0:
                    full.remove(slot)
    assert full == {ref.slot for ref in find_refs(program.outputs)}


def test_nothing_is_counted_when_one_team_does_all() -> None:
    ops = tuple(Placement(op, (0,), 1, float(i), i + 1.0) for i, op in enumerate(CAPTURED.graph.ids))
    assert lifetimes(CAPTURED.program, arrange(Plan(1, "p", ops), CAPTURED.graph)).users == {}
