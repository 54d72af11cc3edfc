"""`threadcast doctor`: what this machine offers, and what to improve."""

from __future__ import annotations

import importlib.util
import os
import shutil
import time
from collections import Counter
from dataclasses import asdict
from typing import Any

import click

from threadcast.cli import findings
from threadcast.cli.findings import Finding
from threadcast.cli.options import common
from threadcast.cli.output import Output, table
from threadcast.collector.busy import INTERVAL_S, LoadWatch
from threadcast.core import Machine, UsableCores, read_machine, usable_cores
from threadcast.core.settings import Settings


@click.command()
@common
def command(output: Output, settings: Settings) -> None:
    """Say what this machine offers, and what to improve.

    Looks at cores, caches, quotas, counters, frequency, load, compiler, PyTorch, OpenMP variables and packages.
    Changes nothing; the exit code is 0 whatever it finds.
    """
    usable, machine = usable_cores(), read_machine()
    watch = LoadWatch.of(machine)
    found = _examine(usable, machine, watch)
    document = {
        "machine": {"fingerprint": machine.fingerprint, **machine.to_json()},
        "usable": asdict(usable),
        "cases": [{"threads": case.threads, "affinity": case.affinity.value} for case in machine.cases()],
        "findings": [asdict(finding) for finding in found],
    }
    rows = []
    for f in found:
        rows += [(f.topic, f.state, f.found), *([("", "", f"-> {f.advice}")] if f.advice else [])]
    output.result(document, table(["machine", ""], _describe(machine)), table(["topic", "", "found"], rows))


def _examine(usable: UsableCores, machine: Machine, watch: LoadWatch) -> list[Finding]:
    from threadcast.collector.counters import plan_counting

    time.sleep(INTERVAL_S)
    before = frozenset(os.sched_getaffinity(0))
    version, threads = _torch()
    return [
        findings.check_limits(usable),
        *findings.check_binding(before, frozenset(os.sched_getaffinity(0))),
        findings.check_caches(machine),
        *findings.check_counters(plan_counting(), paranoid=findings.read_paranoid()),
        findings.check_frequency(usable.cpus),
        findings.check_load(watch.recent()),
        findings.check_compiler(shutil.which, os.environ.get("CXX"), engine=_has_engine()),
        findings.check_torch(version, threads, usable),
        *findings.check_environment(os.environ, usable),
        *findings.check_packages(lambda name: importlib.util.find_spec(name) is not None),
    ]


def _has_engine() -> bool:
    if importlib.util.find_spec("torch") is None:
        return False
    from threadcast.runtime.engine.native.library import is_compiled

    return is_compiled()


def _torch() -> tuple[str | None, int | None]:
    if importlib.util.find_spec("torch") is None:
        return None, None
    import torch

    return torch.__version__, torch.get_num_threads()


def _describe(machine: Machine) -> list[tuple[str, Any]]:
    caches = Counter((cache.level, cache.size_bytes) for cache in machine.caches)
    sizes = [f"L{level} {_size(size)} x {count}" for (level, size), count in sorted(caches.items())]
    speeds = sorted({core.max_hz for core in machine.cores if core.max_hz}, reverse=True)
    return [
        ("processor", machine.name),
        ("cores", f"{len(machine)}, {machine.threads_per_core} hardware thread(s) each"),
        ("sockets", str(len({core.socket for core in machine.cores}))),
        ("NUMA nodes", str(len({core.node for core in machine.cores}))),
        ("caches", ", ".join(sizes) or None),
        ("up to", ", ".join(f"{hz / 1e9:.2f} GHz" for hz in speeds) or None),
        ("cases", f"{len(machine.cases())} ways to run an op"),
        ("fingerprint", machine.fingerprint),
    ]


def _size(size_bytes: int) -> str:
    return f"{size_bytes >> 20} MiB" if size_bytes >= 1 << 20 else f"{size_bytes >> 10} KiB"
