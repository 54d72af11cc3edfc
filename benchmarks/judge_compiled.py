"""One model of a judge by `torch.compile(model, backend="threadcast")`, as `judge_quick.py` looks at it.

Its graphs run whatever their speed, so that results of plans are compared wherever tuning keeps plans.
"""

from __future__ import annotations

import copy
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from judge_quick import STEPS, compared
from judged import ROUNDED, Judged, Value, begin_again, eager_training, moved_from, results_of, rounded, state_of

from threadcast.runtime.compile_backend import compiled_calls, compiled_calls_learn, compiled_graphs
from threadcast.runtime.verification.sensitivity import other_threads

SEED = 5
FIRST_CALLS = 4
"""Calls before it is looked whether anything is still learned."""
LEARN_S = 10.0
"""Longest time of learning, which begins once all is compiled."""


def inference(case: Judged) -> dict[str, Any]:
    """Run a compiled model in eval mode, and the model in eager PyTorch."""
    model = case.model.eval()
    compiled = _compiled(model)

    def call(run: Callable[..., Any]) -> list[Value]:
        torch.manual_seed(SEED)
        with torch.no_grad():
            return results_of(run(*case.inputs, **case.named))

    wanted = call(model)
    with other_threads():
        again = [call(model)]
    began_s = time.perf_counter()
    call(model)
    eager_s = time.perf_counter() - began_s
    _learn(lambda: call(compiled))
    return compared(call(compiled), wanted, again, eager_s) | _runs()


def training(case: Judged) -> dict[str, Any]:
    """Train a compiled model for some steps, and the model in eager PyTorch."""
    target = case.target()
    case.model.train()
    others = [Judged(case.name, copy.deepcopy(case.model), case.inputs, case.named) for _ in range(2 + ROUNDED)]
    for other in others[2:]:
        rounded(other.model)
    optimizer, first = case.optimizer(), state_of(case.model)
    step = eager_training(case, _compiled(case.model), target, optimizer)

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
    _learn(step)
    begin_again(case.model, optimizer, first)
    return compared(run(case, step), wanted, again, eager_s) | _runs()


def _compiled(model: torch.nn.Module) -> Any:
    return torch.compile(model, backend="threadcast", options={"tuning_share": 1})


def _learn(call: Callable[[], object]) -> None:
    """Run calls until nothing is learned any more, for some seconds at most."""
    for _ in range(FIRST_CALLS):
        call()
    for program in compiled_calls():
        program.keep_graphs()
    began_s = time.perf_counter()
    while time.perf_counter() - began_s < LEARN_S and compiled_calls_learn():
        call()


def _runs() -> dict[str, Any]:
    """Whether a plan runs a graph, and what runs how many."""
    reports = [report for graph in compiled_graphs() for report in graph.reports]
    runs = Counter(report.runs for report in reports)
    said = [f"{count} {name}" for name, count in runs.most_common()]
    why = sorted({report.reason for report in reports if report.reason})
    return {"captured": runs["plan"] > 0, "operators": None, "reason": "; ".join([", ".join(said), *why])}
