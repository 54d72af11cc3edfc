"""Fused programs give what the captured ones give, with fewer ops, in any order that their graphs allow."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.functional import mse_loss

import threadcast
from tests.runtime.compiler import needs_compiler
from tests.runtime.random_plans import by_random_plans, make_random_plan
from tests.waiting import attempts
from threadcast.capture.graph.capture import capture_forward, capture_training
from threadcast.capture.graph.captured import Captured
from threadcast.capture.graph.dependencies import may_raise
from threadcast.core import Machine
from threadcast.core.errors import ExecutionError
from threadcast.runtime.engine.engine import Engine
from threadcast.runtime.engine.native.compilations import Compilations
from threadcast.runtime.operators import library
from threadcast.runtime.operators.clusters import Clusters
from threadcast.runtime.operators.fuse import KIND, fused, loops_of
from threadcast.runtime.operators.kernels import Kernel, kernel_of
from threadcast.runtime.plans.variant import MemoryFormat, Variant
from threadcast.runtime.tuner.tuning import Tuning
from threadcast.runtime.tuner.variant_graphs import VariantGraphs

aten = torch.ops.aten
pytestmark = needs_compiler


def tensor(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def fused_forward(function: Callable[..., object], *example: Tensor) -> Captured:
    found = fused(capture_forward(function, *example))
    assert found is not None
    return found


def kinds(captured: Captured) -> Counter[str]:
    return Counter(op.kind for op in captured.graph.ops)


def same(found: object, wanted: object) -> None:
    torch.testing.assert_close(found, wanted, rtol=2e-6, atol=2e-6, equal_nan=True)


UNARY: dict[str, Callable[[Tensor], Tensor]] = {
    "neg": torch.neg, "abs": torch.abs, "exp": torch.exp, "log": lambda x: (x.abs() + 0.5).log(),
    "sqrt": lambda x: x.abs().sqrt(), "rsqrt": lambda x: (x.abs() + 0.5).rsqrt(), "tanh": torch.tanh,
    "reciprocal": lambda x: (x.abs() + 0.5).reciprocal(), "sigmoid": torch.sigmoid,
    "silu": nn.functional.silu, "relu": torch.relu, "gelu": nn.functional.gelu,
    "leaky_relu": lambda x: nn.functional.leaky_relu(x, 0.1), "maximum": lambda x: torch.maximum(x, -x),
    "minimum": lambda x: torch.minimum(x, -x), "square": lambda x: x**2, "rsub": lambda x: 3 - x,
    "sub": lambda x: x.sub(x.exp(), alpha=0.25),
    "floor": lambda x: x.div(x.sigmoid() - 0.5, rounding_mode="floor"),
    "where": lambda x: torch.where(x.tanh() < 0.3, x * 2, x - 1), "constant": lambda x: torch.where(x >= 0, 1.5, x),
    "sigmoid's gradient": lambda x: aten.sigmoid_backward(x, x * 2),
    "relu's": lambda x: aten.threshold_backward(x, -x, 0),
    "silu's": lambda x: aten.silu_backward(x, x * 2), "tanh's": lambda x: aten.tanh_backward(x, x * 2),
}  # fmt: skip


def formula(name: str) -> Callable[[Tensor], Tensor]:
    def function(x: Tensor) -> Tensor:
        return UNARY[name](x) * 0.5 + 1

    return function


def odd_numbers() -> Tensor:
    return torch.cat(
        [tensor(3, 37) * 4, torch.tensor([[0.0, -0.0, float("inf"), -float("inf"), float("nan")]]).repeat(3, 1)], 1
    )


@pytest.fixture(scope="module")
def compiled_together() -> None:
    """Compiles the loops of all formulas in one go: nearly all of a compiler's time goes into headers."""
    captured = [capture_forward(formula(name), odd_numbers()) for name in UNARY]
    captured += [capture_forward(function, tensor(5, 9)) for function in MASKS]
    library.compiled([loop for one in captured for loop in loops_of(one)])


@pytest.mark.usefixtures("compiled_together")
@pytest.mark.parametrize("name", UNARY)
def test_every_formula_gives_what_its_operator_gives(name: str) -> None:
    x, function = odd_numbers(), formula(name)
    captured = fused_forward(function, x)
    assert kinds(captured)[KIND] >= 1
    same(captured.run(x), function(x))


def test_gelu_is_a_loop_of_its_own_where_that_is_faster() -> None:
    """oneDNN takes several us to begin."""

    def gradient(x: Tensor) -> Tensor:
        hidden = x @ x
        return aten.gelu_backward(nn.functional.gelu(hidden) @ x, hidden) @ x

    small, large = tensor(16, 16), tensor(192, 192)
    captured = fused_forward(gradient, small)
    assert kinds(captured) == {"mm": 3, KIND: 2}
    torch.testing.assert_close(captured.run(small), gradient(small), rtol=1e-5, atol=1e-4)
    assert fused(capture_forward(gradient, large)) is None


@pytest.mark.skipif(not torch.backends.mkl.is_available(), reason="eager's tanh is then the loop's own")
def test_tanh_is_1_only_where_eagers_is() -> None:
    """A difference of one rounding is the difference between a number and infinity in `log(1 - tanh(x))`."""

    def function(x: Tensor) -> Tensor:
        return (1 - x.tanh()).log() * 2

    captured = fused_forward(function, tensor(4096))
    x = torch.linspace(7.5, 9.5, 4096)
    found, wanted = captured.run(x), function(x)
    assert wanted.isinf().any()
    assert wanted.isfinite().sum() > 2048
    assert found.isinf().equal(wanted.isinf())
    assert captured.run(-x).equal(function(-x))


def test_a_product_by_alpha_and_its_sum_are_rounded_as_one() -> None:
    """`x - 0.1 * y` of `x = 0.1 * y` is the rounding of `x`, and not 0."""

    def subtracted(x: Tensor, y: Tensor) -> Tensor:
        return torch.where(x.sub(y, alpha=0.1) > 0, y, -y)

    def added(x: Tensor, y: Tensor) -> Tensor:
        return torch.where(x.add(y, alpha=-0.1) > 0, y, -y)

    y = tensor(4096)
    x = y * 0.1
    wanted = subtracted(x, y)
    assert 0 < int((wanted == y).sum()) < len(y)
    for function in (subtracted, added):
        captured = fused_forward(function, tensor(4096, seed=1), tensor(4096, seed=2))
        assert captured.run(x, y).equal(wanted)


def test_integers_that_no_double_has_are_left_to_pytorch() -> None:
    number = 2**60 + 2**36 + 1

    def function(x: Tensor) -> Tensor:
        return torch.where(x == number, x * 2, x) - 1

    captured = fused(capture_forward(function, tensor(37)))
    x = torch.tensor([float(2**60 + 2**37), 1.0]).repeat(20)[:37]
    assert x[0] == number
    if captured is not None:
        assert captured.run(x).equal(function(x))


@pytest.mark.parametrize("lie", [lambda x: x, lambda x: x.t().contiguous().t()])
@pytest.mark.parametrize("size", [7, 37, 4096])
def test_remainders_of_quotients_that_overflow_are_eagers(size: int, lie: Callable[[Tensor], Tensor]) -> None:
    """PyTorch's vectors give nan there, and its loop over single elements a number."""

    def function(x: Tensor, y: Tensor) -> Tensor:
        return x.remainder(y).exp() + x

    captured = fused_forward(function, lie(tensor(size, 3)), tensor(size, 3, seed=1))
    x, y = lie(torch.full((size, 3), 1e30)), torch.full((size, 3), 1e-10)
    same(captured.run(x, y), function(x, y))
    assert set(kinds(captured)) == {"remainder", KIND}


@pytest.mark.parametrize(
    "lie",
    [
        lambda x: x, lambda x: x.contiguous(memory_format=torch.channels_last), lambda x: x.transpose(2, 3),
        lambda x: x[:, :, ::2], lambda x: x[:, :1].expand_as(x), lambda x: x[:1, :, :, :1], lambda x: x[0, 0, 0, 0],
    ],
)  # fmt: skip
def test_operands_may_lie_in_memory_in_any_way(lie: Callable[[Tensor], Tensor]) -> None:
    def function(x: Tensor, y: Tensor) -> Tensor:
        return (x * 2 + y).relu() - y

    x = tensor(2, 3, 6, 6)
    y = lie(tensor(2, 3, 6, 6, seed=1))
    x = x[:, :, : y.shape[2]] if y.dim() == 4 and y.shape[2] == 3 else x
    captured = fused_forward(function, x, y)
    found, wanted = captured.run(x, y), function(x, y)
    same(found, wanted)
    assert found.stride() == wanted.stride()


def test_long_loops_are_shared_by_the_threads_of_any_team(machine: Machine) -> None:
    x, y = tensor(700, 131), tensor(131, seed=1)
    captured = fused_forward(lambda x, y: (x * y).exp() + x, x, y)
    wanted = (x * y).exp() + x
    threads = torch.get_num_threads()
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            same(captured.run(x, y), wanted)
    finally:
        torch.set_num_threads(threads)
    for result in by_random_plans(captured, machine, x, y, plans=4):
        same(result, wanted)


def test_what_is_written_between_is_read_before(machine: Machine) -> None:
    def function(x: Tensor, bound: Tensor) -> tuple[Tensor, Tensor]:
        below = x < bound
        before = torch.where(below, x + 1, x - 1) * 2
        bound.add_(10)
        return before, torch.where(below, x * 3, x * 4) + 1

    x, bound = tensor(4, 9), torch.zeros(9)
    captured = fused_forward(function, x, bound.clone())
    same(captured.run(x, bound.clone()), function(x, bound.clone()))


def mask_reader(x: Tensor) -> Tensor:
    y = x + 0.0
    below = y < 0
    y.masked_fill_(below, 0.0)
    return torch.where(below, y - 1, y + 1) * 2


def mask_writer(x: Tensor) -> Tensor:
    below = x < 0
    below[0] = True
    return torch.where(below, x * 2, x) + 1


def constant_writer(x: Tensor) -> Tensor:
    two = torch.scalar_tensor(2.0)
    two.add_(1)
    return (x * two).exp() + x


def constant_condition(x: Tensor) -> Tensor:
    return torch.where(torch.scalar_tensor(1, dtype=torch.bool), x, x * 2) + 1


def whole_constant(x: Tensor) -> Tensor:
    return x * torch.scalar_tensor(1.7, dtype=torch.int64) + 1


def constants_alone(x: Tensor) -> Tensor:
    return torch.scalar_tensor(2.0).sqrt() * x + x


MASKS = (mask_reader, mask_writer, constant_writer, constant_condition, whole_constant, constants_alone)


@pytest.mark.usefixtures("compiled_together")
@pytest.mark.parametrize("function", MASKS)
def test_masks_and_constants_that_are_more_than_that_stay_right(
    function: Callable[[Tensor], Tensor], machine: Machine
) -> None:
    x = tensor(5, 9)
    captured = capture_forward(function, x.clone())
    found = fused(captured) or captured
    for result in by_random_plans(found, machine, x):
        same(result, function(x.clone()))


def test_updates_wait_for_no_loop_but_for_their_data() -> None:
    """Custom operators may raise, so that what is written must come after them; loops do not."""
    model = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
    optimizer, x = torch.optim.SGD(model.parameters(), lr=0.1), torch.randn(4, 16, 64)
    captured = fused(capture_training(model, mse_loss, optimizer, [x], x))
    assert captured is not None
    nodes = captured.program.nodes
    assert any(str(node.target).startswith("threadcast.fused") for node in nodes)
    assert not any(may_raise(node) for node in nodes)


def test_shapes_other_than_the_captured_are_refused() -> None:
    captured = fused_forward(lambda x: (x * 2).exp(), tensor(4, 9))
    (node,) = captured.program.nodes
    with pytest.raises(RuntimeError, match="other shapes"):
        node.target(tensor(4, 8))
    with pytest.raises(RuntimeError, match="other shapes"):
        node.target(tensor(1, 4, 9))
    with pytest.raises(RuntimeError, match="float32"):
        node.target(tensor(4, 9).double())


@pytest.mark.parametrize(
    "function", [lambda x: x @ x, lambda x: x.double().exp() * 2, lambda x: x.exp(), lambda x: (x @ x).exp_().mul_(2)]
)
def test_where_nothing_can_be_fused_there_is_no_program(function: Callable[[Tensor], Tensor]) -> None:
    assert fused(capture_forward(function, tensor(4, 4))) is None


STEPS: tuple[Callable[[Tensor, Tensor], Tensor], ...] = (
    lambda x, y: x * y, lambda x, y: x - y, lambda x, y: x.sigmoid() + y, lambda x, y: x.tanh(), lambda x, y: x @ y / 4,
    lambda x, y: torch.where(x < y, x, y * 0.5), lambda x, y: x.sum(0) * 0.2 + y, lambda x, y: x.t().contiguous(),
    lambda x, y: torch.cat([x, y], 1)[:, 2:6], lambda x, y: x.clone().add_(y), lambda x, y: x.relu() * y.relu(),
)  # fmt: skip


@settings(max_examples=16, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.tuples(st.integers(0, 10), st.integers(0, 20), st.integers(0, 20)), min_size=2, max_size=14),
    st.booleans(),
)
def test_random_programs_give_the_same_fused(
    machine: Machine, steps: list[tuple[int, int, int]], backwards: bool
) -> None:
    def function(x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        values = [x @ weight, y @ weight]
        for which, first, second in steps:
            one, other = values[first % len(values)], values[second % len(values)]
            values.append(one.add_(other) if which == 9 and not backwards else STEPS[which](one, other))
        return torch.stack([value * weight for value in values]).sum()

    weight = tensor(4, 4, seed=2).requires_grad_()

    def gradient(x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        found: Tensor = torch.func.grad(lambda w: mse_loss(function(x, y, w), torch.zeros(())))(weight)
        return found

    given = tensor(4, 4), tensor(4, 4, seed=1), weight.detach()
    captured = capture_forward(gradient if backwards else function, *given)
    found = fused(captured)
    if found is None:
        return
    wanted = captured.run(*given)
    plan = make_random_plan(found.graph, tuple(core.id for core in machine.cores), seed=len(steps))
    with Engine(found, plan, machine) as engine:
        torch.testing.assert_close(engine.run(found.bind(*given)), wanted, rtol=1e-3, atol=1e-4)


def test_a_loop_that_does_not_compile_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("THREADCAST_ENGINE_CACHE", str(tmp_path))
    kernel = Kernel("this is no C++;", "fused_wrong", (1,), (), (), ())
    with pytest.raises(ExecutionError, match="cannot be made"):
        library.compiled([kernel])
    (folder,) = tmp_path.iterdir()
    assert list(folder.iterdir()) == []


def test_a_damaged_loop_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    captured = capture_forward(lambda x: (x * 2).exp() - 3, tensor(4, 4))
    clusters = Clusters(captured)
    kernel = kernel_of(clusters, clusters.groups[0])
    monkeypatch.setenv("THREADCAST_ENGINE_CACHE", str(tmp_path))
    folder = library.compiled([kernel])
    (folder / f"{kernel.symbol}.so").write_bytes(b"no library")
    with pytest.raises(ExecutionError, match="delete it"):
        library.FusedOperators().of([kernel])


class Cells(nn.Module):
    """Twenty times a matrix product and a loop."""

    def __init__(self, factor: float = 1.0) -> None:
        super().__init__()
        self.factor, self.weight = factor, nn.Parameter(tensor(64, 64, seed=1))

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(20):
            x = (x @ self.weight).sigmoid() * x.tanh() * self.factor + x
        return x


@pytest.mark.usefixtures("one_thread", "planned_at_once")
def test_learning_waits_for_loops_that_are_being_compiled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(library, "fused_folder", lambda: tmp_path)
    x = tensor(64, 64)
    with closing(threadcast.optimize(Cells(0.8125).eval(), backends=False)) as call:
        for _ in attempts():
            call(x)
            tuning = call._optimized._last
            if isinstance(tuning, Tuning) and tuning._graphs.compiling:
                break
        assert not list(tmp_path.glob("*.so"))
        tuning.wait(60.0)
        assert list(tmp_path.glob("*.so"))
        call(x)
        assert not tuning._graphs.compiling


@pytest.mark.usefixtures("one_thread", "planned_at_once")
def test_optimised_steps_that_are_fused_say_so(machine: Machine) -> None:
    x, model = tensor(64, 64), Cells().eval()
    with torch.no_grad():
        wanted = model(x)
    with closing(threadcast.optimize(model, backends=False).learn(x)) as call:
        assert set(call.reports[0].predicted_s) == {"as given", "as given, fused"}
        same(call(x), wanted)


def test_loops_that_another_process_has_compiled_are_there_at_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A stored plan of fused operators runs from the first call on only where nothing has to be waited for."""
    monkeypatch.setattr(library, "fused_folder", lambda: tmp_path)
    captured, variant = capture_forward(lambda x: (x * 2).exp() - 3, tensor(4, 4)), Variant(MemoryFormat.AS_GIVEN, True)
    library.compiled(loops_of(captured))
    monkeypatch.setattr(library, "_compilations", Compilations())
    assert VariantGraphs(lambda _: captured, [MemoryFormat.AS_GIVEN]).compiled(variant)
