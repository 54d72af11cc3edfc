"""Products of matrices by our operators are PyTorch's up to rounding, whatever their sizes and places in memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from tests.clock import Clock
from tests.runtime.compiler import needs_compiler
from tests.runtime.random_plans import by_random_plans, make_random_plan
from threadcast.capture.graph.capture import capture_forward, capture_training
from threadcast.capture.graph.captured import Captured
from threadcast.core import Machine
from threadcast.runtime.engine.engine import Engine
from threadcast.runtime.engine.native.library import native_library
from threadcast.runtime.operators import products
from threadcast.runtime.operators.fuse import fused
from threadcast.runtime.operators.products import times_as_fast, with_products

EPS = torch.finfo(torch.float32).eps
LIES: dict[str, Callable[[Tensor], Tensor]] = {
    "rows contiguous": lambda x: x,
    "columns contiguous": lambda x: x.mT.contiguous().mT,
    "neither": lambda x: x.repeat_interleave(2, -1)[..., ::2],
    "rows apart": lambda x: torch.cat([x, x], -1)[..., : x.shape[-1]],
    "columns apart": lambda x: torch.cat([x, x], -2).mT.contiguous().mT[..., : x.shape[-2], :],
    "one row for all": lambda x: x[..., :1, :].expand_as(x),
}


@pytest.fixture(autouse=True)
def _faster_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """On machines where PyTorch's operators are as fast, the operators of a graph are replaced, too."""
    monkeypatch.setattr(products, "serves", lambda: True)


pytestmark = needs_compiler


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def kinds(captured: Captured) -> Counter[str]:
    return Counter(op.kind for op in captured.graph.ops)


def same(found: Tensor, wanted: Tensor, largest: Tensor) -> None:
    """Equal but for `largest`, the sum of all sizes, rounded."""
    assert (found.shape, found.stride(), found.dtype) == (wanted.shape, wanted.stride(), torch.float32)
    assert bool(((found.double() - wanted).abs() <= 32 * EPS * largest).all())


def check_product(a: Tensor, b: Tensor) -> None:
    product, product_ = products.operators()
    largest = a.abs().double() @ b.abs().double() + 2
    exact = (a.double() @ b.double()).contiguous()
    same(product(None, a, b), exact, largest)
    bias = numbers(b.shape[-1]).clamp(-1, 1)
    same(product(bias, a, b), exact + bias, largest)
    column = numbers(a.shape[-2], 1).clamp(-1, 1)
    same(product(column, a, b), exact + column, largest)
    total = torch.ones_like(exact, dtype=torch.float32)
    assert product_(total, a, b) is not None
    same(total, exact + 1, largest)


@settings(max_examples=80, deadline=None, derandomize=True)
@given(
    st.integers(1, 140), st.integers(1, 90), st.integers(1, 140), st.sampled_from([0, 0, 1, 3, 7]),
    st.sampled_from(sorted(LIES)), st.sampled_from(sorted(LIES)),
)  # fmt: skip
def test_products_of_all_sizes(rows: int, depth: int, columns: int, batches: int, left: str, right: str) -> None:
    some = (batches,) if batches else ()
    a, b = numbers(*some, rows, depth, seed=1), numbers(*some, depth, columns, seed=2)
    check_product(LIES[left](a), LIES[right](b))


@pytest.mark.parametrize("depth", [1023, 1024, 1025, 2500])
def test_long_sums_are_made_in_steps(depth: int) -> None:
    for left in ("rows contiguous", "columns contiguous"):
        for right in ("rows contiguous", "columns contiguous"):
            check_product(LIES[left](numbers(70, depth, seed=1)), LIES[right](numbers(depth, 66, seed=2)))


def test_more_transposed_rows_than_are_packed_at_once() -> None:
    check_product(LIES["columns contiguous"](numbers(1200, 700, seed=1)), numbers(700, 32, seed=2))


@pytest.mark.parametrize("sides", [(0, 3, 4), (3, 0, 4), (3, 4, 0)])
@pytest.mark.parametrize("batches", [(), (2,), (0,)])
def test_empty_matrices(sides: tuple[int, int, int], batches: tuple[int, ...]) -> None:
    rows, depth, columns = sides
    check_product(numbers(*batches, rows, depth), numbers(*batches, depth, columns))


def test_a_total_whose_rows_lie_apart_is_added_to() -> None:
    a, b, whole = numbers(20, 30), numbers(30, 40), torch.zeros(20, 80)
    products.operators()[1](whole[:, ::2], a, b)
    same(whole[:, ::2].contiguous(), a.double() @ b.double(), a.abs().double() @ b.abs().double())
    assert not whole[:, 1::2].any()


def test_special_numbers_are_as_pytorchs() -> None:
    a, b = numbers(40, 50), numbers(50, 60)
    a[3, 4], a[5, 6], a[7, 8], b[4, :] = torch.inf, torch.nan, -torch.inf, 0.0
    found = products.operators()[0](None, a, b)
    torch.testing.assert_close(found, a @ b, equal_nan=True)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (numbers(3, 4), numbers(5, 6)), (numbers(3, 4).double(), numbers(4, 5).double()),
        (numbers(2, 3, 4), numbers(4, 5)), (numbers(4), numbers(4)), (numbers(2, 3, 4), numbers(3, 4, 5)),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(a: Tensor, b: Tensor) -> None:
    with pytest.raises(RuntimeError, match="product takes matrices of float32"):
        products.operators()[0](None, a, b)


def test_each_number_of_threads_gives_the_same(machine: Machine) -> None:
    def several(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
        return torch.bmm((x @ w).view(5, 26, 60), v) + 1

    example = numbers(130, 200), numbers(200, 60, seed=1), numbers(5, 60, 70, seed=2)
    captured = with_products(capture_forward(several, *example))
    assert kinds(captured)["blocked_mm"] == kinds(captured)["blocked_bmm"] == 1
    wanted = captured.run(*example)
    for result in by_random_plans(captured, machine, *example, plans=4):
        assert torch.equal(result, wanted)


@pytest.mark.parametrize(
    "left_alone",
    [
        lambda x, w: x[:7] @ w,  # few rows
        lambda x, w: x[:, :8] @ w[:8],  # short sums
        lambda x, w: x[:16, :20] @ w[:20, :20],  # little work
        lambda x, w: torch.addmm(x, x, w, beta=0.5), lambda x, w: torch.addmm(x, x, w, alpha=2),
        lambda x, w: torch.addmm(x, x, w, beta=2, alpha=2),
        lambda x, w: (x.double() @ w.double()).float(), lambda x, w: x @ w[:, 0], lambda x, w: x.mv(w[0]),
    ],
)  # fmt: skip
def test_what_is_left_to_pytorch(left_alone: Callable[[Tensor, Tensor], Tensor]) -> None:
    captured = capture_forward(left_alone, numbers(512, 512), numbers(512, 512))
    assert with_products(captured) is captured


def test_arguments_given_by_name_are_known() -> None:
    def added(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return torch.ops.aten.addmm.default(b, mat2=w, mat1=x)

    example = numbers(80, 90), numbers(90, 100), numbers(100)
    captured = with_products(capture_forward(added, *example))
    assert kinds(captured) == {"blocked_addmm": 1}
    torch.testing.assert_close(captured.run(*example), added(*example), rtol=1e-5, atol=1e-4)


class Layers(nn.Module):
    """Two layers, one of them used twice, and attention's products."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(96, 96), nn.Linear(96, 96, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.second(torch.relu(self.first(self.first(x))))
        return torch.bmm(torch.softmax(torch.bmm(y, y.mT), -1), y)


def test_a_training_step_is_pytorchs(machine: Machine) -> None:
    results = []
    for way in ("as captured", "ours", "fused"):
        torch.manual_seed(0)
        model, x, target = Layers(), numbers(4, 32, 96), numbers(4, 32, 96, seed=1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        captured = capture_training(model, nn.functional.mse_loss, optimizer, [x], target, gradients=True)
        if way != "as captured":
            captured = (fused(captured) if way == "fused" else None) or with_products(captured)
            found = kinds(captured)
            assert not {"mm", "addmm", "bmm"} & set(found)
            # The second layer's weight, and each of the first layer's two uses, of which one adds to the other.
            assert (found["blocked_bmm"], found["blocked_addmm"]) == (6, 3)
        plan = make_random_plan(captured.graph, tuple(core.id for core in machine.cores), seed=1)
        with Engine(captured, plan, machine) as engine:
            steps = [engine.run(captured.bind()) for _ in range(2)]
        results.append([steps[0]["loss"], steps[1]["loss"], steps[1]["gradients"], dict(model.named_parameters())])
    for one in results[1:]:
        torch.testing.assert_close(one, results[0], rtol=1e-4, atol=1e-6)


def test_timing_draws_no_numbers_and_ignores_the_callers_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    native_library()
    before = torch.get_rng_state()
    products.serves.cache_clear()
    torch.set_default_dtype(torch.float64)
    try:
        with torch.autocast("cpu", torch.bfloat16):
            products.serves()
    finally:
        torch.set_default_dtype(torch.float32)
        products.serves.cache_clear()
    assert torch.equal(torch.get_rng_state(), before)


def test_which_operator_is_faster() -> None:
    threads: set[int] = set()
    clock = Clock()

    def takes(seconds: float) -> None:
        threads.add(torch.get_num_threads())
        clock.now_s += seconds

    fast, slow = partial(takes, 0.25), partial(takes, 1.0)
    before = torch.get_num_threads()
    assert (times_as_fast(fast, slow, clock), times_as_fast(slow, fast, clock)) == (4.0, 0.25)
    assert threads == {1}
    assert torch.get_num_threads() == before


@pytest.mark.parametrize("precision", ["high", "medium"])
def test_products_that_the_caller_allows_to_be_rounded_are_pytorchs(precision: str) -> None:
    captured = capture_forward(lambda x: x @ x, numbers(96, 96))
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision(precision)
        assert with_products(captured) is captured
    finally:
        torch.set_float32_matmul_precision(before)
    assert with_products(captured) is not captured
