"""One contender of `benchmarks/many_cores_steps.py` in a process of its own: it makes a step, and times it when told.

    python benchmarks/many_cores_contender.py '{"case": "LSTM medium", "mode": "training", "who": "eager", ...}'

It writes a line of JSON when it is ready, and for each line {"steps": N, "threads": T} that it reads one with the
seconds of N steps.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
from engine_contender import LEARNING_RATE, eager_inference, eager_training
from many_cores_cases import CASES

from threadcast import optimize, optimize_training
from threadcast.networks import Workload
from threadcast.runtime.doors.optimized_model import OptimizedModel
from threadcast.threads.memory import keep_freed_memory, peak_bytes
from threadcast.threads.openmp import end_idle_workers

SETTLED_STEPS = 11


def tuned(work: Workload) -> None:
    """What people can do themselves: malloc keeps freed memory, and images are in channels last."""
    keep_freed_memory()
    images = [tensor for tensor in work.inputs if tensor.dim() == 4]
    if images:
        work.model.to(memory_format=torch.channels_last)
    for tensor in images:
        tensor.data = tensor.contiguous(memory_format=torch.channels_last)


def ours(work: Workload, setting: dict[str, Any], info: dict[str, Any]) -> Callable[[], object]:
    """An optimised step or call after it has learned, or after `learn_s` seconds where it has not."""
    if setting["mode"] == "training":
        assert work.loss is not None
        optimizer = torch.optim.SGD(work.model.parameters(), lr=LEARNING_RATE, momentum=0.9)
        trained = optimize_training(work.model, work.loss, optimizer)
        settle(lambda: trained(*work.inputs, work.target), trained, info, setting["learn_s"])
        return lambda: trained(*work.inputs, work.target)
    called = optimize(
        work.model.eval(), backends=False
    )  # their search takes longer than there is; they are rivals here
    settle(lambda: called(*work.inputs), called, info, setting["learn_s"])
    return lambda: called(*work.inputs)


def settle(step: Callable[[], object], optimized: OptimizedModel, info: dict[str, Any], most_s: float) -> None:
    """Take steps until nothing is left to learn, `most_s` seconds at most; `info` gets what it decided and forecast.

    A step that has decided, and still learns whether another layout or fused operators are faster, shares its cores.
    """
    steps, began_s = 0, time.perf_counter()
    while optimized.learning and time.perf_counter() - began_s < most_s:
        step()
        steps += 1
    reports = optimized.reports
    info |= {"settled_s": time.perf_counter() - began_s, "steps": steps, "parts": len(reports)}
    info["learning"] = optimized.learning
    if len(reports) != 1:
        info["runs"] = "several kinds of calls" if reports else "nothing yet"
        return
    (report,) = reports
    taken = []
    for _ in range(SETTLED_STEPS):  # the plan is held against steps of the same minute
        before_s = time.perf_counter()
        step()
        taken.append(time.perf_counter() - before_s)
    plan = report.plan
    info |= {
        "then_s": median(taken[1:]), "runs": report.runs, "layout": report.layout, "fused": report.fused,
        "verdicts": {name: verdict.gain for name, verdict in report.verdicts.items()},
        "predicted_s": plan.makespan_s if plan else None, "bound_s": plan.lower_bound_s if plan else None,
        "policy": plan.policy if plan else None,
        "widths": sorted({len(placed.cores) for placed in plan.ops}) if plan else [],
    }  # fmt: skip


def made(setting: dict[str, Any], info: dict[str, Any]) -> Callable[[], object]:
    """The step that `setting` describes."""
    case = next(case for case in CASES if case.title == setting["case"])
    if setting["who"] == "eager, tuned":
        keep_freed_memory()
    work = case.load()
    if setting["who"] == "threadcast":
        return ours(work, setting, info)
    torch.set_num_threads(setting["threads"])
    if setting["who"] == "eager, tuned":
        tuned(work)
    way = {**setting, "who": "compile" if setting["who"] == "torch.compile" else "eager"}
    return eager_training(work, way) if setting["mode"] == "training" else eager_inference(work, way)


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")  # whatever a library prints must not get in between
    os.dup2(2, 1)
    setting, info = json.loads(sys.argv[1]), dict[str, Any]()
    with tempfile.TemporaryDirectory(prefix="threadcast-") as plans:  # every run measures anew
        os.environ |= {"THREADCAST_ENGINE_PLANS": plans, "THREADCAST_ENGINE_TUNING_SHARE": "1"}
        step = made(setting, info)
        for _ in range(2):
            step()
        end_idle_workers()
        print(json.dumps(info), file=answers, flush=True)
        for line in sys.stdin:
            asked, taken = json.loads(line), []
            if setting["who"].startswith("eager"):
                torch.set_num_threads(asked["threads"])
            step()
            for _ in range(asked["steps"]):
                started_s = time.perf_counter()
                step()
                taken.append(time.perf_counter() - started_s)
            end_idle_workers()
            print(json.dumps({"seconds": taken, "peak_bytes": peak_bytes()}), file=answers, flush=True)


if __name__ == "__main__":
    main()
