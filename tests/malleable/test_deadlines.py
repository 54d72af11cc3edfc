"""Work that is to be done by a time gets the fewest cores with which it is, and harms nobody's minimum."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import chain, combinations, product
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import threadcast
from tests.cli.commands import invoke
from tests.malleable.processes import line, running
from tests.waiting import eventually
from threadcast.core import Machine
from threadcast.core.errors import InvalidInput
from threadcast.malleable.deadline import SPARE, Deadline
from threadcast.malleable.division import Claim, divide, floors, in_time
from threadcast.malleable.ledger import REST_S, Ledger
from threadcast.malleable.sockets import ask, connect


@st.composite
def claimed(draw: st.DrawFn) -> tuple[dict[str, Claim], int]:
    cores = draw(st.integers(3, 8))
    claims = {}
    for i in range(draw(st.integers(1, min(4, cores - 1)))):
        rates = draw(st.lists(st.integers(1, 20), min_size=cores, max_size=cores))
        least = draw(st.integers(1, 3))
        most = draw(st.none() | st.integers(least, 8))
        progress = dict(enumerate(map(float, rates), start=1)) if draw(st.integers(0, 5)) else {}
        claims[str(i)] = Claim(draw(st.integers(1, 3)), least, most, progress, draw(st.integers(0, 24)))
    return claims, cores


def meets(claim: Claim, count: int) -> bool:
    return bool(claim.needs_per_s and claim.progress and claim.progress[count] >= claim.needs_per_s)


def subsets(names: list[str]) -> list[tuple[str, ...]]:
    return list(chain.from_iterable(combinations(names, size) for size in range(len(names) + 1)))


@given(claimed())
@settings(max_examples=150, deadline=None)
def test_the_greatest_weight_of_deadlines_is_met_in_the_fewest_cores(asked: tuple[dict[str, Claim], int]) -> None:
    claims, cores = asked
    least = {name: min(claim.least, cores) for name, claim in claims.items()}
    found = floors(claims, cores)
    if sum(least.values()) > cores:
        assert set(found.values()) == {1}
        return
    assert all(found[name] >= least[name] for name in claims), "nobody gets less than its minimum"
    assert sum(found.values()) <= cores
    wanting = [name for name, claim in claims.items() if claim.needs_per_s and claim.progress]
    possible = []
    for chosen in subsets(wanting):
        counts = dict(least)
        for name in chosen:
            allowed = range(least[name], min(claims[name].most or cores, cores) + 1)
            fewest = [count for count in range(1, allowed.stop) if meets(claims[name], count)][:1]
            counts[name] = max(least[name], *fewest) if fewest else cores + 1
        if sum(counts.values()) <= cores:
            possible.append((sum(claims[name].weight for name in chosen), -sum(counts.values())))
    met = [name for name in wanting if found[name] >= (claims[name].fewest(cores) or math.inf)]
    assert (sum(claims[name].weight for name in met), -sum(found.values())) == max(possible)


@given(claimed())
@settings(max_examples=150, deadline=None)
def test_above_the_deadlines_no_division_is_better(asked: tuple[dict[str, Claim], int]) -> None:
    claims, cores = asked
    found, least = divide(claims, cores), floors(claims, cores)
    worth = {name: claim.worth(cores) for name, claim in claims.items()}
    bounds = [range(least[name], min(claim.most or cores, cores) + 1) for name, claim in claims.items()]
    best = max(
        sum(float(worth[name][count]) for name, count in zip(claims, division, strict=True))
        for division in product(*bounds)
        if sum(division) <= cores
    )
    assert sum(found.values()) <= cores
    assert all(found[name] >= least[name] for name in claims)
    assert sum(float(worth[name][count]) for name, count in found.items()) == pytest.approx(best)


def test_a_process_in_a_hurry_gets_what_it_needs_and_others_the_rest() -> None:
    linear = {count: float(count) for count in (1, 2, 4, 8)}
    claims = {"hurries": Claim(weight=0.01, progress=linear, needs_per_s=5.0), "other": Claim(progress=linear)}
    assert divide(claims, 8) == {"hurries": 5, "other": 3}
    assert divide(claims, 8, {"hurries": 1, "other": 7}) == {"hurries": 5, "other": 3}
    assert in_time(claims, {"hurries": 5, "other": 3}) == {"hurries": True}
    assert in_time(claims, {"hurries": 4, "other": 4}) == {"hurries": False}


def test_a_deadline_is_counted_down_from_the_first_report() -> None:
    deadline = Deadline.within(100, 10, 5.0)
    assert deadline.needs_per_s(None, 5.0) == pytest.approx((1 + SPARE) * 10)
    assert deadline.left(1000) == 100, "it is not known yet where the count began"
    deadline = Deadline.within(100, 10, 5.0, since=1000)
    assert deadline.left(1060) == 40
    assert deadline.left(None) == deadline.left(3) == 100, "a count that begins anew takes nothing off"
    assert deadline.needs_per_s(1060, 13.0) == pytest.approx((1 + SPARE) * 20)
    assert deadline.needs_per_s(1060, 15.0) == math.inf
    assert deadline.needs_per_s(1200, 99.0) == 0


def test_a_deadline_that_is_dropped_while_its_process_lends_is_forgotten() -> None:
    ledger = Ledger(Machine.uniform("m", 4))
    for name in ("waits", "computes"):
        ledger.join(name, Claim(progress={1: 1.0}), (), 0.0)
    ledger.set_deadline("waits", Deadline.within(1, 100.0, 0.0), 0.0)
    assert ledger.parties["waits"].on_time is True
    for name in ("waits", "computes"):
        ledger.set_activity(name, "waits" if name == "waits" else "computes", 1.0)
    assert ledger.parties["waits"].lends
    ledger.set_deadline("waits", None, 2.0)
    assert ledger.parties["waits"].on_time is None


@pytest.mark.parametrize("wrong", [(0, 1), (1, 0), (math.nan, 1), (1, math.nan), (math.inf, 1), (1, 1e10)])
def test_what_is_no_deadline_is_refused(wrong: tuple[float, float]) -> None:
    with pytest.raises(InvalidInput, match="deadline"):
        Deadline.within(*wrong, 0.0)


def obey(ledger: Ledger) -> None:
    while orders := ledger.orders():
        for name, order in orders.items():
            ledger.confirm(name, order.number, order.cores)


def counts(ledger: Ledger) -> dict[str, int]:
    return {name: len(party.granted) for name, party in ledger.parties.items()}


def test_a_process_that_falls_behind_gets_more_cores_and_is_told() -> None:
    ledger = Ledger(Machine.uniform("m", 8))
    linear = {count: float(count) for count in range(1, 9)}
    ledger.join("slow", Claim(progress=linear), (), 0.0)
    ledger.join("other", Claim(2.0, progress=linear), (), 0.0)
    ledger.set_deadline("slow", Deadline.within(100, 25.0, 0.0), 0.0)
    obey(ledger)
    assert counts(ledger) == {"slow": 5, "other": 3}
    assert ledger.parties["slow"].on_time is True
    ledger.report("slow", 0, 0.0)
    ledger.report("slow", 1, 5.0)
    ledger.explore(5.0 + REST_S)
    obey(ledger)
    assert counts(ledger) == {"slow": 6, "other": 2}
    ledger.explore(20.0)
    assert ledger.parties["slow"].on_time is False
    obey(ledger)
    assert counts(ledger)["other"] >= 1
    ledger.report("slow", 100, 24.0)
    ledger.explore(30.0)
    assert ledger.parties["slow"].on_time is True
    ledger.set_deadline("slow", None, 31.0)
    assert ledger.parties["slow"].on_time is None
    assert ledger.parties["other"].on_time is None


def test_trials_take_nothing_from_who_needs_it() -> None:
    ledger = Ledger(Machine.uniform("m", 4))
    for name in ("hurries", "other"):
        ledger.join(name, Claim(), (), 0.0)
    ledger.set_deadline("hurries", Deadline.within(20_000, 1000.0, 0.0), 0.0)
    steps, had = 0.0, set()
    for tick in range(600):
        now_s = tick / 10
        ledger.explore(now_s)
        obey(ledger)
        for name, party in ledger.parties.items():
            ledger.report(name, steps * (1 + (name == "hurries")), now_s)
            if name == "hurries" and tick > 100:
                had.add(len(party.target))
        steps += 1.0 * len(ledger.parties["hurries"].target) / 2
    assert min(had) >= 2


def test_more_processes_than_cores_cannot_promise_anything() -> None:
    ledger = Ledger(Machine.uniform("m", 1))
    for name in ("a", "b"):
        ledger.join(name, Claim(progress={1: 10.0}), (), 0.0)
    ledger.set_deadline("a", Deadline.within(1, 100, 0.0), 0.0)
    assert ledger.parties["a"].on_time is False


def test_a_deadline_is_judged_by_the_cores_that_a_process_may_use() -> None:
    """It needs three cores and may use two of the eight."""
    ledger = Ledger(Machine.uniform("m", 8))
    linear = {count: float(count) for count in range(1, 9)}
    ledger.join("bound", Claim(progress=linear), (), 0.0, allowed=frozenset({0, 1}))
    ledger.join("free", Claim(progress=linear), (), 0.0)
    ledger.set_deadline("bound", Deadline.within(25, 10.0, 0.0), 0.0)
    obey(ledger)
    assert counts(ledger) == {"bound": 2, "free": 6}, "no core is left unused"
    assert ledger.parties["bound"].on_time is False
    ledger.set_deadline("bound", Deadline.within(15, 10.0, 0.0), 0.0)
    assert ledger.parties["bound"].on_time is True


@pytest.mark.parametrize("first", ["hurries", "other"])
def test_on_a_core_that_another_process_uses_no_deadline_is_promised(first: str) -> None:
    """Both may use the same two cores only, and each could use both; five more cores are there for others."""
    ledger = Ledger(Machine.uniform("m", 7))
    for name in sorted(("hurries", "other"), key=lambda name: name != first):
        ledger.join(name, Claim(progress={1: 1.0, 2: 2.0}), (), 0.0, allowed=frozenset({0, 1}))
    ledger.set_deadline("hurries", Deadline.within(15, 10.0, 0.0), 0.0)
    targets = {name: set(party.target) for name, party in ledger.parties.items()}
    assert targets["hurries"] & targets["other"]
    assert ledger.parties["hurries"].on_time is False


PROGRAM = """
import sys, time
import torch, threadcast
member = threadcast.attach(deadline=(10.0**12, 20.0))
optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
while member.on_time is None:
    optimizer.step()
print(member.on_time, flush=True)
member.finish(1, 1000.0)
while member.on_time is not True:
    optimizer.step()
optimizer.step()
print(member.on_time, flush=True)
sys.stdin.readline()
"""


def test_a_process_hears_whether_it_is_in_time(arbitrate: Callable[[], Callable[[], None]], tmp_path: Path) -> None:
    arbitrate()
    path = tmp_path / "threadcast" / "arbiter.sock"
    with running(PROGRAM) as one:
        assert line(one) == "False"
        assert line(one) == "True"
        assert eventually(lambda: ask(path, {"who": "all"})["processes"][0]["deadline"]["steps"] == 0)
        assert "done" in invoke("top", "--once").output


@pytest.mark.parametrize("wrong", ["3", '{"steps": 1}', '{"steps": 0, "in_s": 1}', '{"steps": 1, "in_s": "x"}'])
def test_an_arbiter_refuses_what_is_no_deadline(
    arbitrate: Callable[[], Callable[[], None]], tmp_path: Path, wrong: str
) -> None:
    arbitrate()
    with connect(tmp_path / "threadcast" / "arbiter.sock") as rude:
        rude.sendall(f'{{"join": {{"holds": [], "deadline": {wrong}}}}}\n'.encode())
        assert b"error" in rude.recv(1000)


def test_half_a_deadline_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    told = invoke("exec", "--deadline-s", "5", "--", "true")
    assert told.exit_code != 0
    assert "give both" in told.output
    monkeypatch.setenv("THREADCAST_MALLEABLE_DEADLINE_S", "5")
    with pytest.raises(InvalidInput, match="set both"):
        threadcast.attach()
