"""How long a search for backends works beside a backend's steps."""

from __future__ import annotations

from itertools import pairwise

import pytest

from threadcast.runtime.tuning.search_pace import APART, DISTURBS, SearchPace

STEPS = 5_000


def worked(*, share: float, step_s: float, idle_s: float = 0.0) -> list[bool]:
    """Whether the search works beside each of `STEPS` steps."""
    pace, now_s, found = SearchPace(), 0.0, []
    for _ in range(STEPS):
        found.append(not pace.rests)
        pace.ran(started_s=now_s, ended_s=now_s + step_s, share=share)
        now_s += step_s + idle_s
    return found


@pytest.mark.parametrize("step_s", [0.01, 0.15, 2.0])
@pytest.mark.parametrize("share", [0.01, 0.05, 0.2])
def test_steps_that_follow_each_other_lose_the_share(share: float, step_s: float) -> None:
    assert DISTURBS * sum(worked(share=share, step_s=step_s)) / STEPS == pytest.approx(share, rel=0.1)


@pytest.mark.parametrize("share", [DISTURBS, 1.0])
@pytest.mark.parametrize("step_s", [0.01, 2.0])
def test_a_search_that_may_take_so_much_does_not_rest(share: float, step_s: float) -> None:
    assert all(worked(share=share, step_s=step_s))


def test_a_search_works_for_a_while_at_a_time() -> None:
    found = worked(share=0.05, step_s=0.01)
    begins = sum(now and not before for before, now in pairwise(found))
    assert 10 < begins < sum(found) / 15


def test_a_search_need_not_rest_while_the_cores_are_idle() -> None:
    assert all(worked(share=0.05, step_s=0.01, idle_s=0.02)[APART:])


def test_one_pause_between_two_steps_ends_no_rest() -> None:
    pace, now_s = SearchPace(), 0.0
    while not pace.rests:
        pace.ran(started_s=now_s, ended_s=now_s + 0.01, share=0.05)
        now_s += 0.01
    pace.ran(started_s=now_s + 3.0, ended_s=now_s + 3.01, share=0.05)
    assert pace.rests
