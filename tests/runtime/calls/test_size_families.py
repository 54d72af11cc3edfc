"""Calls that differ only in sizes share one graph, and none of them runs as PyTorch for want of one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import threadcast
from tests.runtime.small_training import batch, net, sgd
from threadcast.capture.graph.capture import capture_forward
from threadcast.runtime.calls.kinds import CallKind, flattened, kind_of
from threadcast.runtime.calls.size_families import ELSEWHERE, OFTEN, SizeFamilies, SizeFamily
from threadcast.runtime.tuner.report import Report


def seen(families: SizeFamilies, *arguments: Any) -> SizeFamily | None:
    leaves, structure = flattened(arguments)
    return families.of(kind_of(leaves, structure, frozenset(), ()), leaves)


def kind(family: SizeFamily, *arguments: Any) -> CallKind:
    return family.kind_of(flattened(arguments)[0])


def test_the_third_kind_that_differs_only_in_sizes_makes_a_family() -> None:
    families = SizeFamilies()
    assert seen(families, torch.ones(4, 8), 3) is None
    assert seen(families, torch.ones(4, 8), 3) is None, "the same kind again"
    assert seen(families, torch.ones(5, 8), 3) is None
    for other in (torch.ones(6, 8, dtype=torch.float64), torch.ones(6, 8, 1), torch.ones(8, 6).T):
        assert seen(families, other, 3) is None
    family = seen(families, torch.ones(6, 8), 3)
    assert family is not None
    assert family.dynamic == {0: (0,)}
    assert seen(families, torch.ones(9, 8), 3) is family
    assert seen(families, torch.ones(1, 8), 3) is None, "one row is a case of its own"
    wider = seen(families, torch.ones(9, 7), 4)
    assert wider is not None
    assert wider.dynamic == {0: (0, 1), 1: ()}
    assert seen(families, torch.ones(9, 7), True) is None, "not an integer that varies"


def test_images_of_one_channel_in_channels_last_are_of_a_family_of_their_own() -> None:
    families = SizeFamilies()

    def images(number: int, *, last: bool) -> Tensor:
        return torch.ones(number, 6, 6, 1).permute(0, 3, 1, 2) if last else torch.ones(number, 1, 6, 6)

    assert all(images(2, last=last).is_contiguous() for last in (False, True))
    found = [seen(families, images(number, last=last)) for number in (2, 3, 4) for last in (False, True)]
    assert found[:4] == [None] * 4
    assert found[4] is not found[5]
    assert None not in found[4:]


def test_each_mode_of_a_model_has_its_family() -> None:
    families = SizeFamilies()

    def of(size: int, mode: str) -> SizeFamily | None:
        leaves, structure = flattened((torch.ones(size),))
        return families.of(kind_of(leaves, structure, frozenset(), (("mode", mode),)), leaves)

    for size in (2, 3):
        assert of(size, "train") is of(size, "eval") is None
    found = [of(size, mode) for size in (4, 5) for mode in ("train", "eval")]
    assert found[0] is not None
    assert found[:2] == found[2:]
    assert found[0] is not found[1] is not None


def test_arguments_that_are_always_others_leave_room_for_families() -> None:
    families = SizeFamilies()
    for number in range(1_500):
        seen(families, torch.ones(2), f"text {number}")
    assert [seen(families, torch.ones(n)) is None for n in (2, 3, 4)] == [True, True, False]


def test_sizes_that_are_far_apart_are_of_two_kinds() -> None:
    families = SizeFamilies()
    *_, family = (seen(families, torch.ones(n)) for n in (40, 41, 42))
    assert family is not None
    assert kind(family, torch.ones(20)) == kind(family, torch.ones(50)) != kind(family, torch.ones(500))


def test_a_kind_that_comes_often_leaves_the_family() -> None:
    families = SizeFamilies()
    for n in (2, 3, 4):
        seen(families, torch.ones(n))
    found = [seen(families, torch.ones(5)) for _ in range(OFTEN + 1)]
    assert found[-2] is not None
    assert found[-1] is None


def test_a_family_without_a_graph_is_none() -> None:
    families = SizeFamilies()
    *_, family = (seen(families, torch.ones(n)) for n in (2, 3, 4))
    assert family is not None
    with pytest.raises(threadcast.core.errors.CaptureError):
        family.captured(lambda dynamic: capture_forward(lambda x: x[x > 0], torch.ones(4), dynamic=dynamic))
    assert seen(families, torch.ones(5)) is None


def test_calls_are_compared_with_calls_of_about_their_sizes() -> None:
    families = SizeFamilies()
    *_, family = (seen(families, torch.ones(n)) for n in (40, 41, 42))
    assert family is not None

    def near(size: int) -> bool:
        assert family is not None
        return family.near(kind(family, torch.ones(40)), [torch.ones(size)])

    assert [near(n) for n in (40, 48, 58, 40, 30, 50)] == [True, True, True, False, False, True]
    assert [near(20) for _ in range(ELSEWHERE + 1)] == [False] * ELSEWHERE + [True]
    assert near(22)


class Cache(nn.Module):
    """A step whose state grows by one row in each call."""

    def __init__(self) -> None:
        super().__init__()
        self.mix, self.out = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor, cache: Tensor) -> tuple[Tensor, Tensor]:
        cache = torch.cat([cache, self.mix(x)])
        return (cache.tanh() @ self.out(x).T).softmax(0).T @ cache, cache


@pytest.fixture
def reports_of_a_growing_cache(plans_win: None, one_thread: None) -> Iterator[list[Report]]:
    torch.manual_seed(0)
    model, x, mine, eager = Cache().eval(), torch.randn(1, 8), torch.randn(2, 8), torch.empty(0)
    eager = mine
    with closing(threadcast.optimize(model, backends=False)) as call, torch.no_grad():
        for _ in range(120):
            found, mine = call(x, mine)
            wanted, eager = model(x, eager)
            torch.testing.assert_close(found, wanted)
            torch.testing.assert_close(mine, eager)
        yield call.reports


def test_a_cache_that_grows_in_each_call_runs_by_one_plan(reports_of_a_growing_cache: list[Report]) -> None:
    plans = [report.plan for report in reports_of_a_growing_cache if report.runs == "plan"]
    assert plans
    assert all(plan == plans[0] for plan in plans)
    assert len(reports_of_a_growing_cache) < 8, "not one for each size"


@pytest.mark.usefixtures("plans_win", "one_thread")
def test_batches_of_many_sizes_train_as_in_eager_pytorch() -> None:
    mine, eager = net(), net()
    optimizer, sizes = sgd(eager), torch.randint(2, 40, (150,), generator=torch.Generator().manual_seed(0)).tolist()
    with closing(threadcast.optimize_training(mine, nn.functional.cross_entropy, sgd(mine))) as step:
        for n in sizes:
            x, y = batch(n, n)
            loss = nn.functional.cross_entropy(eager(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            torch.testing.assert_close(step(x, y), loss.detach(), rtol=1e-8, atol=1e-10)
        assert "plan" in {report.runs for report in step.reports}
    for one, other in zip(mine.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-7, atol=1e-9)


def by_type(x: Tensor, n: int) -> Tensor:
    return x.view(2, -1) * n if isinstance(n, int) else x.view(-1, 2)


@pytest.mark.usefixtures("plans_win", "one_thread")
def test_code_that_asks_of_what_type_a_size_is_gets_a_graph_for_each() -> None:
    x = torch.arange(6.0)
    with closing(threadcast.optimize(by_type, backends=False)) as call:
        for _ in range(30):
            for n in range(3, 9):
                torch.testing.assert_close(call(x, n), by_type(x, n), rtol=0, atol=0)
        assert len(call.reports) == 6


@pytest.mark.usefixtures("plans_win", "one_thread")
def test_one_tensor_given_twice_in_many_sizes_has_one_graph() -> None:
    torch.manual_seed(0)
    query, key, value = (nn.Linear(8, 8) for _ in range(3))

    def attention(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        return (query(a) @ key(b).T).softmax(1) @ value(c).tanh()

    with closing(threadcast.optimize(attention, backends=False)) as call, torch.no_grad():
        for number in range(60):
            x = torch.randn(5 + number % 13, 8, generator=torch.Generator().manual_seed(number))
            torch.testing.assert_close(call(x, x, x), attention(x, x, x))
        assert len(call.reports) < 6, "not one for each of 13 sizes"
