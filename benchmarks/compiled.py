"""`torch.compile(model, backend="threadcast")` beside eager PyTorch, Inductor and `optimize`.

    python benchmarks/compiled.py [--networks "U-Net;LSTM"] [--limit 80] [--reuse] [--write]

Each way of each case runs in a process of its own. All settle first, one after the other; then they run by turns.
Every record lands in build/compiled as it comes; `--write` stores the table of all that are there. Half
an hour on 2 idle cores.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from statistics import median, quantiles
from typing import Any, Self

from figures.steps import COMPILED
from figures.study import of_run
from run_facts import ROOT, RunFacts
from told import Told
from warmup_cases import COMPILED_CASES
from warmup_networks import Case
from warmup_others import OtherWork
from warmup_states import cold
from warmup_turns import process_of

from threadcast.runtime.engine.native.library import native_library
from threadcast.threads.memory import KEEPING

FOLDER = ROOT / "build" / "compiled"
WAYS = ("eager", "inductor", "backend", "optimize")
SETTLE_S = {"eager": 0.5, "inductor": 0.5, "backend": 60.0, "optimize": 60.0}
"""Most seconds of calls before the turns begin; a way that is no longer learning stops earlier. What still looks for
backends then does so beside the turns, on a core of its own. Inductor's first call compiles, and is not among them."""
TURNS, TURN_S = 7, 0.5
_RATIOS = (("eager", "backend"), ("inductor", "backend"), ("backend", "optimize"))


@dataclass(frozen=True, slots=True)
class Record:
    """The medians of all turns of one case, in seconds, by way; a way that failed has none."""

    title: str
    run: RunFacts
    turns_s: Mapping[str, list[float]]
    runs: list[str]
    """What runs the backend's graphs."""
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


def measured(case: Case, limit_s: float, run: RunFacts) -> Record:
    """Run the case in all ways."""
    turns: dict[str, list[float]] = {}
    failed: dict[str, str] = {}
    runs: list[str] = []
    learning: dict[str, bool] = {}
    with ExitStack() as ends:
        sides: dict[str, Told] = {}
        for way in WAYS:
            environment = cold(f"{case.network}-{way}", FOLDER) | KEEPING | {"THREADCAST_ENGINE_TUNING_SHARE": "1"}
            try:
                side = process_of([case.title], way, environment, limit_s, ends)
                _settle(side, SETTLE_S[way], limit_s)
                sides[way] = side
            except (RuntimeError, OSError) as error:
                failed[way] = str(error)
        others = OtherWork([side.session for side in sides.values()])
        for _ in range(TURNS):
            for way, side in list(sides.items()):
                try:
                    answer = side.ask({"seconds": TURN_S, "untimed": 2}, limit_s)
                except (RuntimeError, OSError) as error:
                    failed[way] = str(error)
                    turns.pop(way, None)
                    sides.pop(way).kill()
                    continue
                turns.setdefault(way, []).append(round(median(answer["seconds"][0]), 7))
                learning[way] = learning.get(way, False) or answer["learning"]
                if way == "backend":
                    runs = answer["runs"][0]
        share = round(others.share(), 3)
    return Record(case.title, run, turns, runs, failed, share, [way for way, still in learning.items() if still])


def _settle(side: Told, seconds: float, limit_s: float) -> None:
    """Run calls until nothing is being learned, for `seconds` at most; the first call does not count."""
    side.ask({"seconds": 0.0, "calls": 1}, limit_s)
    end_s = time.monotonic() + seconds
    while side.ask({"seconds": 0.5}, limit_s)["learning"] and time.monotonic() < end_s:
        pass


def row(record: Record) -> dict[str, object]:
    """The record's row of data/studies/compiled.csv."""
    program, _, mode = record.title.rpartition(", ")
    turns = {way: record.turns_s.get(way) for way in WAYS}
    return {
        "vectors": vectors_of(record.run), "program": program, "mode": mode,
        **{f"{way}_ms": median(taken) * 1e3 if taken else None for way, taken in turns.items()},
        **{f"{way}_spread_percent": 100 * _spread(taken) if taken else None for way, taken in turns.items()},
        **{f"{one}_over_{other}": record.ratio(one, other) for one, other in _RATIOS},
        "learning": " ".join(way for way in record.learning if turns[way]),
        "runs": ", ".join(dict.fromkeys(record.runs)),
        "failed": "; ".join(f"{way}: {why}" for way, why in record.failed.items()),
        "others_percent": 100 * record.others, "run": of_run(record.run),
    }  # fmt: skip


def vectors_of(run: RunFacts) -> str:
    """The widest vector instructions of the run's processor, as its machine is called; empty where it does not say."""
    return next((name for name in ("AVX-512", "AVX2") if f" with {name}" in run.machine), "")


def _spread(turns: list[float]) -> float:
    low, _, high = quantiles(turns, n=4)
    return (high - low) / 2 / median(turns)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", default="", help="only titles that contain one of these, separated by semicolons")
    parser.add_argument("--limit", type=float, default=120.0, help="most seconds until a way has settled")
    parser.add_argument("--reuse", action="store_true", help="measure only what has no record yet")
    parser.add_argument("--write", action="store_true", help=COMPILED.writes)
    chosen = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # the processes, which may be stopped, end with this one
    wanted = [part.strip().lower() for part in chosen.networks.split(";") if part.strip()]
    FOLDER.mkdir(parents=True, exist_ok=True)
    native_library()  # compiled here, if it never was on this machine
    run = RunFacts.now()
    titles = [case.title for case in COMPILED_CASES]
    for case in COMPILED_CASES:
        path = FOLDER / f"{case.title.replace(' ', '-').replace(',', '')}.json"
        if (wanted and not any(part in case.title.lower() for part in wanted)) or (chosen.reuse and path.exists()):
            continue
        record = measured(case, chosen.limit, run)
        path.write_text(json.dumps(asdict(record)))
        print(COMPILED.printed([row(record)]).splitlines()[2], file=sys.stderr, flush=True)
    if chosen.write:
        records = [Record.from_json(json.loads(path.read_text())) for path in FOLDER.glob("*.json")]
        rows = [row(record) for record in sorted(records, key=lambda record: titles.index(record.title))]
        COMPILED.store(rows, run, replaces=("vectors", "program", "mode"))


if __name__ == "__main__":
    main()
