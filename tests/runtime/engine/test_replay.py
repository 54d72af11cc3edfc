"""A replay keeps every dependency and every core to itself, and never waits in a circle, however fast teams are."""

from __future__ import annotations

import random
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.runtime.random_plans import make_random_plan
from threadcast.core import Op, OpGraph, Placement, Plan
from threadcast.core.errors import PlanError
from threadcast.core.graph import Edge
from threadcast.runtime.engine.replay import Replay, Team, arrange


@st.composite
def graphs(draw: st.DrawFn) -> OpGraph:
    n = draw(st.integers(1, 24))
    pairs = [(i, j) for j in range(n) for i in range(j)]
    chosen = draw(st.sets(st.sampled_from(pairs), max_size=40)) if pairs else set()
    return OpGraph(tuple(f"op{i}" for i in range(n)), (Op("mul"),) * n, tuple(Edge(*pair) for pair in sorted(chosen)))


def sequences_of(replay: Replay) -> list[list[int]]:
    """The ops of each team, in the order in which it runs them."""
    return [[op for op in replay.order if replay.team_of[op] == team] for team in range(len(replay.teams))]


def run_somehow(replay: Replay, rng: random.Random) -> list[tuple[str, int]]:
    """("start" or "finish", op) events of a run in which teams are as fast as chance wants."""
    sequences, position = sequences_of(replay), [0] * len(replay.teams)
    running: dict[int, int] = {}
    finished: set[int] = set()
    events = []
    while len(finished) < len(replay.waits):
        able = list(running)
        for team, sequence in enumerate(sequences):
            if team not in running and position[team] < len(sequence):
                op = sequence[position[team]]
                if finished.issuperset(replay.waits[op]):
                    able.append(team)
        assert able, f"teams wait in a circle after {events}"
        team = rng.choice(able)
        if team in running:
            op = running.pop(team)
            finished.add(op)
            position[team] += 1
            events.append(("finish", op))
        else:
            running[team] = sequences[team][position[team]]
            events.append(("start", running[team]))
    return events


@settings(max_examples=150, deadline=None)
@given(graphs(), st.integers(0, 2**32), st.sampled_from([(0,), (0, 1), (4, 5, 6, 7, 8)]), st.integers(1, 3))
def test_any_interleaving_keeps_order_and_cores(graph: OpGraph, seed: int, cores: tuple[int, ...], factor: int) -> None:
    plan = make_random_plan(graph, cores, seed=seed, max_factor=factor)
    replay = arrange(plan, graph)
    events = run_somehow(replay, random.Random(seed))
    when = {event: i for i, event in enumerate(events)}
    assert sorted(op for what, op in events if what == "finish") == list(range(len(graph)))
    for edge in graph.edges:
        assert when["finish", edge.source] < when["start", edge.target]
    taken: set[tuple[int, int]] = set()
    for what, op in events:
        lanes = set(replay.teams[replay.team_of[op]].hardware_threads)
        assert taken.isdisjoint(lanes) if what == "start" else taken >= lanes
        taken ^= lanes
    for second, surely in replay.finished():
        assert surely(second)
        for first in filter(surely, range(len(graph))):
            assert when["finish", first] <= when["finish", second]
    by_id = plan.by_id()
    for op, team in enumerate(replay.team_of):
        placed = by_id[graph.ids[op]]
        assert replay.teams[team] == Team(tuple(sorted(placed.cores)), placed.threads, placed.hardware_thread)


def chain(n: int) -> OpGraph:
    return OpGraph(tuple(f"op{i}" for i in range(n)), (Op("mul"),) * n, tuple(Edge(i, i + 1) for i in range(n - 1)))


@settings(max_examples=100, deadline=None)
@given(graphs(), st.integers(0, 2**32), st.sampled_from([(0,), (0, 1), (4, 5, 6, 7, 8)]))
def test_it_is_certain_what_can_be_reached_by_waits_and_teams_alone(
    graph: OpGraph, seed: int, cores: tuple[int, ...]
) -> None:
    replay = arrange(make_random_plan(graph, cores, seed=seed), graph)
    reached: dict[int, set[int]] = {}
    last: dict[int, int] = {}
    for op in replay.order:
        team = replay.team_of[op]
        before = [*replay.waits[op], *([last[team]] if team in last else [])]
        reached[op] = {op}.union(*(reached[other] for other in before))
        last[team] = op
    assert {op: set(filter(surely, range(len(graph)))) for op, surely in replay.finished()} == reached


def test_a_replay_is_of_the_size_of_its_plan_and_not_of_ops_times_teams() -> None:
    ops, cores = 4_000, tuple(range(128))
    graph = OpGraph(
        tuple(f"op{i}" for i in range(ops)), (Op("mul"),) * ops, tuple(Edge(i - 40, i) for i in range(40, ops))
    )
    plan = make_random_plan(graph, cores, seed=1, most_teams=ops)
    tracemalloc.start()
    try:
        replay = arrange(plan, graph)
        kept, peak = tracemalloc.get_traced_memory()
        for _ in replay.finished():
            pass
        _, peak_after = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    matrix = 4 * ops * len(replay.teams)
    assert kept < 2_000 * ops
    assert max(peak, peak_after) < matrix / 8


def test_waits_that_follow_from_earlier_ones_are_left_out() -> None:
    graph = OpGraph(("a", "b", "c", "d"), (Op("mul"),) * 4, (Edge(0, 2), Edge(1, 2), Edge(0, 3), Edge(2, 3)))
    plan = Plan(2, "p", (
        Placement("a", (0,), 1, 0.0, 1.0), Placement("b", (0,), 1, 1.0, 2.0),
        Placement("c", (1,), 1, 2.0, 3.0), Placement("d", (1,), 1, 3.0, 4.0),
    ))  # fmt: skip
    assert arrange(plan, graph).waits == ((), (), (1,), ())
    assert arrange(plan, graph).tells == ((), (2,), (), ())


def test_ops_beside_each_other_on_hardware_threads_do_not_wait() -> None:
    graph = OpGraph(("big", "small"), (Op("mul"),) * 2)
    plan = Plan(1, "p", (Placement("big", (0,), 1, 0.0, 9.0), Placement("small", (0,), 1, 1.0, 2.0, 1)))
    assert arrange(plan, graph).waits == ((), ())


@pytest.mark.parametrize(
    ("placements", "message"),
    [
        ((Placement("op0", (0,), 1, 0.0, 1.0),), "lacks 'op1'"),
        (
            tuple(Placement(f"op{i}", (0,), 1, float(i), i + 1.0) for i in range(3)),
            "has 'op2', which the graph has not",
        ),
        ((Placement("op0", (0,), 1, 1.0, 2.0), Placement("op1", (1,), 1, 0.5, 3.0)), "'op1' at 0.5 s, before .* 'op0'"),
        ((Placement("op0", (0, 1), 1, 0.0, 1.0), Placement("op1", (1,), 1, 1.0, 3.0)), "1 threads on 2 cores"),
        (
            (Placement("op0", (0,), 10**9, 0.0, 1.0), Placement("op1", (0,), 1, 1.0, 3.0)),
            "1000000000 threads on 1 core",
        ),
    ],
)
def test_what_is_no_plan_of_the_graph_is_refused(placements: tuple[Placement, ...], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        arrange(Plan(2, "p", placements), chain(2))
