"""Real processes for tests, attached by themselves or by `threadcast exec`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from threadcast.core import read_machine
from threadcast.malleable.family import descendants

CORES, PER_CORE = len(read_machine()), read_machine().threads_per_core
needs_two_cores = pytest.mark.skipif(CORES < 2, reason="one core has nothing to give")
COMMAND = "from threadcast.cli.main import main; main()"
EXECUTED = (sys.executable, "-c", COMMAND, "exec", "--", sys.executable)
ROOT = Path(__file__).parents[2]
PROGRAM = """
import contextlib, json, sys, time
import torch, threadcast
if "attach" in sys.argv:
    threadcast.attach()
import os, threading
def work():
    while working:
        torch.randn(200, 200) @ torch.randn(200, 200)
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.randn(256, 64)
print("ready", flush=True)
for line in sys.stdin:
    if line.strip() == "begin":
        working = True
        threading.Thread(target=work, daemon=True).start()
    if line.strip() == "rest":
        working = False
    if line.strip() == "train":
        for _ in range(200):
            model(x).sum().backward()
            optimizer.step()
    masks = set()
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(ProcessLookupError):  # it has ended meanwhile
            masks.add(tuple(sorted(os.sched_getaffinity(int(thread)))))
    print(json.dumps({"threads": torch.get_num_threads(), "masks": sorted(masks)}), flush=True)
"""


class Running:
    """A process that says on its stdout how many threads torch has, and on which CPUs they may run."""

    def __init__(self, *command: str) -> None:
        self.process = subprocess.Popen(
            [*(command or (sys.executable,)), "-c", PROGRAM, *(() if command else ("attach",))],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT,
        )  # fmt: skip
        assert self._line() == "ready"

    def _line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def now(self, do: str = "") -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.write(do + "\n")
        self.process.stdin.flush()
        found: dict[str, Any] = json.loads(self._line())
        return found

    def uses(self, cores: int) -> bool:
        found = self.now()
        return found["threads"] == cores and all(len(mask) == cores * PER_CORE for mask in found["masks"])

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            with suppress(BrokenPipeError):
                stream.close()


@contextmanager
def running(program: str, *before: str) -> Iterator[subprocess.Popen[str]]:
    """A Python that runs `program`; it and all that it has started end with the block."""
    process = subprocess.Popen(
        [*before, sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    try:
        yield process
    finally:
        for one in (*descendants(process.pid), process.pid):
            with suppress(ProcessLookupError):
                os.kill(one, signal.SIGKILL)
        process.communicate()


def line(process: subprocess.Popen[str]) -> str:
    """The next line that it says."""
    assert process.stdout is not None
    return process.stdout.readline().strip()
