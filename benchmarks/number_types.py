"""Inference in bfloat16 by choice, beside float32.

    python benchmarks/number_types.py [--networks "encoder;MLP"] [--rounds 9] [--seconds 45] [--json] [--write]

Every network is learned for some seconds in both ways, and then all ways take turns. A quarter of an hour.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import torch
from figures.steps import TYPES
from run_facts import RunFacts
from torch import Tensor, nn
from turns import median_s

import threadcast
from threadcast.runtime.doors.bfloat16_speed import bfloat16_speed

TURN_S = 0.5


def encoder(batch: int, length: int) -> tuple[nn.Module, Tensor]:
    """A transformer encoder of four layers, 512 wide."""
    layer = nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True)
    return nn.TransformerEncoder(layer, 4, enable_nested_tensor=False), torch.randn(batch, length, 512)


def perceptron(batch: int) -> tuple[nn.Module, Tensor]:
    """Four layers, 2048 wide."""
    layers = [part for _ in range(4) for part in (nn.Linear(2048, 2048), nn.ReLU())]
    return nn.Sequential(*layers), torch.randn(batch, 2048)


def convolutions(batch: int) -> tuple[nn.Module, Tensor]:
    """Five convolutions of a residual network's second stage."""
    layers = [part for _ in range(5) for part in (nn.Conv2d(128, 128, 3, padding=1), nn.BatchNorm2d(128), nn.ReLU())]
    return nn.Sequential(*layers), torch.randn(batch, 128, 28, 28)


NETWORKS: dict[str, Callable[[], tuple[nn.Module, Tensor]]] = {
    "transformer encoder, batch 1 of 128 words": lambda: encoder(1, 128),
    "transformer encoder, batch 8 of 64 words": lambda: encoder(8, 64),
    "MLP, batch 1": lambda: perceptron(1),
    "MLP, batch 64": lambda: perceptron(64),
    "convolutions, batch 4": lambda: convolutions(4),
}


def seconds_of(call: Callable[[Tensor], object], x: Tensor) -> float:
    """Median seconds of the calls of one turn."""
    with torch.no_grad():
        return median_s(lambda: call(x), TURN_S)


def measured(name: str, rounds: int, learn_s: float) -> dict[str, Any]:
    """Milliseconds of each way, and what the choice of types says."""
    torch.manual_seed(0)
    model, x = NETWORKS[name]()
    model.eval()

    def autocast(x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            found: Tensor = model(x)
        return found

    # Models of their own: each may set the memory format of its weights.
    single = threadcast.optimize(deepcopy(model)).learn(x, at_most_s=learn_s)
    both = threadcast.optimize(deepcopy(model), dtypes=("float32", "bfloat16")).learn(x, at_most_s=2 * learn_s)
    ways: dict[str, Callable[[Tensor], object]] = {
        "eager": model,
        "autocast": autocast,
        "float32": single,
        "both": both,
    }
    turns: dict[str, list[float]] = {way: [] for way in ways}
    for number in range(rounds + 1):
        for way, call in ways.items():
            seconds = seconds_of(call, x)
            if number:  # the first fills caches
                turns[way].append(seconds)
    gains = [one / other for one, other in zip(turns["float32"], turns["both"], strict=True)]
    low, gain, high = statistics.quantiles(gains, n=4)
    (report,) = both.types
    by = both.by_type[report.runs or "float32"]
    learning = [name for name, call in (("float32", single), ("both", both)) if call.learning]
    single.close()
    both.close()
    return {
        "network": name, **{f"{way}_ms": 1e3 * statistics.median(values) for way, values in turns.items()},
        "runs": report.runs or "learning", "by": by, "learning": " ".join(learning), "gain": gain,
        "gain_low": low, "gain_high": high, "difference": report.largest_difference or 0.0,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", default=";".join(NETWORKS), help="beginnings of names, with ; between")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=45.0, help="of learning (%(default)s)")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--write", action="store_true", help=TYPES.writes)
    chosen = parser.parse_args()
    run = RunFacts.now()
    names = [name for name in NETWORKS if name.startswith(tuple(chosen.networks.split(";")))]
    speed = bfloat16_speed()
    of_cpu = {"bfloat16_product": speed.matrix_product, "bfloat16_convolution": speed.convolution}
    rows = [measured(name, chosen.rounds, chosen.seconds) | of_cpu for name in names]
    if chosen.write:
        TYPES.store(rows, run, replaces=("network",))
    print(json.dumps({"run": run.to_json(), "rows": rows}, indent=2) if chosen.json else TYPES.printed(rows))


if __name__ == "__main__":
    main()
