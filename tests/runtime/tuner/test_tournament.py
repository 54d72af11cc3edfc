"""What a tournament finds to be the fastest, what changes that, and what learning may take for it."""

from __future__ import annotations

import math
import random
from itertools import pairwise

import pytest

from tests.runtime.tuner.simulated_calls import DEFAULT, Calls, Part, Way, as_backend, plan
from threadcast.runtime.tuner.budget import Budget
from threadcast.runtime.tuner.events import (
    Compared,
    Drop,
    Keep,
    Key,
    LeftOut,
    Offered,
    Outlook,
    Place,
    Ran,
    Ready,
    Resumed,
    Settle,
    Staged,
    Unsettle,
)
from threadcast.runtime.tuner.guard import CLEAR
from threadcast.runtime.tuner.standings import LOOK, MOST_EAGER, MOST_WAIT, are_steady
from threadcast.runtime.tuner.tournament import MOST_BESIDE, Illegal, Tournament, replay


@pytest.fixture(autouse=True)
def learning_at_once() -> None:
    """Here it is waited for."""


def resumed(
    seconds: float, *, before_s: float, others: dict[Key, Way] | None = None, default_s: float = 1.0,
    eager_s: float | None = 1.0,
) -> Calls:  # fmt: skip
    """Calls that begin with a plan of an earlier process, which took `before_s` there."""
    calls = Calls({"plan": plan(seconds), **(others or {})}, default_s=default_s, offer=False, anew=True)
    calls.handle(Resumed("plan", before_s, eager_s))
    calls._parts["plan"] = []
    for key in others or {}:
        calls.offer(key)
    return calls


def settled(ways: dict[Key, Way], *, default_s: float = 1.0, budget: Budget | None = None) -> Calls:
    """Calls that have found the fastest."""
    calls = Calls(ways, default_s=default_s, budget=budget)
    calls.until(lambda: calls.tournament.settled and calls.tournament.idle)
    return calls


# what is fastest


@pytest.mark.parametrize("fastest", ["default", "plan", "other plan", "ready", "backend"])
def test_what_is_fastest_runs_in_the_end_and_is_kept(fastest: str) -> None:
    ways: dict[Key, Way] = {
        "plan": plan(0.9), "other plan": plan(0.9), "ready": Way(0.9), "backend": as_backend(Way(0.9)),
    }  # fmt: skip
    default_s = 0.5 if fastest == DEFAULT else 1.0
    if fastest in ways:
        ways[fastest].seconds = 0.5
    calls = settled(ways, default_s=default_s)
    assert (calls.best, calls.done[-1]) == (fastest, Settle(fastest))
    calls.call(LOOK)
    kept = [one for one in calls.done if isinstance(one, Keep)]
    assert kept[-1:] == ([] if fastest == DEFAULT else [Keep(fastest, 0.5)])
    calls.ran.clear()
    calls.call(200)
    assert (set(calls.ran), calls.tournament.confirmed) == ({fastest}, True)


def test_what_cannot_be_made_is_left_out_and_the_default_settles_where_nothing_can() -> None:
    calls = settled({"plan": plan(0.5), "other": plan(0.4, fails=True)})
    assert calls.best == "plan"
    calls = settled({"plan": plan(0.5, fails=True)})
    assert calls.done == [Drop("plan", "plan cannot be made"), Settle(DEFAULT)]
    calls.call(20)
    assert (calls.best, calls.ran[-20:]) == (DEFAULT, [DEFAULT] * 20)


def test_what_is_expected_to_gain_most_for_its_cost_comes_first() -> None:
    calls = Calls({"dear": plan(0.5), "cheap": plan(0.5), "likely": plan(0.5)}, offer=False)
    calls.offer("dear", gain=1.5, cost_s=3.0)
    calls.offer("cheap", gain=1.5, cost_s=1.0)
    calls.offer("likely", gain=3.0, cost_s=3.0)
    calls.until(lambda: calls.tournament.settled)
    assert next(key for key in calls.ran if key != DEFAULT) == "likely"
    assert next(key for key in calls.ran if key in ("dear", "cheap")) == "cheap"


def test_what_has_shown_to_be_too_slow_is_not_compared() -> None:
    calls = Calls({"fast": plan(0.5), "slow": plan(1.5)}, offer=False)
    assert calls.tournament.gain_left() == 1.0
    calls.offer("fast", gain=2.0)
    calls.call(5)
    assert calls.tournament.gain_left() == pytest.approx(2.0)
    calls.offer("slow")
    calls.settle()
    assert (calls.best, calls.compared("slow"), calls.tournament.gain_left()) == ("fast", 0, 1.0)


@pytest.mark.parametrize("bit_by_bit", [False, True])
def test_what_is_paid_for_bit_by_bit_begins_before_all_of_it_may_be_spent(bit_by_bit: bool) -> None:
    calls = Calls({"backends": plan(0.5), "better": plan(0.5)}, offer=False, budget=Budget(0.05))
    calls.offer("backends", cost_s=1e9, bit_by_bit=bit_by_bit)
    calls.call(30)
    assert ("backends" in calls.ran, calls.tournament.held_back) == (bit_by_bit, not bit_by_bit)
    tournament = Tournament(DEFAULT)
    tournament.handle(Offered("backends", cost_s=5.0))
    assert not tournament.comes_first("backends"), "it is not at work"
    tournament.handle(Staged("backends", Place.BESIDE))
    assert tournament.comes_first("backends")
    tournament.handle(Offered("dearer", cost_s=6.0))
    assert tournament.comes_first("backends")
    tournament.handle(Offered("cheaper", cost_s=1.0))
    assert not tournament.comes_first("backends")


@pytest.mark.parametrize(
    ("seconds", "steady"),
    [
        ([], False), ([0.01, 0.01], False), ([0.01, 0.01, 0.01], True), ([0.02, 0.012, 0.01], False),
        ([0.02, 0.012, 0.01, 0.011, 0.0105], True), ([0.1 - 0.006 * i for i in range(9)], False),
        ([0.1 - 0.006 * i for i in range(10)], True), ([2.0], False), ([2.0, 1.0], True),
    ],
)  # fmt: skip
def test_how_long_the_baseline_takes_is_known_once_it_becomes_no_faster(seconds: list[float], steady: bool) -> None:
    assert are_steady(seconds) == steady
    calls = Calls({"plan": plan(0.5)})
    assert calls.tournament.baseline_s is None
    assert (Tournament(DEFAULT, baseline_s=[9.0, *seconds]).baseline_s is not None) == steady
    calls.until(lambda: calls.tournament.baseline_s)
    assert "plan" not in calls.ran


# what changes later


def test_what_won_by_noise_gives_way_once_its_calls_alone_show_it() -> None:
    for ways, second in (
        ({"new": as_backend(Way(1.25, at_first=0.8))}, DEFAULT),
        ({"new": as_backend(Way(1.25, at_first=0.6)), "plan": plan(0.8)}, "plan"),
        ({"new": as_backend(Way(0.85, at_first=0.5)), "plan": plan(0.8)}, "plan"),
    ):  # fmt: skip
        calls = Calls(dict(ways))
        calls.until(lambda c=calls: c.best == "new" and c.tournament.settled)
        assert not calls.tournament.confirmed
        calls.settle()
        assert calls.best == second
        calls.ran.clear()
        calls.call(100)
        assert set(calls.ran) == {second}


def test_what_is_a_little_faster_is_doubted_at_growing_distances_and_kept() -> None:
    calls = settled({"plan": plan(0.0095)}, default_s=0.01)
    before, waits, alone = calls.compared("plan"), list[int](), 1
    for _ in range(20_000):
        was = calls.tournament.settled
        calls.call()
        alone += was
        if was and not calls.tournament.settled:
            waits.append(alone)
            alone = 1
    assert calls.compared("plan") - before == len(waits)
    assert waits[:4] == [LOOK + 1, 2 * LOOK + 1, 3 * LOOK + 1, 5 * LOOK + 1]
    assert waits[-1] == LOOK + MOST_WAIT + 1
    assert calls.best == "plan"
    assert [one for one in calls.done if isinstance(one, Keep)][1:] == [Keep("plan", 0.0095)], "though it was doubted"


@pytest.mark.parametrize(
    ("alone_s", "at_first", "other"),
    [
        (0.8, 0.8, None), (0.95, 0.95, DEFAULT), (1.0 / CLEAR + 0.005, 0.9, DEFAULT), (1.0 / CLEAR - 0.01, 0.9, None),
        (0.95, 0.5, DEFAULT), (0.8, 0.5, None),
    ],
)  # fmt: skip
def test_what_is_not_clearly_faster_alone_than_the_second_best_is_doubted(
    alone_s: float, at_first: float, other: Key | None
) -> None:
    calls = settled({"plan": plan(alone_s, at_first=at_first)})
    before = calls.compared("plan")
    calls.call(2 * LOOK)
    assert (calls.compared("plan") > before or not calls.tournament.settled) == (other is not None)


def test_single_slow_calls_raise_no_doubt() -> None:
    calls = settled({"plan": plan(0.5), "other": plan(0.52)})
    calls.done.clear()
    for number in range(200):
        calls.ways["plan"].seconds = 5.0 if number % 5 == 0 else 0.5
        calls.call()
    assert [one for one in calls.done if isinstance(one, Unsettle | Compared)] == []


@pytest.mark.parametrize("condition", ["alone", "all_cores"])
def test_calls_beside_others_or_on_fewer_cores_raise_no_doubt(condition: str) -> None:
    calls = settled({"plan": plan(0.5), "other": plan(0.52)})
    calls.ways["plan"].seconds = 0.95
    calls.ran.clear()
    calls.call(3 * LOOK, **{condition: False})
    assert (calls.tournament.settled, set(calls.ran)) == (True, {"plan"})
    assert calls.tournament.confirmed == (condition == "all_cores"), "on fewer cores nothing is waited for"
    calls.until(lambda: calls.best == "other", most=2 * LOOK)


def test_what_becomes_slower_is_compared_anew_however_often_it_was_doubted_and_however_late() -> None:
    calls = settled({"plan": plan(0.0095)}, default_s=0.01)
    calls.call(20_000)
    assert calls.best == "plan"
    calls.ways["plan"].seconds = 0.0145
    calls.until(lambda: calls.best == DEFAULT, most=1_500)


def test_what_had_lost_before_it_won_is_watched_at_the_distances_of_the_one_before() -> None:
    calls = settled({"plan": plan(0.5), "other": plan(0.52)})
    calls.call(300)
    calls.ways["plan"].seconds = 2.0
    calls.until(lambda: calls.best == "other" and calls.tournament.settled)
    calls.ways["other"].seconds = 2.0
    calls.ran.clear()
    calls.call(4 * LOOK)
    assert set(calls.ran) == {"other"}, "two that win in turn are compared ever more seldom"
    calls.until(lambda: calls.best == DEFAULT, most=1_000)


def test_what_has_become_slower_than_the_default_gives_way_though_no_time_may_be_spent() -> None:
    calls = settled({"plan": plan(0.5)}, budget=Budget(0.05))
    calls.settle()
    calls.budget.charge(1e6)
    calls.ways["plan"].seconds = 2.0
    calls.until(lambda: calls.best == DEFAULT, most=150)


def test_what_was_slower_is_compared_again_once_the_best_has_become_far_slower() -> None:
    calls = settled({"plan": plan(1.1)}, default_s=1.0)
    assert calls.best == DEFAULT
    calls.call(100)
    assert calls.compared("plan") == 1
    calls.ways[DEFAULT].seconds = 2.0
    calls.until(lambda: calls.best == "plan", most=200)


def test_each_next_best_follows_where_one_after_the_other_becomes_stale() -> None:
    """A plan that is little faster than the default is the last one, though the default has lost, too."""
    ways: dict[Key, Way] = {f"way {i}": Way(0.5 + 0.1 * i) for i in range(5)}
    calls = Calls(ways, offer=False)
    for key in reversed(ways):
        calls.offer(key)
        calls.settle()
        assert calls.best == key
    for key, after in pairwise([*ways, DEFAULT]):
        calls.handle(LeftOut(key, "output 0 differs by 3", differs=True))
        assert calls.done[-2:] == [Unsettle(), Drop(key, "output 0 differs by 3", differs=True)]
        calls.ran.clear()
        calls.settle()
        assert (calls.best, key in calls.ran) == (after, False)
        assert f"{key} never runs again: output 0 differs by 3" in calls.tournament.story()


def test_a_comparison_ends_where_one_of_both_is_left_out() -> None:
    for key, best in (("plan", DEFAULT), ("backend", "plan")):
        calls = settled({"plan": plan(0.8)})
        calls.ways["backend"] = Way(0.5)
        calls.offer("backend")
        calls.until(lambda c=calls: c.tournament.comparison is not None)
        calls.call()
        assert calls.tournament.challenger == "backend"
        calls.handle(LeftOut(key, "it differs", differs=True))
        assert (calls.tournament.comparison, calls.best) == (None, best)
        calls.settle()
        assert calls.best == ("backend" if key == "plan" else "plan")


# what earlier processes and other calls have found


def test_what_an_earlier_process_found_runs_at_once_and_goes_on() -> None:
    calls = resumed(0.5, before_s=0.5)
    calls.call(300)
    assert (set(calls.ran), calls.done) == ({"plan"}, [Settle("plan"), Keep("plan", 0.5)])
    other = resumed(0.5, before_s=0.5, others={"backend": as_backend(Way(0.2))})  # which had not been tried
    other.settle()
    assert (other.best, DEFAULT in other.ran) == ("backend", False)
    slower = resumed(0.95, before_s=0.5, default_s=2.0)  # the machine is slower, too
    slower.settle()
    assert (slower.best, DEFAULT in slower.ran) == ("plan", True)
    assert not any(isinstance(one, Drop) for one in slower.done)


@pytest.mark.parametrize("differs", [False, True])
def test_what_an_earlier_process_found_is_made_anew_where_it_is_slower_or_differs(differs: bool) -> None:
    calls = resumed(2.0, before_s=0.5)
    calls.call(3)
    if differs:
        calls.handle(LeftOut("plan", "output 0", differs=True))
    calls.until(lambda: any(isinstance(one, Drop) for one in calls.done))
    reason = "output 0" if differs else "it is not faster"
    assert (calls.best, calls.done[-1]) == (DEFAULT, Drop("plan", reason, differs, earlier=True))
    calls.ways["plan"].seconds = 0.5
    calls.settle()
    assert calls.best == "plan"


@pytest.mark.parametrize(("seconds", "dropped"), [(0.5, False), (1.5, True)])
def test_a_plan_of_other_calls_is_compared_whatever_it_promises_and_made_anew_where_it_loses(
    seconds: float, dropped: bool
) -> None:
    calls = Calls({"plan": plan(seconds)}, offer=False, anew=True)
    calls.offer("plan", ready=True, earlier=True, gain=0.1, most=0.1)
    calls.settle()
    assert any(isinstance(one, Drop) and one.earlier for one in calls.done) == dropped
    assert calls.best == (DEFAULT if dropped else "plan")


@pytest.mark.parametrize("later_s", [0.5, 0.95])
def test_the_first_calls_of_a_process_raise_no_doubt_about_what_an_earlier_one_found(later_s: float) -> None:
    calls = resumed(5.0, before_s=0.5)
    calls.call(MOST_EAGER)
    calls.ways["plan"].seconds = later_s
    calls.call(LOOK + 2)
    assert any(isinstance(one, Unsettle) for one in calls.done) == (later_s == 0.95)


# what time learning may take


@pytest.mark.parametrize("doing", ["a look", "a comparison"])
def test_what_is_broken_off_begins_anew_once_it_may_lose_as_much_as_before_and_more(doing: str) -> None:
    budget = Budget(0.05)
    way = plan(0.9, look_s=3.0) if doing == "a look" else Way(3.0)
    calls = Calls({"plan": way}, budget=budget)
    calls.until(lambda: calls.ran.count("plan") == 1)
    calls.ran.clear()
    budget.charge(budget.left_s + 0.01)
    calls.call(5)
    assert (set(calls.ran), calls.tournament.held_back) == ({DEFAULT}, True)
    cost_s = calls.tournament.outlook.cost_s
    assert cost_s > (1.9 if doing == "a look" else 0.0)
    calls.until(lambda: "plan" in calls.ran)
    assert budget.left_s + 2.0 >= cost_s, "it waits for the share"
    calls.settle()
    assert calls.best == ("plan" if doing == "a look" else DEFAULT)


def test_where_the_caller_waits_what_gains_more_for_its_time_beside_calls_comes_first() -> None:
    def first(left_s: float, gain: float) -> Key:
        calls = Calls({"plan": plan(0.8), "backend": as_backend(Way(0.4))}, budget=Budget(1.0), offer=False)
        calls.offer("backend", gain=gain, cost_s=1.0)
        calls.until(lambda: calls.tournament.standings["backend"].stage is not None)
        calls.offer("plan", gain=1.5, cost_s=1.0)
        calls.budget.share = 1.0 if left_s == math.inf else 0.9
        calls.until(lambda: set(calls.ran) - {DEFAULT})
        assert calls.tournament.held_back is False
        return calls.ran[-1]

    assert first(math.inf, 2.5) == "backend"
    assert first(math.inf, 1.2) == "plan"
    assert first(10.0, 2.5) == "plan", "calls go on meanwhile"


def test_nothing_is_prepared_or_compared_while_something_disturbs_calls() -> None:
    for reached in (1, 3, 8, 14):
        calls = Calls({"plan": plan(0.5)})
        calls.until(lambda c=calls, n=reached: c.ran.count("plan") == n)
        known_s = calls.tournament.baseline_s
        calls.ways[DEFAULT].seconds, best = 50.0, calls.best
        calls.ran.clear()
        calls.call(60, disturbed=True)
        assert (set(calls.ran), calls.tournament.baseline_s) == ({best}, known_s)
        calls.ways[DEFAULT].seconds = 1.0
        calls.settle()
        assert calls.best == "plan"


def test_what_is_not_slower_is_compared_though_no_time_may_be_spent() -> None:
    budget = Budget(0.05)
    calls = Calls({"plan": plan(0.9)}, budget=budget)
    calls.until(lambda: calls.tournament.standings["plan"].open)
    budget.charge(1e6)
    calls.call(100)
    assert calls.best == "plan"


def test_a_doubt_waits_until_its_comparison_may_take_its_time() -> None:
    budget = Budget(0.05)
    calls = Calls({"plan": plan(0.9, at_first=0.5)}, budget=budget)
    calls.until(lambda: calls.best == "plan")
    calls.ways["plan"].seconds, spent_s = 0.95, 100.0
    budget.charge(spent_s)
    calls.ran.clear()
    calls.call(500)
    assert set(calls.ran) == {"plan"}
    budget.share = 1.0
    calls.until(lambda: DEFAULT in calls.ran, most=100)


# what comes next, and what computes beside calls


def test_what_is_learned_next_takes_place_in_calls_beside_them_or_nowhere() -> None:
    calls = Calls({"plan": Way(0.5, (Part(Place.CALL, 0.2, 0.5, 3), Part(Place.BESIDE, calls=3)))})
    assert calls.tournament.outlook == Outlook(Place.CALL), "it is not known how long the default takes"
    seen = []
    while not (calls.tournament.settled and calls.tournament.idle):
        calls.call()
        seen.append(calls.tournament.outlook.place)
    places = [place for place, before in zip(seen, [None, *seen], strict=False) if place is not before]
    assert places == [Place.CALL, Place.BESIDE, Place.CALL, None]


def test_what_lost_while_something_computed_beside_it_is_compared_again_once_nothing_does() -> None:
    """A plan waits for the slowest of its cores, so that it suffers more than PyTorch's operators."""
    calls = Calls({"ready": Way(1.2)})
    calls.call(5)
    while calls.compared("ready") == 0:
        calls.call(alone=False)
    calls.call(20, alone=False)
    assert (calls.best, calls.compared("ready")) == (DEFAULT, 1)
    calls.ways["ready"].seconds = 0.5
    calls.call(60)
    assert (calls.best, calls.compared("ready")) == ("ready", 2)
    often = Calls({"ready": Way(1.2)})
    for _ in range(2 * MOST_BESIDE):
        often.call(60, alone=False)
        often.call()
    assert often.compared("ready") == MOST_BESIDE
    alone = settled({"ready": Way(1.2)})
    alone.call(30, alone=False)
    alone.call(60)
    assert alone.compared("ready") == 1


def test_it_becomes_known_how_long_the_default_takes_though_something_computes_beside_all_calls() -> None:
    calls = Calls({"ready": Way(0.5)})
    calls.call(60, alone=False)
    assert calls.best == "ready"


# one entry, replayed and told


def test_events_that_cannot_come_tell_what_happened_before() -> None:
    calls = settled({"plan": plan(0.5)})
    tournament = calls.tournament
    for event in (
        Offered("plan"), Ready("other"), LeftOut("other", ""), Staged("other", Place.CALL), LeftOut(DEFAULT, "itself"),
        Staged("plan", Place.CALL),
    ):  # fmt: skip
        with pytest.raises(Illegal, match=r"illegal: (.|\n)*call \d+: plan 2.00 times as fast"):
            tournament.handle(event)
        tournament.validate()
    with pytest.raises(Illegal, match="resumed too late"):
        tournament.handle(Resumed("other", 0.5))
    with pytest.raises(Illegal, match="before it came"):
        Tournament(DEFAULT).handle(Ran(0.0, 1.0, 1.0))


def state(tournament: Tournament) -> tuple[object, ...]:
    standings = {key: (one.status, one.step_s, one.gain, one.reason) for key, one in tournament.standings.items()}
    return tournament.best, tournament.settled, standings, tournament.story()


@pytest.mark.parametrize("seed", range(200))
def test_any_events_in_any_order_hold_what_is_promised_and_can_be_replayed(seed: int) -> None:
    draw = random.Random(seed)

    def seconds() -> float:
        return draw.choice([0.01, 0.05, 0.2, 1.0, 3.0]) * draw.uniform(0.9, 1.1)

    def way() -> Way:
        made = plan(seconds(), look_s=seconds(), at_first=draw.choice([None, seconds()]), fails=draw.random() < 0.1)
        return draw.choice([made, as_backend(made), Way(made.seconds, at_first=made.at_first)])

    names: list[Key] = [f"way {i}" for i in range(draw.randint(1, 5))]
    budget = Budget(draw.choice([0.0, 0.05, 1.0]))
    calls = Calls({}, budget=budget, default_s=seconds(), anew=draw.random() < 0.8)
    tournament = calls.tournament
    if draw.random() < 0.3:
        calls.ways[names[0]] = Way(seconds())
        calls.handle(Resumed(names[0], seconds()))
        calls._parts[names[0]] = []
    for _ in range(45):
        standings = [one for one in tournament.standings.values() if one.key != DEFAULT]
        known = [one.key for one in standings if one.status.name != "OUT"]
        match draw.randint(0, 10):
            case 0:
                key = draw.choice(names)
                if key not in known:
                    calls.ways[key] = way()
                    calls.offer(key, gain=draw.uniform(0.5, 3.0), earlier=draw.random() < 0.2)
            case 1 if known and draw.random() < 0.5:
                key = draw.choice(known)
                calls.handle(draw.choice([LeftOut(key, "differs", differs=True), LeftOut(key, "failed")]))
            case 2:
                budget.charge(draw.choice([-5.0, 0.1, 5.0]))
            case 3:
                budget.share = draw.choice([0.05, 1.0])
            case 4:
                calls.ways[draw.choice([DEFAULT, *known])].seconds = seconds()
            case 5:
                calls.call(draw.randint(1, 20), disturbed=True)
            case 6:
                calls.call(draw.randint(1, 20), alone=False, all_cores=draw.random() < 0.5)
            case _:
                calls.call(draw.randint(1, 60))
    assert len(tournament.log) < 5_000, "all of it is logged"
    assert state(replay(tournament.log, DEFAULT)) == state(tournament)


@pytest.mark.parametrize("seed", range(40))
def test_among_any_candidates_what_runs_in_the_end_is_about_the_fastest(seed: int) -> None:
    draw = random.Random(seed)
    ways: dict[Key, Way] = {}
    for i in range(draw.randint(1, 6)):
        seconds = draw.choice([0.3, 0.5, 0.8, 1.0, 1.3, 2.0])
        made = plan(seconds, look_s=seconds * draw.uniform(0.8, 1.3))
        ways[f"way {i}"] = draw.choice([made, as_backend(made), Way(seconds)])
    calls = Calls(ways, budget=Budget(draw.choice([0.05, 1.0])))
    calls.until(lambda: calls.tournament.settled and calls.tournament.idle, most=100_000)
    assert calls.ways[calls.best].seconds <= 1.05 * min(way.seconds for way in calls.ways.values())
