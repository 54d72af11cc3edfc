"""Values are emptied after their last use, never before, in any interleaving."""

from __future__ import annotations

import random

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.runtime.engine.test_replay import run_somehow
from tests.runtime.random_plans import make_random_plan
from threadcast.capture.graph.capture import capture_forward
from threadcast.capture.graph.captured import Captured
from threadcast.capture.graph.program import Program
from threadcast.core import Placement, Plan
from threadcast.runtime.engine.lifetimes import lifetimes
from threadcast.runtime.engine.native.lowering import Values
from threadcast.runtime.engine.replay import Replay, arrange


def branches(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    a, b = x.sin(), x.cos()
    c = torch.cat([a, b, a + b])
    left, right = c.split(x.shape[0], 0)[:2]
    return (left * right).sum(), torch.sort(c)[0]


CAPTURED: Captured = capture_forward(branches, torch.ones(8))


def by_value(program: Program) -> tuple[list[set[int]], list[set[int]], set[int]]:
    """What each node makes and touches, and what the program returns, by values, of which a slot may have several."""
    values = Values.of(program)
    made = [set(values.of_slot(program.slot_of(i))) for i in range(len(program.nodes))]
    return made, list(map(set, values.touches(program))), values.returned(program)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([(0,), (0, 1), (0, 1, 2)]))
def test_values_live_exactly_until_their_last_use(seed: int, cores: tuple[int, ...]) -> None:
    replay = arrange(make_random_plan(CAPTURED.graph, cores, seed=seed), CAPTURED.graph)
    made, touches, kept = by_value(CAPTURED.program)
    lives = lifetimes(touches, kept, replay)
    users = dict(lives.users)
    full = set().union(*touches).difference(*made)  # inputs
    for what, op in run_somehow(replay, random.Random(seed)):
        assert touches[op] - made[op] <= full, "a value was let go before its last use"
        if what == "finish":
            full |= made[op]
            full.difference_update(lives.last[op])
            for value in lives.counted[op]:
                users[value] -= 1
                if users[value] == 0:
                    full.remove(value)
    assert full == kept


def test_results_of_one_op_are_let_go_apart() -> None:
    program = CAPTURED.program
    made, touches, kept = by_value(program)
    last = lifetimes(touches, kept, in_turn()).last
    (sort,) = [i for i, node in enumerate(program.nodes) if str(node.target).startswith("aten.sort")]
    wanted, unread = sorted(made[sort])
    assert wanted in kept
    assert unread in last[sort]


def in_turn() -> Replay:
    """All ops on one core."""
    ops = tuple(Placement(op, (0,), 1, float(i), i + 1.0) for i, op in enumerate(CAPTURED.graph.ids))
    return arrange(Plan(1, "p", ops), CAPTURED.graph)
