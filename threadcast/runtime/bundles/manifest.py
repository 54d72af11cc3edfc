"""What may be in a bundle: the paths of its files, and the machine and versions that they are for."""

from __future__ import annotations

import re
import sysconfig
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

import torch

import threadcast
from threadcast.core import Machine
from threadcast.core.json_reading import member
from threadcast.runtime.backends.way_store import NAME as WAYS
from threadcast.runtime.plans.backend_history import NAME as BACKENDS

SCHEMA = "threadcast.bundle/2"

Part = Literal["plan", "curves", "compiled"]
"""plan: of the plan store and the history of backends. curves: measurements of operators in steps. compiled: the native
engine, fused operators and what backends have built, which are machine code."""

CURVES = "curves/measurements.csv"
LONGEST_PATH = 255

_PATHS: Mapping[Part, re.Pattern[str]] = {
    "plan": re.compile(rf"plans/([0-9a-f]{{32}}\.(json|layout|backend|tried|program)|{BACKENDS})"),
    "curves": re.compile(re.escape(CURVES)),
    "compiled": re.compile(
        r"compiled/[A-Za-z0-9][A-Za-z0-9._+-]*/[A-Za-z_][A-Za-z0-9_]*\.so"
        rf"|{WAYS}/[0-9a-f]{{64}}/[A-Za-z_][A-Za-z0-9_]*(\.[a-z]+)+"
    ),
}


def part_of(path: str) -> Part | None:
    """Return the part of the file with this path; None for paths that are neither written to a bundle nor read."""
    return next((part for part, known in _PATHS.items() if known.fullmatch(path) and len(path) <= LONGEST_PATH), None)


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """The machine and the versions that a bundle's files are for. Bundles load only where all of it is equal.

    `machine` is `Machine.fingerprint`, `python` the tag of Python's binary interface (SOABI).
    """

    machine: str
    torch: str
    torch_git: str
    python: str
    threadcast: str

    @classmethod
    def here(cls, machine: Machine) -> Fingerprint:
        """Return that of this process on `machine`."""
        python, git = str(sysconfig.get_config_var("SOABI")), str(torch.version.git_version)
        return cls(machine.fingerprint, str(torch.__version__), git, python, threadcast.__version__)

    @classmethod
    def from_json(cls, document: Any) -> Fingerprint:
        """Read the member `fingerprint` of a manifest; FormatError, with a pointer, for anything else."""
        found = member(document, "fingerprint", dict)
        return cls(**{one.name: member(found, one.name, str, pointer="/fingerprint") for one in fields(cls)})

    def differences(self, here: Fingerprint) -> list[str]:
        """Return in words, for each member that differs, what the bundle is for and what is `here`."""
        pairs = zip(asdict(self).items(), asdict(here).values(), strict=True)
        return [f"{name} {own}, and here is {theirs}" for (name, own), theirs in pairs if own != theirs]
