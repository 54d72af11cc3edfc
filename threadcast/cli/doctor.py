"""`threadcast doctor`: what this machine offers, and what to improve."""

from __future__ import annotations

import importlib.util
import os
import shutil
import time
from collections import Counter
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from threadcast.cli import findings, plain_gains
from threadcast.cli.findings import Finding, State
from threadcast.cli.options import common
from threadcast.cli.output import Output, table
from threadcast.collector.busy import INTERVAL_S, LoadWatch
from threadcast.core import Machine, UsableCores, read_machine, usable_cores
from threadcast.core.settings import Settings

if TYPE_CHECKING:
    from threadcast.cli.plain.gains import PlainGains

NETWORK = "pathnet:small"
"""What --gains times: convolutions of 64 images of 32 pixels, 0.05 s a step on 2 cores, in which malloc and memory
format both matter."""


@click.command()
@click.option(
    "--gains", "network", metavar="[NETWORK[:SIZE]]", is_flag=False, flag_value=NETWORK,
    help=f"Time a network in plain PyTorch, a built-in one or FILE.py:function [without a name: {NETWORK}]: what it "
    "gains by freed memory kept, channels last and thread counts, each alone.",
)  # fmt: skip
@common
def command(output: Output, settings: Settings, network: str | None) -> None:
    """Say what this machine offers, and what to improve.

    Looks at cores, caches, quotas, counters, frequency, load, compiler, PyTorch, the speed of bfloat16, OpenMP
    variables and optional packages. Changes nothing; the exit code is 0 whatever it finds. --gains takes about 20 s
    more with the default network; a network is in memory about five times.
    """
    usable, machine = usable_cores(), read_machine()
    watch = LoadWatch.of(machine)
    found = _examine(usable, machine, watch)
    gains = None
    if network is not None and importlib.util.find_spec("torch") is None:
        found.append(Finding("gains", State.NOTE, "not timed: no PyTorch", "pip install 'threadcast[collect]'"))
    elif network is not None:
        if (load := watch.wait(output.note)) and load.disturbs:
            output.warn(f"{load.said('use')}, so gains will be those of a busy machine, and uncertain")
        gains = _gains(network, output)
        found += plain_gains.to_findings(gains)
    document = {
        "machine": {"fingerprint": machine.fingerprint, **machine.to_json()},
        "usable": asdict(usable),
        "cases": [{"threads": case.threads, "affinity": case.affinity.value} for case in machine.cases()],
        "findings": [asdict(finding) for finding in found],
        "plain_gains": plain_gains.to_json(gains) if gains else None,
    }
    rows = []
    for f in found:
        rows += [(f.topic, f.state, f.found), *([("", "", f"-> {f.advice}")] if f.advice else [])]
    gains_table = [plain_gains.times(gains)] if gains else []
    output.result(
        document, table(["machine", ""], _describe(machine)), table(["topic", "", "found"], rows), *gains_table
    )


def _gains(network: str, output: Output) -> PlainGains:
    from threadcast.cli.plain.gains import measure_plain_gains
    from threadcast.networks import names

    name, _, size = network.partition(":")
    named = {"network": name, "size": size or None} if name in names() else {"network": network}
    with output.progress(f"timing {network} in plain PyTorch") as bar:
        return measure_plain_gains(**named, progress=lambda done, total: bar.update(done, total=total))


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
        *_bfloat16(),
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


def _bfloat16() -> list[Finding]:
    if importlib.util.find_spec("torch") is None:
        return []
    from threadcast.cli.bfloat16_speed import bfloat16_speed

    return [findings.check_bfloat16(findings.read_cpu_flags(), bfloat16_speed())]


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
