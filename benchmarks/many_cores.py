"""What a machine of many cores shows, within a few minutes and without a network: `make bench-many-cores`.

    python benchmarks/many_cores.py [--budget-s 590] [--parts steps,recording] [--threads 1,2,4,8,16] [--out FOLDER]

Each part is other benchmarks and commands, one after the other, within its share of the time; what it does not need is
left to the next ones. What a command prints is in a file of its own, and a command that ended well is not run again:
the same call once more goes on with what is missing.
"""

from __future__ import annotations

import argparse
import math
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from run_facts import ROOT, RunFacts
from warmup_others import children_of, processes_of

from threadcast import networks
from threadcast.core import read_machine
from threadcast.core.errors import InvalidInput

WEIGHTS = {"compile": 0.15, "correctness": 0.06, "steps": 0.40, "processes": 0.19, "recording": 0.20}
"""By which the time is divided."""
STEPS = (
    "GoogLeNet 128 px, batch 8",
    "LSTM medium",
    "PathNet large",
    "ResNet-50 224 px, batch 8",
    "Transformer",
    "Incep",
)
SETS = tuple(f"{count} {network}" for network in ("LSTM", "GoogLeNet") for count in (2, 4, 8))
PIECES = 20
"""Pieces of the operators and modules whose results are looked at."""
LEAST_S, END_S = 3.0, 8.0
"""The least time with which a command is begun, and what is kept for the end."""

Command = tuple[str, list[str]]
"""The name of the file that it fills, and its words after Python."""


def commands(part: str, out: Path, cores: int, counts: Sequence[int]) -> Iterator[Command]:
    """What a part runs, the most valuable first."""
    if part == "compile":
        yield "engine", ["-c", "from threadcast.runtime.engine.native.library import native_library; native_library()"]
        yield "planner", ["-m", "threadcast.scheduler.compile_planner"]
    elif part == "correctness":
        for i in range(PIECES):
            yield f"piece-{i}", ["-m", "tests.databases", "--spread", "--part", f"{i}/{PIECES}", "--cores", str(cores)]
    elif part == "steps":
        kept = ["--only", "networks", "--out", str(out / "records"), "--reuse", "--turns", "4"]
        kept += ["--threads", ",".join(map(str, counts))]
        for case in STEPS:
            for mode in ("training", "inference"):
                yield f"{mode}-{case}", [_script("engine.py"), "--cases", case, "--modes", mode, *kept]
    elif part == "processes":
        kept = ["--json", str(out / "processes.json"), "--reuse", "--rounds", "1"]
        for one in SETS:
            yield one, [_script("malleable.py"), "--sets", one, *kept]
    else:
        store = ["--store", f"sqlite:///{out / 'recording.db'}"]
        for name in networks.names():
            profile = ["profile", name, "--size", "small", "--cases", "all", "--budget-s", "0.05"]
            yield name, ["-m", "threadcast", *profile, *store]
            yield f"{name}-table", ["-m", "threadcast", "db", "export", str(out / "recording.csv.gz"), *store]


def _script(name: str) -> str:
    return str(Path(__file__).with_name(name))


def thread_counts(text: str, cores: int) -> tuple[int, ...]:
    """The thread counts that `text` lists ("1,2,4,8"), ascending, each once; without text powers of two, and all cores.

    InvalidInput where one is no number from 1 to the number of cores.
    """
    if not text.strip():
        return tuple(sorted({2**power for power in range(cores.bit_length()) if 2**power <= cores} | {cores}))
    found = set()
    for part in text.split(","):
        if not part.strip().isdecimal() or not 1 <= int(part) <= cores:
            raise InvalidInput(f"thread count {part.strip()!r} must be a number from 1 to the {cores} usable cores")
        found.add(int(part))
    return tuple(sorted(found))


def ended(
    words: Sequence[str], file: Path, seconds: float, wait: Callable[..., object] = subprocess.Popen.wait
) -> bool:
    """Run Python with these words, and whether it ended well in time; then `file` has what it printed.

    Else `file` has another suffix. No process that it started is left. `wait` is told the process and the seconds, and
    raises TimeoutExpired once they are over.
    """
    draft = file.with_suffix(".draft")
    with draft.open("wb") as said:
        running = subprocess.Popen([sys.executable, *words], stdout=said, stderr=said, process_group=0, cwd=ROOT)
        try:
            wait(running, seconds)
        except subprocess.TimeoutExpired:
            said.write(f"\nkilled after {seconds:.0f} s\n".encode())
        finally:
            sessions = children_of(running.pid)  # contenders, each the leader of a session
            well = running.poll() == 0
            with suppress(ProcessLookupError):
                os.killpg(running.pid, signal.SIGKILL)
            for process in (one for session in sessions for one in processes_of(session)):
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            running.wait()
    if well:
        draft.replace(file)
    return well


def run_part(part: str, out: Path, cores: int, counts: Sequence[int], end_s: float) -> str:
    """Run what a part lacks until the time is up; returns how far it came."""
    folder, done, failed = out / part, 0, 0
    folder.mkdir(parents=True, exist_ok=True)
    every = list(commands(part, out, cores, counts))
    for name, words in every:
        file = folder / f"{re.sub(r'[^A-Za-z0-9]+', '-', name)}.txt"
        left_s = end_s - time.monotonic()
        if file.exists() or (left_s >= LEAST_S and ended(words, file, left_s)):
            done += 1
        else:
            failed += left_s >= LEAST_S
    return f"{done} of {len(every)} done" + (f", {failed} failed or did not end in time" if failed else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budget-s", type=float, default=590.0, help="most seconds for everything [default: 590]")
    parser.add_argument("--parts", default=",".join(WEIGHTS), help="some of the parts, in the order in which they run")
    parser.add_argument("--threads", default="", help="thread counts [default: powers of two, and all cores]")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "many-cores")
    chosen = parser.parse_args()
    end_s, machine = time.monotonic() + chosen.budget_s - END_S, read_machine()
    parts = [part.strip() for part in chosen.parts.split(",") if part.strip()]
    if unknown := set(parts) - set(WEIGHTS):
        parser.error(f"no part is called {', '.join(unknown)}; there are: {', '.join(WEIGHTS)}")
    if not END_S < chosen.budget_s < math.inf:
        parser.error(f"--budget-s {chosen.budget_s:g}: a number above {END_S:g}")
    try:
        counts = thread_counts(chosen.threads, len(machine))
    except InvalidInput as error:
        parser.error(str(error))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # the parts are about cores, and looking for a GPU takes seconds
    out = chosen.out.absolute() / machine.fingerprint
    print(f"{RunFacts.now()}: {out}")
    for i, part in enumerate(parts):
        share = WEIGHTS[part] / sum(WEIGHTS[later] for later in parts[i:])
        began_s = time.monotonic()
        how = run_part(part, out, len(machine), counts, began_s + share * (end_s - began_s))
        print(f"{part}: {time.monotonic() - began_s:.0f} s, {how}", flush=True)
    for file in sorted(out.glob("*/*.txt")):
        print(f"\n## {file.parent.name}, {file.stem}\n\n{file.read_text(errors='replace').strip()}")


if __name__ == "__main__":
    main()
