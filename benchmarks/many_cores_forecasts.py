"""How well models forecast a recording of `many_cores.py` from few samples, and how far plans were off there.

    python benchmarks/many_cores_forecasts.py [FOLDER] [--seeds 3] [--table data/recorded/NAME.csv.gz]

Runs anywhere, later: it reads the lines of results and of the recording alone, also of a run that was cut off. A fifth
of the ops is left out for each seed; of those a model sees single samples at the thread counts that it asks for. With
`--table` the recording is also written as a long-form table, with a card beside it.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import many_cores_page
from many_cores_recording import GOAL, Recording, long_form
from many_cores_results import Results
from models import MODELS, Models, Part, made, one_fold, rows_of
from run_facts import ROOT, RunFacts

from threadcast.collector.timing import MIN_BATCHES
from threadcast.core import Machine, Measurement
from threadcast.models import registry_of_kinds
from threadcast.models.learned_curve import LearnedCurve

SAMPLES = (0, 1, 3)
"""Numbers of samples of an op that is forecast."""

_CARD = """# {name}

Operations of PyTorch by thread count: every distinct operation of threadcast's built-in networks at size `small`, of a
training step where the network has one, alone, at {threads} threads.

- **Made by** `make bench-many-cores`, {run}.
- **Machine** {cores} usable cores, fingerprint `{fingerprint}`. {software}
- **What there is** {ops} operations, {measurements} medians of {samples} samples in all. A sample is the mean time of a
  run within a batch; at least {least} batches, until the median is known within {tolerance:.0f} % or {budget_ms:g} ms
  are spent. Not all operations were timed at all thread counts where the time ended before.
- **How** in a pinned team with one thread a core, neighbouring cores first; malloc keeps freed memory; copies of the
  inputs are used in turn, of up to {rotated_mb:g} MB together, so that caches smaller than that hold no data of them.
- **Good for** models of how operations scale with threads. **Not good for** operations side by side, or with all of
  a larger cache to themselves: a machine that others share may have had more or less of it.
- **Columns** those of the long form (`docs/formats.md`); `json.op` says how each operation is called.
- **Licence** CC-BY-4.0 (https://creativecommons.org/licenses/by/4.0/), the threadcast developers.
"""


def models() -> Models:
    """The learned curve, laws of scaling from as many samples, and the climbs."""
    found = [("learned_curve", LearnedCurve(samples=samples)) for samples in SAMPLES]
    found += made(("amdahl", "overhead_law", "universal_scalability"), samples=max(SAMPLES))
    create = registry_of_kinds.create
    return [*found, ("hill_climb", create("hill_climb")), ("patient_climb", create("patient_climb"))]


def whole(measurements: Sequence[Measurement]) -> tuple[int, list[Measurement]]:
    """The measurements of the thread counts that most ops have, and the number of ops that have all of these."""
    ops = Counter(m.case.threads for m in measurements)
    common = {threads for threads, count in ops.items() if count >= max(ops.values()) / 2}
    kept = [m for m in measurements if m.case.threads in common]
    cases = Counter(m.op.key for m in kept)
    complete = {key for key, count in cases.items() if count == len(common)}
    return len(complete), [m for m in kept if m.op.key in complete]


def card(name: str, run: RunFacts, line: Mapping[str, Any], machine: Machine, found: Sequence[Measurement]) -> str:
    """The data card of a recording, from what is known of its run and its measurements."""
    software = ", ".join(f"{library} {version}" for library, version in line["software"].items() if version)
    return _CARD.format(
        name=name, run=run, cores=len(machine), fingerprint=machine.fingerprint, software=f"Software: {software}.",
        threads=", ".join(map(str, sorted({m.case.threads for m in found}))), ops=len({m.op.key for m in found}),
        measurements=len(found), samples=sum(len(m.samples) for m in found), least=MIN_BATCHES,
        tolerance=100 * GOAL.tolerance, budget_ms=GOAL.budget_s * 1e3,
        rotated_mb=max(m.conditions["rotated_bytes"] for m in found) / 2**20,
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=ROOT / "build" / "many-cores")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--table", type=Path, help="also write the recording to this file")
    chosen = parser.parse_args()
    lines = Results(chosen.folder / "results.jsonl").read()
    runs = [line for line in lines if line["part"] == "run"]
    if not runs:
        parser.error(f"{chosen.folder} has no results; give the folder that many_cores.py wrote")
    machine = Machine.from_json(runs[-1]["machine"])
    recording = Recording(chosen.folder / "recording.jsonl")
    run, every = RunFacts.from_json(runs[-1]["run"]), recording.measurements(machine)
    if chosen.table and every:
        name = chosen.table.name.removesuffix(".gz").removesuffix(".csv")
        long_form(recording, machine, chosen.table)
        chosen.table.with_name(f"{name}.md").write_text(card(name, run, runs[-1], machine, every))
    print(many_cores_page.forecasts(lines))
    if not every:
        return
    ops, measurements = whole(every)
    threads = sorted({m.case.threads for m in measurements})
    title = f"{ops} ops at {', '.join(map(str, threads))} threads, a fifth left out"
    rows = [{**row, "run": run.to_json()} for row in Part(title, measurements, one_fold, models()).rows(chosen.seeds)]
    print(MODELS.printed(rows_of({"title": title, "rows": rows})))


if __name__ == "__main__":
    main()
