"""One process of `benchmarks/warmup.py` or `engine.py`: it runs calls of a case in one way, when told to.

    python benchmarks/warmup_process.py "U-Net, training" eager|optimize|backend|inductor|onnxruntime|openvino

`eager` and `inductor` may have `, channels last` behind them, `inductor` also `, max-autotune`. `A + B` are two cases,
whose calls alternate. Told (`told.serve`) `{"seconds": s, "calls": n, "untimed": n, "learn_s": s, "threads": n}`, it
learns for so long, calls so often without timing, then until these seconds or that number of calls are over; it answers
the seconds of each call of each case, and what threadcast says of itself.
"""

from __future__ import annotations

import math
import os
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch._inductor.config as inductor_config
from told import Answer, serve
from torch import nn
from warmup_cases import load
from warmup_shapes import SEQUENCES, sequence

import threadcast
from threadcast.capture.graph.capture import capture_forward
from threadcast.networks import Workload
from threadcast.runtime.backends.search import BackendSearch
from threadcast.runtime.doors.compile_backend import compiled_calls, compiled_graphs

LEARNING_RATE = 1e-3


@dataclass(frozen=True, slots=True)
class Running:
    """How a case is called, and what threadcast says of it."""

    call: Callable[[], object]
    reports: Callable[[], Sequence[Any]] = tuple
    learns: Callable[[], bool] = bool
    learn: Callable[[float], object] | None = None


def eager(work: Workload) -> Callable[[], object]:
    """A call or a training step as people write it."""
    target, loss = work.target, work.loss
    if loss is None or target is None:
        return partial(torch.no_grad()(work.model), *work.inputs)
    optimizer = _optimizer(work.model)

    def step() -> object:
        optimizer.zero_grad()
        value = loss(work.model(*work.inputs), target)
        torch.autograd.backward(value)
        optimizer.step()
        return value

    return step


def _optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD([own for own in model.parameters() if own.requires_grad], lr=LEARNING_RATE, momentum=0.9)


def optimised(work: Workload) -> Running:
    """The same by threadcast; without example arguments, so that whatever it does happens in the calls."""
    if work.loss is None:
        fast = threadcast.optimize(work.model)
        learn = partial(fast.learn, *work.inputs, progress=False)
        call = partial(fast, *work.inputs)
        return Running(call, lambda: fast.reports, lambda: fast.learning, lambda most_s: learn(at_most_s=most_s))
    step = threadcast.optimize_training(work.model, work.loss, _optimizer(work.model))
    return Running(partial(step, *work.inputs, work.target), lambda: step.reports, lambda: step.learning)


def backend(work: Workload, name: str) -> Callable[[], object]:
    """ONNX Runtime or OpenVINO, called directly, at its fastest setting; RuntimeError where it runs no such case."""
    arguments = (tuple(work.inputs), {})
    with torch.no_grad():
        captured, result = capture_forward(lambda args, _: work.model(*args), *arguments), work.model(*work.inputs)
    search = BackendSearch(
        work.model, arguments, captured, torch.get_num_threads(), result=result, among=[name], close=math.inf
    )
    found = None
    with closing(search):
        search.start()
        while not search.over:
            search.wait(1.0)
            found = search.poll(unlimited=True) or found  # the last is the fastest
    if found is None:
        raise RuntimeError(f"{name} does not run {work.name}: {search.left_out}")
    return partial(found.run, *arguments)


def running(title: str, who: str) -> Running:
    """A case in one way."""
    if title in SEQUENCES:
        step, call = sequence(title, who)
        return Running(call, (lambda: step.reports) if who == "optimize" else tuple)
    work = load(title)
    if who.endswith("channels last"):
        last: Any = {"memory_format": torch.channels_last}
        inputs = tuple(value.to(**last) if value.dim() == 4 else value for value in work.inputs)
        work = replace(work, model=work.model.to(**last), inputs=inputs)
    if who == "optimize":
        return optimised(work)
    if who in ("onnxruntime", "openvino"):
        return Running(backend(work, who))
    options: dict[str, Any] = {}
    if who == "backend":
        options = {"backend": "threadcast", "options": {"freeze": True} if work.loss is None else {}}
    elif who.startswith("inductor"):
        inductor_config.freezing = work.loss is None
        options = {"mode": "max-autotune-no-cudagraphs"} if who.endswith("max-autotune") else {}
    else:
        return Running(eager(work))
    call = eager(replace(work, model=torch.compile(work.model, **options)))
    return Running(call, _reports, _learn) if who == "backend" else Running(call)


def _reports() -> list[Any]:
    return [report for graph in compiled_graphs() for report in graph.reports]


def _learn() -> bool:
    return any(call.measuring for call in compiled_calls()) or any(graph.learning for graph in compiled_graphs())


def block(cases: Sequence[Running], seconds: float, calls: int | None) -> list[list[float]]:
    """The seconds of each call of each case, which alternate, until `seconds` or so many calls of each are over."""
    taken: list[list[float]] = [[] for _ in cases]
    end_s = time.perf_counter() + seconds
    while not taken[0] or (time.perf_counter() < end_s and len(taken[0]) != calls):
        for case, own in zip(cases, taken, strict=True):
            before_s = time.perf_counter()
            case.call()
            own.append(time.perf_counter() - before_s)
    return taken


def make() -> tuple[dict[str, object], Answer]:
    """The cases of this process, and what answers."""
    with suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, -5)
    titles, who = sys.argv[1:]
    cases = [running(title, who) for title in titles.split(" + ")]
    caught = warnings.catch_warnings(record=True).__enter__()
    warnings.simplefilter("always")

    def answer(told: dict[str, Any]) -> dict[str, Any]:
        if told.get("threads"):
            torch.set_num_threads(told["threads"])
        for case in cases if told.get("learn_s") else ():
            assert case.learn is not None
            case.learn(told["learn_s"])
        for _ in range(told.get("untimed", 0)):
            for case in cases:
                case.call()
        return {
            "seconds": block(cases, told["seconds"], told.get("calls")),
            "runs": [sorted({str(report.runs) for report in case.reports()}) for case in cases],
            "planned_s": [
                next((report.plan.makespan_s for report in case.reports() if report.plan), None) for case in cases
            ],
            "learning": any(case.learns() for case in cases),
            "warnings": sorted({str(one.message) for one in caught or ()}),
        }

    return {"pid": os.getpid()}, answer


if __name__ == "__main__":
    serve(make)
