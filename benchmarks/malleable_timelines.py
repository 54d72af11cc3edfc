"""Pictures of a training run whose cores go and come back.

    python benchmarks/malleable_timelines.py [--output docs/images]

After the timelines of the malleable-TensorFlow paper (its Fig. 4). Simulated: training steps of Inception-v3 on 12
cores of the simulated Xeon Phi that become 6 or 2 and then 12 again, by the plans for each. Real: training steps of an
Inception block by the native engine, on 2 cores of this machine, of which one is given up and comes back.
"""

from __future__ import annotations

import argparse
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from paper_studies import Network, model
from planned_by_steps import planned_by_steps

from threadcast import networks
from threadcast.capture.graph.capture import capture_training
from threadcast.core import Plan, read_machine
from threadcast.runtime.engine.native.engine import NativeEngine
from threadcast.runtime.plans.malleable_plan import MalleablePlan
from threadcast.scheduler.planner import plan
from threadcast.scheduler.policies import Launch, Policy, Problem, State
from threadcast.scheduler.policies.plan_replay import PlanReplay
from threadcast.scheduler.simulation.simulator import Simulation


class Bar(NamedTuple):
    """An op on one core."""

    core: int
    start_s: float
    finish_s: float


class Resized(Policy):
    """Goes from one plan to the next at given times, each at an op boundary, as the engine does."""

    name = "resized"

    def __init__(self, problem: Problem, plans: Sequence[tuple[float, Plan]]) -> None:
        super().__init__(problem)
        self._plans = [(from_s, one.by_id()) for from_s, one in plans]
        self._first = PlanReplay(problem, plan=plans[0][1])

    def decide(self, state: State) -> Sequence[Launch]:
        now = [number for number, (from_s, _) in enumerate(self._plans) if from_s <= state.now_s + 1e-12][-1]
        if now == 0:
            return self._first.decide(state)
        placed, ids = self._plans[now][1], self.problem.graph.ids
        if any(placed[ids[at.op]].cores != at.cores for at in state.running):
            return ()  # ops of the plan before finish first
        launches, idle = [], set(state.idle)
        for op in sorted(state.ready, key=lambda op: placed[ids[op]].start_s):
            at = placed[ids[op]]
            if idle.issuperset(at.cores):
                idle -= set(at.cores)
                launches.append(Launch(op, at.cores, at.threads, at.hardware_thread))
        return launches


def simulated(sizes: Sequence[int], steps_each: float) -> tuple[list[Bar], list[tuple[float, int]], list[float]]:
    """Bars of every op, when the cores changed and to how many, and when each step ended."""
    network = Network("inception_v3")
    most = max(sizes)
    machines = {size: model.machine.limited_to(range(size)) for size in set(sizes)}
    problem = Problem(network.graph, network.true_curves, machines[most])
    plans = {size: plan(Problem(network.graph, network.true_curves, machine)) for size, machine in machines.items()}
    changes, now_s = [], 0.0
    for size in sizes:
        changes.append((now_s, size))
        now_s += steps_each * plans[size].makespan_s
    bars: list[Bar] = []
    ends: list[float] = []
    start_s = 0.0
    while start_s < now_s:
        before = [size for at_s, size in changes if at_s <= start_s][-1]
        later = [(at_s - start_s, plans[size]) for at_s, size in changes if at_s > start_s]
        run = Simulation(Resized(problem, [(0.0, plans[before]), *later]))
        run.run()
        placements = run.placements()
        bars += [Bar(core, start_s + op.start_s, start_s + op.finish_s) for op in placements for core in op.cores]
        start_s += max(op.finish_s for op in placements)
        ends.append(start_s)
    return bars, changes, ends


def real(seconds_each: float) -> tuple[list[Bar], list[tuple[float, int]], list[float]]:
    """The same, measured: all cores of this machine, one less, all."""
    machine = read_machine()
    work = networks.load("inception_block", "small")
    assert work.loss is not None
    optimizer = torch.optim.SGD(work.model.parameters(), lr=1e-3)
    captured = capture_training(work.model, work.loss, optimizer, work.inputs, work.target)
    made = planned_by_steps(captured, machine)
    bars: list[Bar] = []
    changes: list[tuple[float, int]] = []
    ends: list[float] = []
    planned = threading.Event()
    with NativeEngine(captured, made.plan, machine) as engine:
        following = MalleablePlan(engine, made.plan, machine, made.problem, {}, done=lambda _: planned.set())
        planned.wait()
        for _ in range(20):
            engine.run(captured.bind())
        began_s = time.monotonic()

        def resize() -> None:
            for cores in (machine.cores, machine.cores[:-1], machine.cores):
                changes.append((time.monotonic() - began_s, len(cores)))
                following.resize(cores)
                time.sleep(seconds_each)

        resizing = threading.Thread(target=resize)
        resizing.start()
        while resizing.is_alive():
            _, trace, at_s = engine.run_timed(captured.bind())
            start_s = at_s - began_s
            bars += [Bar(core, start_s + op.start_s, start_s + op.finish_s) for op in trace.ops for core in op.cores]
            ends.append(start_s + trace.makespan_s)
        following.close()
    return bars, changes, ends


def draw(
    path: Path, title: str, bars: Sequence[Bar], changes: Sequence[tuple[float, int]], ends: Sequence[float]
) -> None:
    """Cores from bottom to top, what each runs, where the number of cores changed, and where steps ended."""
    import matplotlib.pyplot as plt

    cores = max(size for _, size in changes)
    end_s = max(bar.finish_s for bar in bars)
    figure, axes = plt.subplots(figsize=(10, 1.2 + 0.25 * max(cores, 4)), layout="constrained")
    for core in range(cores):
        mine = [(bar.start_s * 1e3, (bar.finish_s - bar.start_s) * 1e3) for bar in bars if bar.core == core]
        axes.broken_barh(mine, (core + 0.1, 0.8), color="#4477aa", linewidth=0)
    for (from_s, size), (to_s, _) in zip(changes, [*changes[1:], (end_s, 0)], strict=True):
        axes.hlines(size, from_s * 1e3, to_s * 1e3, color="#ee6677", linewidth=2)
        if from_s > 0.001 * end_s:
            axes.axvline(from_s * 1e3, color="#ee6677", linewidth=1, linestyle="--")
    for at_s in ends:
        axes.axvline(at_s * 1e3, ymax=0.03, color="black", linewidth=1)
    axes.set(
        xlabel="ms; ticks below: a step has ended",
        ylabel="core",
        title=title,
        xlim=(0, end_s * 1e3),
        ylim=(0, cores + 0.3),
    )
    axes.set_yticks([core + 0.5 for core in range(cores)], [str(core) for core in range(cores)])
    figure.savefig(path, dpi=110)
    plt.close(figure)


def busy_share(bars: Sequence[Bar], from_s: float, to_s: float, cores: int) -> float:
    """Share of the core-seconds of this time in which ops ran."""
    used = sum(max(0.0, min(bar.finish_s, to_s) - max(bar.start_s, from_s)) for bar in bars)
    return used / (cores * (to_s - from_s))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("build"), help="folder of the pictures")
    parser.add_argument("--seconds", type=float, default=0.06, help="between two changes of the real run")
    chosen = parser.parse_args()
    chosen.output.mkdir(parents=True, exist_ok=True)
    runs = {
        f"simulated-{size}": (simulated((12, size, 12), 2.5), f"12, {size} and 12 cores, simulated") for size in (6, 2)
    }
    runs["real"] = (real(chosen.seconds), "2, 1 and 2 cores, measured")
    for name, ((bars, changes, ends), title) in runs.items():
        draw(chosen.output / f"resize-{name}.png", title, bars, changes, ends)
        end_s = max(bar.finish_s for bar in bars)
        for (from_s, size), (to_s, _) in zip(changes, [*changes[1:], (end_s, 0)], strict=True):
            share = busy_share(bars, from_s, to_s, size)
            used = len({bar.core for bar in bars if from_s <= bar.start_s < to_s})
            print(f"{title}: {size} cores from {from_s * 1e3:.1f} ms: {used} in use, busy {share:.0%} of the time")


if __name__ == "__main__":
    main()
