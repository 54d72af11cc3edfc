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
    results_of,
    rounded,
    state_of,
)

import threadcast
from threadcast.runtime.fallback import FirstCall
from threadcast.runtime.tuning.tuning import Tuning
from threadcast.runtime.verification.sensitivity import other_threads

SEED = 5

STEPS = 3
"""Training steps that are compared with eager's from the same start."""


def inference(case: Judged) -> dict[str, Any]:
    """Run the graph of a model in eval mode, and the model in eager PyTorch."""
    model = case.model.eval()

    def eager() -> list[Value]:
        torch.manual_seed(SEED)
        with torch.no_grad():
            return results_of(model(*case.inputs, **case.named))

    wanted = eager()
    with other_threads():
        again = [eager()]
    began_s = time.perf_counter()
    eager()
    eager_s = time.perf_counter() - began_s
    fast = threadcast.optimize(model, backends=False)
    ran = _prepared(fast, case.inputs, case.named)
    torch.manual_seed(SEED)
    with torch.no_grad():
        run = ran.captured.run(case.inputs, case.named) if isinstance(ran, Tuning) else fast(*case.inputs, **case.named)
    return _said(ran, results_of(run), wanted, again, eager_s)


def training(case: Judged) -> dict[str, Any]:
    """Train a model for some steps, by its graph and in eager PyTorch."""
    target = case.target()
    case.model.train()
    others = [Judged(case.name, copy.deepcopy(case.model), case.inputs, case.named) for _ in range(2 + ROUNDED)]
    for other in others[2:]:
        rounded(other.model)
    model = Named(case.model, case.named) if case.named else case.model
    optimizer, first = case.optimizer(), state_of(case.model)
    fast = threadcast.optimize_training(model, loss, optimizer)
    ran = _prepared(fast, (*case.inputs, target), {})

    def run(one: Judged, step: Callable[[], torch.Tensor]) -> list[Value]:
        before = state_of(one.model)
        torch.manual_seed(SEED)
        values = results_of([step() for _ in range(STEPS)])
        return [*values, *moved_from(before, one.model)]

    def eager(one: Judged) -> list[Value]:
        return run(one, eager_training(one, one.model, target, one.optimizer()))

    began_s = time.perf_counter()
    wanted = eager(others[0])
    eager_s = (time.perf_counter() - began_s) / STEPS
    with other_threads():
        again = [eager(others[1])]
    again += map(eager, others[2:])
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

    found = run(case, step)
    return _said(ran, found, wanted, again, eager_s)


def _prepared(fast: Any, *arguments: Any) -> Any:
    """What is to run calls with these arguments, after as many first calls as it takes."""
    ran = fast._optimized.prepare(*arguments)
    if isinstance(ran, FirstCall):
        fast._optimized(*arguments)
        ran = fast._optimized.prepare(*arguments)
    return ran


def _said(
    ran: Any, found: list[Value], wanted: list[Value], again: list[list[Value]], eager_s: float
) -> dict[str, Any]:  # fmt: skip
    captured = isinstance(ran, Tuning)
    return compared(found, wanted, again, eager_s) | {
        "captured": captured, "operators": len(ran.captured.graph.ops) if captured else None,
        "reason": getattr(ran, "reason", "" if captured else "every call sets something"),
    }  # fmt: skip


def compared(found: list[Value], wanted: list[Value], again: list[list[Value]], eager_s: float) -> dict[str, Any]:
    """Whether the results `found` are as near to eager PyTorch's, `wanted`, as its own runs `again` say."""
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
