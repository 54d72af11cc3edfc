"""The ways to run a whole module: each backend at each of its settings, such as a number of threads."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from typing import NamedTuple

NEEDED = {"onnxruntime": ("onnx", "onnxscript", "onnxruntime"), "openvino": ("onnx", "onnxscript", "openvino")}
"""Libraries that each backend needs. The package's extra `backends` installs all of them."""

IN_BFLOAT16 = ", bfloat16"
"""The end of the setting of a way that takes and returns float32, and rounds to bfloat16 in between."""


class Way(NamedTuple):
    """A backend and the name of its setting, "" where it has only one."""

    backend: str
    setting: str

    @property
    def widened(self) -> bool:
        """Whether the way is one for a program in bfloat16 that takes and returns float32 in its place."""
        return self.setting.endswith(IN_BFLOAT16)

    def __str__(self) -> str:
        return f"{self.backend}, {self.setting}" if self.setting else self.backend


def installed() -> str:
    """Names and versions of the installed backends, as one text; `torch.compile` is not listed."""
    return " ".join(f"{name} {importlib.metadata.version(name)}" for name in NEEDED if has(name))


def has(name: str) -> bool:
    """Return whether the libraries that the backend `name` needs are installed."""
    return all(importlib.util.find_spec(library) is not None for library in NEEDED[name])
