"""One model of a judge, looked at for some seconds: whether results are right, what ran them, and why not a plan.

    python benchmarks/judge_quick.py zoo|graphnet NAME inference|training [compiled]

By `optimize` and `optimize_training`, or compiled by `torch.compile(model, backend="threadcast")`.
"""

from __future__ import annotations

import copy
import importlib
import json
import os
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from typing import Any

import torch
from judge_cases import load
from judged import (
    ROUNDED,
    Judged,
    Named,
    Value,
    begin_again,
    differences,
    eager_training,
    is_right,
    loss,
    moved_from,
    other_threads,
    results_of,
    rounded,
    state_of,
)

import threadcast
from threadcast.runtime.calls.fallback import FirstCall
from threadcast.runtime.tuner.tuning import Tuning

SEED = 5

STEPS = 3
"""Training steps that are compared with eager's from the same start."""


Eager = tuple[list[Value], list[list[Value]], float]
"""What eager PyTorch gives, what it gives in further runs that differ by rounding, and its seconds."""


def inference(case: Judged) -> dict[str, Any]:
    """Run the graph of a model in eval mode, and the model in eager PyTorch."""
    model = case.model.eval()
    eager = eager_inference(case)
    fast = threadcast.optimize(model, backends=False)
    ran = _prepared(fast, case.inputs, case.named)
    torch.manual_seed(SEED)
    with torch.no_grad():
        run = ran.captured.run(case.inputs, case.named) if isinstance(ran, Tuning) else fast(*case.inputs, **case.named)
    return _said(ran, results_of(run), eager)


def training(case: Judged) -> dict[str, Any]:
    """Train a model for some steps, by its graph and in eager PyTorch."""
    target = case.target()
    eager = eager_trainings(case, target)
    model = Named(case.model, case.named) if case.named else case.model
    optimizer, first = case.optimizer(), state_of(case.model)
    fast = threadcast.optimize_training(model, loss, optimizer)
    ran = _prepared(fast, (*case.inputs, target), {})
    if isinstance(ran, FirstCall):  # the first step makes the optimizer's state
        fast(*case.inputs, target)
        ran = _prepared(fast, (*case.inputs, target), {})
    begin_again(case.model, optimizer, first)

    def step() -> torch.Tensor:
        by = fast._optimized.prepare((*case.inputs, target), {})  # chance may decide which graph is right for a step
        if not isinstance(by, Tuning):
            return fast(*case.inputs, target)
        value: torch.Tensor = by.captured.run((*case.inputs, target), {})["loss"]
        return value

    return _said(ran, trained(case, step), eager)


def called(case: Judged, run: Callable[..., Any]) -> list[Value]:
    """The results of a call without gradients by `run`, the model or what was made of it."""
    torch.manual_seed(SEED)
    with torch.no_grad():
        return results_of(run(*case.inputs, **case.named))


def trained(case: Judged, step: Callable[[], torch.Tensor]) -> list[Value]:
    """The losses of some training steps, and how they move the model."""
    before = state_of(case.model)
    torch.manual_seed(SEED)
    values = results_of([step() for _ in range(STEPS)])
    return [*values, *moved_from(before, case.model)]


def eager_inference(case: Judged) -> Eager:
    """Calls of a model in eager PyTorch."""
    wanted = called(case, case.model)
    with other_threads():
        again = [called(case, case.model)]
    began_s = time.perf_counter()
    called(case, case.model)
    return wanted, again, time.perf_counter() - began_s


def eager_trainings(case: Judged, target: torch.Tensor) -> Eager:
    """Trainings of copies of a model, which is put in training mode, in eager PyTorch."""
    case.model.train()
    others = [Judged(case.name, copy.deepcopy(case.model), case.inputs, case.named) for _ in range(2 + ROUNDED)]
    for other in others[2:]:
        rounded(other.model)

    def eager(one: Judged) -> list[Value]:
        return trained(one, eager_training(one, one.model, target, one.optimizer()))

    began_s = time.perf_counter()
    wanted = eager(others[0])
    seconds = (time.perf_counter() - began_s) / STEPS
    with other_threads():
        again = [eager(others[1])]
    return wanted, [*again, *map(eager, others[2:])], seconds


def _prepared(fast: Any, *arguments: Any) -> Any:
    """What is to run calls with these arguments, after as many first calls as it takes."""
    ran = fast._optimized.prepare(*arguments)
    if isinstance(ran, FirstCall):
        fast._optimized(*arguments)
        ran = fast._optimized.prepare(*arguments)
    return ran


def _said(ran: Any, found: list[Value], eager: Eager) -> dict[str, Any]:
    captured = isinstance(ran, Tuning)
    return compared(found, eager) | {
        "captured": captured, "operators": len(ran.captured.graph.ops) if captured else None,
        "reason": getattr(ran, "reason", "" if captured else "every call sets something"),
    }  # fmt: skip


def compared(found: list[Value], eager: Eager) -> dict[str, Any]:
    """Whether the results `found` are as near to eager PyTorch's as its own further runs say."""
    wanted, again, eager_s = eager
    return {
        "right": is_right(found, wanted, again), "difference": max(differences(found, wanted), default=0.0),
        "sensitivity": max((max(differences(one, wanted), default=0.0) for one in again), default=0.0),
        "eager_s": eager_s,
    }  # fmt: skip


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")  # whatever a library prints must not get in between
    os.dup2(2, 1)
    judge, name, mode, *how = sys.argv[1:]
    by = importlib.import_module("judge_compiled") if how else sys.modules[__name__]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            case = load(judge, name)
            answer = (by.inference if mode == "inference" else by.training)(case)
        except Exception as error:  # noqa: BLE001 - an error is a finding, too
            answer = {"error": f"{type(error).__name__}: {error}"[:600], "traceback": traceback.format_exc()[-3000:]}
    answer["warnings"] = sorted({str(one.message)[:400] for one in caught if "threadcast" in str(one.message)})
    print(json.dumps({"name": name, "mode": mode} | answer), file=answers, flush=True)
    answers.close()
    os._exit(0)


if __name__ == "__main__":
    main()
