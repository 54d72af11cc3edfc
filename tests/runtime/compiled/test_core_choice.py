"""Programs that `torch.compile` gives to this backend get the cores that the fewest other models use."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest
import torch
from torch import Tensor

import threadcast
from tests.runtime.compiled.running import perceptron, rows, run_until_settled
from tests.runtime.plans.test_core_choice import of
from threadcast.core import read_machine
from threadcast.runtime.backends.search import BackendSearch
from threadcast.runtime.doors import compile_backend
from threadcast.runtime.doors.compile_backend import compiled_graphs
from threadcast.runtime.plans import model_cores
from threadcast.runtime.plans.model_cores import CoreChoice

pytestmark = [
    pytest.mark.usefixtures("one_thread", "planned_at_once"),
    pytest.mark.skipif(len(read_machine()) < 2, reason="needs two cores"),
]


@pytest.fixture(autouse=True)
def choice(monkeypatch: pytest.MonkeyPatch) -> CoreChoice:
    """The process's, without the models of other tests."""
    made = CoreChoice()
    monkeypatch.setattr(model_cores, "_choice", made)
    return made


def double(x: Tensor) -> Tensor:
    return x * 2 + 1


def triple(x: Tensor) -> Tensor:
    return (x * 3).tanh()


def in_two_graphs(x: Tensor) -> Tensor:
    y = x * 4
    torch._dynamo.graph_break()
    return y.relu()


def on_one_core(function: Any) -> tuple[Any, list[tuple[int, ...]]]:
    """Compile and call a function; return it and the CPUs of each of its graphs."""
    known = compiled_graphs()
    compiled, x = torch.compile(function, backend="threadcast", options={"cores": 1}), torch.linspace(-1, 1, 8)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), function(x))
    made = [graph for graph in compiled_graphs() if graph not in known]
    return compiled, [tuple(cpu for core in graph.cores.cores for cpu in core.cpus) for graph in made]


def test_models_by_optimize_and_by_compile_know_of_each_other() -> None:
    with closing(threadcast.optimize(double, cores=1, backends=False)) as call:
        _compiled, (own,) = on_one_core(triple)
        assert own != call._optimized.machine.cores[0].cpus
    with closing(threadcast.optimize(in_two_graphs, cores=1, backends=False)) as call:
        assert own != call._optimized.machine.cores[0].cpus, "the first one was closed"


def test_all_graphs_of_a_program_run_on_the_same_cores_and_count_as_one_model(choice: CoreChoice) -> None:
    first = choice.machine(1).cores[0].cpus
    _compiled, of_graphs = on_one_core(in_two_graphs)
    assert of_graphs == [first, first]
    _other, (second,) = on_one_core(triple)
    assert second != first
    others = [of(choice, 1) for _ in range(len(read_machine()) - 2)]
    assert choice.machine(1).cores[0].cpus == first, f"each core has one model, {len(others)} of them others"


def test_a_program_counts_while_its_graphs_are_made_and_no_more_once_they_are_left_to_pytorch(
    choice: CoreChoice, monkeypatch: pytest.MonkeyPatch
) -> None:
    known, graph_call, meanwhile = compiled_graphs(), compile_backend.graph_call, []

    def looked(*arguments: Any) -> Any:
        meanwhile.append(choice.machine(1).cores[0].cpus)
        return graph_call(*arguments)

    monkeypatch.setattr(compile_backend, "graph_call", looked)
    _compiled, (own, _) = on_one_core(in_two_graphs)
    assert own not in meanwhile
    for graph in (graph for graph in compiled_graphs() if graph not in known):
        assert choice.machine(1).cores[0].cpus != own
        graph.leave("it is slower")
    assert choice.machine(1).cores[0].cpus == own


def test_a_number_of_cores_that_are_not_there_is_refused() -> None:
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match="cores=4096"):
        torch.compile(double, backend="threadcast", options={"cores": 4096})(torch.ones(3))


@pytest.mark.usefixtures("plans_win")
def test_backends_of_a_model_on_one_core_are_searched_for_on_its_cpus(
    choice: CoreChoice, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []

    def search(_: BackendSearch, *given: object, cpus: object, **options: object) -> None:
        asked.append(cpus)
        raise RuntimeError("there are none")

    monkeypatch.setattr(BackendSearch, "__init__", search)
    model, own = perceptron().eval(), choice.machine(1).cores[0].cpus
    options = {"cores": 1, "freeze": True, "fuse": False}  # a search waits until fused operators are compiled
    compiled = torch.compile(model, backend="threadcast", options=options)
    with torch.no_grad():
        run_until_settled(lambda number: torch.testing.assert_close(compiled(rows(number)), model(rows(number))))
        for number in range(10):
            torch.testing.assert_close(compiled(rows(number)), model(rows(number)))
    assert asked == [own]
