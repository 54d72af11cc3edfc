"""Who exchanges cores, who comes back to them, and what is learnt of trials; the rest is in `test_ledger_states`."""

from __future__ import annotations

import random

import pytest

from threadcast.core import Machine
from threadcast.core.errors import InvalidInput
from threadcast.malleable.division import Claim
from threadcast.malleable.ledger import Ledger
from threadcast.malleable.step_rates import SETTLE_S, WINDOW_S, StepRates


def obey(ledger):
    """Every process does at once what it is told; what each was told."""
    orders = ledger.orders()
    for name, order in orders.items():
        ledger.confirm(name, order.number, order.cores)
    return {name: order.cores for name, order in orders.items()}


@pytest.mark.parametrize("each", [1, 3])
def test_processes_exchange_all_of_their_cores(each):
    ledger = Ledger(Machine.uniform("m", 2 * each))
    ledger.join("a", Claim(), range(each), 0)
    ledger.join("b", Claim(), range(each, 2 * each), 0)
    ledger.set_bounds("a", 1, None, 1, allowed=frozenset(range(each, 2 * each)))
    order = ledger.orders()["a"]
    assert ledger.orders() == {}, "b waits until a is there"
    ledger.confirm("a", order.number, order.cores)
    assert obey(ledger) == {"b": tuple(range(each))}
    assert obey(ledger) == {}
    assert ledger.parties["a"].granted == frozenset(range(each, 2 * each))


def test_processes_get_their_cores_whichever_they_may_use_and_no_core_is_lost():
    rng = random.Random(5)
    for _ in range(400):
        cores = rng.randint(2, 6)
        ledger = Ledger(Machine.uniform("m", cores, group_size=rng.choice([None, 2])))
        for step in range(rng.randint(2, 12)):
            name = f"p{rng.randrange(cores + 1)}"
            may = frozenset(rng.sample(range(cores), rng.randint(1, cores))) if rng.random() < 0.5 else None
            if name not in ledger.parties:
                ledger.join(name, Claim(), rng.sample(range(cores), rng.randint(0, 1)), step, allowed=may)
            elif rng.random() < 0.2:
                ledger.leave(name, step)
            else:
                ledger.set_bounds(name, 1, None, step, allowed=may)
            while obey(ledger):
                pass
        for party in ledger.parties.values():
            assert party.granted == set(party.target)
        used = frozenset().union(*(party.granted for party in ledger.parties.values()))
        for core in set(range(cores)) - used:
            assert all(core not in (party.allowed or range(cores)) for party in ledger.parties.values())


def test_processes_that_come_back_after_an_arbiter_died_keep_what_they_have():
    ledger = Ledger(Machine.uniform("four", 4))
    ledger.join("a", Claim(), (2, 3), 0)
    ledger.join("b", Claim(), (0, 1), 0)
    assert ledger.orders() == {}
    assert ledger.parties["a"].target == (2, 3)


@pytest.mark.parametrize("first", ["lender", "borrower"])
def test_what_was_lent_when_an_arbiter_died_is_one_process_s_again(first):
    ledger, used = Ledger(Machine.uniform("two", 2)), {"lender": {1}, "borrower": {0, 1}}
    for name in sorted(used, key=lambda name: name != first):
        ledger.join(name, Claim(), used[name], 0)
    while orders := ledger.orders():
        for name, order in orders.items():
            used[name] = set(order.cores)
            ledger.confirm(name, order.number, order.cores)
    assert used["lender"] | used["borrower"] == {0, 1}
    assert not used["lender"] & used["borrower"]


def test_rates_are_of_one_number_of_cores_and_another_phase_forgets_the_others():
    rates = StepRates()
    rates.resized(2, 0.0)
    for i in range(20):
        rates.report(10.0 * i, SETTLE_S + i)
    assert rates.by_cores == {2: pytest.approx(10.0)}
    rates.resized(1, 20.0)
    for i in range(20):
        rates.report(200 + 6.0 * i, 20 + SETTLE_S + (WINDOW_S + 0.1) * i)
    assert rates.by_cores[1] == pytest.approx(6.0 / (WINDOW_S + 0.1))
    assert rates.by_cores[2] == pytest.approx(10.0)
    for i in range(20):
        rates.report(400 + 100.0 * i, 60 + (WINDOW_S + 0.1) * i)
    assert set(rates.by_cores) == {1}


def run(ledger, speeds, seconds):
    """Simulated seconds in which processes make as many steps as they have cores for; the cores that they have then."""
    steps, held = dict.fromkeys(speeds, 0.0), {}
    for tick in range(round(seconds * 10)):
        ledger.explore(tick / 10)
        while ordered := ledger.orders():
            for name, order in ordered.items():
                held[name] = len(order.cores)
                ledger.confirm(name, order.number, order.cores)
        for name, speed in speeds.items():
            steps[name] += speed(held[name]) / 10
            ledger.report(name, steps[name], tick / 10)
    return held


def test_a_process_alone_on_many_cores_learns_that_fewer_serve_it_better():
    ledger = Ledger(Machine.uniform("m", 32))
    ledger.join("alone", Claim(), (), 0.0)
    held = run(ledger, {"alone": lambda cores: 30 * cores / (1 + (cores / 9) ** 2)}, 60.0)
    assert 6 <= held["alone"] <= 13


def test_what_is_learnt_of_some_divisions_serves_for_others_and_trials_end():
    ledger = Ledger(Machine.uniform("m", 64))
    speeds = {"scales": lambda cores: 5.0 * cores, "soon full": lambda cores: 20.0 * min(cores, 6)}
    for name in speeds:
        ledger.join(name, Claim(), (), 0.0)
    held = run(ledger, speeds, 120.0)
    assert held["soon full"] <= 10
    assert held["scales"] >= 54
    before = dict(held)
    for tick in range(1200, 1800):
        ledger.explore(tick / 10)
        assert not ledger.orders()
    assert held == before


def test_what_a_process_expects_counts_until_it_is_measured():
    ledger = Ledger(Machine.uniform("m", 4))
    for name in ("a", "b"):
        ledger.join(name, Claim(), (), 0.0)
    assert ledger.orders().keys() == {"a", "b"}
    ledger.expect("a", {1: 1.0, 2: 1.0, 3: 1.0, 4: 1.0}, 1.0)
    assert [len(ledger.parties[name].target) for name in ("a", "b")] == [1, 3]
    with pytest.raises(InvalidInput, match="progress"):
        ledger.expect("a", {1: float("nan")}, 2.0)
    for name, cores in (("a", (0,)), ("b", (1, 2, 3))):
        for order in range(1, 8):
            ledger.confirm(name, order, cores)
    held = run(ledger, {"a": lambda cores: 10.0 * cores, "b": lambda cores: 10.0 * min(cores, 2)}, 60.0)
    assert held == {"a": 2, "b": 2}, "a measured rate counts for more than an expected one"


@pytest.mark.parametrize("seed", [19, 84])
def test_no_division_is_tried_that_processes_cannot_have(seed: int) -> None:
    rng = random.Random(seed)
    cores, now_s = rng.choice([4, 6, 8]), 0.0
    ledger, names = Ledger(Machine.uniform("m", cores)), "abc"[: rng.randint(2, 3)]
    for name in names:
        allowed = None if rng.random() < 0.4 else frozenset(rng.sample(range(cores), rng.randint(1, cores - 1)))
        ledger.join(name, Claim(), (), now_s, allowed=allowed)
    speed = {name: rng.uniform(0.3, 1) for name in names}
    for _ in range(300):
        now_s += 0.5
        ledger.explore(now_s)
        for name, order in ledger.orders().items():
            ledger.confirm(name, order.number, order.cores)
        for name, party in ledger.parties.items():
            ledger.report(name, (party.steps or 0.0) + len(party.target) ** speed[name], now_s)
            assert ledger._trial is None or len(party.target) == ledger._trial[name]
