"""`threadcast doctor`: what this machine offers, and what to mend."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
from collections import Counter
from dataclasses import asdict
from typing import Any

import click

from threadcast.cli import findings
from threadcast.cli.findings import Finding
from threadcast.cli.options import common
from threadcast.cli.output import Output, table
from threadcast.core import Machine, UsableCores, read_machine, usable_cores
from threadcast.core.errors import MeasurementError
from threadcast.core.settings import Settings


@click.command()
@common
def command(output: Output, settings: Settings) -> None:
    """Say what this machine offers, and what to mend.

    Looks at cores, caches, quotas, counters, frequency, load, compiler, PyTorch, OpenMP variables and optional
    packages. Changes nothing; exit code 0 whatever it finds.
    """
    usable, machine = usable_cores(), read_machine()
    found = _examine(usable, machine, busy_limit=settings["profile.busy_limit"])
    document = {
        "machine": {"fingerprint": machine.fingerprint, **machine.to_json()},
        "usable": asdict(usable),
        "cases": [{"threads": case.threads, "affinity": case.affinity.value} for case in machine.cases()],
        "findings": [asdict(finding) for finding in found],
    }
    rows = [[f.topic, f.state, f"{f.found}\n-> {f.advice}" if f.advice else f.found] for f in found]
    output.result(document, table(["machine", ""], _describe(machine)), table(["topic", "", "found"], rows))


def _examine(usable: UsableCores, machine: Machine, *, busy_limit: float) -> list[Finding]:
    from threadcast.collector.busy import Load, measure_load
    from threadcast.collector.counters import availability

    load: Load | None = None
    with contextlib.suppress(MeasurementError):  # told as a finding
        load = measure_load(usable.cpus)
    version, threads = _torch()
    valgrind = shutil.which("valgrind") is not None
    return [
        findings.check_limits(usable),
        findings.check_caches(machine),
        *findings.check_counters(availability().values(), paranoid=findings.read_paranoid(), valgrind=valgrind),
        findings.check_frequency(usable.cpus),
        findings.check_load(load, limit=busy_limit),
        findings.check_compiler(shutil.which, os.environ.get("CXX")),
        findings.check_torch(version, threads, usable),
        *findings.check_environment(os.environ, usable),
        *findings.check_packages(lambda name: importlib.util.find_spec(name) is not None),
    ]


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
