"""How soon cores change hands, and what it costs to be ready for it.

    python benchmarks/malleable_resize.py [--resizes 1000] [--rounds 10] [--write]

Resizes of a training step under way in the native engine, at random moments from another thread; a quota lowered in a
cgroup (version 1, as root) until the process uses as many threads as it leaves; another process killed until the one
that stays uses all cores; steps a second of a process while it is attached and while it is not.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from statistics import median

import numpy as np
import torch
from figures.shared_machine import RESIZES
from malleable import Process, arbiter
from planned_by_steps import planned_by_steps
from run_facts import RunFacts

from threadcast import networks
from threadcast.capture.graph.capture import capture_training
from threadcast.capture.graph.captured import Captured
from threadcast.core import read_machine
from threadcast.runtime.engine.engine import Engine
from threadcast.runtime.plans.malleable_plan import MalleablePlan

Rows = list[dict[str, object]]
EXEC = [
    sys.executable,
    "-c",
    "from threadcast.cli.main import main; main()",
    "exec",
    "--no-keep-memory",
    "--",
    sys.executable,
]


def captured_step(name: str, size: str) -> Captured:
    """A training step of a network that this project knows."""
    work = networks.load(name, size)
    assert work.loss is not None
    torch.manual_seed(0)
    optimizer = torch.optim.SGD(work.model.parameters(), lr=1e-3)
    return capture_training(work.model, work.loss, optimizer, work.inputs, work.target)


def resizes(name: str, size: str, count: int) -> Rows:
    """A row about `count` resizes of a network's training steps, back and forth between all cores and fewer."""
    machine = read_machine()
    captured = captured_step(name, size)
    plan = planned_by_steps(captured, machine)
    choose = random.Random(0)
    asked: list[tuple[float, frozenset[int]]] = []
    steps: list[tuple[float, list[tuple[float, float, tuple[int, ...]]]]] = []
    ready = threading.Event()
    with Engine(captured, plan.plan, machine) as engine:
        following = MalleablePlan(engine, plan.plan, machine, plan.problem, {}, done=lambda _: ready.set())
        ready.wait()

        def resize() -> None:
            for i in range(count):
                some = (
                    choose.sample(machine.cores, choose.randint(1, len(machine) - 1)) if i % 2 == 0 else machine.cores
                )
                before_s = time.monotonic()
                following.resize(tuple(some))
                asked.append((before_s, frozenset(core.id for core in some)))
                time.sleep(choose.uniform(0.0, 0.02))

        thread = threading.Thread(target=resize)
        thread.start()
        while thread.is_alive():
            _, trace, began_s = engine.run_timed(captured.bind())
            steps.append((began_s, [(began_s + op.start_s, began_s + op.finish_s, op.cores) for op in trace.ops]))
        following.close()
    late: list[float] = []
    beyond, longest_s = 0, 0.0
    ops = [op for _, step in steps for op in step]
    for (before_s, cores), (next_s, _) in list(pairwise(asked))[::2]:  # those to fewer cores
        after = [op for op in ops if before_s <= op[1] and op[0] < next_s and not set(op[2]) <= cores]
        in_force_s = max((op[1] for op in after), default=before_s) - before_s
        op_s = max((op[1] - op[0] for op in after), default=0.0)
        longest_s = max(longest_s, op_s)
        late.append(in_force_s)
        beyond += in_force_s > max(op_s, 0.005)
    late.sort()
    step_s = median(step[-1][1] - step[0][0] for _, step in steps)
    more = (
        f"{late[int(0.99 * len(late))] * 1e3:.2f} ms in 99 %; longest such op {longest_s * 1e3:.2f} ms; "
        f"later than one op and 5 ms: {beyond}; {len(steps)} steps of {step_s * 1e3:.3g} ms"
    )
    what = f"{name} {size}: last op on a core given up ends after"
    return [_row(what, len(asked), f"{median(late) * 1e3:.2f}", f"{late[-1] * 1e3:.2f}", "ms", more)]


def _row(what: str, times: int, middle: str, most: str = "", unit: str = "", more: str = "") -> dict[str, object]:
    """A row of data/studies/malleable_resizes.csv."""
    return {"what": what, "times": times, "median": middle, "most": most, "unit": unit, "more": more}


def _row_of_ms(what: str, took_s: Sequence[float]) -> dict[str, object]:
    return _row(what, len(took_s), f"{median(took_s) * 1e3:.0f}", f"{max(took_s) * 1e3:.0f}", "ms")


@contextmanager
def group() -> Iterator[Path]:
    """A cgroup of version 1 for CPU quotas."""
    path = Path(f"/sys/fs/cgroup/cpu/threadcast-bench-{os.getpid()}")
    path.mkdir()
    try:
        yield path
    finally:
        until_s = time.monotonic() + 10
        while (path / "tasks").read_text() and time.monotonic() < until_s:
            time.sleep(0.05)
        path.rmdir()


def until(holds: Callable[[], bool], within_s: float = 30.0) -> float:
    """Seconds until it holds; infinity where it does not."""
    began_s = time.monotonic()
    while time.monotonic() < began_s + within_s:
        if holds():
            return time.monotonic() - began_s
        time.sleep(0.002)
    return float("inf")


def cpus_of(pid: int) -> set[int]:
    """Where the threads of a process may run."""
    found: set[int] = set()
    for task in os.listdir(f"/proc/{pid}/task"):
        try:
            found |= os.sched_getaffinity(int(task))
        except ProcessLookupError:
            continue
    return found


def quota(rounds: int) -> Rows:
    """How soon a quota of one core is followed, and its end."""
    cores = len(read_machine())
    down, up = [], []
    with tempfile.TemporaryDirectory(prefix="threadcast-") as folder, group() as path:
        process = Process(EXEC, "LSTM", {**os.environ, "XDG_RUNTIME_DIR": folder})
        try:
            (path / "cgroup.procs").write_text(str(process.pid))
            until(lambda: bool(process.lines))
            period = (path / "cpu.cfs_period_us").read_text()
            for _ in range(rounds):
                (path / "cpu.cfs_quota_us").write_text(period)
                down.append(until(lambda: len(cpus_of(process.pid)) == 1))
                time.sleep(0.3 + random.random() / 5)
                (path / "cpu.cfs_quota_us").write_text("-1")
                up.append(until(lambda: len(cpus_of(process.pid)) == cores))
                time.sleep(0.3 + random.random() / 5)
        finally:
            process.end()
    return [
        _row_of_ms("a quota lowered to one core is followed after", down),
        _row_of_ms("the end of the quota is followed after", up),
    ]


def given_back(rounds: int) -> Rows:
    """How soon all cores are one process's again, after the other was killed."""
    cores = len(read_machine())
    took = []
    with tempfile.TemporaryDirectory(prefix="threadcast-") as folder:
        environment = {**os.environ, "XDG_RUNTIME_DIR": folder}
        with arbiter(environment):
            first = Process(EXEC, "LSTM", environment)
            try:
                until(lambda: bool(first.lines))
                for _ in range(rounds):
                    second = Process(EXEC, "LSTM", environment)
                    until(lambda: len(cpus_of(first.pid)) < cores)
                    time.sleep(1.0)
                    second.end()
                    took.append(until(lambda: len(cpus_of(first.pid)) == cores))
            finally:
                first.end()
    return [_row_of_ms("all cores are back, once the other process was killed, after", took)]


_BLOCKS = """
import os, sys, time
import torch
from threadcast import attach, networks
from threadcast.malleable.attach import detach
work = networks.load("lstm", "small")
optimizer = torch.optim.SGD(work.model.parameters(), lr=1e-3)
def block(seconds):
    steps, began_s = 0, time.perf_counter()
    while time.perf_counter() - began_s < seconds:
        optimizer.zero_grad()
        work.loss(work.model(*work.inputs), work.target).backward()
        optimizer.step()
        steps += 1
    return steps / (time.perf_counter() - began_s)
def on_cpu_s(threads):
    found = 0
    for thread in threads:
        with open(f"/proc/self/task/{thread}/schedstat") as file:
            found += int(file.read().split()[0])
    return found / 1e9
block(3.0)
for number in range(int(sys.argv[1])):
    rates, share = {}, 0.0
    for attached in (True, False) if number % 2 else (False, True):
        before = set(os.listdir("/proc/self/task"))
        if attached:
            attach()
        started = set(os.listdir("/proc/self/task")) - before
        rates[attached] = block(3.0)
        if attached:
            share = on_cpu_s(started) / 3.0
        detach()
    print(rates[True] / rates[False], share, flush=True)
"""


def cost(blocks: int) -> Rows:
    """What a process alone loses by being attached: in one process, by turns."""
    with tempfile.TemporaryDirectory(prefix="threadcast-") as folder:
        environment = {**os.environ, "XDG_RUNTIME_DIR": folder}
        with arbiter(environment):
            command = [sys.executable, "-c", _BLOCKS, str(blocks)]
            text = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
    pairs = [tuple(map(float, line.split())) for line in text.splitlines()]
    ratios, shares = sorted(pair[0] for pair in pairs), [pair[1] for pair in pairs]
    quarter, draws = len(ratios) // 4, np.random.default_rng(0).choice(ratios, (2000, len(ratios)))
    low, high = np.quantile(np.median(draws, axis=1), (0.025, 0.975))
    more = (
        f"{low:.3f} to {high:.3f} with 95 %, by bootstrap; "
        f"quartiles {ratios[quarter]:.3f} to {ratios[-1 - quarter]:.3f}; blocks of 3 s, by turns"
    )
    used = f"{100 * median(shares):.2f}"
    return [
        _row("steps while attached, of those while not", len(ratios), f"{median(ratios):.3f}", more=more),
        _row("threads that follow what it is given use", len(ratios), used, unit="% of one core"),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--resizes", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--blocks", type=int, default=30, help="pairs of 3 s each, attached and not")
    parser.add_argument("--only", default="resizes,quota,given_back,cost")
    parser.add_argument("--write", action="store_true", help=RESIZES.writes)
    chosen = parser.parse_args()
    parts: dict[str, Callable[[], Rows]] = {
        "resizes": lambda: [
            row for name in ("lstm", "inception_block") for row in resizes(name, "small", chosen.resizes)
        ],
        "quota": lambda: quota(chosen.rounds),
        "given_back": lambda: given_back(chosen.rounds),
        "cost": lambda: cost(chosen.blocks),
    }
    rows = [row for part in chosen.only.split(",") for row in parts[part]()]
    print(RESIZES.printed(rows))
    if chosen.write:
        RESIZES.store(rows, RunFacts.now(), replaces=("what",))


if __name__ == "__main__":
    main()
