"""The manifest of a bundle: the machine and versions that it is for, and its files with their sizes and hashes."""

from __future__ import annotations

import re
import sysconfig
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, get_args

import torch

import threadcast
from threadcast.core import Machine
from threadcast.core.errors import FormatError
from threadcast.core.json_reading import check_schema, member
from threadcast.runtime.backends.way_store import NAME as WAYS
from threadcast.runtime.plans.backend_history import NAME as BACKENDS

SCHEMA = "threadcast.bundle/1"

Part = Literal["plan", "curves", "compiled"]
"""plan: of the plan store and the history of backends. curves: measurements of operators in steps. compiled: the native
engine, fused operators and what backends have built, which are machine code."""

CURVES = "curves/measurements.csv"

_PATHS: Mapping[str, re.Pattern[str]] = {
    "plan": re.compile(rf"plans/([0-9a-f]{{32}}\.(json|layout|backend|tried|program)|{BACKENDS})"),
    "curves": re.compile(re.escape(CURVES)),
    "compiled": re.compile(
        r"compiled/[A-Za-z0-9][A-Za-z0-9._+-]*/[A-Za-z_][A-Za-z0-9_]*\.so"
        rf"|{WAYS}/[0-9a-f]{{64}}/[A-Za-z_][A-Za-z0-9_]*(\.[a-z]+)+"
    ),
}
_DIGEST = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """The machine and the versions that a bundle's files are for. Bundles load only where all of it is equal."""

    machine: str
    """`Machine.fingerprint`."""
    torch: str
    torch_git: str
    python: str
    """The tag of Python's binary interface (SOABI)."""
    threadcast: str

    @classmethod
    def here(cls, machine: Machine) -> Fingerprint:
        """Return that of this process on `machine`."""
        python, git = str(sysconfig.get_config_var("SOABI")), str(torch.version.git_version)
        return cls(machine.fingerprint, str(torch.__version__), git, python, threadcast.__version__)

    def differences(self, here: Fingerprint) -> list[str]:
        """Return in words, for each member that differs, what the bundle is for and what is `here`."""
        names = {"machine": "machine", "torch": "PyTorch", "torch_git": "PyTorch's commit", "python": "Python",
                 "threadcast": "threadcast"}  # fmt: skip
        return [
            f"{name} {getattr(self, key)}, and here is {getattr(here, key)}"
            for key, name in names.items()
            if getattr(self, key) != getattr(here, key)
        ]


@dataclass(frozen=True, slots=True)
class BundledFile:
    """One file of a bundle. `path` begins with the folder of its part: plans, curves or compiled."""

    path: str
    part: Part
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """What is in a bundle, for which machine and versions, and when it was written (ISO 8601, UTC)."""

    fingerprint: Fingerprint
    created: str
    files: tuple[BundledFile, ...]

    def of(self, part: Part) -> list[BundledFile]:
        """Return the files of one part."""
        return [file for file in self.files if file.part == part]

    def to_json(self) -> dict[str, Any]:
        """Return the document of `manifest.json`."""
        files = [{"path": f.path, "part": f.part, "bytes": f.size_bytes, "sha256": f.sha256} for f in self.files]
        return {
            "schema": SCHEMA, "fingerprint": asdict(self.fingerprint), "created": self.created, "files": files,
        }  # fmt: skip

    @classmethod
    def from_json(cls, document: Any) -> Manifest:
        """Read what `to_json` writes; FormatError, with a pointer, for anything else, such as an unknown path."""
        check_schema(document, SCHEMA)
        where = member(document, "fingerprint", dict)
        names = [one.name for one in fields(Fingerprint)]
        fingerprint = Fingerprint(**{name: member(where, name, str, pointer="/fingerprint") for name in names})
        entries = member(document, "files", list)
        files = tuple(_file(entry, f"/files/{i}") for i, entry in enumerate(entries))
        if len({file.path for file in files}) < len(files):
            raise FormatError("a path is there twice", pointer="/files")
        return cls(fingerprint, member(document, "created", str), files)


def is_path_of(part: Part, path: str) -> bool:
    """Return whether a file of this part may have this path: nothing else is written to a bundle or read from one."""
    return _PATHS[part].fullmatch(path) is not None


def _file(entry: Any, pointer: str) -> BundledFile:
    path, part = member(entry, "path", str, pointer=pointer), member(entry, "part", str, pointer=pointer)
    size_bytes, sha256 = member(entry, "bytes", int, pointer=pointer), member(entry, "sha256", str, pointer=pointer)
    if part not in get_args(Part):
        raise FormatError(f"part is {part!r}, expected one of {', '.join(get_args(Part))}", pointer=f"{pointer}/part")
    if not is_path_of(part, path):  # type: ignore[arg-type]
        raise FormatError(f"no file of part {part} may have the path {path!r}", pointer=f"{pointer}/path")
    if size_bytes < 0 or not _DIGEST.fullmatch(sha256):
        raise FormatError("bytes must be at least 0 and sha256 64 hexadecimal digits", pointer=pointer)
    return BundledFile(path, part, size_bytes, sha256)  # type: ignore[arg-type]
