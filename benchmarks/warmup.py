"""How optimised steps begin: cumulative time against eager PyTorch from the first call on; `make bench-warmup`.

    python benchmarks/warmup.py [--networks "U-Net;LSTM"] [--states cold,store,bundle] [--seconds 60] [--reuse]
                                [--only networks|small|shapes] [--long] [--write]

Each case runs in fresh processes, by turns with eager PyTorch. Every record lands in build/warmup as it comes;
`--write` makes the page of all that are there. `--long` measures settled speed in place of it, with `--seconds` for
settling, into data/studies/long_measurement.csv.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys

from run_facts import ROOT, RunFacts, Runs
from warmup_figures import figures
from warmup_long import LONG, measure_long
from warmup_more import measure_shapes, measure_small, sections
from warmup_networks import CASES, Case
from warmup_others import QUIET, wait_until_quiet
from warmup_page import draw, read_long, summary, table
from warmup_states import STATES, environment
from warmup_turns import Record, recorded

from threadcast.runtime.engines.native.library import native_library

FOLDER = ROOT / "build" / "warmup"
PAGE = ROOT / "docs" / "warmup-tables.md"
PICTURE = ROOT / "docs" / "images" / "warmup.svg"

_HEAD = """# How optimised steps begin

`make bench-warmup`, {runs}.

Seconds are of threadcast's calls from the first one on, capture included, without the pauses in which eager PyTorch ran
the same step in a process of its own (turns of 2 s and 0.4 s; all processes of the other side stopped). Eager's
cumulative time at a call is the sum of its steps as they were measured around each call.

- *eager*: median step, and half the distance between the quartiles of its turns. *break-even*: the call after the last
  one at which cumulative time was behind eager's. *worst lag*: how far behind it was at worst, in percent of eager's
  cumulative time at that call. *within*: never more than 5 % or 2 s behind, whichever is larger.
- *settled*: from which call on no report said "measuring". *step then*, *eager / ours*: of the last 10 s.
  *long measurement*: eager / ours of the table at the end. *at the end*: seconds ahead (+) or behind (-).
  *others*: the part of all cores' time that other processes used meanwhile.
- *cold*: no plans and no measurements on the machine; the native engine was compiled before. *store*: a store that
  knows the other five networks. *bundle*: `threadcast bundle save` after the same network's
  cold run, and `load --trust` into empty folders.
- A dash: not within the calls that ran.

{summary}

![seconds ahead of eager PyTorch over the seconds of calls](images/warmup.svg)
{legend}"""

_LONG = """
## The long measurement

{source}. Each case ran until it had settled, then by turns with eager PyTorch; *quartiles* are of the turns' ratios.

| network | mode | eager, ms | ours, ms | eager / ours | quartiles | settled, calls | settled, s | others | runs |
|---|---|---|---|---|---|---|---|---|---|
"""


def read_records() -> list[Record]:
    """All records of build/warmup, in the order of the cases and states."""
    found = [Record.from_json(json.loads(path.read_text())) for path in FOLDER.glob("*.json")]
    titles = [case.title for case in CASES]
    return sorted(found, key=lambda record: (STATES.index(record.state), titles.index(record.title)))


def mode(case: Case) -> str:
    """ "inference" or "training"."""
    return "inference" if case.inference else "training"


def page(records: list[Record]) -> str:
    """The page's text."""
    long = read_long(LONG)
    modes = {case.title: mode(case) for case in CASES}
    runs = Runs(record.run for record in records)
    parts = [_HEAD.format(runs=runs, summary=summary(records), legend=runs.legend())]
    for state in STATES:
        of_state = [record for record in records if record.state == state]
        if of_state:
            ratios = {title: float(row["ratio"]) for title, row in long.items()}
            parts.append(f"\n## {state.capitalize()}\n\n{table(of_state, modes, ratios)}\n")
    parts.append(sections(FOLDER))
    if long:
        source = LONG.read_text().splitlines()[0].removeprefix("# ").rstrip(".")
        parts.append(_LONG.format(source=source))
        parts += [
            f"| {title} | {row['mode']} | {float(row['eager_s']) * 1e3:.3g} | {float(row['ours_s']) * 1e3:.3g} | "
            f"{float(row['ratio']):.2f} | {float(row['low']):.2f} to {float(row['high']):.2f} | "
            f"{row['settled_calls']} | {row['settled_s']} | {float(row['others']):.0%} | {row['runs']} |\n"
            for title, row in long.items()
        ]
    return "".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", default="", help="only titles that contain one of these, separated by semicolons")
    parser.add_argument("--states", default=",".join(STATES))
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--long", action="store_true", help="measure settled speed, in place of how steps begin")
    parser.add_argument("--only", choices=("networks", "small", "shapes"), help="one of the three parts")
    parser.add_argument("--write", action="store_true", help="write the page and the picture of all records")
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
            row = read_long(LONG).get(case.title)
            if not (chosen.reuse and row and float(row["others"]) <= QUIET):
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
        records = read_records()
        PAGE.write_text(page(records))
        draw(records, PICTURE)


if __name__ == "__main__":
    main()
