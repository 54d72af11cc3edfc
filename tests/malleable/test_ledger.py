"""Cores change hands in an order in which nobody ever has what another is still using."""

from __future__ import annotations

import random

import pytest

from threadcast.core import Machine
from threadcast.core.errors import InvalidInput
from threadcast.malleable.division import Claim
from threadcast.malleable.ledger import Ledger
from threadcast.malleable.step_rates import SETTLE_S, WINDOW_S, StepRates


class Process:
    """Uses what it was told, once it hears of it."""

    def __init__(self, cores=()):
        self.cores = frozenset(cores)
        self.mail = []


def deliver(ledger, processes, name):
    process = processes[name]
    if process.mail:
        order = process.mail.pop(0)
        process.cores = frozenset(order.cores)
        ledger.confirm(name, order.number, process.cores)


def send(ledger, processes):
    for name, order in ledger.orders().items():
        processes[name].mail.append(order)


@pytest.mark.parametrize("seed", range(40))
def test_no_core_is_used_twice_whatever_happens_in_whatever_order(seed):
    rng = random.Random(seed)
    ledger, processes = Ledger(Machine.uniform("m", 8, group_size=4)), {}
    for step in range(120):
        action = rng.random()
        if action < 0.25 and len(processes) < 8:
            name = f"p{step}"
            processes[name] = Process()
            may = frozenset(rng.sample(range(8), 4)) if seed % 2 and rng.random() < 0.3 else None
            ledger.join(name, Claim(rng.choice([0.5, 1, 3]), rng.randint(1, 2)), (), step, allowed=may)
        elif action < 0.4 and processes:
            name = rng.choice(list(processes))
            del processes[name]
            ledger.leave(name, step)
        elif processes:
            deliver(ledger, processes, rng.choice(list(processes)))
        send(ledger, processes)
        used = [core for process in processes.values() for core in process.cores]
        assert len(set(used)) == len(used), f"step {step}: {used}"
    for _ in range(20):
        for name in processes:
            while processes[name].mail:
                deliver(ledger, processes, name)
            send(ledger, processes)
    targets = {name: set(ledger.parties[name].target) for name in processes}
    for name, process in processes.items():
        others = set[int]().union(*(target for other, target in targets.items() if other != name))
        assert targets[name] - others <= process.cores <= targets[name]
        assert process.cores <= (ledger.parties[name].allowed or process.cores)
    if processes and all(ledger.parties[name].allowed is None for name in processes):
        assert sum(len(process.cores) for process in processes.values()) == 8, "no core is lost"


def test_a_core_that_only_one_may_use_is_given_up_by_the_other():
    ledger = Ledger(Machine.uniform("two", 2))
    ledger.join("a", Claim(), (), 0)
    assert obey(ledger) == {"a": (0, 1)}
    ledger.join("b", Claim(), (), 1, allowed=frozenset({0}))
    assert obey(ledger) == {"a": (1,)}
    assert obey(ledger) == {"b": (0,)}
    ledger.set_bounds("b", 1, 1, 2, allowed=frozenset({1}))
    assert ledger.parties["b"].target == (1,)
    assert ledger.parties["a"].target == (0,)


def test_processes_that_may_use_the_same_core_only_share_it():
    ledger = Ledger(Machine.uniform("six", 6))
    for name in ("a", "b"):
        ledger.join(name, Claim(), (), 0, allowed=frozenset({0}))
    assert obey(ledger) == {"a": (0,), "b": (0,)}
    ledger.join("c", Claim(), (), 1)
    assert set(obey(ledger)["c"]) <= {1, 2, 3, 4, 5}


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


def test_one_alone_has_all_again_once_the_other_has_gone():
    ledger = Ledger(Machine.uniform("two", 2))
    ledger.join("a", Claim(), (), 0)
    assert obey(ledger) == {"a": (0, 1)}
    ledger.join("b", Claim(), (), 1)
    (order,) = ledger.orders().values()
    assert order.cores == (0,)
    assert ledger.orders() == {}, "b waits until a has let go"
    ledger.confirm("a", order.number, (0,))
    assert obey(ledger) == {"b": (1,)}
    ledger.leave("b", 2)
    assert obey(ledger) == {"a": (0, 1)}


def test_what_confirms_an_earlier_order_gives_nothing_of_a_later_one_away():
    ledger = Ledger(Machine.uniform("two", 2))
    ledger.join("a", Claim(), (), 0)
    (first,) = ledger.orders().values()
    ledger.join("b", Claim(), (), 1)
    (second,) = ledger.orders().values()
    ledger.leave("b", 2)
    (third,) = ledger.orders().values()
    ledger.confirm("a", second.number, second.cores)
    assert (first.cores, second.cores, third.cores) == ((0, 1), (0,), (0, 1))
    assert ledger.parties["a"].granted == {0, 1}
    ledger.confirm("a", 99, ())
    assert ledger.parties["a"].granted == {0, 1}


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


def test_cores_go_where_steps_are_made():
    ledger = Ledger(Machine.uniform("eight", 8))
    ledger.join("scales", Claim(), (), 0.0)
    ledger.join("does not", Claim(), (), 0.0)
    now_s, steps = 0.0, {"scales": 0.0, "does not": 0.0}
    for _ in range(400):
        now_s += 0.25
        obey(ledger)
        for name, party in ledger.parties.items():
            rate = 10.0 if name == "does not" else 10.0 * len(party.target)
            steps[name] += 0.25 * rate
            ledger.report(name, steps[name], now_s)
        ledger.explore(now_s)
    counts = {name: len(party.target) for name, party in ledger.parties.items()}
    assert counts["does not"] <= 2
    assert counts["scales"] >= 6


def test_more_processes_than_cores_all_run():
    ledger = Ledger(Machine.uniform("two", 2))
    for name in "abc":
        ledger.join(name, Claim(), (), 0)
    for _ in range(5):
        obey(ledger)
    assert all(len(ledger.parties[name].granted) == 1 for name in "abc")


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


@pytest.mark.parametrize("seed", [19, 30, 84, 86])
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
