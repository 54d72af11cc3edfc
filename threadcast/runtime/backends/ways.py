"""The ways to run a whole module on another backend, each with the threads that it may be given."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

from threadcast.runtime.backends.compiled import compiled_call
from threadcast.runtime.backends.frozen import FlatModule, TensorCall
from threadcast.runtime.backends.onnx_runtime import sessions
from threadcast.runtime.backends.open_vino import requests

NEEDED = {"onnxruntime": ("onnx", "onnxscript", "onnxruntime"), "openvino": ("onnx", "onnxscript", "openvino")}
"""Libraries that a backend needs; the extra `backends` brings all of them."""


class Way(NamedTuple):
    """A backend and a setting of it, "" where it has but one."""

    backend: str
    setting: str

    def __str__(self) -> str:
        return f"{self.backend}, {self.setting}" if self.setting else self.backend


def installed() -> str:
    """The backends that are installed, with their versions."""
    return " ".join(f"{name} {importlib.metadata.version(name)}" for name in NEEDED if _has(name))


def ways(module: FlatModule, cores: int, file: Path | None) -> Iterator[tuple[Way, Callable[[], TensorCall]]]:
    """Every way to run `module`, of which `file` is the ONNX form, None where it has none, and what makes its call."""
    for backend, settings in (("onnxruntime", sessions), ("openvino", requests)):
        if file is not None and _has(backend):
            yield from ((Way(backend, setting), make) for setting, make in settings(file, cores).items())
    yield Way("torch.compile", ""), partial(compiled_call, module)


def _has(name: str) -> bool:
    return all(importlib.util.find_spec(library) is not None for library in NEEDED[name])
