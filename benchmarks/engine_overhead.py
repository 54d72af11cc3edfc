"""What the engine costs per op, on 10,000 ops that add 1 to 8 numbers. Run on a quiet machine.

    python benchmarks/engine_overhead.py

It is held against the same calls in a C++ loop.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from contextlib import ExitStack
from statistics import median

import torch
from torch import Tensor

from threadcast.capture.graph.capture import capture_forward
from threadcast.capture.graph.captured import Captured
from threadcast.core import Case, Machine, Placement, Plan, read_machine
from threadcast.runtime.engine.engine import Engine
from threadcast.runtime.engine.native.library import native_library
from threadcast.runtime.engine.native.lowering import Values, native_program
from threadcast.runtime.plans.sequential import sequential

OPS = 10_000
REPEATS = 9


def one_chain(x: Tensor) -> Tensor:
    for _ in range(OPS):
        x = x + 1
    return x


def two_chains(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x
    for _ in range(OPS // 2):
        x, y = x + 1, y + 2
    return x, y


def on(machine: Machine, core_of: Callable[[int], int], captured: Captured) -> Plan:
    ops = tuple(
        Placement(op_id, (machine.cores[core_of(i)].id,), 1, float(i), i + 1.0)
        for i, op_id in enumerate(captured.graph.ids)
    )
    return Plan(len(machine), "by hand", ops)


def seconds_each(contenders: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Median seconds of a step of each, taken by turns."""
    taken: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(REPEATS + 1):
        for name, step in contenders.items():
            before_s = time.perf_counter()
            step()
            taken[name].append(time.perf_counter() - before_s)
    return {name: median(times[1:]) for name, times in taken.items()}


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    torch.set_num_threads(1)
    machine = read_machine()
    machine = machine.limited_to([core.id for core in machine.cores[:2]])
    chain, chains = capture_forward(one_chain, torch.ones(8)), capture_forward(two_chains, torch.ones(8))
    last = len(machine) - 1
    plans: dict[str, tuple[Captured, Plan]] = {
        "one chain on one core": (chain, on(machine, lambda i: 0, chain)),
        "two chains on one core": (chains, on(machine, lambda i: 0, chains)),
        "two chains on a core each": (chains, on(machine, lambda i: min(i % 2, last), chains)),
        "one chain that changes core at every op": (chain, on(machine, lambda i: min(i % 2, last), chain)),
        "one chain, every op on all cores": (chain, sequential(chain.graph, machine, Case(len(machine)))),
    }
    with ExitStack() as ends:

        def stepping(captured: Captured, engine: Engine) -> Callable[[], object]:
            ends.callback(engine.close)
            inputs = captured.bind()
            return lambda: engine.run(inputs)

        loop = native_program(native_library(), chain, Values.of(chain.program))
        inputs = chain.bind()
        native = {
            "the calls alone": lambda: loop.run(list(inputs)),
            **{name: stepping(c, Engine(c, plan, machine)) for name, (c, plan) in plans.items()},
        }
        found = seconds_each(native)
        print(f"{'us per op':<52}{'in all':>8}{'engine':>8}")
        for name, step_s in found.items():
            print(f"{name:<52}{step_s / OPS * 1e6:>8.2f}{(step_s - found['the calls alone']) / OPS * 1e6:>8.2f}")


if __name__ == "__main__":
    main()
