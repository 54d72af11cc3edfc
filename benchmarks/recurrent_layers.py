"""`nn.LSTM` as the library's operator, and as cells that can be planned: what each takes (decision 10).

    python benchmarks/recurrent_layers.py [--rounds 9] [--mode training]

Inference and training of four sizes; PyTorch as it is, and by plans of both kinds. The ways take turns. Cells are what
PyTorch makes of a layer where oneDNN is switched off.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from run_facts import RunFacts
from torch import Tensor, nn
from turns import median_s

import threadcast

TURN_S = 0.4


@dataclass(frozen=True, slots=True)
class Size:
    """One LSTM and its batch."""

    name: str
    hidden: int
    layers: int
    length: int
    batch: int
    bidirectional: bool = False


SIZES = (
    Size("128, 1 layer, 50 steps, batch 1", 128, 1, 50, 1),
    Size("200, 2 layers, 20 steps, batch 20", 200, 2, 20, 20),
    Size("650, 2 layers, 35 steps, batch 20", 650, 2, 35, 20),
    Size("256, 2 layers both ways, 40 steps, batch 8", 256, 2, 40, 8, bidirectional=True),
)


class Last(nn.Module):
    """An LSTM, and its last result."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.layer = nn.LSTM(
            size.hidden, size.hidden, size.layers, batch_first=True, bidirectional=size.bidirectional
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.layer(x)[0][:, -1]
        return found


def loss(scores: Tensor, target: Tensor) -> Tensor:
    return (scores.mean(1) - target).square().mean()


@contextmanager
def cells() -> Iterator[None]:
    """PyTorch makes cells of recurrent layers in this context."""
    torch._C._set_mkldnn_enabled(False)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(True)


Way = tuple[Callable[[], AbstractContextManager[None]], Callable[[], object], Any]
"""A context, a call within it, and what runs it."""


def inference(size: Size, learn_s: float) -> dict[str, Way]:
    """The ways of a call without gradients."""
    torch.manual_seed(0)
    model, x = Last(size).eval(), torch.randn(size.batch, size.length, size.hidden)
    ways: dict[str, Way] = {"eager": (nullcontext, lambda: model(x), None)}
    for name, context in (("operator", nullcontext), ("cells", cells)):
        call = threadcast.optimize(model, backends=False)
        with context(), torch.no_grad():
            call.learn(x, at_most_s=learn_s)
        ways[name] = context, lambda call=call: call(x), call
    return ways


def training(size: Size, learn_s: float) -> dict[str, Way]:
    """The ways of a step."""
    torch.manual_seed(0)
    x, y = torch.randn(size.batch, size.length, size.hidden), torch.randn(size.batch)

    def made() -> tuple[nn.Module, torch.optim.Optimizer]:
        model = Last(size)
        return model, torch.optim.SGD(model.parameters(), lr=1e-3)

    model, optimizer = made()

    def eager() -> None:
        optimizer.zero_grad()
        loss(model(x), y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    ways: dict[str, Way] = {"eager": (nullcontext, eager, None)}
    for name, context in (("operator", nullcontext), ("cells", cells)):
        own, of_own = made()
        step = threadcast.optimize_training(own, loss, of_own)
        end_s = time.perf_counter() + learn_s
        with context():
            while time.perf_counter() < end_s:
                step(x, y)
        ways[name] = context, lambda step=step: step(x, y), step
    return ways


def seconds_of(context: Callable[[], AbstractContextManager[None]], call: Callable[[], object]) -> float:
    """Median seconds of the calls of one turn."""
    with context():
        return median_s(call, TURN_S)


def measured(size: Size, mode: str, rounds: int, learn_s: float) -> dict[str, Any]:
    """Milliseconds of each way, and what runs both."""
    ways = training(size, learn_s) if mode == "training" else inference(size, learn_s)
    turns: dict[str, list[float]] = {name: [] for name in ways}
    with torch.set_grad_enabled(mode == "training"):
        for number in range(rounds + 1):
            for name, (context, call, _) in ways.items():
                seconds = seconds_of(context, call)
                if number:  # the first fills caches
                    turns[name].append(seconds)
    gains = [one / other for one, other in zip(turns["operator"], turns["cells"], strict=True)]
    low, gain, high = statistics.quantiles(gains, n=4, method="inclusive")
    runs = {f"{name} runs": made.reports[0].runs for name, (_, _, made) in ways.items() if made is not None}
    for _, _, made in ways.values():
        if made is not None:
            made.close()
    return {
        **{name: 1e3 * statistics.median(values) for name, values in turns.items()},
        **runs, "gain": gain, "low": low, "high": high,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=10.0, help="of learning (%(default)s)")
    parser.add_argument("--mode", choices=["inference", "training"], action="append")
    chosen = parser.parse_args()
    os.environ["THREADCAST_ENGINE_TUNING_SHARE"] = "1"
    run = RunFacts.now()
    modes = chosen.mode or ["inference", "training"]
    print(run)
    print("| mode | LSTM | eager | operator | runs | cells | runs | operator / cells | quartiles |")
    print("|---|---|---|---|---|---|---|---|---|")
    for mode in modes:
        for size in SIZES:
            row = measured(size, mode, chosen.rounds, chosen.seconds)
            print(
                f"| {mode} | {size.name} | {row['eager']:.3g} | {row['operator']:.3g} | {row['operator runs']} | "
                f"{row['cells']:.3g} | {row['cells runs']} | {row['gain']:.2f} | "
                f"{row['low']:.2f} to {row['high']:.2f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
