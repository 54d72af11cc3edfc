"""What a machine of many cores shows, within a few minutes and without a network: `make bench-many-cores`.

    python benchmarks/many_cores.py [--budget-s 590] [--parts steps,recording] [--threads 1,2,4,8,16] [--out FOLDER]

Needs torch, numpy and urllib3; uses what else is there. Parts, the most valuable first: the engine and the planner are
compiled; random plans over all cores against eager PyTorch; steps beside eager PyTorch at every thread count and
`torch.compile`; processes that share the cores; a recording of the networks' operations at all thread counts. Each part
is a process of its own, gets its share of the time and leaves the rest to the next ones; every result is written as it
comes. The same command once more goes on with what is missing.

`benchmarks/many_cores_forecasts.py` then says, on any machine, how well the recording is forecast from few samples.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import many_cores_page
from many_cores_results import Budget, Results, thread_counts
from run_facts import ROOT, RunFacts
from warmup_others import children_of, processes_of

from threadcast.core import Machine, read_machine
from threadcast.core.errors import InvalidInput

WEIGHTS = {"compile": 0.15, "correctness": 0.06, "steps": 0.40, "processes": 0.19, "recording": 0.20}
"""By which the time is divided; `correctness` would use any time."""
COMPILING_S = 120.0
"""What compiling may take whatever its share is, as all parts need the engine: half a minute to two on idle cores."""
LIBRARIES = (
    "torch", "numpy", "scipy", "numba", "scikit-learn", "xgboost", "ortools", "onnxruntime", "openvino", "ninja",
    "setuptools", "sympy", "triton",
)  # fmt: skip
GRACE_S, LEAST_S, END_S = 5.0, 3.0, 8.0
"""What a part may take beyond its share before it is killed, the least share, and what is kept for the end."""
_NATIVE = "from threadcast.runtime.engine.native.library import native_library; native_library()"
_PLANNER = "threadcast.scheduler.compile_planner"


def software() -> dict[str, str]:
    """Versions of Python, of the libraries that are used where they are there, and of the compiler; empty: none."""
    found = {"Python": platform.python_version()}
    for name in LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = ""
    try:
        compiler = [os.environ.get("CXX", "c++"), "--version"]
        found["C++"] = subprocess.run(compiler, capture_output=True, text=True, check=True).stdout.splitlines()[0]
    except (OSError, subprocess.CalledProcessError):
        found["C++"] = ""
    return found


def compiled(results: Results) -> None:
    """Compile the native engine and the planner's loops side by side, and keep how long each took or what it said."""
    began_s = time.monotonic()
    commands = {"engine": [sys.executable, "-c", _NATIVE], "planner": [sys.executable, "-m", _PLANNER]}
    running = {name: subprocess.Popen(command, stderr=subprocess.PIPE) for name, command in commands.items()}
    for name, process in running.items():
        _, errors = process.communicate()
        said = errors.decode(errors="replace").strip().splitlines()[-1:]
        took_s = time.monotonic() - began_s
        results.add("compile", name, took_s=took_s, status=process.returncode, said=said if process.returncode else [])


def run_part(part: str, out: Path, machine: Machine, counts: Sequence[int], end_s: float) -> None:
    """What a part's own process does; every part imports only what it needs."""
    faulthandler.enable()
    faulthandler.dump_traceback_later(max(end_s - time.monotonic(), 0.0) + GRACE_S / 2)  # where it hangs, if it does
    results = Results(out / "results.jsonl")
    if part == "compile":
        compiled(results)
    elif part == "correctness":
        import many_cores_correctness

        many_cores_correctness.run(results, machine, end_s)
    elif part == "steps":
        import many_cores_steps

        many_cores_steps.run(results, len(machine), counts, end_s)
    elif part == "processes":
        import many_cores_processes

        many_cores_processes.run(results, machine, end_s)
    else:
        import many_cores_recording

        recording = many_cores_recording.Recording(out / "recording.jsonl")
        many_cores_recording.run(recording, machine, counts, end_s)


def in_process(
    part: str, arguments: Sequence[str], share_s: float, log: Path, wait: Callable[..., object] = subprocess.Popen.wait
) -> str:
    """Run one part in a process group of its own for its share of the time; returns how it ended.

    `wait` is told the process and the seconds, and raises TimeoutExpired once they are over.
    """
    command = [sys.executable, str(Path(__file__)), "--part", part, "--share-s", f"{share_s:.1f}", *arguments]
    with log.open("ab") as said:
        running = subprocess.Popen(command, stdout=said, stderr=said, process_group=0)
        try:
            wait(running, share_s + GRACE_S)
            return "whole" if running.returncode == 0 else f"failed with status {running.returncode}"
        except subprocess.TimeoutExpired:
            return "killed when its time was up"
        finally:
            sessions = children_of(running.pid)  # contenders, each the leader of a session
            with suppress(ProcessLookupError):
                os.killpg(running.pid, signal.SIGKILL)
            for process in (one for session in sessions for one in processes_of(session)):
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            running.wait()


def checked(lines: Sequence[dict[str, Any]], machine: Machine) -> None:
    """SystemExit where the results are another machine's."""
    others = {line["fingerprint"] for line in lines if line["part"] == "run"} - {machine.fingerprint}
    if others:
        raise SystemExit(
            f"the results there are of {', '.join(others)}, this is {machine.fingerprint}; give another --out"
        )


def write_page(out: Path) -> str:
    """The tables as they are now; returns them."""
    recorded = sum(len(line["samples"]) for line in Results(out / "recording.jsonl").read())
    text = many_cores_page.page(Results(out / "results.jsonl").read(), recorded=recorded)
    (out / "tables.md").write_text(text, encoding="utf-8")
    return text


def write_table(out: Path, machine: Machine) -> None:
    """The recording as a table of measurements."""
    from many_cores_recording import Recording, long_form

    long_form(Recording(out / "recording.jsonl"), machine, out / "recording.csv.gz")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budget-s", type=float, default=590.0, help="most seconds for everything [default: 590]")
    parser.add_argument("--parts", default=",".join(WEIGHTS), help="some of the parts, in the order in which they run")
    parser.add_argument("--threads", default="", help="thread counts [default: powers of two, and all cores]")
    parser.add_argument("--cores", type=int, help="use so many cores only")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "many-cores")
    parser.add_argument("--part", choices=tuple(WEIGHTS), help=argparse.SUPPRESS)
    parser.add_argument("--share-s", type=float, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    began_s = time.monotonic()
    machine = read_machine(cores=chosen.cores)
    parts = [part.strip() for part in chosen.parts.split(",") if part.strip()]
    if unknown := set(parts) - set(WEIGHTS):
        parser.error(f"no part is called {', '.join(unknown)}; there are: {', '.join(WEIGHTS)}")
    try:
        counts = thread_counts(chosen.threads, len(machine))
        budget = Budget(chosen.budget_s - END_S, {part: WEIGHTS[part] for part in parts})
    except InvalidInput as error:
        parser.error(str(error))
    if chosen.part:
        run_part(chosen.part, chosen.out, machine, counts, began_s + chosen.share_s)
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # the parts are about cores, and looking for a GPU takes seconds
    results = Results(chosen.out / "results.jsonl")
    checked(results.read(), machine)
    run = RunFacts.now()
    results.add("run", run.started, run=run.to_json(), fingerprint=machine.fingerprint, machine=machine.to_json(),
                software=software(), threads=counts)  # fmt: skip
    arguments = ["--out", str(chosen.out), "--threads", ",".join(map(str, counts))]
    arguments += ["--cores", str(chosen.cores)] if chosen.cores else []
    for part in parts:
        share_s, since_s = budget.share_s(part), time.monotonic()
        if part == "compile":
            share_s = max(share_s, min(COMPILING_S, budget.left_s))
        if share_s < LEAST_S:
            break
        ended = in_process(part, arguments, share_s, chosen.out / "log.txt")
        took_s = time.monotonic() - since_s
        results.add("part", f"{part} {run.started}", name=part, given_s=share_s, took_s=took_s, ended=ended)
        print(f"{part}: {took_s:.0f} of {share_s:.0f} s, {ended}", file=sys.stderr, flush=True)
        write_page(chosen.out)
    if "recording" in parts:
        write_table(chosen.out, machine)
    print(write_page(chosen.out))
    whole_s = time.monotonic() - began_s
    print(json.dumps({"out": str(chosen.out), "seconds": round(whole_s, 1)}), file=sys.stderr)


if __name__ == "__main__":
    main()
