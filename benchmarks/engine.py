"""What learned steps gain beside eager PyTorch at every setting, torch.compile, ONNX Runtime and OpenVINO.

    python benchmarks/engine.py [--only networks|programs] [--cases "resnet-50;lstm"] [--modes training,inference]
                                [--turns 7] [--no-compile] [--threads 1,2] [--limit 120] [--reuse] [--out FOLDER]
                                [--write]

networks: 14 that are built in, by `optimize` and `optimize_training`. programs: those of `warmup_cases.py`, where
`torch.compile(model, backend="threadcast")` is beside `optimize`. Every way of a case has a process of its own, which
keeps freed memory (of eager PyTorch also one that does not). All settle first; then they run by turns. Ratios above 1:
threadcast is faster. Every record lands in build/engine as it comes; `--write` stores the tables of all that are there.
A quarter of an hour a network in both modes, two minutes a program.
"""

from __future__ import annotations

import argparse
import json
import re
import signal
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median, quantiles
from typing import Any, Self

from figures.steps import COMPILED, ENGINE
from figures.study import of_run
from run_facts import ROOT, RunFacts
from told import Told
from warmup_cases import COMPILED_CASES, NETWORK_CASES, of_images
from warmup_others import OtherWork
from warmup_states import cold
from warmup_turns import process_of

from threadcast.core import read_machine
from threadcast.runtime.engine.native.library import native_library
from threadcast.threads.memory import KEEPING

SETTLE_S = 60.0
"""Most seconds of calls before the turns begin; a way that is no longer learning stops earlier. What still looks for
backends then does so beside the turns, on a core of its own. A first call, which may compile, is not among them."""
TURN_S = 0.5
CASES = {"networks": NETWORK_CASES, "programs": COMPILED_CASES}


@dataclass(frozen=True, slots=True)
class Way:
    """A way to run a case, as `warmup_process.py` calls it, and its thread counts; 0: as it chooses."""

    runs: str
    name: str
    """With `{threads}` where it runs at several thread counts."""
    keeps: bool = True
    """Whether its process keeps freed memory."""
    counts: Sequence[int] = (0,)


def ways(part: str, title: str, counts: Sequence[int], *, compiled: bool) -> list[Way]:
    """All that run this case; what settles last may have the cores to itself."""
    if part == "programs":
        return [Way(name, name) for name in ("eager", "inductor", "backend", "optimize")]
    found = []
    for layout in ("as given", "channels last") if of_images(title) else ("as given",):
        last = ", channels last" * (layout != "as given")
        for malloc in ("default", "kept"):
            name = f"eager, {{threads}} threads, {layout}, malloc {malloc}"
            found.append(Way(f"eager{last}", name, malloc == "kept", counts))
        if compiled:
            found.append(Way(f"inductor{last}", f"torch.compile, {layout}"))
    if title.endswith("inference"):
        found += [Way(name, name) for name in ("onnxruntime", "openvino")]
    return [*found, Way("optimize", "threadcast")]


@dataclass(frozen=True, slots=True)
class Record:
    """The medians of all turns of one case, in seconds, by way; a way that failed has none."""

    title: str
    run: RunFacts
    turns_s: Mapping[str, list[float]]
    runs: Mapping[str, list[str]]
    """What ran the calls of each way of threadcast's."""
    planned_s: float | None
    """The makespan of the plan that runs `optimize`'s calls; None where none does."""
    failed: Mapping[str, str]
    """Why a way has no turns."""
    others: float
    learning: list[str] = field(default_factory=list)
    """The ways that were still learning in the turns."""

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """Read what `dataclasses.asdict` gives."""
        return cls(**{**document, "run": RunFacts.from_json(document["run"])})

    def ratio(self, one: str, other: str) -> float | None:
        """How many times as long as `other` `one` takes: the median of the turns' ratios; None where one failed."""
        pairs = zip(self.turns_s.get(one, ()), self.turns_s.get(other, ()), strict=False)
        return median(found) if (found := [a / b for a, b in pairs]) else None


def measured(title: str, among: Sequence[Way], folder: Path, *, turns: int, limit_s: float, run: RunFacts) -> Record:
    """Run the case in all ways."""
    taken: dict[str, list[float]] = {}
    failed: dict[str, str] = {}
    runs: dict[str, list[str]] = {}
    learning: set[str] = set()
    planned_s = None
    with ExitStack() as ends:
        sides: dict[str, Told] = {}

        def start(way: Way) -> None:
            environment = cold(slug(title, way.name), folder) | {"THREADCAST_ENGINE_TUNING_SHARE": "1"}
            try:
                side = process_of([title], way.runs, environment | KEEPING if way.keeps else environment, limit_s, ends)
                _settle(side, limit_s)
                sides[way.name] = side
            except (RuntimeError, OSError) as error:
                failed[way.name] = str(error)
            print(f"    {way.name} {failed.get(way.name, '')}", file=sys.stderr, flush=True)

        compile_first = [way for way in among if way.runs.startswith("inductor")]
        starting = ends.enter_context(ThreadPoolExecutor(2))  # a process ends with the thread that started it
        list(starting.map(start, compile_first))  # compiling takes long, and nothing is timed yet
        for way in among:
            if way not in compile_first:
                start(way)
        others = OtherWork([side.session for side in sides.values()])
        for _ in range(turns):
            for way in [way for way in among if way.name in sides]:
                for threads in way.counts:
                    name = way.name.format(threads=threads)
                    asked = {"seconds": TURN_S, "untimed": 2, "threads": threads}
                    try:
                        answer = sides[way.name].ask(asked, limit_s)
                    except (RuntimeError, OSError) as error:
                        failed[way.name] = str(error)
                        taken.pop(name, None)
                        sides.pop(way.name).kill()
                        break
                    taken.setdefault(name, []).append(round(median(answer["seconds"][0]), 7))
                    learning |= {way.name} if answer["learning"] else set()
                    if answer["runs"][0]:
                        runs[way.name] = answer["runs"][0]
                        planned_s = answer["planned_s"][0] if way.runs == "optimize" else planned_s
        share = round(others.share(), 3)
    return Record(title, run, taken, runs, planned_s, failed, share, sorted(learning))


def _settle(side: Told, limit_s: float) -> None:
    """Run calls until nothing is being learned; the first call does not count."""
    side.ask({"seconds": 0.0, "calls": 1}, limit_s)
    end_s = time.monotonic() + SETTLE_S
    while side.ask({"seconds": 0.5}, limit_s)["learning"] and time.monotonic() < end_s:
        pass


def network_rows(records: Iterable[Record]) -> Iterator[dict[str, Any]]:
    """The rows of data/studies/engine.csv, of records that have a time of threadcast's."""
    for one in records:
        case, _, mode = one.title.rpartition(", ")
        times = {name: median(taken) for name, taken in one.turns_s.items()}
        eager = [name for name in times if name.startswith("eager")]
        usual = [name for name in eager if name.endswith("as given, malloc default")][-1]  # with the most threads
        best = min(eager, key=times.__getitem__)
        others = [name for name in times if name not in eager and name != "threadcast"]
        other = min(others, key=times.__getitem__) if others else ""
        ours_s = times["threadcast"]
        runs = ", ".join(one.runs.get("threadcast", ()))
        off = abs(ours_s / one.planned_s - 1) if one.planned_s and runs == "plan" else None
        yield {
            "case": case, "mode": mode, "eager_ms": times[usual] * 1e3, "best_eager_ms": times[best] * 1e3,
            "setting": best.removeprefix("eager, "), "best_other_ms": times[other] * 1e3 if other else None,
            "threadcast_ms": ours_s * 1e3, "runs": runs, "eager_over_ours": one.ratio(usual, "threadcast"),
            "best_eager_over_ours": one.ratio(best, "threadcast"),
            "best_other_over_ours": one.ratio(other, "threadcast"),
            "forecast_off_percent": None if off is None else 100 * off,
            "spread_percent": 200 * _half_range(one.turns_s["threadcast"]), "run": of_run(one.run),
        }  # fmt: skip


def program_row(record: Record) -> dict[str, object]:
    """The record's row of data/studies/compiled.csv."""
    program, _, mode = record.title.rpartition(", ")
    turns = {way: record.turns_s.get(way) for way in ("eager", "inductor", "backend", "optimize")}
    ratios = ("eager", "backend"), ("inductor", "backend"), ("backend", "optimize")
    return {
        "vectors": vectors_of(record.run), "program": program, "mode": mode,
        **{f"{way}_ms": median(taken) * 1e3 if taken else None for way, taken in turns.items()},
        **{f"{way}_spread_percent": 100 * _half_range(taken) if taken else None for way, taken in turns.items()},
        **{f"{one}_over_{other}": record.ratio(one, other) for one, other in ratios},
        "learning": " ".join(way for way in record.learning if turns[way]),
        "runs": ", ".join(dict.fromkeys(record.runs.get("backend", ()))),
        "failed": "; ".join(f"{way}: {why}" for way, why in record.failed.items()),
        "others_percent": 100 * record.others, "run": of_run(record.run),
    }  # fmt: skip


def vectors_of(run: RunFacts) -> str:
    """The widest vector instructions of the run's processor, as its machine is called; empty where it does not say."""
    return next((name for name in ("AVX-512", "AVX2") if f" with {name}" in run.machine), "")


def _half_range(turns: list[float]) -> float:
    """Half of the range between the quartiles, as a share of the median."""
    low, _, high = quantiles(turns, n=4) if len(turns) > 1 else turns * 3
    return (high - low) / 2 / median(turns)


def slug(*parts: str) -> str:
    """A file's name of texts."""
    return re.sub(r"[^a-z0-9]+", "-", " ".join(parts).lower()).strip("-")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=tuple(CASES))
    parser.add_argument("--cases", default="", help="only titles that contain one of these, separated by semicolons")
    parser.add_argument("--modes", default="training,inference")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out of the networks")
    parser.add_argument("--threads", default="", help="thread counts of eager PyTorch [default: 1, and all cores]")
    parser.add_argument("--limit", type=float, default=120.0, help="most seconds of an answer: a first call compiles")
    parser.add_argument("--reuse", action="store_true", help="measure only what has no record yet")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "engine", help="folder of the records")
    parser.add_argument("--write", action="store_true", help=f"{ENGINE.writes}; {COMPILED.writes}")
    chosen = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # the processes, which may be stopped, end with this one
    wanted = [part.strip().lower() for part in chosen.cases.split(";") if part.strip()]
    cores = len(read_machine())
    counts = sorted({cores, *map(int, chosen.threads.split(","))} if chosen.threads else {1, cores})
    run = RunFacts.now()
    native_library()  # compiled here, if it never was on this machine
    for part in (chosen.only,) if chosen.only else CASES:
        folder, records = chosen.out / part, {}
        folder.mkdir(parents=True, exist_ok=True)
        for title in (case.title for case in CASES[part]):
            path = folder / f"{slug(title)}.json"
            named = not wanted or any(one in title.lower() for one in wanted)
            is_wanted = named and title.endswith(tuple(chosen.modes.split(",")))
            if is_wanted and not (chosen.reuse and path.exists()):
                print(title, file=sys.stderr, flush=True)
                among = ways(part, title, counts, compiled=not chosen.no_compile)
                record = measured(title, among, folder, turns=chosen.turns, limit_s=chosen.limit, run=run)
                path.write_text(json.dumps(asdict(record)))
            if path.exists():
                records[title] = Record.from_json(json.loads(path.read_text()))
        if part == "networks":
            rows = list(network_rows(one for one in records.values() if "threadcast" in one.turns_s))
            print(ENGINE.printed(rows))
            if chosen.write and rows:
                ENGINE.store(rows, run, replaces=("case", "mode"))
        else:
            rows = [program_row(one) for one in records.values()]
            print(COMPILED.printed(rows))
            if chosen.write and rows:
                COMPILED.store(rows, run, replaces=("vectors", "program", "mode"))


if __name__ == "__main__":
    main()
