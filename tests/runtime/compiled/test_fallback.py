"""What no plan can run, PyTorch runs, with one warning that says why; nothing is raised that eager would not raise."""

from __future__ import annotations

import os
import signal
import threading
import warnings
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.utils._python_dispatch import TorchDispatchMode

from tests.runtime.check.wrong_kernels import with_wrong_kernel, wrong
from tests.runtime.compiled.running import perceptron, rows, run_until_settled, runners
from tests.runtime.taken_turn import Taken
from threadcast.capture.graph.capture import capture_graph
from threadcast.capture.guards import one_capture
from threadcast.core.errors import ExecutionError, InvalidInput, WrongResult
from threadcast.runtime.check import shadow
from threadcast.runtime.compiled import graph_calls
from threadcast.runtime.compiled.compile_options import CompileOptions
from threadcast.runtime.doors import compile_backend
from threadcast.runtime.doors.compile_backend import backend, compiled_calls, compiled_graphs
from threadcast.runtime.engine.engine import Engine

pytestmark = [
    pytest.mark.usefixtures("one_thread", "plans_win"),
    pytest.mark.filterwarnings("ignore:The .grad attribute"),  # of Dynamo's own look at inputs
]


def told(found: list[warnings.WarningMessage]) -> list[str]:
    """What threadcast says, without what other libraries warn of."""
    return [str(one.message) for one in found if "threadcast" in str(one.message)]


def warned(function: Any, *inputs: Any, times: int = 5) -> list[str]:
    """The warnings of some calls of a compiled function whose results are compared with eager's."""
    compiled = torch.compile(function, backend="threadcast")
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        for _ in range(times):
            torch.testing.assert_close(compiled(*inputs), function(*inputs))
    return told(found)


fakes: list[int] = []


@torch.library.custom_op("threadcast_tests::printing", mutates_args=())
def printing(x: Tensor) -> Tensor:
    return x * 2


@printing.register_fake
def _(x: Tensor) -> Tensor:
    print("a shape is asked for")  # noqa: T201 - which a capture refuses
    fakes.append(1)
    return torch.empty_like(x)


def test_a_graph_that_prints_while_it_is_captured_is_captured_once() -> None:
    (message,) = warned(lambda x: printing(x).relu(), torch.ones(4), times=2)
    assert "prints" in message or "print" in message
    asked = len(fakes)
    assert warned(lambda x: printing(x).relu(), torch.ones(4), times=20) == []
    assert len(fakes) - asked <= asked


def test_sparse_gradients_run_as_pytorch_and_are_eagers() -> None:
    torch.manual_seed(0)
    mine, eager = (nn.Embedding.from_pretrained(torch.eye(6), freeze=False, sparse=True) for _ in range(2))
    compiled = torch.compile(mine, backend="threadcast")
    index = torch.tensor([1, 1, 4])
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        for _ in range(4):
            compiled(index).sum().backward()
            eager(index).sum().backward()
    (message,) = told(found)
    assert "is sparse" in message
    assert mine.weight.grad is not None
    assert eager.weight.grad is not None
    assert mine.weight.grad.is_sparse
    torch.testing.assert_close(mine.weight.grad.to_dense(), eager.weight.grad.to_dense())


def test_a_subclass_of_tensor_runs_as_pytorch() -> None:
    class Marked(Tensor):
        pass

    (message,) = warned(lambda x: x * 2 + 1, torch.ones(3).as_subclass(Marked))
    assert "Marked, not an ordinary tensor" in message


class Counting(TorchDispatchMode):
    """Notes which operators are called."""

    def __init__(self) -> None:
        super().__init__()
        self.called: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.called.append(func)
        return func(*args, **kwargs or {})


def test_a_mode_of_the_caller_meets_every_operator() -> None:
    model = perceptron()
    compiled = torch.compile(model, backend="threadcast")
    run_until_settled(lambda number: compiled(rows(number)))
    with Counting() as counted:
        compiled(rows(0))
    assert torch.ops.aten.addmm.default in counted.called
    assert torch.ops.aten.tanh.default in counted.called


def test_what_aotautograd_cannot_differentiate_runs_as_dynamo_traced_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def refusing(*_: Any, **__: Any) -> Any:
        raise NotImplementedError("no such thing\nand more")

    monkeypatch.setattr(compile_backend, "aot_module_simplified", refusing)
    messages = warned(lambda x: x * 2, torch.ones(3))
    assert messages == [
        "threadcast runs a graph as PyTorch does: AOTAutograd raised NotImplementedError: no such thing"
    ]


@pytest.mark.parametrize("verify_every", [0, 1])
def test_a_plan_that_raises_what_eager_does_not_is_left(verify_every: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model = perceptron()
    compiled = torch.compile(model, backend="threadcast", options={"verify_every": verify_every})
    with torch.no_grad():
        run_until_settled(lambda number: compiled(rows(number)))

        def failing(*_: Any) -> Any:
            raise ExecutionError("a lane is missing")

        monkeypatch.setattr(Engine, "run", failing)
        with pytest.warns(UserWarning, match="a plan raised ExecutionError: a lane is missing"):
            torch.testing.assert_close(compiled(rows(1)), model(rows(1)))
        torch.testing.assert_close(compiled(rows(2)), model(rows(2)))
    assert runners() == {"inference": ["default"]}


def test_a_kernel_that_goes_wrong_later_is_found_by_a_call_that_is_verified(monkeypatch: pytest.MonkeyPatch) -> None:
    def miscompiled(*given: Any, **options: Any) -> Any:
        return with_wrong_kernel(capture_graph(*given, **options), "relu")[0]

    monkeypatch.setattr(graph_calls, "capture_graph", miscompiled)
    monkeypatch.setattr(wrong, "on", False)
    compiled = torch.compile(lambda x: (x @ x.t()).relu(), backend="threadcast", options={"verify_every": 1})
    with torch.no_grad():
        run_until_settled(lambda number: compiled(rows(number)))
        assert runners() == {"inference": ["plan"]}
        monkeypatch.setattr(wrong, "on", True)
        with pytest.raises(WrongResult, match="relu"):
            compiled(rows(1))


class Preempted(Exception):
    pass


def preempt(*_: Any) -> None:
    raise Preempted


@pytest.mark.parametrize("training", [False, True])
def test_what_a_signal_handler_raises_reaches_the_program_and_plans_stay(
    training: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = perceptron()
    compiled = torch.compile(model, backend="threadcast", options={"verify_every": 0})

    def step(number: int) -> None:
        with torch.set_grad_enabled(training):
            found = compiled(rows(number))
        if training:
            found.sum().backward()

    run_until_settled(step)
    before = signal.signal(signal.SIGUSR1, preempt)
    plain = Engine.run

    def interrupted(engine: Engine, *given: Any) -> Any:
        found = plain(engine, *given)
        signal.raise_signal(signal.SIGUSR1)
        return found

    def steps() -> None:
        for number in range(100):  # those by the short way do not call `run`
            step(number)

    try:
        with monkeypatch.context() as patch:
            patch.setattr(Engine, "run", interrupted)
            with pytest.raises(Preempted):
                steps()
    finally:
        signal.signal(signal.SIGUSR1, before)
    step(1)
    assert {name for found in runners().values() for name in found} == {"plan"}


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")  # of PyTorch's own
def test_tangents_of_forward_mode_are_computed_by_pytorch() -> None:
    model, x, tangent = perceptron(), rows(1), rows(2)
    compiled = torch.compile(model, backend="threadcast")

    def tangent_of(call: Any) -> Tensor | None:
        with forward_ad.dual_level():
            return forward_ad.unpack_dual(call(forward_ad.make_dual(x, tangent))).tangent

    with torch.no_grad():
        wanted = tangent_of(model)
        run_until_settled(lambda number: compiled(rows(number)))
        assert runners() == {"inference": ["plan"]}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = tangent_of(compiled)
    torch.testing.assert_close(found, wanted)


def test_inputs_of_a_first_call_are_not_kept() -> None:
    compiled = torch.compile(lambda x: x * 2, backend="threadcast")
    kept = []
    for number in range(12):
        x = rows(number)
        compiled(x)
        kept.append(weakref.ref(x))
        del x
    assert runners()["inference"]
    assert [reference() for reference in kept] == [None] * 12


def test_a_graph_that_computes_nothing_needs_no_plan() -> None:
    before = compiled_graphs()
    assert warned(lambda x, y: (y, x), torch.ones(2), torch.zeros(2)) == []
    assert compiled_graphs() == before


def test_short_graphs_are_left_alone_without_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THREADCAST_ENGINE_LEAST_STEP_US", "1e12")
    assert warned(lambda x: x * 2, torch.ones(3), times=8) == []
    (report,) = (report for graph in compiled_graphs() for report in graph.reports)
    assert "too short to gain" in report.reason


@pytest.mark.compared
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_process_that_is_forked_while_another_thread_looks_at_a_call_computes() -> None:
    model = perceptron()
    compiled = torch.compile(model, backend="threadcast")
    with torch.no_grad():
        wanted = model(rows(1))
        compiled(rows(0))
        (call,) = compiled_calls()
        held, over = threading.Event(), threading.Event()

        def hold() -> None:
            with call._lock:
                held.set()
                over.wait()

        holder = threading.Thread(target=hold)
        holder.start()
        held.wait()
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(60)
            os._exit(0 if torch.allclose(compiled(rows(1)), wanted) else 1)
        over.set()
        holder.join()
    assert os.waitpid(child, 0)[1] == 0


def test_options_choose_cores_and_what_learning_may_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as changed:
        changed.setenv("THREADCAST_ENGINE_TUNING_SHARE", "0.2")
        assert CompileOptions.of(None, None).tuning_share == 0.2
    for mode in ("default", "reduce-overhead"):
        assert CompileOptions.of(mode, None) == CompileOptions.of(None, None)
    for mode in ("max-autotune", "max-autotune-no-cudagraphs"):
        assert CompileOptions.of(mode, None).tuning_share == 1.0
    assert CompileOptions.of("max-autotune", {"tuning_share": 0.5}).tuning_share == 0.5


@pytest.mark.parametrize(
    ("mode", "options", "message"),
    [
        ("fastest", {}, "mode='fastest'"),
        (None, {"core": 1}, "unknown option 'core'; did you mean 'cores'"),
        (None, {"cores": "two"}, "cores='two'"),
        (None, {"cores": 0}, "cores=0 must be a number of cores"),
        (None, "cores", "options='cores' must be a dictionary"),
        (None, {"fuse": 1}, "fuse=1"),
        (None, {"tuning_share": 2}, "tuning_share=2"),
        (None, {"verify_every": -1}, "verify_every=-1"),
    ],
)
def test_an_unknown_option_is_an_error_that_names_it(mode: str | None, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message.replace("(", "\\(")):
        backend(torch.fx.symbolic_trace(nn.Identity()), [torch.ones(1)], mode=mode, options=options)


@pytest.mark.parametrize("verify_every", [0, 1])
@pytest.mark.parametrize("training", [False, True])
def test_a_plan_with_dropout_that_raises_runs_again_on_the_same_random_numbers(
    training: bool, verify_every: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = nn.Sequential(perceptron(), nn.Dropout(0.5), nn.Linear(4, 4).double())
    compiled = torch.compile(model, backend="threadcast", options={"verify_every": verify_every})

    def results(called: Any, number: int) -> list[Tensor]:
        torch.manual_seed(number)
        with torch.set_grad_enabled(training):
            found = [called(rows(number))]
        if training:
            found += torch.autograd.grad(found[0].square().sum(), list(model.parameters()))
        return [*found, torch.rand(3)]

    run_until_settled(lambda number: results(compiled, number))
    assert all("plan" in found for found in runners().values())

    def failing(engine: Engine, *_: Any) -> Any:
        if engine.captured.random:
            torch.rand(100)
        raise ExecutionError("a lane is missing")

    monkeypatch.setattr(Engine, "run", failing)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        for number in range(3):
            torch.testing.assert_close(results(compiled, number), results(model, number))
    assert told(found) == ["threadcast runs a graph as PyTorch does: a plan raised ExecutionError: a lane is missing"]
    assert {name for found in runners().values() for name in found} == {"default"}


def twice_by_numbers(x: Tensor) -> Tensor:
    for _ in range(2):
        x = torch.cond(x.sum() > 0, lambda x: x.sin() + 1, lambda x: x.cos(), (x,))
        torch._dynamo.graph_break()
    return x


def doubled_twice(x: Tensor) -> Tensor:
    x = x * 2
    torch._dynamo.graph_break()
    return x * 2


def test_a_reason_that_several_graphs_have_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    (message,) = warned(twice_by_numbers, torch.ones(4))
    assert "as PyTorch does: cond calls graphs" in message

    def failing(*_: Any, **__: Any) -> Any:
        raise KeyError("aten.new")

    monkeypatch.setattr(graph_calls, "capture_graph", failing)
    (message,) = warned(doubled_twice, torch.ones(3))
    assert "cannot capture: KeyError: 'aten.new'" in message
    assert warned(doubled_twice, torch.ones(2, 3)) == [], "of another shape, and told before"
    assert len(compiled_graphs()) >= 3


def test_graphs_run_as_pytorch_while_another_thread_captures(monkeypatch: pytest.MonkeyPatch) -> None:
    model, turn = perceptron(), Taken()
    compiled = torch.compile(model, backend="threadcast", options={"tuning_share": 0.05})
    with torch.no_grad():
        with monkeypatch.context() as meanwhile:
            meanwhile.setattr(one_capture, "_turn", turn)
            for number in range(3):
                torch.testing.assert_close(compiled(rows(number)), model(rows(number)))
            assert set(turn.waits_s) == {0.0}
        torch.testing.assert_close(compiled(rows(1)), model(rows(1)))
    (graph,) = compiled_graphs()
    assert len(graph.reports) == 1, "it is captured at the next call"


def test_a_call_that_memory_is_too_small_to_verify_runs_with_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    model = perceptron()
    compiled = torch.compile(model, backend="threadcast", options={"verify_every": 1})
    with torch.no_grad():
        run_until_settled(lambda number: compiled(rows(number)))
        monkeypatch.setattr(shadow, "free_bytes", lambda: 10)
        with pytest.warns(UserWarning, match="threadcast does not verify this call: .* are free"):
            torch.testing.assert_close(compiled(rows(1)), model(rows(1)))
    assert runners() == {"inference": ["plan"]}
