"""What a table says of the run that measured it: commit, day, machine, PyTorch."""

from __future__ import annotations

import os
import subprocess
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Self

from threadcast.core import read_machine
from threadcast.core.sysfs import read_text

ROOT = Path(__file__).parents[1]
_VECTORS = ("avx512f", "AVX-512"), ("avx2", "AVX2")
"""Vector instructions, the widest first: by them the same programs and libraries differ most among x86 processors."""


@dataclass(frozen=True, slots=True)
class RunFacts:
    """One run of a benchmark."""

    commit: str
    """Abbreviated hash, with "+" where tracked files, but those that benchmarks write, differed from it; outside of a
    git checkout what the environment's COMMIT says, else "unknown"."""
    started: str
    """UTC, ISO 8601, to the second."""
    machine: str
    torch: str
    """Version of PyTorch; empty where it is not installed."""

    @classmethod
    def now(cls) -> Self:
        """The facts of a run that starts now, from this checkout, on this machine."""
        machine = read_machine()
        cpus = read_text("/proc/cpuinfo") or ""
        kind = " virtual machine" if " hypervisor" in cpus else ""
        vectors = next((f" with {name}" for flag, name in _VECTORS if f" {flag} " in cpus), "")
        try:
            torch = version("torch")
        except PackageNotFoundError:
            torch = ""
        started = datetime.now(UTC).isoformat(timespec="seconds")
        return cls(_commit(), started, f"{len(machine)} cores of an {machine.name}{kind}{vectors}", torch)

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> Self:
        """Read what `to_json` gives."""
        return cls(**document)

    def to_json(self) -> dict[str, Any]:
        """The facts as a JSON object."""
        return asdict(self)

    def __str__(self) -> str:
        torch = f", PyTorch {self.torch}" if self.torch else ""
        return f"commit {self.commit}, {self.started[:10]}, {self.machine}{torch}"


def _commit() -> str:
    try:
        commit = _git("describe", "--always", "--abbrev=7", "--exclude=*")
        changed = _git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!docs", ":!data/studies")
    except (OSError, subprocess.CalledProcessError):
        return os.environ.get("COMMIT") or "unknown"
    return f"{commit}+" if changed else commit


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
