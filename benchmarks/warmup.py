"""How steps begin: what is done after some seconds, from the first call on, beside eager PyTorch and Inductor.

    python benchmarks/warmup.py [--only zoo|scripts|pairs|shapes] [--networks "MobileNet;ConvNeXt"]
                                [--modes inference,training] [--processes first,second,learned] [--ways optimize]
                                [--every 3] [--seconds 120] [--reuse] [--wait 60] [--write]

zoo: the 40 models of `make bench-zoo`. scripts: ten public scripts, fetched into build/scripts. pairs: two functions
of a process by turns, each against what it reaches alone. shapes: calls whose shapes change. Each way runs in fresh
processes, by turns with eager PyTorch. Every record lands in build/warmup as it comes; `--write` stores those of all
that are there. About 10 minutes a model and mode, 15 a script, 40 for pairs: 16 hours in all. The libraries need the
environment that `make bench-warmup` makes.
"""

from __future__ import annotations

import argparse
import json
import re
import signal
import sys
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from figures.beginnings import WARMUP, draw
from figures.study import of_run
from run_facts import ROOT, RunFacts
from warmup_cases import ALONE, MODES, PAIRS, ZOO_TITLES
from warmup_figures import rows
from warmup_others import QUIET, OtherWork, wait_until_quiet
from warmup_scripts import SCRIPTS, Script, Steps, fetch, run_of
from warmup_shapes import SEQUENCES
from warmup_states import again, cold
from warmup_turns import Phase, Record, by_turns

from threadcast.runtime.engine.native.library import native_library

FOLDER = ROOT / "build" / "warmup"
PARTS = ("zoo", "scripts", "pairs", "shapes")
LIMIT_S = 240.0
"""Longest time of a way beyond its seconds of calls: of building its model, eager turns, and a call that compiles."""
LATER_S = 30.0
"""Most seconds of a second process."""
LEARNED = (Phase("learned", 4.0, 8.0), Phase("learned for long", 4.0, 52.0))
"""Seconds of calls after `learn`, for so many seconds at most, and then for so many more."""
_EAGER: dict[str, Steps] = {}
"""The last run of each script in eager PyTorch."""
Job = tuple[Sequence[str], str, str]
"""Titles that run together, the way, and the process."""


def jobs(part: str, titles: Sequence[str]) -> Iterator[Job]:
    """What is measured of a case, in order: first processes before second ones.

    Inductor at its best settings: frozen in inference; in channels last of images; tuned for each third case.
    """
    if part in ("pairs", "shapes"):
        yield titles, "optimize", "first"
        return
    own = "backend" if part == "scripts" else "optimize"
    yield titles, own, "first"
    yield titles, own, "second"
    if part == "zoo" and titles[0].endswith("inference"):
        yield titles, own, LEARNED[0].process
    yield titles, "inductor", "first"
    yield titles, "inductor", "second"
    if part == "zoo" and titles[0].startswith(("torchvision", "timm")):
        yield titles, "inductor, channels last", "first"
    if list(dict.fromkeys(name_of(*one) for one in cases(part))).index(name_of(*titles)) % 3 == 0:
        yield titles, "inductor, max-autotune", "first"


def name_of(title: str) -> str:
    """A title without its mode."""
    return title.rpartition(", ")[0]


def cases(part: str) -> list[tuple[str, ...]]:
    """The titles of a part; those of a pair belong together."""
    if part == "zoo":
        return [(title,) for title in ZOO_TITLES]
    if part == "scripts":
        return [(script.title,) for script in SCRIPTS]
    return [*((title,) for title in ALONE), *PAIRS] if part == "pairs" else [(title,) for title in SEQUENCES]


def measured(part: str, job: Job, run: str, seconds: float) -> list[Record]:
    """The records of one process beside eager PyTorch: one of each title."""
    titles, way, process = job
    name = slug(titles, way)
    environment = again(name, FOLDER) if process == "second" else cold(name, FOLDER)
    seconds = min(LATER_S, seconds) if process == "second" else seconds
    if part == "scripts":
        script = next(script for script in SCRIPTS if script.title == titles[0])
        return [script_record(script, way, process, environment, run, seconds)]
    phases = LEARNED if process == LEARNED[0].process else (Phase(process, seconds * len(titles)),)
    return by_turns(part, titles, way, phases, environment, run=run, limit_s=LIMIT_S)


def script_record(
    script: Script, way: str, process: str, environment: dict[str, str], run: str, seconds: float
) -> Record:
    """Run a whole script between two runs in eager PyTorch, of which each step counts as their mean.

    The run after it is the one before the next.
    """
    others = OtherWork(())
    before = _EAGER.get(script.title) or run_of(script, "eager", environment, seconds)
    ours = run_of(script, way, environment, seconds)
    after = _EAGER[script.title] = run_of(script, "eager", environment, seconds)
    both = min(len(before.began_s), len(after.began_s))
    eager_s = np.diff([0.0, *np.mean([before.began_s[:both], after.began_s[:both]], axis=0)]) if both else np.zeros(0)
    if both:  # steps beyond eager's count as the later half of eager's
        missing = max(0, len(ours.began_s) - both)
        eager_s = np.append(eager_s, np.full(missing, eager_s[both // 2 :].mean()))[: len(ours.began_s)]
    taken = np.diff([0.0, *ours.began_s])[: len(eager_s)]
    failed = before.failed or ours.failed or after.failed
    return Record("scripts", script.title, way, process, run, taken.tolist(), eager_s.tolist(), failed=failed,
                  until_s=ours.until_s if both else 0.0, others=others.share())  # fmt: skip


def slug(*parts: object) -> str:
    """A file's name of texts."""
    return re.sub(r"[^a-z0-9]+", "-", str(parts).lower()).strip("-")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=PARTS, help="one of the parts")
    parser.add_argument(
        "--networks", default="", help="only titles that contain one of these, separated by semicolons; pairs: both"
    )
    parser.add_argument("--modes", default=",".join(MODES), help="of the zoo (%(default)s)")
    parser.add_argument("--processes", default="", help="only these, such as first,second [default: all]")
    parser.add_argument("--ways", default="", help="only these, such as optimize,backend [default: all]")
    parser.add_argument("--every", type=int, default=1, help="only each such model of the zoo (%(default)s)")
    parser.add_argument("--seconds", type=float, default=120.0, help="of calls of each first process (%(default)s)")
    parser.add_argument("--write", action="store_true", help=f"{WARMUP.writes}, with the picture")
    parser.add_argument("--reuse", action="store_true", help="measure only what has no record of a quiet machine yet")
    parser.add_argument(
        "--wait", type=float, default=0.0, help="seconds to wait for a quiet machine before each process"
    )
    chosen = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # the processes, which may be stopped, end with this one
    wanted = [part.strip().lower() for part in chosen.networks.split(";") if part.strip()]
    modes, processes, ways = (
        tuple(filter(None, one.split(","))) for one in (chosen.modes, chosen.processes, chosen.ways)
    )

    def is_wanted(titles: Sequence[str]) -> bool:
        named = (title.lower() for title in titles)
        skipped = titles[0] in ZOO_TITLES and (ZOO_TITLES.index(titles[0]) // len(MODES)) % chosen.every
        return (
            not skipped
            and (titles[0] not in ZOO_TITLES or titles[0].endswith(modes))
            and (not wanted or all(any(one in title for one in wanted) for title in named))
        )

    FOLDER.mkdir(parents=True, exist_ok=True)
    native_library()  # compiled here, if it never was on this machine, as Inductor's headers: every process has them
    torch.compile(torch.sin)(torch.ones(64))
    run = of_run(RunFacts.now())
    for part in PARTS if chosen.only is None else (chosen.only,):
        found = list(filter(is_wanted, cases(part)))
        if part == "scripts" and found:
            fetch()
        for titles in found:
            for job in jobs(part, titles):
                if (ways and job[1] not in ways) or (processes and job[2] not in processes):
                    continue
                path = FOLDER / f"{slug(part, *job)}.json"
                if chosen.reuse and path.exists() and json.loads(path.read_text())[0]["others"] <= QUIET:
                    continue
                wait_until_quiet(chosen.wait)
                records = measured(part, job, run, chosen.seconds)
                path.write_text(json.dumps([record.to_json() for record in records]))
                for row in rows(records, {}):
                    print(
                        {name: value for name, value in row.items() if value not in (None, "")},
                        file=sys.stderr,
                        flush=True,
                    )
    if chosen.write:
        every = [
            Record.from_json(one) for path in sorted(FOLDER.glob("*.json")) for one in json.loads(path.read_text())
        ]
        order = [title for part in PARTS for titles in cases(part) for title in titles]
        every.sort(key=lambda one: (PARTS.index(one.part), order.index(one.title.partition(" beside ")[0]), one.title))
        data = {script.title: script.data for script in SCRIPTS}
        WARMUP.store(rows(every, data), run, replaces=("part", "name", "mode", "beside", "way", "process"))
        draw()


if __name__ == "__main__":
    main()
