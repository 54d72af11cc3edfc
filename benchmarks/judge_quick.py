"""One model of a judge, looked at for some seconds: whether results are right, what ran them, and why not a plan.

python benchmarks/judge_quick.py zoo|graphnet NAME inference|training
"""

from __future__ import annotations

import copy
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
from judged import TOLERANCE, Judged, Named, difference, eager_training, loss, tensors_of

import threadcast
from threadcast.runtime.fallback import FirstCall
from threadcast.runtime.tuning.tuning import Tuning

SEED = 5

STEPS = 3
"""Training steps that are compared with eager's from the same start."""
SENSITIVITY = 20
"""How many times as far from eager a right result may be as eager is from itself with one thread, or in training from
weights that differ by `ROUNDING`."""
ROUNDING = 1e-7
"""Relative difference of two float32 numbers beside each other."""
ROUNDED = 3
"""Trainings from weights that differ by `ROUNDING`: whether the sign of a number near 0 changes is by chance."""


def inference(case: Judged) -> dict[str, Any]:
    """Run the graph of a model in eval mode, and the model in eager PyTorch."""
    model = case.model.eval()

    def eager() -> list[torch.Tensor]:
        torch.manual_seed(SEED)
        with torch.no_grad():
            return [tensor.clone() for tensor in tensors_of(model(*case.inputs, **case.named))]

    before, other = eager(), _with_one_thread(eager)
    began_s = time.perf_counter()
    eager()
    eager_s = time.perf_counter() - began_s
    fast = threadcast.optimize(model, backends=False)
    ran = _prepared(fast, case.inputs, case.named)
    found = before
    if isinstance(ran, Tuning):
        torch.manual_seed(SEED)
        found = tensors_of(ran.captured.run(case.inputs, case.named))
    else:
        fast(*case.inputs, **case.named)
    return _said(ran, difference(found, before), difference(other, before), eager_s)


def training(case: Judged) -> dict[str, Any]:
    """Train a model for some steps, by its graph and in eager PyTorch."""
    target = case.target()
    case.model.train()
    others = [Judged(case.name, copy.deepcopy(case.model), case.inputs, case.named) for _ in range(2 + ROUNDED)]
    with torch.no_grad():
        for parameter in (parameter for other in others[2:] for parameter in other.model.parameters()):
            parameter.mul_(1 + ROUNDING * torch.randn_like(parameter))
    model = Named(case.model, case.named) if case.named else case.model
    fast = threadcast.optimize_training(model, loss, case.optimizer())
    ran = _prepared(fast, (*case.inputs, target), {})

    def run(one: Judged, step: Callable[[], torch.Tensor]) -> list[torch.Tensor]:
        torch.manual_seed(SEED)
        values = [step() for _ in range(STEPS)]
        return [*values, *(p.detach() for p in one.model.parameters())]

    def eager(one: Judged) -> list[torch.Tensor]:
        return run(one, eager_training(one, one.model, target, one.optimizer()))

    began_s = time.perf_counter()
    wanted = eager(others[0])
    eager_s = (time.perf_counter() - began_s) / STEPS
    again = [_with_one_thread(lambda: eager(others[1])), *map(eager, others[2:])]
    sensitivity = max(difference(one, wanted) for one in again)
    if isinstance(ran, FirstCall):  # the first step makes the optimizer's state
        fast(*case.inputs, target)
        ran = _prepared(fast, (*case.inputs, target), {})
        found, wanted = wanted, wanted
    if isinstance(ran, Tuning):
        captured = ran.captured
        found = run(case, lambda: captured.run((*case.inputs, target), {})["loss"])
    else:
        found = wanted
    return _said(ran, difference(found, wanted), sensitivity, eager_s)


def _prepared(fast: Any, *arguments: Any) -> Any:
    """What is to run calls with these arguments, after as many first calls as it takes."""
    ran = fast._optimized.prepare(*arguments)
    if isinstance(ran, FirstCall):
        fast._optimized(*arguments)
        ran = fast._optimized.prepare(*arguments)
    return ran


def _with_one_thread(call: Callable[[], list[torch.Tensor]]) -> list[torch.Tensor]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return call()
    finally:
        torch.set_num_threads(threads)


def _said(ran: Any, off: float, sensitivity: float, eager_s: float) -> dict[str, Any]:
    captured = isinstance(ran, Tuning)
    return {
        "right": off <= max(TOLERANCE, SENSITIVITY * sensitivity), "difference": off, "sensitivity": sensitivity,
        "eager_s": eager_s, "captured": captured, "operators": len(ran.captured.graph.ops) if captured else None,
        "reason": getattr(ran, "reason", "" if captured else "every call sets something"),
    }  # fmt: skip


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")  # whatever a library prints must not get in between
    os.dup2(2, 1)
    judge, name, mode = sys.argv[1:]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            case = load(judge, name)
            answer = (inference if mode == "inference" else training)(case)
        except Exception as error:  # noqa: BLE001 - an error is a finding, too
            answer = {"error": f"{type(error).__name__}: {error}"[:600], "traceback": traceback.format_exc()[-3000:]}
    answer["warnings"] = sorted({str(one.message)[:400] for one in caught if "threadcast" in str(one.message)})
    print(json.dumps({"name": name, "mode": mode} | answer), file=answers, flush=True)
    answers.close()
    os._exit(0)


if __name__ == "__main__":
    main()
