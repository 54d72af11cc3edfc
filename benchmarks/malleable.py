"""Training processes that share a machine's cores.

    python benchmarks/malleable.py [--sets "2 LSTM;1 LSTM + 1 PathNet @ 0.3-1"] [--rounds 3] [--reuse] [--write]

Each round starts the same processes anew under each rule, by turns: left to the operating system with the framework's
defaults; each on the cores of the best partition by hand, of those tried; and by `threadcast exec` under
`threadcast arbiter`. What counts is the sum over processes of steps a second, each as a share of what that process
makes alone.

`@ 0.3-1` is when processes come and go, as shares of the time (0-1 where nothing is said). One that comes late is
started then, and its start, with the import of torch, counts as time in which it makes no steps, under every rule. By
hand, each is pinned, when it comes, to the core that has fewest.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any

from figures.shared_machine import PROCESSES
from figures.study import of_run
from run_facts import RunFacts

from threadcast.core import read_machine

NETWORKS: dict[str, tuple[str, ...]] = {
    "LSTM": ("lstm", "small", "{}"),
    "PathNet": ("pathnet", "small", '{"batch": 8}'),
    "GoogLeNet": ("googlenet", "small", '{"batch": 1}'),
    "PathNet optimised": ("pathnet", "small", '{"batch": 8}', "optimised"),
}
_PROCESS = Path(__file__).with_name("malleable_process.py")
_EXEC = [sys.executable, "-c", "from threadcast.cli.main import main; main()"]
SETS = "2 LSTM;3 LSTM;4 LSTM;2 PathNet;3 PathNet;4 PathNet;2 GoogLeNet;1 LSTM + 1 PathNet;2 PathNet optimised"
SETS += ";3 PathNet optimised;2 LSTM @ 0-0.7 + 1 PathNet @ 0.3-1;1 LSTM @ 0-0.5 + 1 LSTM @ 0.25-0.75 + 2 LSTM @ 0.5-1"
SECONDS, CHANGING_S = 8.0, 48.0
"""For which a set is watched: one that stays, and one whose processes come and go."""
WARM_S, OPTIMISED_WARM_S = 6.0, 75.0
"""Before steps are counted: Python and torch start, and cores are divided; optimised steps are measured and planned."""


class Process:
    """One training process, whose lines are read as they come."""

    def __init__(self, command: Sequence[str], name: str, environment: dict[str, str]) -> None:
        self._running = subprocess.Popen(
            [*command, str(_PROCESS), *NETWORKS[name]], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env=environment,
        )  # fmt: skip
        self.lines: list[dict[str, float]] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self._running.stdout is not None
        for text in self._running.stdout:
            self.lines.append(json.loads(text))

    @property
    def pid(self) -> int:
        """The kernel's number of it."""
        return self._running.pid

    @property
    def is_running(self) -> bool:
        """Whether it has not ended."""
        return self._running.poll() is None

    def rate(self, since_s: float, until_s: float) -> float:
        """Steps a second between these moments; before its first line it has made none."""
        inside = [one for one in self.lines if since_s <= one["at_s"] <= until_s]
        if len(inside) < 2:
            return 0.0
        first = {"steps": 0.0, "at_s": since_s} if inside[0] is self.lines[0] else inside[0]  # it came meanwhile
        return (inside[-1]["steps"] - first["steps"]) / (inside[-1]["at_s"] - first["at_s"])

    def end(self) -> None:
        """Kill it, if it is still there."""
        self._running.kill()
        self._running.wait()
        self._reader.join()


@contextmanager
def arbiter(environment: dict[str, str]) -> Iterator[None]:
    """`threadcast arbiter`, as a user runs it."""
    running = subprocess.Popen([*_EXEC, "arbiter"], env=environment, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        running.terminate()
        running.wait()


@dataclass(frozen=True, slots=True)
class Stay:
    """One process of a set: which network it trains, and when it comes and goes, as shares of the time measured."""

    network: str
    comes: float = 0.0
    goes: float = 1.0

    def __str__(self) -> str:
        return self.network if (self.comes, self.goes) == (0.0, 1.0) else f"{self.network} @ {self.comes}-{self.goes}"


def parsed(one: str) -> list[Stay]:
    """A set as it is written: "2 LSTM @ 0-0.7 + 1 PathNet"."""
    found = []
    for part in one.split("+"):
        what, _, when = part.partition("@")
        count, network = what.strip().split(" ", 1)
        comes, goes = map(float, when.split("-")) if when else (0.0, 1.0)
        if network not in NETWORKS or not 0 <= comes < goes <= 1:
            raise SystemExit(f"{part.strip()!r}: networks are {', '.join(NETWORKS)}, times from 0 to 1")
        found += [Stay(network, comes, goes)] * int(count)
    return found


def rates(stays: Sequence[Stay], rule: str, seconds: float) -> list[float]:
    """Steps a second of each process while it is there, under a rule."""
    with tempfile.TemporaryDirectory(prefix="threadcast-") as folder:
        environment = {**os.environ, "XDG_RUNTIME_DIR": folder, "THREADCAST_ENGINE_PLANS": f"{folder}/plans"}
        if rule == "threadcast":
            command = [*_EXEC, "exec", "--no-keep-memory", "--", sys.executable]
            with arbiter(environment):
                return _rates(stays, lambda *_: command, environment, seconds)
        if rule == "by hand":
            return _rates(stays, ByHand(), {**environment, "OMP_NUM_THREADS": "1"}, seconds)
        return _rates(stays, lambda *_: [sys.executable], environment, seconds)


class ByHand:
    """A Python pinned to the core that has fewest processes when it comes."""

    def __init__(self) -> None:
        self._cpus: dict[int, int] = {}

    def __call__(self, number: int, there: Sequence[int]) -> list[str]:
        """The command of the process of this number, beside those that are there."""
        taken = Counter(self._cpus[other] for other in there)
        self._cpus[number] = min((core.cpus[0] for core in read_machine().cores), key=lambda cpu: taken[cpu])
        return ["taskset", "-c", str(self._cpus[number]), sys.executable]


def _rates(
    stays: Sequence[Stay], command: Callable[[int, Sequence[int]], Sequence[str]], environment: dict[str, str],
    seconds: float,
) -> list[float]:  # fmt: skip
    processes: dict[int, Process] = {}

    def start(number: int) -> None:
        there = [other for other, one in processes.items() if one.is_running]
        processes[number] = Process(command(number, there), stays[number].network, environment)

    try:
        for number, stay in enumerate(stays):
            if stay.comes == 0:
                start(number)
        until_s = time.monotonic() + 60
        while any(not one.lines for one in processes.values()) and time.monotonic() < until_s:
            time.sleep(0.05)
        time.sleep(OPTIMISED_WARM_S if any("optimised" in stay.network for stay in stays) else WARM_S)
        since_s = time.monotonic()
        events = [(stay.comes, True, number) for number, stay in enumerate(stays) if stay.comes > 0]
        events += [(stay.goes, False, number) for number, stay in enumerate(stays) if stay.goes < 1]
        for share, comes, number in sorted(events):
            time.sleep(max(since_s + share * seconds - time.monotonic(), 0.0))
            if comes:
                start(number)
            else:
                processes[number].end()
        time.sleep(max(since_s + seconds - time.monotonic(), 0.0))
        spans = [(since_s + stay.comes * seconds, since_s + stay.goes * seconds) for stay in stays]
        return [processes[number].rate(*span) for number, span in enumerate(spans)]
    finally:
        for one in processes.values():
            one.end()


def compare(stays: Sequence[Stay], rounds: int, seconds: float) -> dict[str, Any]:
    """One set of processes under each rule, by turns; `seconds` 0 stands for what is usual."""
    rules = ("left alone", "by hand", "threadcast")
    if not seconds:
        seconds = SECONDS if all((stay.comes, stay.goes) == (0.0, 1.0) for stay in stays) else CHANGING_S
    found: dict[str, list[float]] = {rule: [] for rule in rules}
    least: list[float] = []
    for number in range(rounds):
        names = {stay.network: 0 for stay in stays}
        alone = {name: rates([Stay(name)], "left alone", min(seconds, SECONDS))[0] for name in names}
        if slow := [name for name, rate in alone.items() if not rate]:
            raise SystemExit(f"{', '.join(slow)} alone made fewer than two steps in {seconds:g} s; give more --seconds")
        for rule in rules[number % 3 :] + rules[: number % 3]:
            speeds = zip(rates(stays, rule, seconds), stays, strict=True)
            shares = [rate / alone[stay.network] for rate, stay in speeds]
            progress = sum(share * (stay.goes - stay.comes) for share, stay in zip(shares, stays, strict=True))
            found[rule].append(progress)
            if rule == "threadcast":
                least.append(min(share / even(stay, stays) for share, stay in zip(shares, stays, strict=True)))
            print(f"  round {number + 1}, {rule}: {progress:.2f}", file=sys.stderr, flush=True)
    return {
        "processes": list(map(str, stays)), "rounds": rounds, "seconds": seconds, "progress": found, "least": least,
    }  # fmt: skip


def even(stay: Stay, stays: Sequence[Stay]) -> float:
    """The share of the machine that it would have of all evenly, on average while it is there."""
    moments = [stay.comes + (stay.goes - stay.comes) * (i + 0.5) / 100 for i in range(100)]
    return fmean(1 / sum(one.comes <= moment < one.goes for one in stays) for moment in moments)


def row(one: dict[str, Any]) -> dict[str, object]:
    """The set's row of data/studies/malleable.csv."""
    middle = {rule: median(values) for rule, values in one["progress"].items()}
    ranges: dict[str, str] = {}
    for rule, values in one["progress"].items():
        for end, value in (("", middle[rule]), ("_low", min(values)), ("_high", max(values))):
            ranges[rule.replace(" ", "_") + end] = f"{value:.2f}"
    return {
        "processes": " + ".join(one["processes"]), "rounds": one["rounds"], "seconds": f"{one['seconds']:g}", **ranges,
        "over_left_alone": f"{middle['threadcast'] / middle['left alone']:.2f}",
        "of_by_hand": f"{middle['threadcast'] / middle['by hand']:.2f}",
        "slowest_of_its_part": f"{min(one['least']):.2f}", "run": of_run(RunFacts.from_json(one["run"])),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", default=SETS, help="processes, sets separated by semicolons; may be none")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.0, help=f"[default: {SECONDS:g}, changing {CHANGING_S:g}]")
    parser.add_argument("--json", type=Path, default=Path("build/malleable.json"))
    parser.add_argument("--reuse", action="store_true", help="keep what is in that file, also of sets measured again")
    parser.add_argument("--write", action="store_true", help=PROCESSES.writes)
    chosen = parser.parse_args()
    run = RunFacts.now()
    found = json.loads(chosen.json.read_text()) if chosen.reuse and chosen.json.exists() else []
    for one in filter(None, chosen.sets.split(";")):
        stays = parsed(one)
        print(" + ".join(map(str, stays)), file=sys.stderr, flush=True)
        found.append({**compare(stays, chosen.rounds, chosen.seconds), "run": run.to_json()})
        chosen.json.parent.mkdir(parents=True, exist_ok=True)
        chosen.json.write_text(json.dumps(found, indent=1))
        print(PROCESSES.printed([row(found[-1])]).splitlines()[2], flush=True)
    if chosen.write:
        PROCESSES.store([row(one) for one in found], run, replaces=("processes",))


if __name__ == "__main__":
    main()
