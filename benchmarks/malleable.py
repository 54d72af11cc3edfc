"""Training processes that share a machine's cores: `make bench-malleable` runs this.

    python benchmarks/malleable.py [--sets "2 LSTM;1 LSTM + 1 PathNet"] [--rounds 3] [--seconds 8] [--write]

Each round starts the same processes anew under each rule, by turns: left to the operating system with the framework's
defaults; each on the cores of the best partition by hand, of those tried; and by `threadcast exec` under
`threadcast arbiter`. What counts is the sum over processes of steps a second, each as a share of what that process
makes alone.
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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from statistics import median
from typing import Any

from threadcast.core import read_machine

NETWORKS: dict[str, tuple[str, ...]] = {
    "LSTM": ("lstm", "small", "{}"),
    "PathNet": ("pathnet", "small", '{"batch": 8}'),
    "GoogLeNet": ("googlenet", "small", '{"batch": 1}'),
    "PathNet optimised": ("pathnet", "small", '{"batch": 8}', "optimised"),
}
PAGE = Path(__file__).parents[1] / "docs" / "malleable-tables.md"
_PROCESS = Path(__file__).with_name("malleable_process.py")
_EXEC = [sys.executable, "-c", "from threadcast.cli.main import main; main()"]
_HEAD = """# Processes that share cores

`make bench-malleable`, {day}, {cores} cores of an {machine} virtual machine, PyTorch 2.13. Training processes of plain
PyTorch, or *optimised* by `threadcast.optimize_training`, started together, for {seconds:g} s after {warm:g} s
(optimised {optimised:g} s). Progress is the sum over processes of steps a second,
each as a share of what that process makes alone on all cores; medians of {rounds} rounds (least to most). *by hand*:
one thread a process, pinned to a core of its own, or shared evenly where there are more processes than cores.

| processes | left alone | by hand | threadcast | over left alone | of by hand | slowest process, of its even share |
|---|---|---|---|---|---|---|
"""
SETS = "2 LSTM;3 LSTM;4 LSTM;2 PathNet;3 PathNet;4 PathNet;2 GoogLeNet;1 LSTM + 1 PathNet;2 PathNet optimised"
SETS += ";3 PathNet optimised"
WARM_S, OPTIMISED_WARM_S = 6.0, 45.0
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
        """Of the process itself, once `lines` have come."""
        return self._running.pid

    def rate(self, since_s: float, until_s: float) -> float:
        """Steps a second between these moments."""
        inside = [one for one in self.lines if since_s <= one["at_s"] <= until_s]
        if len(inside) < 2:
            return 0.0
        return (inside[-1]["steps"] - inside[0]["steps"]) / (inside[-1]["at_s"] - inside[0]["at_s"])

    def end(self) -> None:
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


def rates(names: Sequence[str], rule: str, seconds: float) -> list[float]:
    """Steps a second of each process, all at once, under a rule."""
    with tempfile.TemporaryDirectory(prefix="threadcast-") as folder:
        environment = {**os.environ, "XDG_RUNTIME_DIR": folder, "THREADCAST_ENGINE_PLANS": f"{folder}/plans"}
        if rule == "threadcast":
            with arbiter(environment):
                return _rates(names, [[*_EXEC, "exec", "--no-keep-memory", "--", sys.executable]] * len(names),
                              environment, seconds)  # fmt: skip
        if rule == "by hand":
            cpus = [core.cpus[0] for core in read_machine().cores]
            commands = [["taskset", "-c", str(cpus[i % len(cpus)]), sys.executable] for i in range(len(names))]
            return _rates(names, commands, {**environment, "OMP_NUM_THREADS": "1"}, seconds)
        return _rates(names, [[sys.executable]] * len(names), environment, seconds)


def _rates(
    names: Sequence[str], commands: Sequence[Sequence[str]], environment: dict[str, str], seconds: float
) -> list[float]:
    processes = [Process(command, name, environment) for command, name in zip(commands, names, strict=True)]
    try:
        until_s = time.monotonic() + 60
        while any(not one.lines for one in processes) and time.monotonic() < until_s:
            time.sleep(0.05)
        time.sleep(OPTIMISED_WARM_S if any("optimised" in name for name in names) else WARM_S)
        since_s = time.monotonic()
        time.sleep(seconds)
        return [one.rate(since_s, since_s + seconds) for one in processes]
    finally:
        for one in processes:
            one.end()


def compare(names: Sequence[str], rounds: int, seconds: float) -> dict[str, Any]:
    """One set of processes under each rule, by turns."""
    rules = ("left alone", "by hand", "threadcast")
    found: dict[str, list[float]] = {rule: [] for rule in rules}
    least: list[float] = []
    for number in range(rounds):
        alone = {name: rates([name], "left alone", seconds)[0] for name in dict.fromkeys(names)}
        for rule in rules[number % 3 :] + rules[: number % 3]:
            shares = [rate / alone[name] for rate, name in zip(rates(names, rule, seconds), names, strict=True)]
            found[rule].append(sum(shares))
            if rule == "threadcast":
                least.append(min(shares) * len(names))
            print(f"  round {number + 1}, {rule}: {sum(shares):.2f}", file=sys.stderr, flush=True)
    return {"processes": list(names), "progress": found, "least": least}


def row(one: dict[str, Any]) -> str:
    """One line of the page."""
    middle = {rule: median(values) for rule, values in one["progress"].items()}
    spread = [f"{middle[rule]:.2f} ({min(v):.2f} to {max(v):.2f})" for rule, v in one["progress"].items()]
    ratios = (middle["threadcast"] / middle["left alone"], middle["threadcast"] / middle["by hand"])
    cells = [" + ".join(one["processes"]), *spread, *(f"{ratio:.2f}" for ratio in ratios), f"{min(one['least']):.2f}"]
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", default=SETS, help="processes that run at once, sets separated by semicolons")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--json", type=Path, default=Path("build/malleable.json"))
    parser.add_argument("--write", action="store_true", help="write docs/malleable-tables.md")
    chosen = parser.parse_args()
    found = []
    for one in chosen.sets.split(";"):
        counted = [part.strip().split(" ", 1) for part in one.split("+")]
        names = [name for count, name in counted for _ in range(int(count))]
        print(" + ".join(names), file=sys.stderr, flush=True)
        found.append(compare(names, chosen.rounds, chosen.seconds))
        chosen.json.parent.mkdir(parents=True, exist_ok=True)
        chosen.json.write_text(json.dumps(found, indent=1))
        print(row(found[-1]), flush=True)
    if chosen.write:
        machine = read_machine()
        head = _HEAD.format(
            day=date.today(), cores=len(machine), machine=machine.name, seconds=chosen.seconds, warm=WARM_S,
            optimised=OPTIMISED_WARM_S,
            rounds=chosen.rounds,
        )  # fmt: skip
        PAGE.write_text(head + "\n".join(map(row, found)) + "\n")


if __name__ == "__main__":
    main()
