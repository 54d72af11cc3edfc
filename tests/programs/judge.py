"""Runs a program in eager PyTorch and by threadcast, and says whether all that a caller can see is the same."""

from __future__ import annotations

import math
import warnings
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from tempfile import TemporaryDirectory
from typing import Any, Literal
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.fx import GraphModule
from torch.utils import _pytree as pytree

from tests.outcomes import Outcome, in_short
from tests.programs.pytorch_tests import Arguments, Program
from tests.runtime.conftest import Decided, SequentialPlanner
from tests.runtime.random_engines import RandomEngines, Refused
from tests.whole_calls import by_the_graphs
from threadcast.capture.graph.capture import capture_graph
from threadcast.core.errors import CaptureError
from threadcast.runtime.calls.conditions import why_not_captured
from threadcast.runtime.compiled.graph_calls import Role
from threadcast.runtime.compiled.whole_calls import WholeCalls
from threadcast.runtime.doors import compile_backend
from threadcast.runtime.doors.compile_backend import backend, compiled_calls, compiled_graphs
from threadcast.runtime.engine.engine import Engine
from threadcast.runtime.tuner import candidates, looks, plan_candidate, planning, standings

Way = Literal["graphs", "gradients", "short way", "optimize"]
WAYS: tuple[Way, ...] = ("graphs", "gradients", "short way", "optimize")
"""Graphs of `torch.compile` by random plans; the same where all arguments that may have gradients have; calls of these
from the first until they go the short way; `optimize`, whose calls go on until a plan runs them."""
MOST_CALLS = 60
"""Calls of a program until it is given up that they settle. A convention."""
_CLOSE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 5e-2}
"""Differences allowed, as a share of the largest number: other plans add up in another order."""


class Judge:
    """Judges programs by these engines."""

    def __init__(self, engines: RandomEngines) -> None:
        self._engines = engines
        self._ran = 0
        """Graphs of the last program that ran by a plan."""

    def __call__(self, program: Program, way: Way) -> Outcome:
        """Run one program; what AOTAutograd gets wrong by itself, with PyTorch's operators, is "PyTorch's own"."""
        if way in ("gradients", "short way"):
            program = _with_gradients(program)
        with warnings.catch_warnings(), torch.set_grad_enabled(program.gradients):
            warnings.simplefilter("ignore")
            try:
                wanted, again = (_seen(program, program.fresh_function()) for _ in range(2))
            except Exception as error:  # noqa: BLE001 - as tests of errors do
                return Outcome(program.name, "eager cannot", in_short(error))
            if (difference := differs(wanted, again, exact=False)) is not None:
                return Outcome(program.name, "eager cannot", f"differs from itself: {difference}")
            refused: list[str] = []
            try:
                reason = self._run(program, way, refused)
            except Exception as error:  # noqa: BLE001 - eager raised none
                reason = f"raised {type(error).__name__}: {in_short(error)}"
            finally:
                _forget()
            if reason is None:
                return Outcome(program.name, "refused" if refused else "right", "; ".join(dict.fromkeys(refused)))
            own = way != "optimize" and _by_pytorch(program, wanted)
            return Outcome(program.name, "PyTorch's own" if own else "different", reason)

    def _run(self, program: Program, way: Way, refused: list[str]) -> str | None:
        if way == "optimize":
            return _by_optimize(program, refused)
        return _by_short_way(program, refused) if way == "short way" else self._by_graphs(program, refused)

    def _by_graphs(self, program: Program, refused: list[str]) -> str | None:
        def graph_calls(
            graph: GraphModule, _: object, parts: object, role: Role, *, whole: bool = False
        ) -> _ByRandomPlans:
            return _ByRandomPlans(graph, role, partial(self._engine, zlib.crc32(program.name.encode())), refused)

        self._ran = 0
        with patch.object(compile_backend, "_graph_calls", graph_calls):
            mine, eager = program.fresh_function(), program.fresh_function()
            compiled = torch.compile(mine, backend=backend)
            for _ in range(2):  # AOTAutograd examines the first run of a graph, which PyTorch's operators do
                if (reason := differs(_seen(program, eager), _seen(program, compiled, mine), exact=True)) is not None:
                    return reason
        if not self._ran:
            refused.append("no graph ran by a plan")
        return None

    def _engine(self, seed: int, captured: Any) -> Engine:
        engine = self._engines.one(seed, captured)
        self._ran += 1
        return engine


class _ByRandomPlans:
    """In place of `GraphCalls`: each call is captured, and run by a random plan."""

    def __init__(
        self, graph: GraphModule, role: Role, make: Callable[[Any], Engine], refused: list[str]
    ) -> None:  # fmt: skip
        self._graph, self._make, self._refused = graph, make, refused
        self._phase: Literal["backward", "forward"] = "backward" if role == "backward" else "forward"

    def __call__(self, *arguments: Any) -> Any:
        if why_not_captured(()) is None:
            try:
                captured = capture_graph(self._graph.forward, arguments, phase=self._phase)
                engine = self._make(captured)
            except (CaptureError, Refused) as error:
                self._refused.append(in_short(error))
            else:
                with engine:
                    return captured.finish(engine.run(captured.bind(*arguments)))
        with torch.no_grad():
            return self._graph.forward(*arguments)


def _with_gradients(program: Program) -> Program:
    """The program with arguments of which all that may have gradients have."""

    def make() -> Arguments:
        found = program.make()
        values = {id(one): one for one in pytree.tree_leaves((found.given, found.named)) if isinstance(one, Tensor)}
        for value in values.values():
            if value.is_leaf and (value.is_floating_point() or value.is_complex()):
                value.requires_grad_()
        leaves = [one for one in values.values() if one.is_leaf and one.requires_grad]
        return Arguments(found.given, found.named, leaves or found.leaves)

    return replace(program, make=make, gradients=True)


def _by_short_way(program: Program, refused: list[str]) -> str | None:
    """Call until some calls went the short way, and compare each."""
    with _plans_at_once():
        mine, eager = program.fresh_function(), program.fresh_function()
        compiled = torch.compile(mine, backend=backend)
        for _ in range(MOST_CALLS):
            if (reason := differs(_seen(program, eager), _seen(program, compiled, mine), exact=True)) is not None:
                return reason
            if sum(call.short_calls for call in compiled_calls()) >= 3:
                return None
    refused.append("no call went the short way")
    return None


def _by_optimize(program: Program, refused: list[str]) -> str | None:
    """Call without gradients until a plan runs the calls, and compare each."""
    import threadcast

    with _plans_at_once(), torch.no_grad():
        mine, eager = program.fresh_function(), program.fresh_function()
        call = threadcast.optimize(mine, backends=False)
        try:
            for _ in range(MOST_CALLS):
                if (reason := differs(_seen(program, eager), _seen(program, call, mine), exact=True)) is not None:
                    return reason
                reports = call.reports
                if reports and not any(report.measuring for report in reports):
                    break
            runs = {report.runs for report in call.reports}
            if "plan" not in runs:
                refused.append("; ".join(report.reason for report in call.reports) or "not settled")
        finally:
            call.close()
    return None


def _by_pytorch(program: Program, wanted: Seen) -> bool:
    """Whether AOTAutograd with PyTorch's own operators differs from eager PyTorch, or raises, too."""
    try:
        mine = program.fresh_function()
        return differs(wanted, _seen(program, torch.compile(mine, backend="aot_eager"), mine), exact=True) is not None
    except Exception:  # noqa: BLE001
        return True
    finally:
        torch._dynamo.reset()


@contextmanager
def _plans_at_once() -> Iterator[None]:
    """Tuning settles on a plan, whichever is faster, after as few calls as may be; nothing is kept."""
    settings = {
        "THREADCAST_ENGINE_FEEDBACK": "off", "THREADCAST_ENGINE_LEAST_STEP_US": "0",
        "THREADCAST_ENGINE_TUNING_SHARE": "1", "THREADCAST_ENGINE_VERIFY_EVERY": "0",
    }  # fmt: skip
    with (
        TemporaryDirectory() as plans,
        patch.dict("os.environ", settings | {"THREADCAST_ENGINE_PLANS": plans}),
        patch.object(standings, "are_steady", lambda _: True),
        patch.object(candidates, "Tournament", Decided),
        patch.object(planning, "ForecastingPlanner", SequentialPlanner),
        patch.object(WholeCalls, "next_turn", by_the_graphs),
        patch.object(looks, "HOPELESS", math.inf),
        patch.object(plan_candidate, "SLOWER", math.inf),
    ):
        yield


@dataclass(frozen=True, slots=True)
class Seen:
    """What a caller sees of a call: results and their structure, gradients, and what became of the arguments."""

    structure: str
    results: list[Any]
    gradients: list[Tensor | None]
    arguments: list[Any]
    state: list[Tensor]
    """Parameters and buffers, of a module."""
    kinds: list[str]
    """Of each result: type, shape, strides, whether it has gradients, and which argument or result it shares memory
    with."""


def _seen(program: Program, function: Callable[..., Any], module: Callable[..., Any] | None = None) -> Seen:
    """What is seen of a call of `function`, by which `module` runs, where it is none itself."""
    module = function if module is None else module
    arguments = program.make()
    torch.manual_seed(0)
    found = function(*arguments.given, **arguments.named)
    results, structure = pytree.tree_flatten(found)
    given = [value for value in pytree.tree_leaves((arguments.given, arguments.named)) if isinstance(value, Tensor)]
    kinds = [_kind(i, results, given) for i in range(len(results))]
    leaves = list(arguments.leaves)
    if isinstance(module, nn.Module):
        leaves += [parameter for parameter in module.parameters() if parameter.requires_grad]
    gradients = _gradients(results, leaves) if torch.is_grad_enabled() else []
    kept = [value.detach().clone() if isinstance(value, Tensor) else value for value in results]
    after = [value.detach().clone() if isinstance(value, Tensor) else value for value in given]
    held = list(module.state_dict().values()) if isinstance(module, nn.Module) else []
    state = [value.detach().clone() for value in held if isinstance(value, Tensor)]
    return Seen(str(structure), kept, gradients, after, state, kinds)


def _gradients(results: Sequence[Any], leaves: Sequence[Tensor]) -> list[Tensor | None]:
    differentiable = [one for one in results if isinstance(one, Tensor) and one.requires_grad]
    if not differentiable or not leaves:
        return []
    numbers = torch.Generator().manual_seed(1)
    given = [torch.rand(one.shape, generator=numbers).to(one.dtype) for one in differentiable]
    return list(torch.autograd.grad(differentiable, leaves, given, allow_unused=True))


def _kind(number: int, results: Sequence[Any], given: Sequence[Tensor]) -> str:
    one = results[number]
    if not isinstance(one, Tensor):
        return type(one).__name__
    strides = ""
    if one.layout is torch.strided:
        strides = str([stride for stride, size in zip(one.stride(), one.shape, strict=True) if size > 1])
    others = [*given, *[value for value in results[:number] if isinstance(value, Tensor)]]
    shared = [i for i, other in enumerate(others) if _place(one) is not None and _place(one) == _place(other)]
    return f"{one.dtype} {tuple(one.shape)} {one.layout} strides {strides}, gradients: {one.requires_grad}, {shared}"


def _place(value: Tensor) -> int | None:
    """Where the memory of a tensor begins; None where it has none."""
    try:
        return value.untyped_storage().data_ptr() or None
    except (RuntimeError, NotImplementedError):
        return None


def differs(wanted: Seen, found: Seen, *, exact: bool) -> str | None:
    """Return in what two calls differ, first of all; with `exact` also in kinds. None where they agree."""
    if exact and found.structure != wanted.structure:
        return f"structure: {found.structure[:80]}, not {wanted.structure[:80]}"
    if exact:
        for i, (mine, its) in enumerate(zip(found.kinds, wanted.kinds, strict=True)):
            if mine != its:
                return f"kind of result {i}: {mine}, not {its}"
    pairs = (
        ("result", found.results, wanted.results), ("gradient", found.gradients, wanted.gradients),
        ("argument", found.arguments, wanted.arguments), ("state", found.state, wanted.state),
    )  # fmt: skip
    for what, mine, its in pairs:
        if len(mine) != len(its):
            return f"{len(mine)} {what}s, not {len(its)}"
        largest = max(map(_largest, its), default=0.0)
        for i, (one, other) in enumerate(zip(mine, its, strict=True)):
            if (reason := _value_differs(one, other, largest if what == "gradient" else _largest(other))) is not None:
                return f"{what} {i}: {reason}"
    return None


def _largest(value: Any) -> float:
    """The largest finite number of a tensor."""
    if not isinstance(value, Tensor) or not (value.is_floating_point() or value.is_complex()):
        return 0.0
    sizes = (value.to_dense() if value.layout is not torch.strided else value).abs().double()
    finite = sizes[sizes.isfinite()]
    return float(finite.max()) if finite.numel() else 0.0


def _value_differs(mine: Any, its: Any, largest: float) -> str | None:
    """How two values differ by more than roundings of numbers up to `largest`; None where they do not."""
    if not isinstance(mine, Tensor) or not isinstance(its, Tensor):
        same = type(mine) is type(its) and (mine is its or bool(mine == its) or mine != mine)
        return None if same else f"{mine!r:.60}, not {its!r:.60}"
    if mine.dtype != its.dtype or mine.shape != its.shape or mine.layout != its.layout:
        return f"{mine.dtype} {tuple(mine.shape)} {mine.layout}, not {its.dtype} {tuple(its.shape)} {its.layout}"
    if mine.layout is not torch.strided:
        mine, its = mine.to_dense(), its.to_dense()
    if mine.is_quantized:
        mine, its = mine.dequantize(), its.dequantize()
    if not (mine.is_floating_point() or mine.is_complex()):
        return None if torch.equal(mine, its) else "other integers"
    real = torch.view_as_real(mine.resolve_conj()).dtype if mine.is_complex() else mine.dtype
    close = _CLOSE.get(real, 0.1)
    mine, its = (value.to(torch.complex128 if value.is_complex() else torch.float64) for value in (mine, its))
    if torch.allclose(mine, its, rtol=close, atol=close * max(largest, 1e-30), equal_nan=True):
        return None
    difference = (mine - its).abs()
    return f"differs by up to {float(difference.nan_to_num(math.inf).max()):.3g} of {largest:.3g}"


def _forget() -> None:
    for graph in compiled_graphs():
        graph.close()
    torch._dynamo.reset()
    compile_backend._graphs.clear()
    compile_backend._calls.clear()
