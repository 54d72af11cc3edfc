"""How much faster `threadcast.optimize` makes steps, against eager PyTorch at every setting and torch.compile.

    python benchmarks/engine.py [--cases "resnet-50;lstm"] [--modes training,inference] [--rounds 12] [--no-compile]
                                [--json FILE] [--reuse] [--again "lstm"] [--write]

Every contender has a process of its own (how malloc keeps memory cannot be changed back) and runs when told to, in
turns with the others; a step before each turn is not timed. Medians of all timed steps, with their quartiles.

`--again` measures cases of the file once more: the table shows both values, the later one marked with its run, and its
geometric means are of the first ones.
"""

from __future__ import annotations

import argparse
import json
import math
import shlex
import subprocess
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import geometric_mean, median, quantiles
from typing import Any

from run_facts import RunFacts, Runs

from threadcast.core import read_machine

CASES: dict[str, tuple[str, str, dict[str, int]]] = {
    "LSTM small": ("lstm", "small", {}),
    "LSTM medium, 10 steps": ("lstm", "medium", {"steps": 10}),
    "PhasedLSTM small": ("phased_lstm", "small", {}),
    "PathNet small, batch 8": ("pathnet", "small", {"batch": 8}),
    "PathNet small, batch 64": ("pathnet", "small", {"batch": 64}),
    "PathNet large, batch 16": ("pathnet", "large", {"batch": 16}),
    "GoogLeNet 128 px, batch 1": ("googlenet", "small", {"batch": 1}),
    "GoogLeNet 128 px, batch 8": ("googlenet", "small", {"batch": 8}),
    "Inception-v3 299 px, batch 1": ("inception_v3", "large", {"batch": 1}),
    "ResNet-50 224 px, batch 1": ("resnet50", "large", {"batch": 1}),
    "ResNet-50 224 px, batch 8": ("resnet50", "large", {"batch": 8}),
    "DCGAN generator, batch 16": ("dcgan_generator", "small", {"batch": 16}),
    "DCGAN discriminator, batch 16": ("dcgan_discriminator", "small", {"batch": 16}),
    "Transformer encoder, batch 4": ("transformer", "small", {"batch": 4}),
}
"""Title: (network, size, what replaces the size's own)."""

WITHOUT_IMAGES = ("lstm", "phased_lstm", "transformer")
"""Networks for which memory formats make no difference."""

PAGE = Path(__file__).parents[1] / "docs" / "engine-tables.md"
_HEAD = """# What optimised steps gain

`make bench-engine`, by `{command}`, {runs}. Every contender
runs in a process of its own, in turns with the others; medians of all timed steps.

- *eager*: as people run it, default layout, malloc and threads. *best eager*: the fastest of 1 and all threads, both
  memory formats, malloc as it is and keeping memory. *best other*: `torch.compile` in either layout and, for
  inference, ONNX Runtime and OpenVINO, as far as they were run (nan: none). Ratios above 1: threadcast is faster.
- *direct / ours*: the backend that threadcast kept, called directly in the same process by turns, over the call through
  threadcast. Two processes with the same backend at the same setting differ by 10 % and more.
- *forecast off by*: |steps right after the plan was kept / its makespan - 1|. *memory*: peak of the process over that
  of eager as people run it. *spread*: between the quartiles of threadcast's steps, of their median.
{again}
"""

TURN_S = 0.25
"""Seconds of timed steps in one turn, about; one step at least."""
MOST_STEPS = 20


@dataclass(frozen=True, slots=True)
class Contender:
    """A rival's name and what its process is told."""

    name: str
    setting: dict[str, Any]


def contenders(case: str, mode: str, cores: int, *, compiled: bool) -> Iterator[Contender]:
    """All that run this case."""
    network, size, options = CASES[case]
    base = {"network": network, "size": size, "options": options, "mode": mode}
    layouts = ["as given"] if network in WITHOUT_IMAGES else ["as given", "channels last"]
    for layout in layouts:
        for malloc in ("default", "kept"):
            for threads in sorted({1, cores}):
                setting = {**base, "who": "eager", "threads": threads, "layout": layout, "malloc": malloc}
                yield Contender(f"eager, {threads} threads, {layout}, malloc {malloc}", setting)
        if compiled:
            setting = {**base, "who": "compile", "threads": cores, "layout": layout}
            yield Contender(f"torch.compile, {layout}", setting)
    if mode == "inference":
        for backend in ("onnxruntime", "openvino"):
            yield Contender(backend, {**base, "who": "backend", "backend": backend, "threads": cores})
    yield Contender("threadcast", {**base, "who": "threadcast"})


class Process:
    """A contender's process; `ready` is what it said of itself. RuntimeError where it did not come to that."""

    def __init__(self, contender: Contender) -> None:
        self.name = contender.name
        script = Path(__file__).with_name("engine_contender.py")
        self._running = subprocess.Popen(
            [sys.executable, str(script), json.dumps(contender.setting)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.ready = self._answer()
        self.seconds: list[float] = []
        self.peak_bytes = 0

    def turn(self, steps: int) -> None:
        """Time so many steps."""
        assert self._running.stdin is not None
        self._running.stdin.write(f"{steps}\n")
        self._running.stdin.flush()
        answer = self._answer()
        self.seconds += answer["seconds"]
        self.peak_bytes = answer["peak_bytes"]

    def close(self) -> None:
        self._running.terminate()
        self._running.communicate()

    def _answer(self) -> dict[str, Any]:
        assert self._running.stdout is not None
        line = self._running.stdout.readline()
        if not line:
            _, errors = self._running.communicate()
            raise RuntimeError(f"{self.name} ended: {errors.strip().splitlines()[-1:]}")
        found: dict[str, Any] = json.loads(line)
        return found


def measured(case: str, mode: str, cores: int, rounds: int, *, compiled: bool) -> dict[str, Any]:
    """Seconds of every contender of one case, measured by turns."""
    with ExitStack() as ends:
        failed: dict[str, str] = {}
        start = partial(started, failed)
        everybody = list(contenders(case, mode, cores, compiled=compiled))
        measuring = [one for one in everybody if one.setting["who"] in ("backend", "threadcast")]
        with ThreadPoolExecutor(cores) as starting:  # compiling takes long, and nothing is timed yet
            found_out = list(starting.map(start, [one for one in everybody if one not in measuring]))
        found_out += map(start, measuring)  # these choose their settings as they start, each alone
        processes = [process for process in found_out if process is not None]
        for process in processes:
            ends.callback(process.close)
        first = {process: _first_s(process) for process in processes}
        for _ in range(rounds):
            for process in processes:
                process.turn(max(1, min(MOST_STEPS, round(TURN_S / first[process]))))
        found = {
            process.name: {**_summary(process.seconds), "peak_bytes": process.peak_bytes, **process.ready}
            for process in processes
        }
    return {"case": case, "mode": mode, "contenders": found, "failed": failed}


def started(failed: dict[str, str], contender: Contender) -> Process | None:
    """The contender's process after a first step; None where it has none, and `failed` says why."""
    try:
        process = Process(contender)
    except RuntimeError as error:
        failed[contender.name] = str(error)
        print(f"    {error}", file=sys.stderr, flush=True)
        return None
    process.turn(1)
    process.seconds.clear()
    print(f"    {contender.name} {process.ready or ''}", file=sys.stderr, flush=True)
    return process


def _first_s(process: Process) -> float:
    process.turn(1)
    return process.seconds.pop()


def _summary(seconds: list[float]) -> dict[str, float]:
    low, middle, high = quantiles(seconds, n=4) if len(seconds) > 1 else (seconds[0],) * 3
    return {"median_s": middle, "low_s": low, "high_s": high, "steps": len(seconds)}


def compared(found: dict[str, Any], cores: int) -> dict[str, Any]:
    """How much longer the rivals' medians are than threadcast's."""
    times = {name: one["median_s"] for name, one in found["contenders"].items()}
    ours = found["contenders"]["threadcast"]
    usual_name = f"eager, {cores} threads, as given, malloc default"
    eager = min((name for name in times if name.startswith("eager")), key=times.__getitem__)
    others = [name for name in times if not name.startswith("eager") and name != "threadcast"]
    compiled = min(others, key=times.__getitem__, default=None)
    peaks = found["contenders"][usual_name]["peak_bytes"]
    return {
        "case": found["case"], "mode": found["mode"], "run": RunFacts.from_json(found["run"]),
        "usual_s": times[usual_name], "best_eager": eager, "best_eager_s": times[eager],
        "compiled": compiled, "compiled_s": times[compiled] if compiled else math.nan,
        "ours_s": times["threadcast"], "predicted_s": ours["predicted_s"], "then_s": ours["then_s"],
        "runs": ours["runs"], "layout": ours["layout"] + ", fused" * ours["fused"],
        "direct": ours.get("direct") or math.nan, "memory": ours["peak_bytes"] / peaks, "spread": _spread(ours),
    }  # fmt: skip


def _spread(one: dict[str, float]) -> float:
    return (one["high_s"] - one["low_s"]) / one["median_s"]


def table(rows: Iterable[dict[str, Any]]) -> str:
    """Ratios above 1 where threadcast is faster; geometric means and the median error are of each case's first row."""
    rows = list(rows)
    runs = Runs(r["run"] for r in rows)
    lines = [
        "| case | mode | eager, ms | best eager, ms | setting | best other, ms | threadcast, ms | runs | eager / ours "
        "| best eager / ours | best other / ours | direct / ours | forecast off by | memory | spread |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for r in rows:
        title, error = r["case"] + runs.mark(r["run"]), _percent(_forecast_error(r))
        lines.append(
            f"| {title} | {r['mode']} | {r['usual_s'] * 1e3:.3g} | {r['best_eager_s'] * 1e3:.3g} | "
            f"{r['best_eager'].removeprefix('eager, ')} | {r['compiled_s'] * 1e3:.3g} | {r['ours_s'] * 1e3:.3g} | "
            f"{r['runs']}, {r['layout']} | {r['usual_s'] / r['ours_s']:.2f} | {r['best_eager_s'] / r['ours_s']:.2f} | "
            f"{r['compiled_s'] / r['ours_s']:.2f} | {r['direct']:.2f} | {error} | {r['memory']:.2f} | "
            f"{r['spread']:.0%} |"
        )
    first = {(r["mode"], r["case"]): r for r in reversed(rows)}
    for mode in dict.fromkeys(r["mode"] for r in rows):
        of_mode = [r for r in first.values() if r["mode"] == mode]
        errors = [error for r in of_mode if not math.isnan(error := _forecast_error(r))]
        means = [_mean([r[name] / r["ours_s"] for r in of_mode]) for name in ("usual_s", "best_eager_s", "compiled_s")]
        lines.append(
            f"| geometric mean, median error | {mode} | | | | | | | {means[0]:.2f} | {means[1]:.2f} | {means[2]:.2f} "
            f"| | {_percent(median(errors) if errors else math.nan)} | | |"
        )
    return "\n".join(lines)


def _forecast_error(row: dict[str, Any]) -> float:
    """How far the plan's makespan was from the steps that followed, as a share of it; nan where no plan was kept."""
    planned = row["predicted_s"] and row["runs"] == "plan"
    return abs(row["then_s"] / row["predicted_s"] - 1) if planned else math.nan


def _percent(share: float) -> str:
    return "nan" if math.isnan(share) else f"{share:.0%}"


def _mean(ratios: list[float]) -> float:
    real = [ratio for ratio in ratios if not math.isnan(ratio)]
    return geometric_mean(real) if real else math.nan


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default="", help="only titles that contain one of these, separated by semicolons")
    parser.add_argument("--modes", default="training,inference")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    parser.add_argument("--json", type=Path, default=Path("build/engine.json"), help="all figures, as they come")
    parser.add_argument("--reuse", action="store_true", help="take cases that are in that file from it")
    parser.add_argument("--again", default="", help="with --reuse: measure these titles of the file once more")
    parser.add_argument("--write", action="store_true", help="write docs/engine-tables.md")
    chosen = parser.parse_args()
    wanted = [part.strip().lower() for part in chosen.cases.split(";") if part.strip()]
    cores = len(read_machine())
    run = RunFacts.now()
    again = [part.strip().lower() for part in chosen.again.split(";") if part.strip()]
    known = json.loads(chosen.json.read_text()) if chosen.reuse and chosen.json.exists() else []
    found = []
    for mode in chosen.modes.split(","):
        for case in CASES:
            if wanted and not any(part in case.lower() for part in wanted):
                continue
            reused = [one for one in known if (one["case"], one["mode"]) == (case, mode)]
            print(f"{case}, {mode}{', reused' if reused else ''}", file=sys.stderr, flush=True)
            found += reused
            if not reused or any(part in case.lower() for part in again):
                figures = measured(case, mode, cores, chosen.rounds, compiled=not chosen.no_compile)
                found.append({**figures, "run": run.to_json()})
            print(table([compared(found[-1], cores)]).splitlines()[2], file=sys.stderr, flush=True)
            chosen.json.parent.mkdir(parents=True, exist_ok=True)
            chosen.json.write_text(json.dumps(found, indent=1))
    shown = table([compared(one, cores) for one in found])
    print(shown)
    if chosen.write:
        command = shlex.join(["python", "benchmarks/engine.py", *sys.argv[1:]])
        runs = Runs(RunFacts.from_json(one["run"]) for one in found)
        head = _HEAD.format(command=command, runs=runs, again=runs.legend())
        PAGE.write_text(head + shown + "\n")


if __name__ == "__main__":
    main()
