"""The ways to run a whole module: each backend at each of its settings, such as a number of threads."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Sequence
from typing import NamedTuple

NEEDED = {"onnxruntime": ("onnx", "onnxscript", "onnxruntime"), "openvino": ("onnx", "onnxscript", "openvino")}
"""Libraries that each backend needs. The package's extra `backends` installs all of them."""

CHOOSES_CPUS = frozenset(("openvino",))
"""Backends that choose the CPUs of their threads themselves, whichever the thread has that opens them."""


class Way(NamedTuple):
    """A backend and the name of its setting, "" where it has only one."""

    backend: str
    setting: str

    def __str__(self) -> str:
        return f"{self.backend}, {self.setting}" if self.setting else self.backend


def installed(cpus: Sequence[int] | None = None) -> str:
    """Names and versions of the installed backends that can keep to `cpus` (None: that run anywhere), as one text.

    `torch.compile` is not listed.
    """
    names = [name for name in NEEDED if has(name) and (cpus is None or name not in CHOOSES_CPUS)]
    return " ".join(f"{name} {importlib.metadata.version(name)}" for name in names)


def has(name: str) -> bool:
    """Return whether the libraries that the backend `name` needs are installed."""
    return all(importlib.util.find_spec(library) is not None for library in NEEDED[name])
