"""The guard keeps what is faster, step by neighbouring step."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from threadcast.core.errors import InvalidInput
from threadcast.runtime.tuner.guard import LONG_PAIRS, LONG_S, Guard, Verdict, judge


@pytest.mark.parametrize(
    ("default_s", "planned_s", "gain", "kept", "shown"),
    [
        ([2.0] * 3, [1.0] * 3, 2.0, "plan", True),
        ([1.0] * 3, [1.0] * 3, 1.0, "default", False),
        ([2.0, 2.0, 2.0, 20.0, 20.0], [1.5, 1.5, 1.5, 15.0, 15.0], 4 / 3, "plan", True),  # both have become slower
        ([2.0] * 4 + [0.1] + [2.0] * 4, [1.0] * 9, 2.0, "plan", True),  # one pair was disturbed
        ([2.0, 2.0, 0.9, 2.0], [1.0] * 4, 2.0, "default", False),  # of few
        ([1.0] * 6, [2.0] * 6, 0.5, "default", True),
    ],
)
def test_what_is_faster_beyond_doubt_is_kept(
    default_s: list[float], planned_s: list[float], gain: float, kept: str, shown: bool
) -> None:
    verdict = judge(default_s, planned_s)
    assert (verdict.gain, verdict.kept, verdict.shown) == (pytest.approx(gain), kept, shown)


@given(st.lists(st.tuples(st.floats(1e-6, 1e3), st.floats(1e-6, 1e3)), min_size=3))
def test_the_interval_encloses_the_gain_and_the_plan_must_lie_above_one(pairs: list[tuple[float, float]]) -> None:
    verdict = judge([d for d, _ in pairs], [p for _, p in pairs])
    assert verdict.low <= verdict.gain <= verdict.high
    assert (verdict.kept == "plan") == (verdict.low > 1.0)


def test_the_interval_holds_the_true_median_19_times_of_20() -> None:
    rng = np.random.default_rng(0)
    for n in (6, 9, 15, 30):
        found = [judge(sample, np.ones(n)) for sample in rng.lognormal(sigma=0.3, size=(2000, n))]
        assert sum(v.low <= 1.0 <= v.high for v in found) / len(found) > 0.945


@pytest.mark.parametrize(
    ("default", "planned"),
    [
        ([1.0] * 3, [1.0] * 2),
        ([1.0] * 2, [1.0] * 2),
        ([1.0, 1.0, 0.0], [1.0] * 3),
        ([1.0] * 3, [1.0, 1.0, float("nan")]),
    ],
)
def test_too_few_or_impossible_times_are_refused(default: list[float], planned: list[float]) -> None:
    with pytest.raises(InvalidInput):
        judge(default, planned)


class World:
    """A default and a plan that each take their own time on a clock of their own, run as a guard says."""

    def __init__(self, default_s: Callable[[int], float], planned_s: Callable[[int], float]) -> None:
        self.now_s = 0.0
        self.ran: list[str] = []
        self._times = {"default": default_s, "plan": planned_s}

    def run(self, guard: Guard, steps: int) -> None:
        """Run so many steps."""
        for _ in range(steps):
            started_s, runner = self.now_s, guard.next_runner()
            self._step(runner)
            guard.observe(started_s=started_s, seconds=self.now_s - started_s)

    def run_to_verdict(self) -> Verdict:
        """Run until it is clear which is faster."""
        guard = Guard()
        while guard.verdict is None:
            assert len(self.ran) < 10_000
            self.run(guard, 1)
        return guard.verdict

    def _step(self, name: str) -> None:
        self.now_s += self._times[name](len(self.ran))
        self.ran.append(name)


def test_every_step_is_run_once_and_the_faster_one_for_good() -> None:
    for default_s, planned_s, kept, pairs in [
        (0.02, 0.01, "plan", 6), (0.01, 0.011, "default", 6), (0.01, 0.02, "default", 3),
    ]:  # fmt: skip
        world, guard = World(lambda step, s=default_s: s, lambda step, s=planned_s: s), Guard()
        world.run(guard, 60)
        assert guard.verdict is not None
        assert (guard.verdict.kept, guard.verdict.pairs) == (kept, pairs)
        steps = world.ran
        assert len(steps) == 60
        assert set(steps[-20:]) == {kept}


@pytest.mark.parametrize(("planned_s", "most"), [(0.6e-3, 170), (1e-3, 330), (1.6e-3, 80)])
def test_some_hundred_calls_of_a_millisecond_decide(planned_s: float, most: int) -> None:
    """Of short processes many would end before rows of 50 ms were compared, and nothing would ever be known."""
    world = World(lambda _: 1e-3, lambda _: planned_s)
    world.run_to_verdict()
    assert len(world.ran) <= most


def test_a_step_after_a_change_is_not_timed() -> None:
    world = World(lambda step: 1.0, lambda step: 1.0)
    changes = {"default": 50.0, "plan": 0.0}

    def slow_after_change(name: str) -> Callable[[int], float]:
        return lambda step: 1.0 if world.ran and world.ran[-1] == name else 1.0 + changes[name]

    world._times.update(default=slow_after_change("default"), plan=slow_after_change("plan"))
    assert world.run_to_verdict().gain == 1.0


def test_short_steps_are_timed_once_the_other_has_come_to_rest_and_enough_of_them() -> None:
    world = World(lambda step: 1e-3, lambda step: 1e-3)
    since: dict[str, float] = {}

    def slow_beside_the_other(name: str, other: str) -> Callable[[int], float]:
        def seconds(step: int) -> float:
            spinning = other in since and world.now_s - since[other] < 4e-3
            since[name] = world.now_s + 1e-3
            return 5e-3 if spinning and name == "plan" else 1e-3

        return seconds

    world._times.update(default=slow_beside_the_other("default", "plan"), plan=slow_beside_the_other("plan", "default"))
    assert world.run_to_verdict().gain == pytest.approx(1.0)
    ran = world.ran
    runs = [len(list(steps)) for _, steps in itertools.groupby(ran)]
    assert min(runs[:-1]) >= 6, "five milliseconds of steps that count after one or more that do not"


def test_a_disturbed_first_pair_ends_no_comparison() -> None:
    """It may show only that something else used the cores."""
    assert World(lambda step: 0.01, lambda step: 0.1 if step < 6 else 0.005).run_to_verdict().kept == "plan"


@pytest.mark.parametrize(
    ("planned_s", "kept", "pairs"),
    [(0.8, "plan", 3), (0.95, "plan", 6), (1.0, "default", 6), (1.05, "default", 6), (1.2, "default", 3)],
)
def test_long_steps_are_blocks_by_themselves_and_end_a_comparison_once_it_is_clear(
    planned_s: float, kept: str, pairs: int
) -> None:
    for scale, wanted in ((1.5 * LONG_S, pairs), (5.0, 6 if kept == "plan" and pairs == 6 else 3)):
        world = World(lambda _, s=scale: s, lambda _, s=scale: planned_s * s)
        verdict = world.run_to_verdict()
        assert (verdict.kept, verdict.pairs) == (kept, wanted), "three long pairs show that little is gained"
        ran = world.ran
        assert len(ran) == 3 * wanted + 1, "one block, one step; and one step that does not count after each change"
    two, short = (World(lambda _, s=s: s, lambda _, s=s: planned_s * s) for s in (0.7 * LONG_S, 0.4 * LONG_S))
    assert two.run_to_verdict().pairs == pairs, "two steps of each block take as long"
    assert short.run_to_verdict().pairs > 3


def test_a_long_comparison_that_shows_nothing_goes_on_while_the_plan_may_be_faster() -> None:
    for disturbed, pairs in [(0.97, 6), (0.92, LONG_PAIRS)]:
        world = World(lambda _: 0.06, lambda step, s=disturbed: 0.06 * (s if step < 5 else 1.0))
        verdict = world.run_to_verdict()
        assert (verdict.kept, verdict.pairs) == ("default", pairs)


def test_a_long_comparison_goes_on_where_one_of_three_pairs_disagrees() -> None:
    for disturbed, planned_s, kept in [(0.5, 0.8, "plan"), (3.0, 1.2, "default")]:
        world = World(lambda step, s=disturbed: s if step < 3 else 1.0, lambda _, s=planned_s: s)
        verdict = world.run_to_verdict()
        assert (verdict.kept, verdict.pairs) == (kept, LONG_PAIRS)


@pytest.mark.parametrize(
    ("step_s", "ratio", "pairs"), [(1.0, 1.02, 3), (0.2, 1.02, 5), (1e-3, 1.02, 15), (1.0, 1.2, LONG_PAIRS)]
)
def test_what_gains_little_is_not_compared_for_long(step_s: float, ratio: float, pairs: int) -> None:
    guard, factors = Guard(), (1.0, ratio, 1 / ratio)
    world = World(lambda step: step_s, lambda step: step_s * factors[len(guard._blocks["plan"]) % 3])
    while guard.verdict is None:
        world.run(guard, 1)
    assert (guard.verdict.kept, guard.verdict.pairs) == ("default", pairs)


@pytest.mark.parametrize(("ratio", "kept"), [(1.5, "plan"), (1.05, "default")])
@pytest.mark.parametrize("step_s", [1e-3, LONG_S])
def test_what_is_far_faster_in_most_pairs_is_kept_though_others_show_the_contrary(
    step_s: float, ratio: float, kept: str
) -> None:
    """As where compilers use the cores in every third pair."""
    guard = Guard()

    def planned_s(_: int) -> float:
        return step_s * (2.0 if len(guard._blocks["plan"]) % 3 == 0 else 1 / ratio)

    world = World(lambda step: step_s, planned_s)
    while guard.verdict is None:
        world.run(guard, 1)
    assert guard.verdict.kept == kept
    assert not guard.verdict.shown


def test_a_pair_that_was_broken_off_begins_once_more() -> None:
    world, guard = World(lambda step: 1.2, lambda step: 1.0), Guard()
    world.run(guard, 3)
    assert (guard.begun, guard.next_runner(), guard.step_s("plan")) == (True, "plan", None), "a first step tells little"
    guard.break_off()
    assert (guard.begun, guard.next_runner()) == (False, "default")
    world._times.update(default=lambda step: 1.0, plan=lambda step: 2.0)
    world.run(guard, 100)
    assert guard.verdict is not None
    assert (guard.verdict.gain, guard.verdict.low, guard.verdict.high) == (0.5, 0.5, 0.5), (
        "the first block is forgotten"
    )


def test_what_a_pair_takes_is_known_once_it_has_run() -> None:
    world, guard = World(lambda step: 1.0, lambda step: 2.9), Guard()
    assert (guard.step_s("plan"), guard.pair_s("plan")) == (None, 0.0)
    world.run(guard, 4)
    assert guard.pair_s("plan") == pytest.approx(5.8)
    assert guard.pair_s("default") == pytest.approx(2.0)


def test_a_steady_drift_does_not_make_one_of_them_faster() -> None:
    world = World(lambda step: 1.0 + 0.01 * step, lambda step: 1.0 + 0.01 * step)
    assert not world.run_to_verdict().shown
