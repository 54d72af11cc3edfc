"""How long the first optimised training step of ResNet-50 takes in a process that finds a stored plan.

    python benchmarks/engine_warm_start.py [--network resnet50:large:1] [--rounds 5]

One process measures, plans and stores; then `rounds` processes, one after the other, make the same step anew. Seconds
from `optimize_training` to the end of the first step, without the imports and the making of the network, which a
program does with or without threadcast; beside them a settled step, which is the least that the first can take.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from statistics import median

import torch

import threadcast
from threadcast import networks


def first_step(network: str, size: str, batch: int, *, settle: bool) -> dict[str, object]:
    """Seconds of the first step and of a settled one, and what runs it."""
    work = networks.load(network, size, batch=batch)
    assert work.loss is not None
    optimizer = torch.optim.SGD(work.model.parameters(), lr=1e-3, momentum=0.9)
    started_s = time.perf_counter()
    step = threadcast.optimize_training(work.model, work.loss, optimizer)
    step(*work.inputs, work.target)
    first_s = time.perf_counter() - started_s
    while settle and (step.reports[0].runs == "measuring" or time.perf_counter() - started_s < 30):
        step(*work.inputs, work.target)
    if settle:
        for _ in range(60):  # a plan is stored once it has run for a while
            step(*work.inputs, work.target)
    taken = []
    for _ in range(3):
        before_s = time.perf_counter()
        step(*work.inputs, work.target)
        taken.append(time.perf_counter() - before_s)
    return {"first_s": first_s, "step_s": median(taken), "runs": step.reports[0].runs}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", default="resnet50:large:1", help="name:size:batch")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--child", choices=("settle", "first"), help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    network, size, batch = chosen.network.split(":")
    if chosen.child:
        print(json.dumps(first_step(network, size, int(batch), settle=chosen.child == "settle")))
        return
    with tempfile.TemporaryDirectory(prefix="threadcast-") as plans:
        environment = {**os.environ, "THREADCAST_ENGINE_PLANS": plans}

        def child(what: str) -> dict[str, float]:
            command = [sys.executable, __file__, "--network", chosen.network, "--child", what]
            answer = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout
            found: dict[str, float] = json.loads(answer.splitlines()[-1])
            return found

        cold = child("settle")
        warm = [child("first") for _ in range(chosen.rounds)]
    print(f"{chosen.network}: stored by a process that ran {cold['runs']}, {cold['step_s']:.3f} s a settled step")
    firsts = sorted(one["first_s"] for one in warm)
    print(f"first step with a stored plan: median {median(firsts):.2f} s ({firsts[0]:.2f} to {firsts[-1]:.2f})")
    print(f"ran: {', '.join(sorted({str(one['runs']) for one in warm}))}")


if __name__ == "__main__":
    main()
