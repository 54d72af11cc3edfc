"""Finds the backends that run a module fastest, in a process of its own.

A backend loads its libraries and a copy of the weights, and never frees them. This way only the fastest backends are
loaded into the caller's process.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median

import torch
from torch.export import ExportedProgram

from threadcast.core.errors import CaptureError
from threadcast.runtime.backends.exported import write_onnx, write_program
from threadcast.runtime.backends.frozen import FlatModule, TensorCall
from threadcast.runtime.backends.ways import NEEDED, Way, ways
from threadcast.runtime.engines.native.library import make_file

TURNS, TURN_S = 5, 0.15
"""Turns of each way when ways are compared with each other, and seconds of a turn."""
CLOSE = 1.3
"""Ratio to the fastest way's seconds up to which another way is compared in the caller's process too: the seconds of
the same backend at the same setting differ by 10 to 20 % between two processes."""


@dataclass(frozen=True, slots=True)
class Screening:
    """The fastest ways to run a module, fastest first, one for each backend. `failed` says why others cannot run it."""

    ways: list[Way] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)


def screened(module: FlatModule, cores: int, file: Path, among: Sequence[str]) -> Screening:
    """Return the fastest ways to run `module` on `cores` cores, and write its ONNX form to `file`, where it has one.

    `among` are the backends to try. A module that cannot be exported runs only on backends that need no export. These
    are not timed. ExecutionError where the process that compares the backends fails.
    """
    program, found = file.with_name("module.pt2"), file.with_name("found.json")
    try:
        write_program(module, program)
    except CaptureError as error:
        whole = [way for way, _ in ways(module, cores, None) if way.backend in among]
        return Screening(whole, {backend: str(error) for backend in among if backend in NEEDED})
    call = f"main({str(file)!r}, {cores}, {list(among)!r})"
    code = f"import sys; sys.path[:] = {sys.path!r}; import {__name__} as it; it.{call}"
    make_file([sys.executable, "-c", code], found, "the comparison of backends")
    program.unlink()
    answer = json.loads(found.read_text())
    return Screening([Way(*way) for way in answer["ways"]], answer["failed"])


def main(path: str, cores: int, among: Sequence[str]) -> None:
    """Compare the backends; this runs in the child process, which writes its result beside the file at `path`."""
    file = Path(path)
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    result = _screened(torch.export.load(file.with_name("module.pt2")), cores, file, among)
    file.with_name("found.tmp").write_text(json.dumps(asdict(result)))
    file.with_name("found.tmp").rename(file.with_name("found.json"))


def _screened(program: ExportedProgram, cores: int, file: Path, among: Sequence[str]) -> Screening:
    failed: dict[str, str] = {}
    runs: dict[Way, TensorCall] = {}
    module = FlatModule(program.module(), program.example_inputs)
    if set(among) & set(NEEDED):
        try:
            write_onnx(program, file)
        except CaptureError as error:
            failed["ONNX"] = str(error)
    for way, make in ways(module, cores, file if file.exists() else None):
        if way.backend not in among:
            continue
        try:
            run = make()
            module.check(run)
        except Exception as error:  # noqa: BLE001 - whatever stops a foreign library, the others and the plan remain
            failed[str(way)] = "; ".join(str(error).splitlines()[:1])
        else:
            runs[way] = run
    seconds = _seconds(module, runs)
    ranked = sorted(seconds, key=seconds.__getitem__)
    best: dict[str, Way] = {}
    for way in ranked:
        if seconds[way] <= CLOSE * seconds[ranked[0]]:
            best.setdefault(way.backend, way)
    return Screening(list(best.values()), failed)


def _seconds(module: FlatModule, runs: dict[Way, TensorCall]) -> dict[Way, float]:
    """Median seconds of a call of each way. The ways take turns, so that a busy moment affects all of them."""
    inputs = module.tensors(module.example)
    call_s: dict[Way, list[float]] = {way: [] for way in runs}
    for _ in range(TURNS):
        for way, run in runs.items():
            run(inputs)  # finds its threads asleep and its caches cold
            began_s = now_s = time.perf_counter()
            while now_s - began_s < TURN_S:
                run(inputs)
                before_s, now_s = now_s, time.perf_counter()
                call_s[way].append(now_s - before_s)
    return {way: median(own[len(own) // TURNS :]) for way, own in call_s.items()}  # the first turn warms up
