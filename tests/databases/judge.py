"""Runs a case by eager PyTorch and by random plans, and says whether the plans gave the same."""

from __future__ import annotations

import copy
import random
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from tests.databases.cases import Call, Case, Training, loss_of
from tests.outcomes import Outcome, in_short
from tests.runtime.random_engines import RandomEngine, RandomEngines, Refused
from threadcast.capture.graph.capture import capture_forward, capture_training
from threadcast.capture.graph.optimizers import NoUpdate, OptimizerRefused
from threadcast.core.errors import CaptureError
from threadcast.runtime.check.bits import Difference
from threadcast.runtime.check.shadow import Ran, Shadowed, checked_step, leaves
from threadcast.runtime.updates.parameter_update import ParameterUpdate


class Judge:
    """Runs cases by these engines."""

    def __init__(self, engines: RandomEngines) -> None:
        self._engines = engines

    def __call__(self, case: Case) -> Outcome | None:
        """Run one case; None where the entry has no such example.

        Exceptions of eager are no finding; those of a plan that eager has not are differences.
        """
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                what = case.build()
            except Exception as error:  # noqa: BLE001 - whatever an example of PyTorch's raises, it is none
                return Outcome(case.name, "eager cannot", in_short(error))
            if what is None:
                return None
            return self._called(case, what) if isinstance(what, Call) else self._trained(case, what)

    def _called(self, case: Case, call: Call) -> Outcome:
        def step(engine: RandomEngine) -> Iterator[Difference | None]:
            function, tensors = _fresh(case, call)
            model = function if isinstance(function, nn.Module) else None
            captured = capture_forward(function, *tensors)

            def eager(*given: Tensor) -> Any:
                with torch.no_grad():
                    return function(*given)

            eager(*_fresh(case, call)[1])  # the first call may fill caches
            values = leaves if call.defined else _shapes
            shadowed = Shadowed(eager, eager, model, None, values)
            with engine(captured) as made:
                torch.manual_seed(case.seed)
                by = Ran(captured, made.plan, engine)
                run = lambda *given: captured.finish(made.run(captured.bind(*given)))  # noqa: E731
                yield checked_step(shadowed, run, tensors, captured, ran=lambda: by)[1]

        return self._judged(case, step)

    def _trained(self, case: Case, training: Training) -> Outcome:
        def steps(engine: RandomEngine) -> Iterator[Difference | None]:
            model, inputs = _fresh(case, training)
            optimizer = training.optimizer(list(model.parameters()))
            update = ParameterUpdate(model=model, optimizer=optimizer)

            def gradients(*given: Any) -> Tensor:
                loss = loss_of(model(*given), None)
                loss.backward()  # type: ignore[no-untyped-call]
                return loss.detach()

            try:
                if not update.is_whole:
                    raise OptimizerRefused("its step computes gradients several times")
                captured, whole = capture_training(model, loss_of, optimizer, tuple(inputs), None), True
            except OptimizerRefused:
                captured, whole = capture_training(model, loss_of, NoUpdate(), tuple(inputs), None), False

            def eager(given: Any, _: None) -> Tensor:
                return update.step(lambda: gradients(*given)) if whole else gradients(*given)

            def run(*given: Any) -> Any:
                return captured.finish(made.run(captured.bind(*given)))

            def one_step() -> Iterator[Difference | None]:
                if whole:
                    yield checked_step(shadowed, run, (tuple(inputs), None), captured, ran=lambda: by)[1]
                    return
                found: list[Difference | None] = []

                def checked() -> Tensor:
                    loss, difference, *_ = checked_step(shadowed, run, (tuple(inputs), None), captured, ran=lambda: by)
                    found.append(difference)
                    return loss

                update.step(checked)
                yield from found

            held = optimizer if whole else NoUpdate()
            shadowed = Shadowed(eager, eager, model, held, _loss)
            with engine(captured) as made:
                by = Ran(captured, made.plan, engine)
                torch.manual_seed(case.seed)
                for _ in range(random.Random(case.seed).randint(3, 6)):
                    yield from one_step()
            if whole:
                yield self._state_besides(case, training, optimizer)

        return self._judged(case, steps)

    def _judged(self, case: Case, steps: Callable[[RandomEngine], Iterator[Difference | None]]) -> Outcome:
        """Take the steps on each engine, up to the first difference."""
        refusals = []
        engines = self._engines.both(case.seed)
        for engine in engines:
            try:
                difference = next((found for found in steps(engine) if found is not None), None)
            except (CaptureError, Refused) as error:
                refusals.append(in_short(error))
                continue
            except Exception as error:  # noqa: BLE001 - of eager: what a plan raises is a difference
                return Outcome(case.name, "eager cannot", in_short(error))
            if difference is not None:
                return Outcome(case.name, "different", f"{engine.name}: {difference}")
        if len(refusals) == len(engines):
            return Outcome(case.name, "refused", refusals[0])
        return Outcome(case.name, "right")

    def _state_besides(self, case: Case, training: Training, optimizer: Optimizer) -> Difference | None:
        """State that the optimizer has after planned steps and has not after eager ones."""
        model, inputs = _fresh(case, training)
        eager = training.optimizer(list(model.parameters()))

        def gradients() -> Tensor:
            loss = loss_of(model(*inputs), None)
            loss.backward()  # type: ignore[no-untyped-call]
            return loss.detach()

        ParameterUpdate(model=model, optimizer=eager).step(gradients)
        wanted, found = eager.state_dict()["state"], optimizer.state_dict()["state"]
        strange = next((i for i in found if found[i].keys() != wanted.get(i, {}).keys()), None)
        if strange is None:
            return None
        return Difference(f"state of parameter {strange}", f"{set(found[strange])}, not {set(wanted.get(strange, ()))}")


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


def _loss(result: Any) -> dict[str, Any]:
    """The loss in what a step returned: eager's is that itself."""
    return {"loss": result["loss"] if isinstance(result, dict) else result}


def _shapes(result: Any) -> dict[str, Any]:
    """Shapes and types of what a call returned."""
    return {name: str((v.shape, v.dtype)) if isinstance(v, Tensor) else v for name, v in leaves(result).items()}
