"""Programs of all kinds give eager's results: broken, of many shapes, that write, return views, draw numbers."""

from __future__ import annotations

import threading
import tomllib
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook

from tests.runtime.compiled.running import perceptron, rows, run_until_settled, runners, trains_as_eager
from threadcast.runtime.doors.compile_backend import backend

pytestmark = [
    pytest.mark.usefixtures("one_thread", "plans_win"),
    pytest.mark.filterwarnings("ignore:The .grad attribute"),  # of Dynamo's own look at inputs
]


def close(found: Any, wanted: Any) -> None:
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-12)


def compare(function: Callable[..., Any], inputs: Callable[[int], tuple[Any, ...]], **options: Any) -> None:
    """Call `function` compiled and as it is until its graphs have settled; results and inputs must be equal."""
    compiled = torch.compile(function, backend="threadcast", **options)

    def call(number: int) -> None:
        mine, eager = inputs(number), inputs(number)
        torch.manual_seed(number)
        found, state = compiled(*mine), torch.get_rng_state()
        torch.manual_seed(number)
        close(found, function(*eager))
        close(mine, eager)
        assert torch.equal(state, torch.get_rng_state())

    run_until_settled(call)


def planned() -> bool:
    """Whether plans run all graphs."""
    return {runner for of_role in runners().values() for runner in of_role} == {"plan"}


class Broken(nn.Module):
    """Python looks at a number between two layers."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(8, 8).double(), nn.Linear(8, 4).double()

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x).relu()
        if float(hidden.detach().sum()) > 1e9:
            hidden = hidden + 1
        result: Tensor = self.last(hidden)
        return result


def test_the_parts_of_a_broken_graph_run_by_plans_of_their_own() -> None:
    found = trains_as_eager(Broken, lambda model, step: model(rows(step)).square().mean(), steps=100)
    assert found["forward"].count("plan") >= 2
    assert found["backward"].count("plan") >= 2


@pytest.mark.parametrize("dynamic", [True, None])
def test_graphs_of_several_sizes_run_by_plans(dynamic: bool | None) -> None:
    def loss(model: Any, step: int) -> Any:
        return model(rows(step, 3 + step % 3 * 7)).square().mean()

    found = trains_as_eager(perceptron, loss, steps=60, dynamic=dynamic)
    assert set(found) == {"forward", "backward"}
    assert all("plan" in of_role for of_role in found.values())


WEIGHT = rows(100, 8)
COMPLEX = torch.view_as_complex(torch.stack([WEIGHT, WEIGHT.flip(0)], dim=-1))


def drawing(x: Tensor) -> Tensor:
    noisy = x * torch.rand_like(x) + torch.randn(5, 8) + torch.bernoulli(x.sigmoid())
    return nn.functional.dropout(noisy, 0.3) + torch.randint(0, 5, (8,)) + torch.randperm(8)


def writing(x: Tensor, y: Tensor) -> Tensor:
    x.mul_(2)
    y.add_(1)
    return x + y


def complex_numbers(x: Tensor) -> Any:
    y = torch.fft.fft(x @ WEIGHT) @ COMPLEX
    return torch.view_as_real(y.conj() * y), y.abs(), y.T


@pytest.mark.parametrize(
    ("function", "inputs", "plans"),
    [
        pytest.param(
            lambda x, factor, count: (x * factor).repeat(count, 1), lambda i: (rows(i), i * 0.5, 1 + i % 3), False,
            id="numbers that change from call to call",
        ),
        pytest.param(drawing, lambda i: (rows(i),), True, id="draws"),
        pytest.param(writing, lambda i: (rows(i),) * 2, False, id="an input given twice is written"),
        pytest.param(
            writing, lambda i: ((x := rows(i))[0:3], x[1:4] if i % 2 else rows(i)[1:4]), False,
            id="inputs that overlap are written",
        ),
        pytest.param(
            lambda x: {"x": (x @ WEIGHT).tanh(), "n": None, "k": (3, 0.5, x.shape[0])}, lambda i: (rows(i),), True,
            id="nothing and constants beside tensors",
        ),
        pytest.param(complex_numbers, lambda i: (rows(i),), True, id="complex numbers"),
    ],
)  # fmt: skip
def test_results_written_inputs_and_the_generator_are_eagers(function: Any, inputs: Any, plans: bool) -> None:
    compare(function, inputs)
    assert not plans or planned()


def test_results_share_memory_where_eagers_do() -> None:
    def views(x: Tensor) -> tuple[Tensor, ...]:
        y = x * 2
        return y, y.view(-1), x.t(), x, y[0]

    compiled = torch.compile(views, backend="threadcast")

    def call(number: int) -> None:
        x = rows(number).requires_grad_(number % 2 == 1)
        found = compiled(x)
        close(found, views(x))
        assert found[3] is x
        assert found[2].data_ptr() == x.data_ptr()
        assert found[1].data_ptr() == found[4].data_ptr() == found[0].data_ptr()

    run_until_settled(call)


def test_detached_results_and_repeated_views_stay_tensors_of_their_own() -> None:
    class Detaching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.layer = nn.Linear(8, 8).double()

        def forward(self, x: Tensor) -> tuple[Tensor, ...]:
            hidden = self.layer(x).tanh()
            return hidden, hidden.detach(), hidden.detach().view(-1), hidden.view(-1), hidden.view(-1)

    mine, eager = Detaching(), Detaching()
    compiled = torch.compile(mine, backend="threadcast")

    def call(number: int) -> None:
        results = [called(rows(number)) for called in (compiled, eager)]
        assert [one.requires_grad for one in results[0]] == [one.requires_grad for one in results[1]]
        assert len({id(one) for one in results[0]}) == 5
        for (whole, _, _, one, other), model in zip(results, (mine, eager), strict=True):
            model.zero_grad()
            (whole.sum() + one.square().sum() + other.sum()).backward()
        close(mine.layer.weight.grad, eager.layer.weight.grad)

    run_until_settled(call)
    assert planned()


def test_inputs_may_lie_in_memory_in_any_order() -> None:
    model = perceptron()
    compiled = torch.compile(model, backend="threadcast")

    def call(number: int) -> None:
        wide = torch.randn(8, 5, dtype=torch.float64), torch.randn(5, 16, dtype=torch.float64)
        for x in (wide[0].t(), wide[1][:, ::2], rows(number, 1).expand(5, 8)):
            close(compiled(x), model(x))

    run_until_settled(call)
    assert planned()


def test_pieces_are_compiled_one_by_one_and_within_each_other() -> None:
    mine: Any = perceptron()
    eager = perceptron()
    for layer in (0, 2):
        mine[layer] = torch.compile(mine[layer], backend="threadcast")
    mine.compile(backend="threadcast")

    def call(number: int) -> None:
        for model in (mine, eager):
            model.zero_grad()
            model(rows(number)).square().sum().backward()
        for one, other in zip(mine.parameters(), eager.parameters(), strict=True):
            close(one.grad, other.grad)

    run_until_settled(call)
    assert planned()


def test_exported_modules_and_functional_calls_are_compiled() -> None:
    model = perceptron().eval()
    exported = torch.export.export(model, (rows(0),)).module()
    from_file = torch.compile(exported, backend="threadcast")
    parameters = {name: value.detach() for name, value in model.named_parameters()}
    gradient = torch.func.grad(lambda given, x: torch.func.functional_call(model, given, (x,)).square().sum())
    compiled = torch.compile(gradient, backend="threadcast")

    def call(number: int) -> None:
        close(from_file(rows(number)), model(rows(number)))
        close(compiled(parameters, rows(number)), gradient(parameters, rows(number)))

    run_until_settled(call)
    assert planned()


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("before", [False, True])
def test_graphs_are_no_modules_for_hooks_of_all_modules(gradients: bool, before: bool) -> None:
    """Their results would go through these hooks, which a program that calls functions alone has no part in."""
    w, seen = torch.randn(8, 8, dtype=torch.float64, requires_grad=gradients), []
    compiled = torch.compile(lambda x: torch.relu(x @ w) * 2, backend="threadcast")

    def call(step: int) -> None:
        close(compiled(rows(step)), torch.relu(rows(step) @ w) * 2)

    if not before:
        run_until_settled(call)
    handle = register_module_forward_hook(lambda module, inputs, output: seen.append(module) or output * 2)
    try:
        for step in range(40):
            call(step)
    finally:
        handle.remove()
    assert not seen


def test_an_operators_error_is_raised_and_later_calls_work() -> None:
    compiled = torch.compile(lambda x, index: x[index] * 2, backend="threadcast")
    run_until_settled(lambda _: close(compiled(torch.ones(4), torch.tensor([1, 2])), torch.full((2,), 2.0)))
    with pytest.raises(IndexError, match="out of bounds"):
        compiled(torch.ones(4), torch.tensor([1, 7]))
    close(compiled(torch.ones(4), torch.tensor([1, 3])), torch.full((2,), 2.0))


def test_threads_that_share_a_compiled_model_get_their_own_results() -> None:
    model = perceptron()
    compiled = torch.compile(model, backend="threadcast")
    errors: list[BaseException] = []

    def work(which: int) -> None:
        try:
            for number in range(40):
                x = rows(100 * which + number, 3 + which)
                close(compiled(x), model(x))
        except BaseException as error:  # noqa: BLE001 - raised in the test's own thread
            errors.append(error)

    threads = [threading.Thread(target=work, args=(which,)) for which in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors


def test_threads_of_pytorch_are_as_before_between_the_passes_and_after_a_step() -> None:
    model, seen = perceptron(), set()
    compiled = torch.compile(model, backend="threadcast")
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda _: seen.add(torch.get_num_threads()))

    def step(number: int) -> None:
        result = compiled(rows(number))
        seen.add(torch.get_num_threads())
        result.sum().backward()
        seen.add(torch.get_num_threads())

    torch.set_num_threads(2)
    run_until_settled(step)
    assert planned()
    assert seen == {2}


def test_gradients_of_complex_numbers() -> None:
    def loss(model: Any, step: int) -> Tensor:
        found: Tensor = model(rows(step)).abs().square().mean()
        return found

    class Spectrum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.filter = nn.Parameter(torch.randn(8, dtype=torch.complex128))

        def forward(self, x: Tensor) -> Tensor:
            return torch.fft.ifft(torch.fft.fft(x) * self.filter)

    assert trains_as_eager(Spectrum, loss, steps=60) == {"forward": ["plan"], "backward": ["plan"]}


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_gradients_may_be_switched_off_around_and_inside(mode: Any) -> None:
    model = perceptron()

    def function(x: Tensor) -> Any:
        y = model(x)
        with torch.no_grad():
            z = model(y @ WEIGHT[:4])
        return y, z

    compiled = torch.compile(function, backend="threadcast")
    with mode():

        def call(seed: int) -> None:
            found, wanted = compiled(rows(seed)), function(rows(seed))
            assert [one.requires_grad for one in found] == [one.requires_grad for one in wanted]
            for one, other in zip(found, wanted, strict=True):
                close(one.detach(), other.detach())

        run_until_settled(call)


def test_the_package_declares_its_backend_where_pytorch_looks_for_it():
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    module, name = project["entry-points"]["torch_dynamo_backends"]["threadcast"].split(":")
    assert getattr(import_module(module), name) is backend


def test_results_of_one_call_stay_when_the_next_one_runs():
    compiled = torch.compile(lambda x: (x * 2, (x + 1).view(2, 8)), backend="threadcast")
    kept = []
    run_until_settled(lambda i: kept.append(compiled(torch.full((16,), float(i)))))
    for i, (double, more) in enumerate(kept):
        assert torch.equal(double, torch.full((16,), 2.0 * i))
        assert torch.equal(more, torch.full((2, 8), i + 1.0))
    assert runners() == {"inference": ["plan"]}
