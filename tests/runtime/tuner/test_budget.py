"""All calls together are never further behind eager PyTorch than is promised, and what was gained is spent again."""

from __future__ import annotations

import math
import random
from contextlib import ExitStack
from itertools import pairwise

import pytest

from tests.runtime.tuner.simulated_calls import DEFAULT, Calls, Part, Way, as_backend, plan
from threadcast.runtime.tuner.budget import BESIDE, FIRST_S, PART, RISES_S, START_S, Budget, PartBudget
from threadcast.runtime.tuner.events import Key, Place

SHARE = 0.05


@pytest.fixture(autouse=True)
def learning_at_once() -> None:
    """Here it is waited for."""


def test_what_may_be_spent_is_the_start_a_share_and_all_that_was_gained() -> None:
    budget = Budget(0.1)
    assert (budget.left_s, budget.behind_s) == (FIRST_S, 0.0)
    budget.ran(1.5, eager_s=1.0)
    assert (budget.behind_s, budget.left_s) == (0.5, pytest.approx(FIRST_S + 0.1 - 0.5))
    budget.charge(0.25)
    assert (budget.allows(FIRST_S - 0.66), budget.allows(FIRST_S - 0.64)) == (True, False)
    budget.ran(1.0, eager_s=3.0)
    assert budget.left_s == pytest.approx(FIRST_S + 0.4 + 1.25)
    budget.ran_eager(1.0, beside=True)  # what makes a plan slows it
    assert budget.behind_s == pytest.approx(-1.25 + 1.0 - 1.0 / BESIDE)


def test_a_short_program_may_fall_behind_by_less() -> None:
    budget, starts_s = Budget(0.0), []
    for _ in range(30):
        starts_s.append(budget.start_s)
        budget.ran_eager(1.0)
    assert starts_s[:11] == [pytest.approx(FIRST_S)] * 11
    assert all(later - before == pytest.approx(1 / RISES_S) for before, later in pairwise(starts_s[10:21]))
    assert starts_s[20:] == [pytest.approx(START_S)] * 10


def test_with_a_share_of_one_any_time_may_be_spent_and_without_one_the_start_and_gains() -> None:
    whole, nothing = Budget(1.0), Budget(0.0)
    for budget in (whole, nothing):
        budget.ran(100.0 + START_S, eager_s=100.0)
    assert (whole.unlimited, whole.left_s, whole.allows(1e9)) == (True, math.inf, True)
    assert (nothing.unlimited, nothing.left_s, nothing.allows(1e-6)) == (False, 0.0, False)


def test_any_time_may_be_spent_until_the_last_that_asks_for_it_has_ended() -> None:
    whole = Budget(0.1)
    budget, other = whole.part(), whole.part()
    kind = budget.part()
    with ExitStack() as first, ExitStack() as second:
        first.enter_context(budget.without_limit())
        second.enter_context(budget.without_limit())
        first.close()
        assert (kind.unlimited, other.unlimited, whole.unlimited) == (True, False, False)
        kind.ran(100.0, eager_s=1.0)
    assert (kind.unlimited, whole.behind_s) == (False, 0.0)


def test_what_one_part_spends_leaves_some_for_the_next_and_what_it_gains_is_for_all() -> None:
    whole = Budget(0.0)
    one, two, three = (whole.part() for _ in range(3))
    assert one.left_s == PART * FIRST_S
    one.charge(one.left_s)
    two.charge(two.left_s)
    assert one.left_s < 0.0 == pytest.approx(two.left_s)
    assert three.left_s == pytest.approx(PART * (1 - PART) ** 2 * FIRST_S)
    two.ran(1.0, eager_s=9.0)
    assert three.left_s == pytest.approx(PART * (8.0 + (1 - PART) ** 2 * FIRST_S))
    three.charge(three.left_s)
    assert whole.left_s > 0.0
    two.charge(10.0)
    assert all(part.left_s <= 1e-9 for part in (whole, one, two, three)), "what it had gained is spent already"


def most_s(*calls: Calls) -> float:
    """Seconds of the longest single call that any candidate or part of a preparation takes, and a bit for rounding."""
    ways = [way for one in calls for way in one.ways.values()]
    parts = [part.seconds for way in ways for part in way.parts]
    return 1e-6 + max([*parts, *(way.seconds for way in ways), *(way.at_first or 0.0 for way in ways)])


@pytest.mark.parametrize("default_s", [0.001, 0.05, 1.0])
@pytest.mark.parametrize(
    "ratios",
    [
        {"plan": 0.6}, {"plan": 1.3}, {"plan": 3.0}, {"plan": 20.0},
        {"plan": 0.8, "other": 1.1, "backend": 0.5, "slow": 8.0}, {"backend": 0.9, "slow": 2.0, "slower": 30.0},
    ],
    ids=str,
)  # fmt: skip
def test_calls_are_never_further_behind_than_is_promised_but_for_one_step(
    ratios: dict[str, float], default_s: float
) -> None:
    ways: dict[Key, Way] = {}
    for key, ratio in ratios.items():
        way = plan(ratio * default_s, look_s=1.2 * ratio * default_s)
        ways[key] = Way(way.seconds) if key == "slower" else as_backend(way) if key == "backend" else way
    calls = Calls(ways, default_s=default_s, budget=Budget(SHARE))
    calls.until(lambda: calls.tournament.settled and calls.tournament.idle, most=200_000)
    calls.call(200)
    assert calls.worst_s < most_s(calls)
    assert calls.ways[calls.best].seconds == min(way.seconds for way in calls.ways.values())


@pytest.mark.parametrize("seed", range(60))
def test_calls_of_any_kinds_that_share_a_budget_keep_the_promise(seed: int) -> None:
    draw = random.Random(seed)
    budget, kinds = Budget(SHARE), list[Calls]()
    for _ in range(draw.randint(1, 4)):
        default_s = draw.choice([0.002, 0.02, 0.2, 1.0])
        ways: dict[Key, Way] = {}
        for number in range(draw.randint(1, 4)):
            seconds = default_s * draw.choice([0.4, 0.8, 0.95, 1.2, 3.0, 15.0])
            way = plan(seconds, look_s=seconds * draw.uniform(0.7, 3.0), fails=draw.random() < 0.1)
            ways[f"way {number}"] = draw.choice([way, as_backend(way), Way(seconds)])
        kinds.append(Calls(ways, default_s=default_s, budget=budget.part()))
    spent_s = eager_s = worst_s = 0.0
    for number in range(4_000):
        calls = kinds[number % len(kinds)] if seed % 2 else draw.choice(kinds)
        before = calls.spent_s, calls.eager_s
        calls.call()
        spent_s, eager_s = spent_s + calls.spent_s - before[0], eager_s + calls.eager_s - before[1]
        worst_s = max(worst_s, spent_s - (1 + SHARE) * eager_s - budget.start_s)
    assert worst_s < most_s(*kinds)


@pytest.mark.parametrize("others", [1, 2])
def test_a_program_is_learned_though_others_spend_what_comes_in_and_gain_nothing(others: int) -> None:
    """They have ever more candidates, each of which is cheap enough for the share of some calls, and loses."""
    budget = Budget(SHARE)
    slow: dict[Key, Way] = {f"slow {number}": plan(0.03, looks=2) for number in range(100)}
    before = [Calls(slow, default_s=0.02, budget=budget.part()) for _ in range(others)]
    for one in before:
        one.call(600)
        assert one.budget.left_s < 0.05
    last = Calls({"plan": plan(0.01, look_s=0.15)}, default_s=0.02, budget=budget.part())
    for _ in range(3_000):
        for one in (*before, last):
            one.call()
        if last.best == "plan":
            break
    assert last.best == "plan"
    assert budget.left_s > -most_s(last, *before)


def test_what_was_gained_is_spent_on_what_costs_more() -> None:
    """By the share alone a candidate that costs 20 s could be prepared after 340 s of calls."""
    ways: dict[Key, Way] = {
        "plan": plan(0.05), "dear": Way(0.025, (Part(Place.BETWEEN, 20.0, 20.0), Part(Place.BETWEEN)))
    }  # fmt: skip
    calls = Calls(ways, default_s=0.1, budget=Budget(SHARE), offer=False)
    calls.offer("plan")
    calls.settle()
    calls.offer("dear", gain=6.0, most=6.0)
    calls.until(lambda: calls.best == "dear")
    assert calls.eager_s < 60.0
    assert calls.worst_s == 0.0, "it was all gained before"


def test_without_any_gain_learning_takes_the_start_and_the_share() -> None:
    calls = Calls({"plan": plan(5.0)}, default_s=1.0, budget=Budget(0.0))
    calls.call(2_000)
    assert set(calls.ran) == {DEFAULT}, "a look would cost more than the start"
    assert calls.tournament.held_back
    calls.budget.share = SHARE
    calls.until(lambda: "plan" in calls.ran)
    assert calls.budget.eager_s * SHARE + START_S > 15.0


def test_what_a_disturbed_or_mistaken_best_seems_to_gain_is_not_spent() -> None:
    """It won by noise, or its calls are slow now and then: eager PyTorch would not have been slower by as much."""
    for at_first, hiccup_s in ((0.04, 0.0), (0.05, 2.0)):
        seconds = 0.095 if at_first == 0.04 else 0.05
        calls = Calls({"plan": plan(seconds, at_first=at_first)}, default_s=0.1, budget=Budget(SHARE))
        calls.until(lambda c=calls: c.best == "plan")
        before_s, truly_s = calls.budget.behind_s, calls.spent_s - calls.eager_s
        for number in range(200):
            slow = number % 20 == 7
            calls.ways["plan"].seconds = seconds + hiccup_s * slow
            calls.call()
            calls.eager_s += hiccup_s * slow
        gained_s = before_s - calls.budget.behind_s
        assert gained_s < 1.25 * (truly_s - (calls.spent_s - calls.eager_s)) + 0.5


def test_what_the_baseline_took_on_a_busy_machine_is_not_gained_once_all_calls_are_faster() -> None:
    """As where it is timed while another process starts: 20 s of looks counted as 50 s of eager calls."""
    calls = Calls({"plan": plan(0.1, look_s=0.2, looks=60)}, default_s=1.0, budget=Budget(SHARE))
    calls.until(lambda: calls.tournament.baseline_s)
    calls.ways[DEFAULT].seconds = 0.2
    calls.until(lambda: calls.compared("plan"))
    assert calls.budget.eager_s < 1.1 * calls.eager_s


def counted(gain: float, scatter: float, bursts: tuple[float, float, float] = (1.0, 0.0, 0.0)) -> float:
    """Of what a plan gains, the share that counts as gained, where the times of calls scatter.

    `bursts`: how many times as long calls take in bursts, and how likely these begin, and end, before a call.
    """
    counted_s, truly_s, (times, begin, end) = 0.0, 0.0, bursts
    for seed in range(12):
        draw, busy = random.Random(seed), False
        calls = Calls({"plan": plan(0.1 / gain)}, default_s=0.1, budget=Budget(SHARE))
        for _ in range(600):
            busy = draw.random() >= end if busy else draw.random() < begin
            for key, way in calls.ways.items():
                alone_s = 0.1 / (1.0 if key == DEFAULT else gain) * draw.lognormvariate(0.0, scatter)
                way.seconds = alone_s * (times if busy else 1.0)
            calls.call()
        counted_s, truly_s = counted_s - calls.budget.behind_s, truly_s + calls.eager_s - calls.spent_s
    return counted_s / truly_s


@pytest.mark.parametrize(("gain", "least"), [(1.05, -1.0), (1.2, 0.8), (2.0, 0.8)])
def test_what_calls_gain_counts_though_their_times_scatter(gain: float, least: float) -> None:
    """What wins by little was favoured by chance; if all of that counted, it would be spent, and was never gained."""
    assert least < counted(gain, 0.1) < 1.05


@pytest.mark.parametrize("bursts", [(2.0, 0.02, 0.05), (2.0, 0.01, 0.02), (4.0, 0.05, 0.2), (1.5, 0.005, 0.005)])
@pytest.mark.parametrize("gain", [1.05, 1.2, 2.0])
def test_on_a_busy_machine_no_more_counts_than_calls_gain(gain: float, bursts: tuple[float, float, float]) -> None:
    assert counted(gain, 0.03, bursts) < 1.05


def test_a_comparison_that_waits_for_seconds_lets_others_learn() -> None:
    budget = Budget(0.0)
    one, other = (Calls({"slow": Way(0.11)}, default_s=0.1, budget=budget.part()) for _ in range(2))
    one.until(lambda: one.tournament.learns)
    one.budget.charge(1_000.0)
    one.call(10)
    assert one.tournament.comparison is not None
    assert not one.tournament.learns
    budget.ran(0.0, eager_s=1_000.0)
    other.until(lambda: other.tournament.learns)


def test_parts_of_calls_spend_of_the_whole_budget_and_count_where_whole_calls_are_not_timed() -> None:
    whole = Budget(0.1)
    part = PartBudget(whole)
    part.counts = False
    part.ran(2.0, eager_s=1.0)
    part.ran_eager(1.0)
    part.charge(1.0)
    assert (whole.left_s, part.left_s) == (FIRST_S, FIRST_S)
    part.counts = True
    part.ran(2.0, eager_s=1.0)
    assert part.left_s == whole.left_s == pytest.approx(FIRST_S + 0.1 - 1.0)
    with whole.without_limit():
        assert part.unlimited
