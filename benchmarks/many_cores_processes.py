"""Two, four and eight training processes that share the cores, with and without the arbiter.

As `benchmarks/malleable.py`, for less time and without the command line, so that nothing but torch and numpy is needed:
*left alone* with the framework's defaults, *by hand* on even parts of the cores, and *threadcast* under an arbiter.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path

from malleable import NETWORKS, Process
from many_cores_results import Results, Turns
from run_facts import ROOT

from threadcast import malleable
from threadcast.core import Machine

PART = "processes"
RULES = ("left alone", "by hand", "threadcast")
SETS = tuple((count, network) for network in ("LSTM", "GoogLeNet") for count in (2, 4, 8))
WARM_S, SECONDS = 4.0, 4.0
"""Before steps are counted, after the last process has come; and for how long they are."""
COME_S = 60.0
FIRST_S = 15.0

_ARBITER = """
import signal, sys
from pathlib import Path
from threadcast.core import read_machine
from threadcast.malleable.arbiter import Arbiter
with Arbiter(read_machine(), Path(sys.argv[1])) as arbiter:
    signal.signal(signal.SIGTERM, lambda *_: arbiter.stop())
    arbiter.serve()
"""
_PINNED = """
import os, sys
os.sched_setaffinity(0, map(int, sys.argv[1].split(",")))
os.execv(sys.executable, [sys.executable, *sys.argv[2:]])
"""


def parts_by_hand(count: int, machine: Machine) -> list[tuple[int, ...]]:
    """CPUs for each of so many processes: even parts of neighbouring cores, or shared cores where there are fewer."""
    cpus = [core.cpus[0] for core in machine.cores]
    if count > len(cpus):
        return [(cpus[i % len(cpus)],) for i in range(count)]
    bounds = [round(i * len(cpus) / count) for i in range(count + 1)]
    return [tuple(cpus[low:high]) for low, high in pairwise(bounds)]


@contextmanager
def arbiter(socket: Path, environment: dict[str, str]) -> Iterator[None]:
    """An arbiter at this socket, ready when the block begins."""
    with subprocess.Popen([sys.executable, "-c", _ARBITER, str(socket)], env=environment) as running:
        try:
            until_s = time.monotonic() + COME_S
            while not socket.exists() and running.poll() is None and time.monotonic() < until_s:
                time.sleep(0.05)
            if not socket.exists():
                raise RuntimeError("the arbiter did not start")
            yield
        finally:
            running.terminate()


def rates(count: int, network: str, rule: str, machine: Machine) -> list[float]:
    """Steps a second of each of so many processes under a rule."""
    with ExitStack() as ends:
        folder = Path(ends.enter_context(tempfile.TemporaryDirectory(prefix="threadcast-")))
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
        environment = {**os.environ, "PYTHONPATH": path, "THREADCAST_ENGINE_PLANS": str(folder / "plans"),
                       "THREADCAST_ARBITER_SOCKET": str(folder / "arbiter.sock")}  # fmt: skip
        commands: list[Sequence[str]] = [[sys.executable]] * count
        if rule == "threadcast":
            ends.enter_context(arbiter(folder / "arbiter.sock", environment))
            inject = Path(malleable.__file__).parent / "inject"
            environment["PYTHONPATH"] = f"{inject}{os.pathsep}{path}"
        threads = [""] * count
        if rule == "by hand":
            parts = parts_by_hand(count, machine)
            commands = [[sys.executable, "-c", _PINNED, ",".join(map(str, part))] for part in parts]
            threads = [str(len(part)) for part in parts]
        processes = []
        for command, own in zip(commands, threads, strict=True):
            one = Process(command, network, {**environment, **({"OMP_NUM_THREADS": own} if own else {})})
            ends.callback(one.end)
            processes.append(one)
        until_s = time.monotonic() + COME_S
        while any(not one.lines and one.is_running for one in processes) and time.monotonic() < until_s:
            time.sleep(0.05)
        time.sleep(WARM_S)
        since_s = time.monotonic()
        time.sleep(SECONDS)
        return [one.rate(since_s, since_s + SECONDS) for one in processes]


def run(results: Results, machine: Machine, end_s: float) -> None:
    """Set after set under each rule until the time is up, each network alone before its first set."""
    turns = Turns(end_s, FIRST_S)
    units = [(1, network, "alone") for network in NETWORKS if any(network == name for _, name in SETS)]
    units += [(count, network, rule) for count, network in SETS for rule in RULES]
    units.sort(key=lambda unit: [name for _, name in SETS].index(unit[1]))
    for count, network, rule in units:
        key = f"{count} {network}, {rule}"
        if results.has(PART, key):
            continue
        if not turns.next():
            return
        try:
            found = rates(count, network, "left alone" if rule == "alone" else rule, machine)
        except RuntimeError as error:
            results.add(PART, key, count=count, network=network, rule=rule, problem=str(error))
            continue
        results.add(PART, key, count=count, network=network, rule=rule, rates=found)
