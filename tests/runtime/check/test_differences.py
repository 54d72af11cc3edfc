"""What counts as a difference between eager's values and a plan's."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from threadcast.runtime.check import sensitivity
from threadcast.runtime.check.differences import first_beyond_rounding, first_difference, value_difference
from threadcast.runtime.check.limits import largest_of_groups
from threadcast.runtime.check.sensitivity import (
    REORDERED,
    EagerRun,
    Enough,
    Nudge,
    Sensitivity,
    moves_alike,
    nudges_for,
    other_threads,
    sensitivities,
    surely_alike,
)
from threadcast.runtime.check.shadow import Shadowed, checked_step

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def nudged(tensor: Tensor, *, seed: int = 0, roundings: int = 1) -> Tensor:
    return sensitivity.nudged({"x": tensor}, seed=seed, roundings=roundings)["x"]


def sensitivities_of(
    eager: dict[str, Any], *changed: dict[str, Any], before: dict[str, Any] | None = None,
    starts: Sequence[dict[str, Any]] = (), reordered: dict[str, Any] | None = None,
) -> dict[str, Sensitivity]:  # fmt: skip
    """By runs on inputs changed by one rounding, from `starts`, and one with another number of threads."""
    starts = starts or [{}] * len(changed)
    runs = [EagerRun(Nudge(), values, start) for values, start in zip(changed, starts, strict=True)]
    if reordered is not None:
        runs.append(EagerRun(Nudge(1, REORDERED), reordered, before or {}))
    return sensitivities(eager, runs, before=before or {})


@pytest.mark.parametrize("dtype", FLOATS)
def test_values_one_rounding_apart_are_the_same(dtype: torch.dtype) -> None:
    value = torch.linspace(-3, 3, 50).to(dtype)
    assert not torch.equal(value, nudged(value))
    assert value_difference("x", value, nudged(value)) is None


@pytest.mark.parametrize("dtype", FLOATS)
def test_a_parameter_that_stands_still_while_eagers_moves_is_found(dtype: torch.dtype) -> None:
    before = torch.ones(32, dtype=dtype)
    after = before - 4 * torch.finfo(dtype).eps  # which is a rounding of the values themselves
    assert value_difference("weight", after, before) is None
    found = value_difference("weight", after, before, before=before)
    assert found is not None
    assert "did not move" in found.reason


def test_movements_are_compared_by_their_own_size() -> None:
    before = torch.full((8,), 100.0, dtype=torch.float64)
    found = value_difference("weight", before + 1e-3, before + 1.1e-3, before=before)
    assert found is not None
    assert found.largest == pytest.approx(1e-4)
    assert value_difference("weight", before + 1e-3, before + 1e-3 * (1 + 1e-11), before=before) is None


def test_whole_numbers_must_be_the_same() -> None:
    assert value_difference("n", torch.tensor([1, 2]), torch.tensor([1, 3])) is not None
    assert value_difference("n", torch.tensor([True]), torch.tensor([True])) is None
    assert value_difference("n", 3, 4) is not None
    assert value_difference("n", 3, 3.0) is not None
    assert value_difference("n", float("nan"), float("nan")) is None


def test_what_is_not_finite_must_be_so_in_the_same_places() -> None:
    inf, nan = float("inf"), float("nan")
    assert value_difference("x", torch.tensor([nan, inf, 1.0]), torch.tensor([nan, inf, 1.0])) is None
    assert value_difference("x", torch.tensor([nan, 1.0]), torch.tensor([1.0, nan])) is not None
    assert value_difference("x", torch.tensor([inf]), torch.tensor([-inf])) is not None


def test_other_shapes_types_and_names_are_differences() -> None:
    assert value_difference("x", torch.ones(2), torch.ones(3)) is not None
    assert value_difference("x", torch.ones(2), torch.ones(2).double()) is not None
    assert str(first_difference({"a": 1}, {})).startswith("a: eager has it")
    assert str(first_difference({}, {"b": 1})).startswith("b: the plan has it")
    assert first_difference({"a": torch.ones(2)}, {"a": torch.ones(2)}) is None


def test_complex_numbers_are_compared() -> None:
    value = torch.complex(torch.ones(4), torch.arange(4.0))
    assert value_difference("x", value, nudged(value)) is None
    assert value_difference("x", value, value.conj()) is not None


def test_a_result_may_differ_by_what_eagers_own_differs_by_after_a_rounding() -> None:
    x = torch.tensor([1.0, 1.0 + 1e-7])
    eager = {"difference": x[1:] - x[:1]}
    changed = x + torch.tensor([-1.0, 1.0]) * torch.finfo(torch.float32).eps
    allowed = sensitivities_of(eager, {"difference": changed[1:] - changed[:1]})
    plan = {"difference": torch.tensor([2.4e-7])}
    assert first_difference(eager, plan) is not None
    assert first_difference(eager, plan, sensitivity=allowed) is None
    assert first_difference(eager, {"difference": torch.tensor([0.1])}, sensitivity=allowed) is not None


def _bf16_weight(movement: float) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    before = (torch.rand(256, generator=generator) - 0.5).bfloat16()
    return before, (before + movement * torch.randn(256, generator=generator)).bfloat16()


def _sensitivity(before: torch.Tensor, after: torch.Tensor) -> dict[str, Sensitivity]:
    start = nudged(before)
    end = (start.double() + (after.double() - before.double())).bfloat16()
    return sensitivities_of({"weight": after}, {"weight": end}, before={"weight": before}, starts=[{"weight": start}])


@pytest.mark.parametrize("roundings", [1, 8])
@pytest.mark.parametrize("dtype", [*FLOATS, torch.complex64, torch.complex128])
def test_a_nudge_is_some_roundings_of_the_exact_product_up_or_down(dtype: torch.dtype, roundings: int) -> None:
    generator = torch.Generator().manual_seed(2)
    value = torch.randn(1001, generator=generator, dtype=dtype if dtype.is_complex else torch.float64).to(dtype)
    wide = value.to(torch.complex128 if dtype.is_complex else torch.float64)
    eps = roundings * torch.finfo(dtype).eps
    less, more = ((wide * (1 + sign * eps)).to(dtype) for sign in (-1, 1))
    if not dtype.is_complex:
        less, more = (one.clamp(*value.aminmax()) for one in (less, more))
    found = nudged(value, seed=5, roundings=roundings)
    assert bool(((found == less) | (found == more)).all())
    assert 400 < int((found == more).sum()) < 600
    assert torch.equal(found, nudged(value, seed=5, roundings=roundings))
    assert not torch.equal(found, nudged(value, seed=6, roundings=roundings))


@pytest.mark.parametrize("seed", range(40))
def test_asking_for_the_sensitivity_of_few_values_finds_the_same_difference(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)

    def near(value: Tensor, share: float) -> Tensor:
        return value + share * torch.randn(value.shape, generator=generator)

    names = ["a", "b", "c", "d"]
    before = {name: torch.randn(40, generator=generator) for name in names[:2]}
    eager = {name: torch.randn(40, generator=generator) for name in names} | {"number": 3}
    plan = {name: near(eager[name], 10.0 ** -int(torch.randint(3, 9, (), generator=generator))) for name in names}
    plan["number"] = 3 if seed % 5 else 4
    if seed % 7 == 0:
        plan["c"], eager["c"] = plan["c"] / 0.0, eager["c"] / 0.0
    if seed % 11 == 0:
        del plan["d"]
    if seed % 6 == 0:
        plan["further"] = 1
    changed, further = ({name: near(eager[name], share) for name in names} for share in (1e-5, 1e-4))
    starts = [{name: nudged(value, seed=seed) for name, value in before.items()} for seed in (0, 1)]
    asked: list[str] = []

    runs = [EagerRun(Nudge(), one, start) for one, start in zip((changed, further), starts, strict=True)]

    def sensitivity(names: Sequence[str], enough: Enough) -> dict[str, Sensitivity]:
        asked.extend(names)
        return sensitivities({name: eager[name] for name in names}, runs, before=before, enough=enough)

    of_all = sensitivities_of(eager, changed, further, before=before, starts=starts)
    wanted = first_difference(eager, plan, before=before, sensitivity=of_all)
    assert first_beyond_rounding(eager, plan, sensitivity, before=before) == wanted
    assert set(asked) <= {name for name in plan if name in eager}
    assert all(value_difference(name, eager[name], plan[name], before=before.get(name)) for name in asked)


@pytest.mark.parametrize("movement", [0.003, 0.01, 0.1])
def test_a_changed_start_is_not_sensitivity_of_what_moves(movement: float) -> None:
    before, after = _bf16_weight(movement)
    allowed = _sensitivity(before, after)
    found = first_difference({"weight": after}, {"weight": before}, before={"weight": before}, sensitivity=allowed)
    assert found is not None
    assert "did not move" in found.reason


@pytest.mark.parametrize("share", [0.3, -1.0])
def test_a_movement_in_another_direction_or_by_less_than_half_is_found_however_sensitive(share: float) -> None:
    before, after = _bf16_weight(0.1)
    plan = (before.double() + share * (after.double() - before.double())).bfloat16()
    wide = Sensitivity(allowed=1.0, numbers=256)
    found = value_difference("weight", after, plan, before=before, sensitivity=wide)
    assert found is not None
    assert "moved otherwise" in found.reason
    unsteady = Sensitivity(allowed=1.0, numbers=256, steady=False)
    assert value_difference("weight", after, plan, before=before, sensitivity=unsteady) is None


def test_a_movement_the_opposite_way_is_found_in_single_precision_too() -> None:
    before, movement = torch.zeros(48), torch.ones(48)
    for sign, found in ((1.0, False), (0.3, False), (-1.0, True)):
        plan = before + sign * movement
        wide = Sensitivity(allowed=40.0, numbers=48)
        assert (value_difference("bias", movement, plan, before=before, sensitivity=wide) is not None) == found


def test_what_eager_itself_moves_in_any_direction_is_not_steady() -> None:
    before, after = _bf16_weight(0.1)
    other = {"weight": before + before - after}
    values = {"weight": before}
    assert not sensitivities_of({"weight": after}, other, before=values, starts=[values])["weight"].steady


def test_numbers_that_are_not_finite_after_a_rounding_allow_nothing() -> None:
    eager, plan = {"x": torch.tensor([1.0, 2.0])}, {"x": torch.tensor([1.0, 9.0])}
    allowed = sensitivities_of(
        eager, {"x": torch.tensor([1.0, float("nan")])}, {"x": torch.tensor([1.0, float("inf")])}
    )
    assert first_difference(eager, plan, sensitivity=allowed) is not None
    infinite = {"x": torch.tensor([1.0, float("inf")])}
    allowed = sensitivities_of(infinite, eager)
    assert first_difference(infinite, eager, sensitivity=allowed) is None
    assert first_difference(infinite, {"x": torch.tensor([3.0, 2.0])}, sensitivity=allowed) is not None


def test_changed_numbers_stay_between_the_smallest_and_the_largest() -> None:
    value = torch.tensor([0.25, 1.0, 1.0, 1.0, 1.0, 0.5])
    assert float(nudged(value).max()) == 1.0
    assert not torch.equal(nudged(value), value)


def test_what_adding_in_another_order_changes_is_allowed_four_times() -> None:
    eager = {"bias": torch.tensor([1e-6, -2e-6]), "weight": torch.tensor([1.0, 2.0])}
    reordered = {"bias": torch.tensor([2e-6, 1e-6]), "weight": torch.tensor([1.0, 2.0])}
    allowed = sensitivities_of(eager, eager, reordered=reordered)
    assert allowed["bias"].allowed == pytest.approx(4 * 3e-6)
    assert allowed["weight"].allowed == 0.0


def test_a_bias_whose_gradient_is_rounding_alone_does_not_refuse_a_plan() -> None:
    torch.manual_seed(2)
    layers: list[nn.Module] = []
    for channels in (3, 32):
        layers += [nn.Conv2d(channels, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU()]
        nn.init.zeros_(layers[-3].bias)
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))
    optimizer, x, y = torch.optim.SGD(model.parameters(), 0.05), torch.randn(16, 3, 64, 64), torch.randint(10, (16,))

    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        torch.autograd.backward(loss)
        optimizer.step()
        return loss.detach()

    def plan(x: Tensor, y: Tensor) -> Tensor:
        with other_threads():
            return step(x, y)

    shadowed = Shadowed(step, lambda *_: None, model, optimizer, lambda loss: {"loss": loss})
    assert [checked_step(shadowed, plan, (x, y), None)[1] for _ in range(4)] == [None] * 4


def _masked(dtype: torch.dtype, mask: float) -> tuple[Shadowed, Tensor]:
    """Scores of 64 words, of which a quarter is masked."""
    torch.manual_seed(1)
    model, pad = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 1)).to(dtype), torch.arange(64) % 4 == 3

    def scores(x: Tensor) -> Tensor:
        with torch.no_grad():
            found: Tensor = model(x).squeeze(-1).masked_fill(pad, mask)
        return found

    return Shadowed(scores, scores, model, None, lambda found: {"scores": found}), torch.randn(8, 64, 16).to(dtype)


MASKS = [(torch.float32, -1e30), (torch.float32, -1e9), (torch.float16, -65504.0), (torch.bfloat16, -1e4)]


@pytest.mark.parametrize(("dtype", "mask"), MASKS)
def test_beside_a_mask_of_a_large_number_the_others_are_compared_as_without_it(dtype: torch.dtype, mask: float) -> None:
    shadowed, x = _masked(dtype, mask)

    def none(x: Tensor) -> Tensor:
        found: Tensor = shadowed.eager(x)
        return found.where(found == mask, 0.0)

    def right(x: Tensor) -> Tensor:
        found: Tensor = shadowed.eager(nudged(x))
        return found

    assert checked_step(shadowed, none, (x,), None)[1] is not None
    assert checked_step(shadowed, right, (x,), None)[1] is None


def test_a_movement_beside_one_that_is_far_larger_is_compared_too() -> None:
    before, movement = torch.zeros(48), torch.randn(48, generator=torch.Generator().manual_seed(0))
    movement[0] = -1e30
    assert value_difference("cache", movement, movement.where(movement == -1e30, 0.0), before=before) is not None
    assert value_difference("cache", movement, movement * (1 + 1e-5), before=before) is None


def test_groups_of_numbers_are_as_a_slow_search_for_gaps_finds_them() -> None:
    generator = torch.Generator().manual_seed(0)
    for share in (2e-4, 0.02, 1e-9):
        gap = math.ceil(-math.log2(share))
        for _ in range(200):
            count = int(torch.randint(1, 9, (), generator=generator))
            powers = torch.randint(-60, 60, (count,), generator=generator)
            sizes = torch.rand(count, generator=generator, dtype=torch.float64).add(1).mul(2.0**powers)
            sizes[torch.rand(count, generator=generator) < 0.2] = 0.0
            present = sorted({math.frexp(size)[1] for size in sizes.tolist() if size})
            ends = [one for one, more in zip(present, [*present[1:], math.inf], strict=False) if more - one - 1 >= gap]
            wanted = []
            for size in sizes.tolist():
                end = next((end for end in ends if not size or math.frexp(size)[1] <= end), 0)
                wanted.append(max((x for x in sizes.tolist() if x and math.frexp(x)[1] <= end), default=0.0))
            assert largest_of_groups(sizes, share).expand(count).tolist() == wanted


@pytest.mark.parametrize("far", [1e-30, 1e-7, 1e-3, 1e3, 1e30])
def test_one_number_of_many_is_seen_wherever_it_stands(far: float) -> None:
    """Of so many numbers not each is looked at where a sample shows that all are of one group."""
    for at in (0, 1, 77_777, 99_999):
        sizes = torch.rand(100_000, generator=torch.Generator().manual_seed(0)) + 1
        sizes[at] = far
        others = sizes[torch.arange(100_000) != at].max()
        if 1e-4 < far < 1e4:
            wanted = sizes.max().expand(100_000)  # one group
        else:
            wanted = sizes.new_tensor(far).where(torch.arange(100_000) == at, others)
        assert torch.equal(largest_of_groups(sizes, 2e-4).expand(100_000), wanted)
        sizes[at] = 0.0
        assert float(largest_of_groups(sizes, 2e-4)) == float(others)


@pytest.mark.parametrize("dtype", FLOATS)
def test_movements_that_are_near_each_other_by_their_largest_numbers_move_alike(dtype: torch.dtype) -> None:
    """What is taken to be alike without a look at the direction is so with one."""
    generator, found = torch.Generator().manual_seed(0), 0
    for _ in range(200):
        count = int(torch.randint(1, 100, (), generator=generator))
        wanted = torch.randn(count, generator=generator).to(dtype)
        noise = 0.3 * torch.rand((), generator=generator) * torch.randn(count, generator=generator)
        other = wanted + noise.to(dtype)
        if surely_alike(float((other - wanted).abs().max()), float(wanted.abs().max()), count):
            found += 1
            assert moves_alike(wanted, other)
    assert found > 10


def test_equal_infinities_have_no_direction() -> None:
    before = torch.zeros(40)
    movement = torch.ones(40).where(torch.arange(40) < 30, -math.inf)
    assert value_difference("mask", movement, movement * (1 + 1e-6), before=before) is None
    assert value_difference("mask", movement, (movement * -1).where(movement > 0, -math.inf), before=before) is not None


def _ranked() -> tuple[Tensor, Shadowed]:
    """Numbers beside their ranks, of which some may change by one rounding."""
    x = torch.randn(10_000, generator=torch.Generator().manual_seed(3))
    x[20:40] = x[:20] * (1 + 2e-7)

    def ranked(x: Tensor) -> Tensor:
        h = x * 1.5
        return torch.stack([h, h.argsort(-1).argsort(-1).float()])

    return x, Shadowed(ranked, ranked, None, None, lambda found: {"both": found})


def test_one_rank_that_may_change_does_not_allow_other_numbers_to_be_wrong() -> None:
    x, shadowed = _ranked()

    def none(x: Tensor) -> Tensor:
        found: Tensor = shadowed.eager(x)
        return torch.stack([torch.zeros_like(found[0]), found[1]])

    def right(x: Tensor) -> Tensor:
        found: Tensor = shadowed.eager(nudged(x, seed=9))
        return found

    found = checked_step(shadowed, none, (x,), None)[1]
    assert found is not None
    assert "numbers, of which" in found.reason
    assert checked_step(shadowed, right, (x,), None)[1] is None


def test_as_many_numbers_may_differ_beyond_rounding_as_eagers_own_often_do() -> None:
    eager = torch.linspace(1.0, 2.0, 100)
    for differing, found in ((1, False), (16, False), (17, True)):
        plan = eager + (torch.arange(100) < differing) * 0.5
        wide = Sensitivity(allowed=1.0, numbers=2)
        assert (value_difference("x", eager, plan, sensitivity=wide) is not None) == found
    assert value_difference("x", eager, eager + 0.5, sensitivity=Sensitivity(allowed=1.0, numbers=13)) is None


def test_one_infinity_that_may_change_does_not_allow_others_to_be_wrong() -> None:
    eager = {"x": torch.arange(100.0).where(torch.arange(100) >= 30, float("-inf"))}
    other = {"x": eager["x"].clone().index_fill_(0, torch.tensor([3]), -20.0)}
    allowed = sensitivities_of(eager, other)
    for differing, found in ((8, False), (9, True)):
        plan = {"x": eager["x"].where(torch.arange(100) >= differing, -20.0)}
        assert (first_difference(eager, plan, sensitivity=allowed) is not None) == found


def test_sparse_values_have_a_sensitivity() -> None:
    value = torch.eye(3)
    allowed = sensitivities_of({"x": value.to_sparse()}, {"x": (value * 1.001).to_sparse()})["x"]
    assert allowed.allowed == pytest.approx(20 * 1e-3, rel=1e-3)
    assert allowed.numbers == 3


def test_only_small_differences_of_steps_that_jump_may_be_chance() -> None:
    eager = torch.randn(10, 10)
    plan, large = eager.clone(), eager.clone()
    plan[3, 3] += 0.08 * float(eager.abs().max())
    large[3, 3] += 0.2 * float(eager.abs().max())
    for found, jumps, chance in (
        (plan, True, True),
        (plan, False, False),
        (large, True, False),
        (eager * 1.2, True, False),
    ):
        difference = first_difference({"x": eager}, {"x": found}, jumps=jumps)
        assert difference is not None
        assert difference.may_be_chance == chance
    for other in (large, eager.where(eager < 0.5, float("nan")), eager.double()):
        difference = first_difference({"x": eager, "z": eager}, {"x": plan, "z": other}, jumps=True)
        assert difference is not None
        assert (difference.name, difference.may_be_chance) == ("z", False), "it is told before what may be chance"
    moved = first_difference({"w": eager * 1.001}, {"w": eager}, before={"w": eager}, jumps=True)
    assert moved is not None
    assert not moved.may_be_chance


def test_zeros_beside_a_mask_of_a_large_number_are_no_chance() -> None:
    eager = torch.randn(10, 10).where(torch.arange(10) < 7, -1e30)
    found = first_difference({"x": eager}, {"x": eager.where(eager == -1e30, 0.0)}, jumps=True)
    assert found is not None
    assert not found.may_be_chance


@pytest.mark.parametrize("dtype", FLOATS)
def test_in_half_precision_inputs_are_changed_by_one_rounding_only(dtype: torch.dtype) -> None:
    nudges = nudges_for([torch.ones(2), torch.ones(2, dtype=dtype), "text"])
    assert max(nudge.roundings for nudge in nudges) == (1 if dtype in (torch.float16, torch.bfloat16) else 8)


def test_a_movement_of_few_roundings_may_go_the_other_way_as_far_as_roundings_may() -> None:
    """The running mean of a layer that has seen the same batch many times."""
    before = torch.full((64,), 0.02)
    step = 6 * torch.finfo(torch.float32).eps * before
    assert value_difference("mean", before + step, before + 0.4 * step, before=before) is None
    assert value_difference("mean", before + 0.4 * step, before - 0.2 * step, before=before) is None
    assert value_difference("mean", before + 3 * step, before - 3 * step, before=before) is not None
    far = before + 20 * step
    assert value_difference("mean", far, before - (far - before), before=before) is not None


def test_roundings_of_a_running_mean_are_those_of_the_standard_deviation_beside_it() -> None:
    """Behind a convolution of normalised numbers the mean is zero, but for roundings."""
    torch.manual_seed(0)
    zeros, eps = torch.zeros(64), torch.finfo(torch.float32).eps
    spread = {"n.running_var": torch.ones(64)}
    eager = {"n.running_mean": 0.01 * eps * torch.randn(64), **spread}
    near = {"n.running_mean": 0.5 * eps * torch.randn(64), **spread}
    far = {"n.running_mean": 50 * eps * torch.randn(64), **spread}
    before = {"n.running_mean": zeros, **spread}
    assert first_difference(eager, near, before=before) is None
    assert first_beyond_rounding(eager, near, lambda *_: {}, before=before) is None
    assert str(first_beyond_rounding(eager, far, lambda *_: {}, before=before)).startswith("n.running_mean: differs")
    alone = {"n.running_mean": eager["n.running_mean"]}
    assert first_difference(alone, {"n.running_mean": near["n.running_mean"]}, before=before) is not None
    moved = {"n.running_mean": 0.1 * torch.randn(64), **spread}
    assert str(first_difference(moved, before, before=before)).startswith("n.running_mean: did not move")
    other = {"n.running_mean": -moved["n.running_mean"], **spread}
    assert first_difference(moved, other, before=before) is not None


@pytest.mark.parametrize("dtype", FLOATS)
def test_a_running_mean_that_moved_twice_as_far_differs_in_each_type(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    before = {"n.running_mean": torch.zeros(64, dtype=dtype), "n.running_var": torch.ones(64, dtype=dtype)}
    movement = (0.005 * torch.randn(64)).to(dtype)
    eager, plan = (before | {"n.running_mean": movement * times} for times in (1, 2))
    assert first_difference(eager, eager, before=before) is None
    assert first_difference(eager, plan, before=before) is not None


def test_eager_runs_no_more_often_than_it_takes_to_know_that_a_plan_agrees() -> None:
    steps, torch_threads = [], torch.get_num_threads()
    torch.manual_seed(0)
    x = torch.randn(64, 64)

    def eager(x: Tensor) -> Tensor:
        steps.append(torch.get_num_threads())
        return x.sum(1) * 1e-3 - (x * 1e-3).sum(1)  # nothing but rounding

    def plan(x: Tensor) -> Tensor:
        return eager(nudged(x, seed=50))

    shadowed = Shadowed(eager, eager, None, None, lambda found: {"found": found})
    assert checked_step(shadowed, plan, (x,), None).difference is None
    assert len(steps) == 3, "eager's, the plan's, and one with other roundings"
    steps.clear()
    assert checked_step(shadowed, lambda x: eager(x) + 1.0, (x,), None).difference is not None
    assert len(steps) == 2 + len(nudges_for([x])) + 1
    assert steps[-1] != torch_threads
