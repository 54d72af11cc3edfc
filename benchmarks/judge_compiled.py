"""One model of a judge by `torch.compile(model, backend="threadcast")`, as `judge_quick.py` looks at it.

Its graphs run whatever their speed, so that results of plans are compared wherever tuning keeps plans.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from judge_quick import called, compared, eager_inference, eager_trainings, trained
from judged import Judged, begin_again, eager_training, state_of

from threadcast.runtime.doors.compile_backend import compiled_calls, compiled_calls_learn, compiled_graphs

FIRST_CALLS = 4
"""Calls before it is looked whether anything is still learned."""
LEARN_S = 10.0
"""Longest time of learning, which begins once all is compiled."""


def inference(case: Judged) -> dict[str, Any]:
    """Run a compiled model in eval mode, and the model in eager PyTorch."""
    compiled = _compiled(case.model.eval())
    eager = eager_inference(case)
    _learn(lambda: called(case, compiled))
    return compared(called(case, compiled), eager) | _runs()


def training(case: Judged) -> dict[str, Any]:
    """Train a compiled model for some steps, and the model in eager PyTorch."""
    target = case.target()
    eager = eager_trainings(case, target)
    optimizer, first = case.optimizer(), state_of(case.model)
    step = eager_training(case, _compiled(case.model), target, optimizer)
    _learn(step)
    begin_again(case.model, optimizer, first)
    return compared(trained(case, step), eager) | _runs()


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
