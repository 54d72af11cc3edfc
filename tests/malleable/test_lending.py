"""Cores of a process that waits are others' until it works again."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from tests.malleable.processes import CORES, Running, needs_two_cores
from tests.waiting import eventually
from threadcast.core import Machine
from threadcast.malleable.activity import COMPUTES_S, LONGEST_WAIT_S, WAITS_S, Activity
from threadcast.malleable.division import Claim
from threadcast.malleable.ledger import Ledger
from threadcast.malleable.sockets import ask

EVERY_S = 0.05


class Simulated:
    """A process that is observed again and again."""

    def __init__(self) -> None:
        self.activity, self.now_s, self.cpu_s = Activity(), 0.0, 0.0

    def goes_on(self, seconds: float, share: float, state: str = "S") -> str:
        for _ in range(round(seconds / EVERY_S)):
            self.now_s += EVERY_S
            self.cpu_s += share * EVERY_S
            self.activity.observe(self.cpu_s, state, self.now_s)
        return self.activity.state


def test_a_process_computes_once_it_has_for_a_while_and_waits_once_it_has() -> None:
    process = Simulated()
    assert process.goes_on(COMPUTES_S / 2, 1.0) == "new"
    assert process.goes_on(COMPUTES_S, 1.0) == "computes"
    assert process.goes_on(WAITS_S / 2, 0.0) == "computes"
    assert process.goes_on(WAITS_S, 0.0) == "waits"
    assert process.goes_on(2 * EVERY_S, 1.0) == "new"


def test_now_and_then_a_little_work_is_none() -> None:
    assert Simulated().goes_on(5.0, 0.05) == "waits"
    assert Simulated().goes_on(5.0, 0.02, "R") == "computes", "it could run, and is left no time"
    process = Simulated()
    for _ in range(10):
        process.goes_on(EVERY_S, 1.0)
        process.goes_on(0.5, 0.0)
    assert process.activity.state == "new"


def test_one_that_keeps_on_coming_back_lends_less_and_less_often() -> None:
    process, waited = Simulated(), []
    for _ in range(8):
        process.goes_on(0.2, 1.0)
        before_s = process.now_s
        while process.goes_on(EVERY_S, 0.0) != "waits":
            pass
        waited.append(process.now_s - before_s)
    assert waited[0] < 2 * WAITS_S
    assert all(later > before - 2 * EVERY_S for before, later in pairwise(waited))
    assert waited[-1] == pytest.approx(LONGEST_WAIT_S, rel=0.1)
    process.goes_on(10 * LONGEST_WAIT_S, 0.0)
    process.goes_on(0.2, 1.0)
    assert process.goes_on(2 * WAITS_S, 0.0) == "waits"


def test_a_stopped_process_waits_at_once_and_is_back_at_once() -> None:
    process = Simulated()
    process.goes_on(1.0, 1.0)
    assert process.goes_on(EVERY_S, 0.0, "T") == "waits"
    assert process.goes_on(EVERY_S, 0.0) == "new"


def obey(ledger: Ledger) -> None:
    while orders := ledger.orders():
        for name, order in orders.items():
            ledger.confirm(name, order.number, order.cores)


def two_with_one_waiting() -> Ledger:
    ledger = Ledger(Machine.uniform("four", 4))
    for name in ("a", "b"):
        ledger.join(name, Claim(), (), 0.0)
    obey(ledger)
    ledger.set_activity("b", "waits", 1.0)
    obey(ledger)
    assert not ledger.parties["b"].lends, "nobody computes"
    ledger.set_activity("a", "computes", 1.0)
    return ledger


def test_cores_of_one_that_waits_are_used_by_one_that_computes_until_it_works_again() -> None:
    ledger = two_with_one_waiting()
    own = ledger.parties["b"].granted
    (order,) = ledger.orders().values()
    assert order.cores == (0, 1, 2, 3)
    ledger.confirm("a", order.number, order.cores)
    assert ledger.parties["b"].granted == own
    ledger.set_activity("b", "new", 9.0)
    orders = ledger.orders()
    assert orders.keys() == {"a"}, "b goes on where it was, and hears of nothing"
    assert set(orders["a"].cores) == {0, 1, 2, 3} - own


def test_steps_that_were_not_made_while_waiting_are_no_progress() -> None:
    ledger = two_with_one_waiting()
    obey(ledger)
    rates = ledger.parties["b"].rates.by_cores
    for now_s, steps in ((10.0, 0), (12.0, 20), (14.0, 40)):
        ledger.report("b", steps, now_s)
    before = dict(rates)
    ledger.set_activity("b", "new", 100.0)
    obey(ledger)
    ledger.report("b", 45, 101.0)
    assert ledger.parties["b"].rates.by_cores == before != {}
    ledger.report("b", 55, 102.5)
    assert ledger.parties["b"].rates.by_cores == {2: pytest.approx(10.0, rel=0.5)}


@needs_two_cores
def test_a_process_that_waits_for_input_lends_its_cores_until_it_works(
    start: Callable[..., Running], arbitrate: Callable[[], Callable[[], None]], tmp_path: Path
) -> None:
    arbitrate()
    path = tmp_path / "threadcast" / "arbiter.sock"
    busy, waiting = start(), start()
    assert eventually(lambda: not cpus(busy) & cpus(waiting))
    own = cpus(waiting)
    busy.now("begin")
    assert eventually(lambda: busy.uses(CORES))
    assert cpus(waiting) == own
    assert {one["process"]: one["lends"] for one in ask(path, {"who": "all"})["processes"]} == {
        busy.process.pid: False, waiting.process.pid: True
    }  # fmt: skip
    waiting.now("begin")
    assert eventually(lambda: not cpus(busy) & cpus(waiting))


@pytest.mark.system
@needs_two_cores
def test_a_stopped_process_holds_no_cores_until_it_goes_on(
    start: Callable[..., Running], arbitrate: Callable[[], Callable[[], None]]
) -> None:
    arbitrate()
    busy, stopped = start(), start()
    assert eventually(lambda: not cpus(busy) & cpus(stopped))
    for one in (busy, stopped):
        one.now("begin")
    stopped.process.send_signal(signal.SIGSTOP)
    assert eventually(lambda: busy.uses(CORES))
    stopped.process.send_signal(signal.SIGCONT)
    assert eventually(lambda: not cpus(busy) & cpus(stopped))


def cpus(one: Running) -> set[int]:
    return os.sched_getaffinity(one.process.pid)
