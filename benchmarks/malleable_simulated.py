"""Training processes that come and go on large machines, simulated.

    python benchmarks/malleable_simulated.py [--scenarios 8] [--write]

Each process is one of the training runs of `data/published/gbm_training_time.csv`, measured by others at 1 to 192
threads; between those counts its speed is interpolated in log-log. The arbiter's own ledger divides the cores in
simulated time, told of steps five times a second as real processes do. Every ten simulated seconds the sum of progress,
each process's as a share of the most that it reaches on that machine, is held against the best division of all,
found by trying every one. *known*: processes register with their curve. *learnt*: they report steps alone.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from statistics import fmean

import numpy as np
from figures.shared_machine import SIMULATED
from numpy.typing import NDArray
from run_facts import RunFacts

from threadcast.core import Machine
from threadcast.malleable.division import Claim
from threadcast.malleable.ledger import Ledger
from threadcast.store.published import gbm_training_time

CORES = (16, 68, 128)
SECONDS, EVERY_S, TELL_S, TICK_S = 600.0, 10.0, 0.2, 0.1
CHANGES_S = (20.0, 90.0)
"""Between two arrivals or departures."""
SETTLED_S = 60.0
"""After a change, from when on what was learnt is judged in a column of its own."""


def speeds(cores: int) -> list[NDArray[np.float64]]:
    """(cores,) progress of each training run with 1 to `cores` cores, in trainings a second."""
    curves: dict[tuple[str, str], dict[int, float]] = {}
    for one in gbm_training_time():
        run = one.machine.name, str(sorted(one.op.attributes.items()))
        curves.setdefault(run, {})[one.case.threads] = one.seconds
    counts = np.arange(1, cores + 1)
    found = []
    for points in curves.values():
        threads = sorted(points)
        if threads[0] == 1 and threads[-1] >= cores:
            taken = np.interp(np.log(counts), np.log(threads), np.log([points[count] for count in threads]))
            found.append(np.exp(-taken))
    return found


def best(worths: Sequence[NDArray[np.float64]], cores: int) -> float:
    """The greatest sum of all divisions among up to four processes: every one is tried."""
    counts = np.arange(1, cores + 1)
    axes = np.ix_(*[counts] * (len(worths) - 1))
    used = sum(axes)
    total = sum(worth[axis - 1] for worth, axis in zip(worths[:-1], axes, strict=True))
    last = np.maximum.accumulate(worths[-1])  # with what is left for it, or less
    possible = used < cores
    return float((total[possible] + last[cores - used[possible] - 1]).max())


def scenario(cores: int, runs: Sequence[NDArray[np.float64]], seed: int, *, known: bool) -> dict[str, list[float]]:
    """What share of the best division was reached, at every look, and what it cost."""
    choose = np.random.default_rng(seed)
    ledger = Ledger(Machine.uniform("simulated", cores))
    running: dict[str, NDArray[np.float64]] = {}
    steps: dict[str, float] = {}
    held: dict[str, int] = {}
    found: dict[str, list[float]] = {"share": [], "settled": [], "moved": []}
    next_change_s, changed_s, made = 0.0, 0.0, 0
    for tick in range(round(SECONDS / TICK_S)):
        now_s = tick * TICK_S
        if now_s >= next_change_s:
            while len(running) < 2 or (len(running) < 4 and choose.random() < 0.5):
                name = f"process {(made := made + 1)}"
                running[name] = runs[choose.integers(len(runs))]
                steps[name] = 0.0
                ledger.join(name, claim(running[name]) if known else Claim(), (), now_s)
            if len(running) > 2 and choose.random() < 0.5:
                gone = str(choose.choice(list(running)))
                running.pop(gone), held.pop(gone, None)
                ledger.leave(gone, now_s)
            changed_s, next_change_s = now_s, now_s + choose.uniform(*CHANGES_S)
        ledger.explore(now_s)
        ordered = ledger.orders()
        while ordered:
            for name, order in ordered.items():
                found["moved"].append(abs(len(order.cores) - held.get(name, 0)))
                held[name] = len(order.cores)
                ledger.confirm(name, order.number, order.cores)
            ordered = ledger.orders()
        for name, speed in running.items():
            if held.get(name):
                steps[name] += 20 * TICK_S * speed[held[name] - 1] / speed.max()
                if tick % round(TELL_S / TICK_S) == 0:
                    ledger.report(name, steps[name], now_s)
        if tick % round(EVERY_S / TICK_S) == 0 and tick:
            worths = [speed / speed.max() for speed in running.values()]
            now = sum(worth[held[name] - 1] for worth, name in zip(worths, running, strict=True))
            share = now / best(worths, cores)
            found["share"].append(share)
            if now_s - changed_s >= SETTLED_S:
                found["settled"].append(share)
    return found


def claim(speed: NDArray[np.float64]) -> Claim:
    """What a process registers that knows its whole curve."""
    return Claim(progress={cores: float(rate) for cores, rate in enumerate(speed, start=1)})


def row(cores: int, scenarios: int, *, known: bool) -> dict[str, str]:
    """A row of data/studies/malleable_simulated.csv."""
    runs = speeds(cores)
    all_: dict[str, list[float]] = {}
    for seed in range(scenarios):
        for name, values in scenario(cores, runs, seed, known=known).items():
            all_.setdefault(name, []).extend(values)
    minutes = scenarios * SECONDS / 60
    settled = all_["settled"]
    return {
        "cores": str(cores), "curves": "known" if known else "learnt",
        "mean": f"{fmean(all_['share']):.3f}", "worst": f"{min(all_['share']):.3f}",
        "settled_mean": f"{fmean(settled):.3f}", "settled_worst": f"{min(settled):.3f}",
        "moved_a_minute": f"{sum(all_['moved']) / minutes:.0f}",
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenarios", type=int, default=8)
    parser.add_argument("--write", action="store_true", help=SIMULATED.writes)
    chosen = parser.parse_args()
    rows = []
    for cores in CORES:
        for known in (True, False):
            rows.append(row(cores, chosen.scenarios, known=known))
            print(rows[-1], file=sys.stderr, flush=True)
    print(SIMULATED.printed(rows))
    if chosen.write:
        SIMULATED.store(rows, RunFacts.now())


if __name__ == "__main__":
    main()
