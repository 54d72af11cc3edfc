"""What processes that are not attached use is left to them, as to one more process, and comes back when they go."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.malleable.processes import CORES, needs_two_cores
from tests.malleable.test_exec import Kept, keep, masks, needs_cc, program
from tests.waiting import eventually
from threadcast.core import Machine, read_machine
from threadcast.malleable.division import Claim
from threadcast.malleable.ledger import Ledger
from threadcast.malleable.outsiders import Outsiders
from threadcast.malleable.sockets import ask
from threadcast.malleable.steady_cores import FALLS_S, WINDOW_S, SteadyCores

__all__ = ["keep", "program"]
EVERY_S = 0.5


class Shared:
    """A ledger of some processes, told every half second what others use and what the processes want."""

    def __init__(self, cores: int, **claims: Claim) -> None:
        self.ledger, self.now_s = Ledger(Machine.uniform("m", cores)), 0.0
        for name, claim in claims.items():
            self.ledger.join(name, claim, (), 0.0)

    def goes_on(
        self, used: float, seconds: float = FALLS_S + WINDOW_S, pinned: tuple[int, ...] = (), **want: float
    ) -> None:
        for _ in range(round(seconds / EVERY_S)):
            self.now_s += EVERY_S
            self.ledger.leave_to_others(used, self.now_s, lambda: pinned)
            for name, threads in want.items():
                self.ledger.set_demand(name, threads, self.now_s)

    @property
    def counts(self) -> list[int]:
        return [len(party.target) for party in self.ledger.parties.values()]


@pytest.mark.parametrize(
    ("used", "cores"), [(0.0, 8), (0.25, 8), (0.6, 7), (1.0, 7), (2.1, 6), (4.0, 4), (8.0, 4)], ids=str
)
def test_others_are_one_more_process(used: float, cores: int) -> None:
    shared = Shared(8, one=Claim())
    shared.goes_on(used)
    assert shared.counts == [cores]
    shared.goes_on(0.0)
    assert shared.counts == [8]
    of_three = Shared(9, a=Claim(), b=Claim())
    of_three.goes_on(9.0)
    assert of_three.counts == [3, 3]


@pytest.mark.parametrize(
    ("machine", "claims"),
    [(8, [Claim(least=8)]), (4, [Claim(least=2)] * 2), (2, [Claim()] * 2), (1, [Claim()])],
    ids=str,
)
def test_nobody_gets_fewer_than_its_least_or_shares_a_core_for_others(machine: int, claims: list[Claim]) -> None:
    shared = Shared(machine, **{f"p{i}": claim for i, claim in enumerate(claims)})
    before = shared.counts
    shared.goes_on(float(machine))
    assert shared.counts == before
    assert shared.ledger.left == 0


@pytest.mark.parametrize(("burst_s", "counts"), [(WINDOW_S / 2, [8]), (3.0, [4]), (FALLS_S - 1, [4])], ids=str)
def test_what_comes_and_goes_moves_cores_once_at_most(burst_s: float, counts: list[int]) -> None:
    shared = Shared(8, one=Claim())
    for _ in range(10):
        shared.goes_on(4.0, burst_s)
        assert shared.counts == counts
        shared.goes_on(0.0, burst_s)
        assert shared.counts == counts


def test_equal_programs_share_equally_what_others_leave_them() -> None:
    rates = {cores: cores**0.8 for cores in range(1, 9)}
    shared = Shared(8, a=Claim(most=1, progress=rates), b=Claim(progress=rates))
    shared.goes_on(3.0)
    assert shared.counts == [1, 4]
    shared.ledger.set_bounds("a", 1, None, shared.now_s)
    assert sorted(shared.counts) == [2, 3]


def test_cores_that_nobody_needs_are_shared_equally_and_stay() -> None:
    shared = Shared(8, a=Claim(), b=Claim(), heavy=Claim(weight=2))
    for _ in range(3):
        shared.goes_on(0.0, a=1.0, b=1.0, heavy=1.0)
        assert shared.counts == [2, 2, 4]
        shared.goes_on(0.0, a=2.0, b=2.0, heavy=4.0)
        assert shared.counts == [2, 2, 4]
    shared.ledger.leave("heavy", shared.now_s)
    for wide in (8.0, 1.0):
        shared.goes_on(0.0, a=wide, b=wide)
        assert shared.counts == [4, 4]


def test_a_steady_number_changes_only_where_readings_agree() -> None:
    steady = SteadyCores()
    readings = [3.0] * 5 + [3.0, 5.0, 4.4] * 5 + [2.0] * 21
    seen = [steady.observe(used, i * EVERY_S) for i, used in enumerate(readings)]
    assert seen == [0] * 4 + [3] * 36 + [2]


def test_cores_to_which_others_are_pinned_are_left_to_them() -> None:
    shared = Shared(4, one=Claim())
    shared.goes_on(2.0, pinned=(0, 1))
    assert shared.ledger.parties["one"].target == (2, 3)


def test_a_program_gets_the_cores_that_its_threads_can_use_and_more_only_where_nobody_else_can() -> None:
    shared = Shared(8, narrow=Claim(), wide=Claim())
    shared.goes_on(0.0, narrow=1.0, wide=8.0)
    assert shared.counts == [1, 7]
    shared.goes_on(0.0, narrow=8.0, wide=8.0)
    assert shared.counts == [4, 4]
    shared.ledger.leave("wide", shared.now_s)
    assert shared.counts == [8]


@pytest.mark.system
@needs_cc
@needs_two_cores
def test_a_real_program_beside_makes_room_for_itself_and_its_own_does_not(
    keep: Callable[..., Kept], arbitrate: Callable[..., Callable[[], None]], tmp_path: Path
) -> None:
    machine = read_machine()
    own: list[float] = []

    class Told(Outsiders):
        def used(self, own_s: float, now_s: float) -> float | None:
            own.append(own_s)
            return None if super().used(own_s, now_s) is None else float(outside)

    outside = 0
    arbitrate(outsiders=Told(machine))
    one = keep()
    for _ in range(CORES):
        one.do("w")
    path = tmp_path / "threadcast" / "arbiter.sock"
    assert eventually(lambda: (ask(path, {"who": "all"})["processes"][0]["threads"] or 0) > CORES - 0.5)
    assert eventually(lambda: own[-1] > 0.2), "its own time is not others'"
    outside = CORES
    assert eventually(lambda: ask(path, {"who": "all"})["left"] == max(CORES // 2, 1))
    assert eventually(lambda: len(next(iter(masks(one.pid)))) < len(machine.cores) * machine.threads_per_core)
