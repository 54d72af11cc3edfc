"""Checks of a machine for `threadcast doctor`: each returns findings, with advice on what to improve.

Every check depends on its arguments only, so that tests can describe machines that they do not run on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from threadcast.cli.extras import EXTRAS
from threadcast.collector.busy import WAIT_S
from threadcast.core import Machine, UsableCores
from threadcast.core.measurement import DISTURBED
from threadcast.core.sysfs import format_cpus, read_int, read_text

if TYPE_CHECKING:
    from threadcast.collector.busy import Load
    from threadcast.collector.counters import CountingPlan

COMPILERS = ("c++", "g++", "clang++")


class State(StrEnum):
    """How good a finding is."""

    OK = "ok"
    NOTE = "note"
    """It works, but could be better."""
    MEND = "mend"
    """It costs time, or makes measurements wrong, and should be changed."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check: its topic, its state, what was found, and advice where there is some."""

    topic: str
    state: State
    found: str
    advice: str | None = None


def check_limits(usable: UsableCores) -> Finding:
    """Checks whether something prevents the process from using the whole machine."""
    count = f"{usable.cores} usable core{'s' if usable.cores > 1 else ''}"
    if usable.limited_by is None:
        return Finding("cores", State.OK, f"{count}, nothing limits this process")
    found = f"{count}, limited by the {usable.limited_by}"
    if usable.quota is None or not usable.limited_by.startswith("cgroup quota"):
        return Finding("cores", State.NOTE, found, "widen it (taskset, docker --cpuset-cpus) if it is not meant")
    if usable.quota < 0.99:
        advice = "below 1 CPU the kernel stops every op in each period; raise the quota to at least 1 (docker --cpus 1)"
        return Finding("cores", State.MEND, found, advice)
    if usable.quota > usable.cores:
        advice = f"a team of {usable.cores + 1} would be stopped mid-op; a quota of {usable.cores + 1} would fill it"
        return Finding("cores", State.NOTE, found, advice)
    return Finding("cores", State.OK, found)


def check_caches(machine: Machine) -> Finding:
    """Checks whether threads can be placed by the caches that cores share."""
    if not machine.caches:
        advice = (
            "threads cannot be placed by shared caches; let the hypervisor or container show /sys/devices/system/cpu"
        )
        return Finding("caches", State.NOTE, "not shown by this system", advice)
    groups = machine.groups
    if len(groups) == 1:
        return Finding("caches", State.OK, "no cache is shared by some cores only: one way to place threads")
    sizes = Counter(map(len, groups))
    shape = ", ".join(f"{count} of {size} core{'s' if size > 1 else ''}" for size, count in sorted(sizes.items()))
    return Finding("caches", State.OK, f"cache groups: {shape}; threads can lie compact or spread")


def check_counters(plan: CountingPlan, *, paranoid: int | None) -> list[Finding]:
    """Checks which hardware and software events can be counted. `paranoid`: perf_event_paranoid, None where unknown."""
    findings = []
    listed = list(plan.statuses.values())
    at_once = max(map(len, plan.groups), default=0)
    for kind in ("hardware", "software"):
        mine = [status for status in listed if status.kind == kind]
        missing = [status for status in mine if not status.available]
        found = f"{len(mine) - len(missing)} of {len(mine)} events can be counted"
        if kind == "hardware" and len(plan.groups) > 1:
            found += f", {at_once} at a time"
        if not missing:
            level = "" if paranoid is None else f" (perf_event_paranoid={paranoid})"
            findings.append(Finding(f"{kind} counters", State.OK, found + level))
            continue
        reasons = dict.fromkeys(status.reason or "no reason given" for status in missing)
        named = "" if len(missing) == len(mine) else f"; not {', '.join(status.name for status in missing)}"
        advice = "times are measured all the same; models go by FLOPs in place of instructions"
        if kind == "hardware":
            advice += ", or by those that `threadcast profile --counters cachegrind` simulates"
        findings.append(Finding(f"{kind} counters", State.NOTE, f"{found}{named}: {'; '.join(reasons)}", advice))
    return findings


def check_frequency(cpus: Iterable[int], *, root: Path = Path("/")) -> Finding:
    """Checks whether the kernel may change the cores' frequency while ops are timed."""
    policy = "sys/devices/system/cpu/cpu{}/cpufreq/scaling_governor"
    governors = sorted({text for cpu in cpus if (text := read_text(root / policy.format(cpu)))})
    if not governors:
        return Finding("frequency", State.OK, "not under this system's control (usual in virtual machines)")
    found = f"governor {', '.join(governors)}"
    if governors == ["performance"]:
        return Finding("frequency", State.OK, found)
    return Finding("frequency", State.NOTE, found, "steadier times: sudo cpupower frequency-set -g performance")


def check_load(load: Load | None) -> Finding:
    """Checks whether other processes use the cores now. `load` is None where the kernel does not say."""
    if load is None:
        return Finding("load", State.NOTE, "/proc/stat does not say how busy the cores are", "time on an idle machine")
    if not load.disturbs:
        return Finding("load", State.OK, load.said("use"))
    advice = f"above {DISTURBED:.0%} timings wait up to {WAIT_S:.0f} s, then are disturbed: stop the others"
    return Finding("load", State.MEND, load.said("use"), advice)


def check_compiler(which: Callable[[str], str | None], chosen: str | None, *, engine: bool = False) -> Finding:
    """Checks whether there is a C++ compiler; `which` finds a program's path, `chosen` is the value of CXX.

    `engine`: threadcast's engine was compiled already, or came with a bundle.
    """
    for name in (chosen, *COMPILERS):
        if name and (path := which(name)):
            return Finding("compiler", State.OK, path)
    needs = (
        "fused operators and torch.compile need one"
        if engine
        else ("without one threadcast makes no plans and only tries PyTorch's memory formats and other libraries")
    )
    advice = f"{needs}: install g++ or clang++, or name one in CXX"
    return Finding("compiler", State.NOTE, "no C++ compiler found", advice)


def check_torch(version: str | None, threads: int | None, usable: UsableCores) -> Finding:
    """Checks whether PyTorch's default number of threads suits the cores that the process may use.

    `version` is None where PyTorch is not installed.
    """
    if version is None or threads is None:
        advice = "capturing and timing networks need it: pip install 'threadcast[collect]'"
        return Finding("PyTorch", State.NOTE, "not installed", advice)
    found = f"{version}, {threads} thread{'s' if threads > 1 else ''} by default"
    if threads > usable.cores:
        why = f" ({usable.limited_by})" if usable.limited_by else ""
        advice = (
            f"more than the {usable.cores} usable{why}: teams wait for members that are not running; "
            f"set OMP_NUM_THREADS={usable.cores} or call torch.set_num_threads({usable.cores})"
        )
        return Finding("PyTorch", State.MEND, found, advice)
    if threads < usable.cores:
        return Finding("PyTorch", State.NOTE, found, f"of {usable.cores} usable cores; is OMP_NUM_THREADS meant?")
    return Finding("PyTorch", State.OK, found)


def check_binding(before: frozenset[int], after: frozenset[int]) -> list[Finding]:
    """Checks whether the import of PyTorch has changed this thread's mask: `before` and `after` it."""
    if before == after:
        return []
    found = f"importing PyTorch binds the main thread to CPU {format_cpus(after)} of {format_cpus(before)}"
    advice = "programs that count their CPUs then see these alone, and threads start there; unset what is named below"
    return [Finding("binding", State.MEND, found, advice)]


def check_environment(environment: Mapping[str, str], usable: UsableCores) -> list[Finding]:
    """Finds OpenMP settings that conflict with the scheduler's placement, oversubscribe cores or spin while waiting."""
    values = {variable: text.strip().lower() for variable, text in sorted(environment.items())}
    findings = [
        Finding("environment", State.MEND, f"{variable}={environment[variable]}", advice)
        for variable in values
        if (advice := _harm(variable, values, usable))
    ]
    return findings or [Finding("environment", State.OK, "no OpenMP setting stands in the way")]


_BINDING_TYPES = {"balanced", "compact", "explicit", "logical", "physical", "scatter"}
"""The types of KMP_AFFINITY that bind threads; without one it binds none, whatever its modifiers."""

_SPINS = 300_000
"""How often an idle worker of libgomp looks for work before it sleeps, unless GOMP_SPINCOUNT says otherwise."""

_POWERS = {"k": 3, "m": 6, "g": 9, "t": 12}


def _harm(variable: str, values: Mapping[str, str], usable: UsableCores) -> str | None:
    value = values[variable]
    if variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        first = value.partition(",")[0].strip()
        if first.isdecimal() and int(first) > usable.cores:
            return f"more threads than the {usable.cores} usable cores; set {usable.cores} or less"
    if variable == "OMP_THREAD_LIMIT" and value.isdecimal() and int(value) < usable.cores:
        return f"keeps teams below the {usable.cores} usable cores; unset it"
    if variable == "OMP_MAX_ACTIVE_LEVELS" and value.isdecimal() and int(value) == 0:
        return "gives every team a single thread, whatever number is asked for; unset it"
    spins = {
        "OMP_WAIT_POLICY": value == "active",
        "KMP_BLOCKTIME": value == "infinite" or (value.rstrip("mus").isdecimal() and int(value.rstrip("mus")) > 0),
        "GOMP_SPINCOUNT": value in ("infinite", "infinity") or _count(value) > _SPINS,
    }
    if spins.get(variable):
        return "idle threads of a team keep their cores from ops that run beside it; unset it"
    bound = values.get("OMP_PROC_BIND") != "false"
    pins = {
        "OMP_PROC_BIND": bool(value) and bound,
        "OMP_PLACES": bool(value) and bound,
        "KMP_AFFINITY": not _BINDING_TYPES.isdisjoint(map(str.strip, value.split(","))),
        "GOMP_CPU_AFFINITY": bool(value) and bound,
    }
    if pins.get(variable):
        return "binds threads to cores of its own choice, the main thread to the first, against the plan's; unset it"
    if variable == "OMP_DYNAMIC" and value == "true":
        return "teams may get fewer threads than asked for, so curves would be wrong; unset it"
    return None


def _count(value: str) -> int:
    """A number of libgomp's such as "30000", "30 k" or "2m"; 0 where it is none."""
    number = value.rstrip("kmgt").strip()
    power = _POWERS.get(value[-1:], 0)
    return int(number) * 10**power if number.isdecimal() else 0


def check_packages(is_installed: Callable[[str], bool]) -> list[Finding]:
    """Finds the optional packages that are missing, by the extra that installs them."""
    findings = []
    for extra, packages in EXTRAS.items():
        missing = [name for name in packages if not is_installed(name)]
        if missing:
            advice = f"pip install 'threadcast[{extra}]'"
            findings.append(Finding("packages", State.NOTE, f"{extra}: no {', '.join(missing)}", advice))
    return findings or [Finding("packages", State.OK, "all optional packages are installed")]


def read_paranoid(root: Path = Path("/")) -> int | None:
    """The kernel's perf_event_paranoid; None where there is no such file."""
    return read_int(root / "proc/sys/kernel/perf_event_paranoid")
