"""Two models in two threads, each on half of the cores, beside pinning by hand. Two minutes.

    python benchmarks/two_models.py [--networks googlenet,resnet18] [--rounds 10] [--json] [--write]

Every way runs the same two networks in turns of a second, and counts calls of both. *threadcast*: native engines in a
process, as `optimize(model, cores=...)` runs plans. *processes*: the same engines in two processes, which share
nothing: what pinning by hand can reach. *eager, pinned*: PyTorch in two threads, each pinned to its cores by hand.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from figures.steps import TWO_MODELS
from run_facts import RunFacts

from threadcast.capture.graph.capture import capture_forward
from threadcast.core import Case, read_machine
from threadcast.networks import load
from threadcast.runtime.engine.engine import Engine
from threadcast.runtime.plans.sequential import sequential

TURN_S = 1.0
BATCH = {"googlenet": 1, "resnet18": 4, "inception_block": 8, "pathnet": 8}


def halves() -> tuple[list[int], list[int]]:
    """The CPUs of two halves of the cores, each with the same number of them."""
    cores = read_machine().cores
    half = len(cores) // 2
    first, second = ([cpu for core in some for cpu in core.cpus] for some in (cores[:half], cores[half : 2 * half]))
    return first, second


def planned(network: str, cpus: Sequence[int]) -> Callable[[], object]:
    """A call of the network by a native engine on these CPUs."""
    work = load(network, "small", batch=BATCH[network])
    with torch.no_grad():
        captured = capture_forward(work.model.eval(), *work.inputs)
    machine = read_machine(affinity=cpus)
    engine = Engine(captured, sequential(captured.graph, machine, Case(len(machine))), machine)
    return lambda: captured.finish(engine.run(captured.bind(*work.inputs)))


def eager(network: str) -> Callable[[], object]:
    """A call of the network in PyTorch."""
    work = load(network, "small", batch=BATCH[network])
    model = work.model.eval()
    return lambda: model(*work.inputs)


def calls_in(call: Callable[[], object], seconds: float) -> int:
    """How many calls end within so many seconds."""
    count, end_s = 0, time.perf_counter() + seconds
    with torch.no_grad():
        while time.perf_counter() < end_s:
            call()
            count += 1
    return count


class Threads:
    """Two calls in two threads; with `cpus` each thread is pinned to its own, and has as many OpenMP threads."""

    def __init__(self, calls: Sequence[Callable[[], object]], cpus: Sequence[Sequence[int]] | None = None) -> None:
        self._calls, self._cpus = calls, cpus

    def turn(self, seconds: float) -> int:
        """Calls of both within so many seconds."""
        counts = [0, 0]

        def run(number: int) -> None:
            if self._cpus is not None:
                os.sched_setaffinity(0, self._cpus[number])
                torch.set_num_threads(len(self._cpus[number]))
            counts[number] = calls_in(self._calls[number], seconds)

        threads = [threading.Thread(target=run, args=(number,)) for number in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return sum(counts)


class Processes:
    """Two calls in two processes."""

    def __init__(self, networks: Sequence[str], cpus: Sequence[Sequence[int]]) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipes, self._processes = [], []
        for network, own in zip(networks, cpus, strict=True):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, network, own), daemon=True)
            process.start()
            self._pipes.append(ours)
            self._processes.append(process)
        for pipe in self._pipes:
            pipe.recv()

    def turn(self, seconds: float) -> int:
        """Calls of both within so many seconds."""
        for pipe in self._pipes:
            pipe.send(seconds)
        return sum(pipe.recv() for pipe in self._pipes)

    def close(self) -> None:
        """End both."""
        for pipe in self._pipes:
            pipe.send(None)
        for process in self._processes:
            process.join()


def _serve(pipe: Any, network: str, cpus: Sequence[int]) -> None:
    os.sched_setaffinity(0, cpus)
    call = planned(network, cpus)
    calls_in(call, 0.5)
    pipe.send(True)
    while (seconds := pipe.recv()) is not None:
        pipe.send(calls_in(call, seconds))


def measured(networks: Sequence[str], rounds: int) -> dict[str, Any]:
    """Calls a second of each way, and their ratios."""
    cpus = halves()
    processes = Processes(networks, cpus)
    try:
        ours = Threads([planned(network, own) for network, own in zip(networks, cpus, strict=True)])
        theirs = Threads([eager(network) for network in networks], cpus)
        ways = {"threadcast": ours, "processes": processes, "eager": theirs}
        for way in ways.values():
            way.turn(0.5)
        found: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(rounds):
            for name, way in ways.items():
                found[name].append(way.turn(TURN_S) / TURN_S)
    finally:
        processes.close()
    ratios = [ours_s / by_hand_s for ours_s, by_hand_s in zip(found["threadcast"], found["processes"], strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4)
    per_s = {name: statistics.median(values) for name, values in found.items()}
    return {
        "networks": " and ".join(networks), **{f"{name}_per_s": value for name, value in per_s.items()},
        "over_processes": middle, "over_processes_low": low, "over_processes_high": high,
        "over_eager": per_s["threadcast"] / per_s["eager"],
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", default="googlenet,resnet18;googlenet,googlenet;inception_block,pathnet")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--write", action="store_true", help=TWO_MODELS.writes)
    chosen = parser.parse_args()
    run = RunFacts.now()
    rows = [measured(pair.split(","), chosen.rounds) for pair in chosen.networks.split(";")]
    if chosen.write:
        TWO_MODELS.store(rows, run, replaces=("networks",))
    print(json.dumps({"run": run.to_json(), "rows": rows}, indent=2) if chosen.json else TWO_MODELS.printed(rows))


if __name__ == "__main__":
    main()
