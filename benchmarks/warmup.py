"""How optimised steps begin: cumulative time against eager PyTorch from the first call on.

    python benchmarks/warmup.py [--networks "U-Net;LSTM"] [--states cold,store,bundle] [--seconds 60] [--reuse]
                                [--only networks|small|shapes] [--long] [--write]

Each case runs in fresh processes, by turns with eager PyTorch. Every record lands in build/warmup as it comes;
`--write` stores the tables of all that are there. `--long` measures settled speed in place of it, with `--seconds` for
settling, into data/studies/long_measurement.csv. An hour.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys

from figures.steps import LONG, WARMUP, WARMUP_SHAPES, WARMUP_SMALL
from run_facts import ROOT, RunFacts
from warmup_figures import figures
from warmup_long import measure_long
from warmup_more import measure_shapes, measure_small, shapes_rows, small_rows
from warmup_networks import CASES, Case
from warmup_others import QUIET, wait_until_quiet
from warmup_page import draw, row
from warmup_states import STATES, environment
from warmup_turns import Record, recorded

from threadcast.runtime.engines.native.library import native_library

FOLDER = ROOT / "build" / "warmup"
PICTURE = ROOT / "docs" / "images" / "warmup.svg"


def read_records() -> list[Record]:
    """All records of build/warmup, in the order of the cases and states."""
    found = [Record.from_json(json.loads(path.read_text())) for path in FOLDER.glob("*.json")]
    titles = [case.title for case in CASES]
    return sorted(found, key=lambda record: (STATES.index(record.state), titles.index(record.title)))


def mode(case: Case) -> str:
    """ "inference" or "training"."""
    return "inference" if case.inference else "training"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", default="", help="only titles that contain one of these, separated by semicolons")
    parser.add_argument("--states", default=",".join(STATES))
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--long", action="store_true", help="measure settled speed, in place of how steps begin")
    parser.add_argument("--only", choices=("networks", "small", "shapes"), help="one of the three parts")
    parser.add_argument(
        "--write",
        action="store_true",
        help=f"{WARMUP.writes}; other parts and the picture, too",
    )
    parser.add_argument("--reuse", action="store_true", help="measure only what has no record of a quiet machine yet")
    parser.add_argument("--wait", type=float, default=0.0, help="seconds to wait for a quiet machine before each case")
    chosen = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # the processes, which may be stopped, end with this one
    wanted = [part.strip().lower() for part in chosen.networks.split(";") if part.strip()]
    cases = [case for case in CASES if not wanted or any(part in case.title.lower() for part in wanted)]
    FOLDER.mkdir(parents=True, exist_ok=True)
    native_library()  # compiled here, if it never was on this machine: every state has it
    run = RunFacts.now()
    if chosen.long:
        for case in cases:
            kept = next((kept for kept in LONG.rows() if kept["network"] == case.title), None)
            if not (chosen.reuse and kept and float(kept["others"]) <= QUIET):
                wait_until_quiet(chosen.wait)
                measure_long(case, mode(case), FOLDER, most_s=chosen.seconds)
        return
    if chosen.only != "networks" and not wanted:
        if chosen.only != "shapes":
            measure_small(FOLDER)
        if chosen.only != "small":
            measure_shapes(FOLDER, seconds=chosen.seconds)
    for state in chosen.states.split(",") if chosen.only in (None, "networks") else ():
        for case in cases:
            path = FOLDER / f"{case.network}-{state}.json"
            if chosen.reuse and path.exists() and json.loads(path.read_text())["others"] <= QUIET:
                continue
            found = environment(case, state, FOLDER)
            wait_until_quiet(chosen.wait)
            record = recorded(case.title, state, found, run=run, seconds=chosen.seconds)
            path.write_text(json.dumps(record.to_json()))
            print(f"{case.title}, {state}: {figures(record)}", file=sys.stderr, flush=True)
    if chosen.write:
        records, modes = read_records(), {case.title: mode(case) for case in CASES}
        WARMUP.store([row(record, modes[record.title]) for record in records], run, replaces=("state", "network"))
        WARMUP_SMALL.store(small_rows(FOLDER), run, replaces=("function",))
        WARMUP_SHAPES.store(shapes_rows(FOLDER), run, replaces=("sequence",))
        if records:
            draw(records, PICTURE)


if __name__ == "__main__":
    main()
