"""What each part contributes to a training step: memory, layout, strategies, critical path first, search, fusion.

    python benchmarks/engine_contributions.py [--networks lstm:small,pathnet:small] [--rounds 20] [--write]

After Liu et al., Fig. 3, and Graphi's comparison, on real cores. First plain PyTorch, each setting in a process of its
own (`threadcast doctor --gains` shows the same); then every policy's plan, made from the same curves, measured in the
step as `optimize_training` does (of up to four plans, corrected by what their steps showed), and replayed by the native
engine, all in turns in one process, which keeps freed memory. Fused: the same with point-wise operators fused and
measured anew.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from statistics import median
from typing import Any

import torch
from figures.steps import CONTRIBUTIONS
from planned_by_steps import planned_by_steps
from run_facts import RunFacts

from threadcast import networks
from threadcast.capture.graph.capture import capture_training
from threadcast.capture.graph.captured import Captured
from threadcast.cli.plain.gains import measure_plain_gains
from threadcast.core import Case, Machine, Plan, read_machine
from threadcast.networks import Workload
from threadcast.runtime.engine.engine import Engine
from threadcast.runtime.operators.fuse import fused
from threadcast.runtime.plans.model_format import ModelFormat, formats_of
from threadcast.runtime.plans.sequential import sequential
from threadcast.runtime.plans.variant import MemoryFormat
from threadcast.scheduler.planner import plan
from threadcast.scheduler.policies import Problem
from threadcast.threads.memory import keep_freed_memory
from threadcast.threads.openmp import end_idle_workers

POLICIES = {
    "strategies 1 and 2": "strategies_1_2",
    "strategies 1 to 3": "strategies_1_2_3",
    "strategies 1 to 4": "strategies",
    "critical path first (Graphi)": "critical_path",
}


def plans(captured: Captured, machine: Machine) -> Iterator[tuple[str, Captured, Plan]]:
    """What each plan is, its graph, and the plan."""
    problem, ours = best(captured, machine)
    yield "op by op, all threads", captured, sequential(captured.graph, machine, Case(len(machine)))
    for what, policy in POLICIES.items():
        yield what, captured, plan(problem, policy=policy)
    yield "ours", captured, ours
    fewer = fused(captured)
    if fewer is not None:
        yield "op by op, all threads, fused", fewer, sequential(fewer.graph, machine, Case(len(machine)))
        yield "ours, fused", fewer, best(fewer, machine)[1]


def best(captured: Captured, machine: Machine) -> tuple[Problem, Plan]:
    """What `threadcast.optimize_training` plans, and of which curves."""
    found = planned_by_steps(captured, machine)
    return found.problem, found.plan


def run_in(memory_format: MemoryFormat, owner: ModelFormat, engine: Engine, inputs: Sequence[Any]) -> None:
    """A step with the model's tensors in this memory format."""
    owner.set(memory_format)
    engine.run(inputs)


def captured_step(work: Workload, optimizer: torch.optim.Optimizer, owner: ModelFormat) -> Captured:
    """The training step with its images in the current memory format."""
    assert work.loss is not None
    return capture_training(work.model, work.loss, optimizer, owner.arguments(tuple(work.inputs)), work.target)


def contributions(name: str, size: str, rounds: int) -> list[tuple[str, float]]:
    """(what, median seconds a step) of each contender."""
    machine = read_machine()
    work = networks.load(name, size)
    assert work.loss is not None
    optimizer = torch.optim.SGD(work.model.parameters(), lr=1e-3, momentum=0.9)
    owner = ModelFormat(work.model, optimizer)
    loss = work.loss

    def eager() -> object:
        optimizer.zero_grad()
        value = loss(work.model(*work.inputs), work.target)
        torch.autograd.backward(value)
        optimizer.step()
        optimizer.zero_grad()
        return value

    with ExitStack() as ends:
        steps: dict[str, Callable[[], object]] = {"eager, all threads, memory kept": eager}
        for memory_format in formats_of(work.model, work.inputs):
            owner.set(memory_format)
            captured = captured_step(work, optimizer, owner)
            for what, graph, made in plans(captured, machine):
                engine = ends.enter_context(Engine(graph, made, machine))
                steps[f"{what}, {memory_format}"] = partial(run_in, memory_format, owner, engine, graph.bind())
        taken: dict[str, list[float]] = {what: [] for what in steps}
        for _ in range(rounds):
            for what, step in steps.items():
                owner.set(MemoryFormat.AS_GIVEN)
                step()
                before_s = time.perf_counter()
                step()
                taken[what].append(time.perf_counter() - before_s)
                end_idle_workers()
    return [(what, median(seconds)) for what, seconds in taken.items()]


def rows_of(name: str, size: str, rounds: int) -> Iterator[dict[str, object]]:
    """The rows of one network, plain PyTorch first."""
    for timed in measure_plain_gains(name, size=size, rounds=rounds).timed:
        yield {
            "network": name, "part": "plain PyTorch", "setting": f"plain PyTorch, {timed.setting.name}",
            "ms": timed.seconds.median * 1e3, "times_as_fast": timed.gain.gain, "page_faults": round(timed.faults),
        }  # fmt: skip
    found = contributions(name, size, rounds)
    for what, seconds in found:
        yield {
            "network": name, "part": "one process", "setting": what, "ms": seconds * 1e3,
            "times_as_fast": found[0][1] / seconds, "page_faults": None,
        }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", default="lstm:small,inception_block:small,pathnet:small,transformer:small")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--write", action="store_true", help=CONTRIBUTIONS.writes)
    chosen = parser.parse_args()
    keep_freed_memory()
    torch.set_num_threads(len(read_machine()))
    rows: list[dict[str, object]] = []
    for entry in chosen.networks.split(","):
        name, _, size = entry.partition(":")
        print(f"{name}, {size}", file=sys.stderr, flush=True)
        rows += rows_of(name, size or "small", chosen.rounds)
    print(CONTRIBUTIONS.printed(rows))
    if chosen.write:
        CONTRIBUTIONS.store(rows, RunFacts.now(), replaces=("network",))


if __name__ == "__main__":
    main()
