"""How much faster `threadcast.optimize` makes steps, against eager PyTorch at every setting and torch.compile.

    python benchmarks/engine.py [--cases "resnet-50;lstm"] [--modes training,inference] [--rounds 12] [--no-compile]
                                [--threads 1,2] [--json FILE] [--reuse] [--again "lstm"] [--write]

Every contender has a process of its own (how malloc keeps memory cannot be changed back) and runs when told to, in
turns with the others; a step before each turn is not timed. Medians of all timed steps, with their quartiles.

`--again` measures cases of the file once more: the table has both rows, each with its run, and what is shown of
it is of the first ones. Hours.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import quantiles
from tempfile import TemporaryDirectory
from typing import Any

from figures.steps import ENGINE
from figures.study import of_run
from run_facts import RunFacts
from told import Told

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

TURN_S = 0.25
"""Seconds of timed steps in one turn, about; one step at least."""
MOST_STEPS = 20


@dataclass(frozen=True, slots=True, eq=False)
class Contender:
    """A rival's name, what its process is told, and the thread counts at which it runs, of which it is told each time;
    0: as it chooses."""

    name: str
    setting: dict[str, Any]
    counts: Sequence[int] = (0,)

    def named(self, threads: int) -> str:
        """Its name at one of these counts."""
        return self.name.format(threads=threads)


def contenders(case: str, mode: str, counts: Sequence[int], *, compiled: bool) -> Iterator[Contender]:
    """All that run this case; PyTorch at each of the thread counts, others at the last of them or as they choose."""
    network, size, options = CASES[case]
    base = {"network": network, "size": size, "options": options, "mode": mode, "threads": counts[-1]}
    layouts = ["as given"] if network in WITHOUT_IMAGES else ["as given", "channels last"]
    for layout in layouts:
        for malloc in ("default", "kept"):
            name = f"eager, {{threads}} threads, {layout}, malloc {malloc}"
            yield Contender(name, {**base, "who": "eager", "layout": layout, "malloc": malloc}, counts)
        if compiled:
            yield Contender(f"torch.compile, {layout}", {**base, "who": "compile", "layout": layout})
    if mode == "inference":
        for backend in ("onnxruntime", "openvino"):
            yield Contender(backend, {**base, "who": "backend", "backend": backend})
    yield Contender("threadcast", {**base, "who": "threadcast"})


def measured(case: str, mode: str, counts: Sequence[int], rounds: int, *, compiled: bool) -> dict[str, Any]:
    """Seconds of every contender of one case, measured by turns."""
    failed: dict[str, str] = {}
    seconds: dict[str, list[float]] = {}
    found: dict[str, dict[str, Any]] = {}
    with ExitStack() as ends:
        everybody = list(contenders(case, mode, counts, compiled=compiled))
        measuring = [one for one in everybody if one.setting["who"] in ("backend", "threadcast")]
        others = [one for one in everybody if one not in measuring]
        processes: dict[Contender, Told] = {}
        plans = ends.enter_context(TemporaryDirectory(prefix="threadcast-"))  # every run measures anew
        environment = {**os.environ, "THREADCAST_ENGINE_PLANS": plans}

        def start(one: Contender) -> None:
            try:
                processes[one] = process = Told("engine_contender.py", json.dumps(one.setting), environment=environment)
            except RuntimeError as error:
                failed[one.name] = str(error)
                print(f"    {one.name}: {error}", file=sys.stderr, flush=True)
                return
            ends.callback(process.kill)
            print(f"    {one.name} {process.ready or ''}", file=sys.stderr, flush=True)

        starting = ends.enter_context(ThreadPoolExecutor(counts[-1]))  # a process ends with the thread that started it
        list(starting.map(start, others))  # compiling takes long, and nothing is timed yet
        for one in measuring:  # these choose their settings as they start, each alone
            start(one)
        turns = [(one, processes[one], threads) for one in everybody if one in processes for threads in one.counts]
        steps: dict[str, int] = {}
        for number in range(rounds + 1):
            for one, process, threads in turns:
                name = one.named(threads)
                answer = process.ask({"steps": steps.get(name, 1), "threads": threads})
                if not number:  # which says how many steps there are in a turn
                    steps[name] = max(1, min(MOST_STEPS, round(TURN_S / answer["seconds"][0])))
                    continue
                seconds.setdefault(name, []).extend(answer["seconds"])
                found[name] = {**_summary(seconds[name]), "peak_bytes": answer["peak_bytes"], **process.ready}
    return {"case": case, "mode": mode, "contenders": found, "failed": failed}


def _summary(seconds: list[float]) -> dict[str, float]:
    low, middle, high = quantiles(seconds, n=4) if len(seconds) > 1 else (seconds[0],) * 3
    return {"median_s": middle, "low_s": low, "high_s": high, "steps": len(seconds)}


def rows_of(found: Iterable[dict[str, Any]], cores: int) -> Iterator[dict[str, Any]]:
    """The rows of data/studies/engine.csv; ratios above 1 where threadcast is faster."""
    for one in found:
        contenders = one["contenders"]
        times = {name: of["median_s"] for name, of in contenders.items()}
        ours, ours_s = contenders["threadcast"], times["threadcast"]
        usual = f"eager, {cores} threads, as given, malloc default"
        eager = min((name for name in times if name.startswith("eager")), key=times.__getitem__)
        others = [name for name in times if not name.startswith("eager") and name != "threadcast"]
        other_s = min((times[name] for name in others), default=math.nan)
        yield {
            "case": one["case"], "mode": one["mode"], "eager_ms": times[usual] * 1e3,
            "best_eager_ms": times[eager] * 1e3, "setting": eager.removeprefix("eager, "),
            "best_other_ms": other_s * 1e3, "threadcast_ms": ours_s * 1e3, "runs": ours["runs"],
            "layout": ours["layout"] + ", fused" * ours["fused"], "eager_over_ours": times[usual] / ours_s,
            "best_eager_over_ours": times[eager] / ours_s, "best_other_over_ours": other_s / ours_s,
            "direct_over_ours": ours.get("direct"), "forecast_off_percent": 100 * _forecast_error(ours),
            "memory": ours["peak_bytes"] / contenders[usual]["peak_bytes"],
            "spread_percent": 100 * (ours["high_s"] - ours["low_s"]) / ours_s,
            "run": of_run(RunFacts.from_json(one["run"])),
        }  # fmt: skip


def _forecast_error(ours: dict[str, Any]) -> float:
    """How far the plan's makespan was from the steps that followed, as a share of it; nan where no plan was kept."""
    planned = ours["predicted_s"] and ours["runs"] == "plan"
    return abs(ours["then_s"] / ours["predicted_s"] - 1) if planned else math.nan


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default="", help="only titles that contain one of these, separated by semicolons")
    parser.add_argument("--modes", default="training,inference")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    parser.add_argument("--threads", default="", help="thread counts of eager PyTorch [default: 1, and all cores]")
    parser.add_argument("--json", type=Path, default=Path("build/engine.json"), help="all figures, as they come")
    parser.add_argument("--reuse", action="store_true", help="take cases that are in that file from it")
    parser.add_argument("--again", default="", help="with --reuse: measure these titles of the file once more")
    parser.add_argument("--write", action="store_true", help=ENGINE.writes)
    chosen = parser.parse_args()
    wanted = [part.strip().lower() for part in chosen.cases.split(";") if part.strip()]
    cores = len(read_machine())
    counts = sorted({cores, *map(int, chosen.threads.split(","))} if chosen.threads else {1, cores})
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
                figures = measured(case, mode, counts, chosen.rounds, compiled=not chosen.no_compile)
                found.append({**figures, "run": run.to_json()})
            print(ENGINE.printed(rows_of(found[-1:], cores)).splitlines()[2], file=sys.stderr, flush=True)
            chosen.json.parent.mkdir(parents=True, exist_ok=True)
            chosen.json.write_text(json.dumps(found, indent=1))
    print(ENGINE.printed(rows_of(found, cores)))
    if chosen.write:
        ENGINE.store(rows_of(found, cores), run, replaces=("case", "mode"))


if __name__ == "__main__":
    main()
