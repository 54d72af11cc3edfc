"""Runs a case by eager PyTorch and by random plans on both engines, and says whether the plans gave the same."""

from __future__ import annotations

import copy
import random
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils import _pytree as pytree

from tests.databases.cases import Call, Case, Training, loss_of
from tests.runtime.random_plans import make_random_plan
from threadcast.capture.capture import Captured, capture_forward, capture_training
from threadcast.core import Machine
from threadcast.core.errors import CaptureError, ExecutionError, InvalidInput
from threadcast.runtime.engine import Engine
from threadcast.runtime.executors import Executors
from threadcast.runtime.native.engine import NativeEngine
from threadcast.runtime.python_engine import PythonEngine
from threadcast.runtime.verification.differences import NUDGES, first_difference, nudged, sensitivities

Status = Literal["right", "refused", "different", "eager cannot"]

Values = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a case; `reason` says why it was refused, or what differs."""

    case: Case
    status: Status
    reason: str = ""


class Judge:
    """Runs cases on `machine`; `executors` are the Python engine's threads. Without a compiler, that engine only."""

    def __init__(self, machine: Machine, executors: Executors, *, native: bool = True) -> None:
        self._machine, self._executors, self._native = machine, executors, native

    def __call__(self, case: Case) -> Outcome | None:
        """Run one case; None where the entry has no such example.

        Exceptions of eager are no finding; those of a plan that eager has not are differences.
        """
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                what = case.build()
            except Exception as error:  # noqa: BLE001 - whatever an example of PyTorch's raises, it is none
                return Outcome(case, "eager cannot", _short(error))
            if what is None:
                return None
            return self._called(case, what) if isinstance(what, Call) else self._trained(case, what)

    def _called(self, case: Case, call: Call) -> Outcome:
        def eager(change: Callable[[Tensor], Tensor] | None = None) -> Values:
            function, tensors = _fresh(case, call)
            if change is not None:
                tensors = [change(tensor) for tensor in tensors]
                function = _nudged_model(function, change) if isinstance(function, nn.Module) else function
            torch.manual_seed(case.seed)
            with torch.no_grad():
                return _call_values(function(*tensors), tensors, function, call.defined)

        try:
            wanted = eager()
        except Exception as error:  # noqa: BLE001 - as above
            return Outcome(case, "eager cannot", _short(error))
        refusals = []
        for make in self._engines(case.seed):
            function, tensors = _fresh(case, call)
            try:
                captured = capture_forward(function, *_fresh(case, call)[1])
                with make(captured) as engine:
                    torch.manual_seed(case.seed)
                    result = engine.run(captured.bind(*tensors)) if tensors else engine.run(captured.bind())
                    found = _call_values(result, tensors, function, call.defined)
            except (CaptureError, _Refused) as error:
                refusals.append(_short(error))
                continue
            except Exception as error:  # noqa: BLE001 - eager did not raise it
                return Outcome(case, "different", f"a plan raises {type(error).__name__}: {_short(error)}")
            difference = first_difference(wanted, found)
            if difference is not None:
                difference = first_difference(wanted, found, sensitivity=_sensitivity(eager, wanted))
            if difference is not None:
                return Outcome(case, "different", f"{make.name}: {difference}")
        return _right_or_refused(case, refusals, len(self._names))

    def _trained(self, case: Case, training: Training) -> Outcome:
        steps = random.Random(case.seed).randint(3, 6)
        refusals, wanted, before = [], None, _state(training.model, None)

        def eager(change: Callable[[Tensor], Tensor] | None = None) -> Values:
            model, inputs = _fresh(case, training)
            if change is not None:
                model = _nudged_model(model, change)
                inputs = [change(x) for x in inputs]
            optimizer = training.optimizer(list(model.parameters()))
            return _train(model, optimizer, steps, case.seed, lambda: _eager_step(model, optimizer, inputs))

        for make in self._engines(case.seed):
            model, inputs = _fresh(case, training)
            try:
                optimizer = training.optimizer(list(model.parameters()))
                random.seed(case.seed)
                captured = capture_training(model, loss_of, optimizer, tuple(inputs), torch.zeros(()))
                engine = make(captured)
            except (CaptureError, _Refused) as error:
                refusals.append(_short(error))
                continue
            except Exception as error:  # noqa: BLE001 - an optimizer that does not take such parameters
                return Outcome(case, "eager cannot", _short(error))
            with engine:
                if wanted is None:
                    try:
                        wanted = eager()
                    except Exception as error:  # noqa: BLE001 - as above
                        return Outcome(case, "eager cannot", _short(error))
                try:
                    run = _plan_step(engine, captured, inputs)
                    found = _train(model, optimizer, steps, case.seed, run)
                except Exception as error:  # noqa: BLE001 - eager did not raise it
                    return Outcome(case, "different", f"a plan raises {type(error).__name__}: {_short(error)}")
            difference = first_difference(wanted, found, before=before)
            if difference is not None:
                sensitivity = _sensitivity(eager, wanted)
                difference = first_difference(wanted, found, before=before, sensitivity=sensitivity)
            if difference is not None:
                return Outcome(case, "different", f"{make.name}: {difference}")
        return _right_or_refused(case, refusals, len(self._names))

    @property
    def _names(self) -> tuple[str, ...]:
        return ("native", "python") if self._native else ("python",)

    def _engines(self, seed: int) -> Iterator[_Making]:
        """Both engines; one has a plan of one lane and the other one of several, which of them by the seed."""
        for number, name in enumerate(self._names):
            yield _Making(name, (seed + number) % 2 == 0, seed, self._machine, self._executors)


class _Refused(Exception):
    """An engine cannot run such a graph, and says why."""


@dataclass(frozen=True, slots=True)
class _Making:
    """Makes one of the engines with a random plan of one lane or of several."""

    engine: str
    one_lane: bool
    seed: int
    machine: Machine
    executors: Executors

    @property
    def name(self) -> str:
        return f"{self.engine} engine, {'one lane' if self.one_lane else 'several lanes'}"

    def __call__(self, captured: Captured) -> Engine:
        cores = tuple(core.id for core in self.machine.cores)
        cores = cores[:1] if self.one_lane else cores
        plan = make_random_plan(captured.graph, cores, seed=self.seed, max_factor=1 if self.one_lane else 2)
        if self.engine == "python":
            return PythonEngine(captured, plan, self.machine, executors=self.executors)
        try:
            return NativeEngine(captured, plan, self.machine)
        except (ExecutionError, InvalidInput) as error:
            raise _Refused(str(error)) from error


def _right_or_refused(case: Case, refusals: list[str], engines: int) -> Outcome:
    return Outcome(case, "refused", refusals[0]) if len(refusals) == engines else Outcome(case, "right")


def _fresh(case: Case, what: Call | Training) -> tuple[Any, list[Any]]:
    """A copy of what is called and of what it takes; made anew where some tensors cannot be copied (sparse ones)."""
    try:
        if isinstance(what, Training):
            return copy.deepcopy((what.model, what.inputs))
        model = isinstance(what.function, nn.Module)
        return copy.deepcopy(what.function) if model else what.function, copy.deepcopy(what.tensors)
    except RuntimeError:
        again = case.build()
        if isinstance(again, Training):
            return again.model, again.inputs
        assert again is not None
        return again.function, again.tensors


def _sensitivity(eager: Callable[..., Values], wanted: Values) -> dict[str, float]:
    try:
        return sensitivities(wanted, *(eager(partial(nudged, seed=seed)) for seed in range(NUDGES)))
    except Exception:  # noqa: BLE001 - what is legal for a value need not be for its neighbour
        return {}


def _nudged_model(model: nn.Module, change: Callable[[Tensor], Tensor]) -> nn.Module:
    with torch.no_grad():
        for parameter in [*model.parameters(), *model.buffers()]:
            parameter.copy_(change(parameter))
    return model


def _call_values(result: Any, tensors: list[Tensor], function: Any, defined: bool) -> Values:
    """What a call returned, the arguments and the buffers after it, and the generator's state."""
    found = {f"result {i}": leaf for i, leaf in enumerate(pytree.tree_leaves(result))}
    if not defined:
        found = {name: str((v.shape, v.dtype)) if isinstance(v, Tensor) else v for name, v in found.items()}
    found |= {f"argument {i}": tensor for i, tensor in enumerate(tensors)} if defined else {}
    if isinstance(function, nn.Module):
        found |= _state(function, None)
    return {**found, "the generator's state": torch.get_rng_state()}


def _state(model: nn.Module, optimizer: Optimizer | None) -> Values:
    """Copies of parameters, buffers and the optimizer's state by name."""
    found: Values = {name: value.detach().clone() for name, value in model.state_dict(keep_vars=True).items()}
    if optimizer is not None:
        for name, parameter in model.named_parameters():
            for entry, value in optimizer.state.get(parameter, {}).items():
                if value is not None:
                    found[f"{entry} of {name}"] = copy.deepcopy(value)
    return found


def _train(model: nn.Module, optimizer: Optimizer, steps: int, seed: int, step: Callable[[], Tensor]) -> Values:
    torch.manual_seed(seed)
    losses = {f"loss of step {i}": step().detach().clone() for i in range(steps)}
    return {**losses, **_state(model, optimizer), "the generator's state": torch.get_rng_state()}


def _eager_step(model: nn.Module, optimizer: Optimizer, inputs: list[Any]) -> Tensor:
    optimizer.zero_grad()
    loss = loss_of(model(*inputs), None)
    loss.backward()
    optimizer.step()
    return loss


def _plan_step(engine: Engine, captured: Captured, inputs: list[Any]) -> Callable[[], Tensor]:
    def step() -> Tensor:
        loss: Tensor = engine.run(captured.bind(tuple(inputs), torch.zeros(())))["loss"]
        return loss

    return step


def _short(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
