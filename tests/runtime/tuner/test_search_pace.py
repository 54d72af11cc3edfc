"""How long a search for backends works beside the steps of a caller."""

from __future__ import annotations

from itertools import pairwise

import pytest

from threadcast.runtime.tuning.search_pace import APART, BURST_S, DISTURBS, ENOUGH, SearchPace

STEPS = 5_000


class World:
    """Steps that take `step_s` seconds, and lose the share `lose` of their time where a search works beside them."""

    def __init__(self, *, share: float, step_s: float, lose: float = DISTURBS, idle_s: float = 0.0) -> None:
        self.pace, self.now_s = SearchPace(), 0.0
        self.share, self.step_s, self.lose, self.idle_s = share, step_s, lose, idle_s
        self.lost_s = 0.0

    def run(self, steps: int = STEPS, *, by: str | None = "a plan") -> list[bool]:
        """Whether the search works beside each of so many steps."""
        found = []
        for _ in range(steps):
            found.append(beside := not self.pace.rests)
            seconds = self.step_s / (1 - self.lose) if beside else self.step_s
            self.lost_s += seconds - self.step_s
            self.pace.ran(
                started_s=self.now_s, ended_s=self.now_s + seconds, share=self.share, by=by, beside=beside
            )  # fmt: skip
            self.now_s += seconds + self.idle_s
        return found


@pytest.mark.parametrize("lose", [0.1, 0.25, 0.5, 0.8])
@pytest.mark.parametrize("step_s", [0.01, 0.15, 2.0])
@pytest.mark.parametrize("share", [0.01, 0.05])
def test_steps_that_follow_each_other_lose_the_share(share: float, step_s: float, lose: float) -> None:
    world = World(share=share, step_s=step_s, lose=lose)
    world.run(1_000)  # until it is known what they lose
    began_s, before_s = world.now_s, world.lost_s
    world.run()
    lost_s = world.lost_s - before_s
    burst_s = lose * (BURST_S + 2 * step_s / (1 - lose))
    assert lost_s == pytest.approx(share * (world.now_s - began_s), rel=0.1, abs=burst_s)


@pytest.mark.parametrize("share", [DISTURBS, 1.0])
@pytest.mark.parametrize("step_s", [0.01, 2.0])
def test_a_search_that_may_take_so_much_does_not_rest(share: float, step_s: float) -> None:
    assert all(World(share=share, step_s=step_s).run())


def test_a_search_that_disturbs_nothing_soon_rests_no_more() -> None:
    world = World(share=0.05, step_s=0.01, lose=0.03)
    assert not all(world.run(300))
    assert all(world.run())


def test_what_steps_lose_is_measured_anew_for_what_runs_them_next() -> None:
    world = World(share=0.05, step_s=0.01, lose=0.25)
    world.run()
    assert world.pace.disturbs == pytest.approx(0.25)
    world.step_s, world.lose = 0.1, 0.8
    world.run(ENOUGH, by="a backend")
    assert world.pace.disturbs == DISTURBS, "it is not known"
    world.run(by="a backend")
    assert world.pace.disturbs == pytest.approx(0.8)


def test_a_search_that_might_take_any_time_rests_as_soon_as_that_ends() -> None:
    world = World(share=1.0, step_s=0.3)
    assert all(world.run(50))
    world.share = 0.05
    assert world.run(6) == [True] + [False] * 5


def test_steps_that_cannot_be_compared_tell_nothing() -> None:
    world = World(share=0.05, step_s=0.01, lose=0.1)
    world.run(by=None)
    assert world.pace.disturbs == DISTURBS


def test_a_search_works_for_a_while_at_a_time() -> None:
    found = World(share=0.05, step_s=0.01).run()
    begins = sum(now and not before for before, now in pairwise(found))
    assert 10 < begins < sum(found) / 8


def test_a_search_need_not_rest_while_the_cores_are_idle() -> None:
    assert all(World(share=0.05, step_s=0.01, idle_s=0.03).run()[APART:])


def test_one_pause_between_two_steps_ends_no_rest() -> None:
    world = World(share=0.05, step_s=0.01)
    while not world.pace.rests:
        world.run(1)
    world.now_s += 3.0
    assert world.run(2) == [False, False]
