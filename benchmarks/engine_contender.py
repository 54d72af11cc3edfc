"""One contender of `benchmarks/engine.py` in a process of its own: it makes a step, then times it when told to.

    python benchmarks/engine_contender.py '{"network": ..., "size": ..., "mode": ..., "who": ..., ...}'

It is told (`told.serve`) how many steps to time, and at how many threads.
"""

from __future__ import annotations

import json
import math
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from statistics import median
from typing import Any

import torch
from told import Answer, serve
from torch import Tensor, nn

from threadcast import networks, optimize, optimize_training
from threadcast.capture.graph.capture import capture_forward
from threadcast.networks import Workload
from threadcast.runtime.backends.search import BackendSearch
from threadcast.threads.memory import keep_freed_memory, peak_bytes
from threadcast.threads.openmp import end_idle_workers

LEARNING_RATE = 1e-3


def eager_training(work: Workload, setting: dict[str, Any]) -> Callable[[], object]:
    """The step as people write it; "compile" compiles the model."""
    assert work.loss is not None
    model: Any = torch.compile(work.model) if setting["who"] == "compile" else work.model
    optimizer, loss = _optimizer(work), work.loss

    def step() -> object:
        optimizer.zero_grad()
        value = loss(model(*work.inputs), work.target)
        torch.autograd.backward(value)
        optimizer.step()
        return value

    return step


def eager_inference(work: Workload, setting: dict[str, Any]) -> Callable[[], object]:
    """The model without gradients; "compile" compiles it with its weights as constants."""
    model: Any = work.model.eval()
    if setting["who"] == "compile":
        from torch._inductor import config

        config.freezing = True
        model = torch.compile(model)

    def step() -> object:
        with torch.no_grad():
            return model(*work.inputs)

    return step


def threadcast_training(work: Workload, info: dict[str, Any]) -> Callable[[], object]:
    """What `optimize_training` gives, once it has decided."""
    assert work.loss is not None
    step = optimize_training(work.model, work.loss, _optimizer(work))
    _settle(lambda: step(*work.inputs, work.target), lambda: step.reports, info)
    return lambda: step(*work.inputs, work.target)


def threadcast_inference(work: Workload, info: dict[str, Any]) -> Callable[[], object]:
    """What `optimize` gives, once it has decided."""
    call = optimize(work.model.eval())
    call.learn(*work.inputs)
    _settle(lambda: call(*work.inputs), lambda: call.reports, info)
    if info["runs"] not in ("plan", "default"):
        info["direct"] = _by_turns(lambda: call(*work.inputs), lambda: call.fastest[0].run(tuple(work.inputs), {}))
    return lambda: call(*work.inputs)


def _by_turns(ours: Callable[[], object], direct: Callable[[], object]) -> float:
    """How many times as long the same backend takes when it is called directly, in the same process."""
    taken: dict[Callable[[], object], list[float]] = {ours: [], direct: []}
    began_s = time.perf_counter()
    while time.perf_counter() - began_s < 2.0 or len(taken[ours]) < 10:
        for run, seconds in taken.items():
            run()
            before_s = time.perf_counter()
            run()
            seconds.append(time.perf_counter() - before_s)
    return median(b / a for a, b in zip(taken[ours], taken[direct], strict=True))


def backend(work: Workload, setting: dict[str, Any], info: dict[str, Any]) -> Callable[[], object]:
    """ONNX Runtime, OpenVINO or torch.compile with frozen weights, each at its fastest setting."""
    model, arguments = work.model.eval(), (tuple(work.inputs), {})
    if setting["backend"] == "torch.compile":
        info["runs"] = "torch.compile"
        return compiled_call(model, work.inputs)
    captured = capture_forward(lambda args, kwargs: model(*args, **kwargs), *arguments)
    with torch.no_grad():
        result = model(*work.inputs)
    search = BackendSearch(
        model, arguments, captured, setting["threads"], result=result, among=[setting["backend"]], close=math.inf
    )
    with closing(search):
        search.start()
        found = None
        while not search.over:
            search.wait(1.0)
            found = search.poll(unlimited=True) or found  # the last is the fastest
    if found is None:
        raise RuntimeError(f"{setting['backend']} does not run {work.name}: {search.left_out}")
    info["runs"] = found.name
    return partial(found.run, *arguments)


def compiled_call(model: nn.Module, inputs: Sequence[Tensor]) -> Callable[[], object]:
    """Compile the model with `torch.compile`, its weights as constants, and return its call with these inputs."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Inductor's modules warn of each other when they are imported
        import torch._inductor.config as inductor

        compiled = torch.compile(model)

        def run() -> object:
            with torch.no_grad(), inductor.patch(freezing=True):
                return compiled(*inputs)

        run()  # compiles
    return run


def _settle(step: Callable[[], object], reports: Callable[[], list[Any]], info: dict[str, Any]) -> None:
    steps = 0
    started_s = time.perf_counter()
    while not reports() or any(report.runs == "measuring" for report in reports()):
        step()
        steps += 1
    taken = []
    for _ in range(11):  # the plan is held against steps of the same minute: shared machines change their pace
        before_s = time.perf_counter()
        step()
        taken.append(time.perf_counter() - before_s)
    (report,) = reports()
    info |= {
        "then_s": median(taken[1:]),
        "runs": report.runs, "layout": report.layout, "fused": report.fused, "steps": steps,
        "settled_s": time.perf_counter() - started_s,
        "verdicts": {name: verdict.gain for name, verdict in report.verdicts.items()},
        "predicted_s": report.plan.makespan_s if report.plan else None,
        "bound_s": report.plan.lower_bound_s if report.plan else None,
        "policy": report.plan.policy if report.plan else None,
    }  # fmt: skip


def _optimizer(work: Workload) -> torch.optim.Optimizer:
    return torch.optim.SGD(work.model.parameters(), lr=LEARNING_RATE, momentum=0.9)


def made(setting: dict[str, Any], info: dict[str, Any]) -> Callable[[], object]:
    """The step that `setting` describes; what there is to say of it goes into `info`."""
    if setting.get("malloc") == "kept":
        keep_freed_memory()
    if setting.get("threads"):
        torch.set_num_threads(setting["threads"])
    work = networks.load(setting["network"], setting["size"], **setting["options"])
    training = setting["mode"] == "training"
    if setting["who"] == "threadcast":
        return threadcast_training(work, info) if training else threadcast_inference(work, info)
    if setting.get("layout") == "channels last":
        work.model.to(memory_format=torch.channels_last)
        for tensor in work.inputs:
            if tensor.dim() == 4:
                tensor.data = tensor.contiguous(memory_format=torch.channels_last)
    if setting["who"] == "backend":
        return backend(work, setting, info)
    return eager_training(work, setting) if training else eager_inference(work, setting)


def contender() -> tuple[dict[str, Any], Answer]:
    """What is to be said of the step that the first argument describes, and what times so many of its steps."""
    info: dict[str, Any] = {}
    step = made(json.loads(sys.argv[1]), info)
    for _ in range(3):
        step()

    def timed(asked: dict[str, Any]) -> dict[str, Any]:
        if asked["threads"]:
            torch.set_num_threads(asked["threads"])
        taken = []
        step()
        for _ in range(asked["steps"]):
            started_s = time.perf_counter()
            step()
            taken.append(time.perf_counter() - started_s)
        end_idle_workers()
        return {"seconds": taken, "peak_bytes": peak_bytes()}

    return info, timed


if __name__ == "__main__":
    serve(contender)
