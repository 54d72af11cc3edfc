"""How long PyTorch's own operators take between calls of an optimised model while threadcast learns, by second.

    python benchmarks/between_calls.py [--case training|operator] [--seconds 20] [--json]

Each case runs in fresh processes, by turns: in eager PyTorch, by threadcast, in eager PyTorch. Counted is what the
script computes outside of the model and its backward pass: loss and Adam of `training`, by
`torch.compile(backend="threadcast")`; in `operator`, which infers by `optimize` and has backends searched, an
element-wise operator of some 0.5 ms after each call. Nothing is stored.
`ratio` is to the median of both eager runs; `waited` is the share of a core for which threads were ready and got none,
which other processes cause, too. Fails where a ratio is above 1.05.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from statistics import mean, median
from typing import Any

import torch
from torch import nn

import threadcast

Seconds = tuple[int, float, float]
"""Of one second: steps, mean seconds of a step outside of calls, and the share of a core that was waited for."""


def training(compiled: Callable[[nn.Module], Any]) -> Iterator[float]:
    """Train an autoencoder; yield the seconds of each step outside of calls."""
    layers = nn.Linear(784, 400), nn.ReLU(), nn.Linear(400, 20), nn.Linear(20, 400), nn.ReLU(), nn.Linear(400, 784)
    model, images = nn.Sequential(*layers, nn.Sigmoid()), torch.rand(128, 784)
    optimizer, call = torch.optim.Adam(model.parameters(), 1e-3), compiled(model)
    while True:
        results = call(images)
        began_s = time.perf_counter()
        loss = nn.functional.binary_cross_entropy(results, images, reduction="sum") + results.pow(2).exp().mean()
        seconds = time.perf_counter() - began_s
        loss.backward()
        began_s = time.perf_counter() - seconds
        optimizer.step()
        optimizer.zero_grad()
        yield time.perf_counter() - began_s


def operator(compiled: Callable[[nn.Module], Any]) -> Iterator[float]:
    """Infer; yield the seconds of the operator after each call."""
    model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 64)).eval()
    call, x, angles, sines = compiled(model), torch.rand(64, 256), torch.rand(1 << 20), torch.empty(1 << 20)
    while True:
        with torch.no_grad():
            call(x)
            began_s = time.perf_counter()
            torch.sin(angles, out=sines)
        yield time.perf_counter() - began_s


CASES: dict[str, Callable[[Callable[[nn.Module], Any]], Iterator[float]]] = {"training": training, "operator": operator}


def run(case: str, seconds: int, *, by_threadcast: bool) -> Iterator[Seconds]:
    """What each second was like, after the first step."""
    torch.manual_seed(0)
    ours = threadcast.optimize if case == "operator" else partial(torch.compile, backend="threadcast")
    steps = CASES[case](ours if by_threadcast else lambda model: model)
    next(steps)
    for _ in range(seconds):
        end_s, waited_s, outside_s = time.perf_counter() + 1.0, _waited_s(), list[float]()
        while time.perf_counter() < end_s:
            outside_s.append(next(steps))
        yield len(outside_s), mean(outside_s), _waited_s() - waited_s


def _waited_s() -> float:
    waited_ns = 0
    for file in Path("/proc/self/task").glob("*/schedstat"):
        with suppress(OSError):  # the thread has ended
            waited_ns += int(file.read_text().split()[1])
    return waited_ns * 1e-9


def _in_a_process(case: str, seconds: int, way: str) -> list[Seconds]:
    command = [sys.executable, __file__, "--case", case, "--seconds", str(seconds), "--way", way]
    with tempfile.TemporaryDirectory() as folder:
        printed = subprocess.check_output(command, env={**os.environ, "THREADCAST_ENGINE_PLANS": folder})
    return [tuple(second) for second in json.loads(printed)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", choices=CASES)
    parser.add_argument("--seconds", type=int, default=20)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--way", choices=["eager", "threadcast"], help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.way:
        print(json.dumps(list(run(given.case, given.seconds, by_threadcast=given.way == "threadcast"))))
        return 0
    found, ratios = {}, list[float]()
    for case in [given.case] if given.case else list(CASES):
        first, ours, last = (_in_a_process(case, given.seconds, way) for way in ("eager", "threadcast", "eager"))
        eager_s = median(outside_s for _, outside_s, _ in first + last)
        found[case] = {"eager": first + last, "threadcast": ours}
        ratios += [outside_s / eager_s for _, outside_s, _ in ours]
        if not given.json:
            print(f"{case}: {1e3 * eager_s:.3f} ms outside of calls in eager PyTorch")
            print(f"{'second':>6}{'steps':>7}{'ms':>8}{'ratio':>7}{'waited':>8}")
            for second, (steps, outside_s, waited) in enumerate(ours):
                print(f"{second:6}{steps:7}{1e3 * outside_s:8.3f}{outside_s / eager_s:7.2f}{waited:8.2f}")
    if given.json:
        print(json.dumps(found, indent=1))
    return int(max(ratios) > 1.05)


if __name__ == "__main__":
    sys.exit(main())
