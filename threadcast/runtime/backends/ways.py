"""The ways to run a whole module: each backend at each of its settings, such as a number of threads."""

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
"""Libraries that each backend needs. The package's extra `backends` installs all of them."""


class Way(NamedTuple):
    """A backend and the name of its setting, "" where it has only one."""

    backend: str
    setting: str

    def __str__(self) -> str:
        return f"{self.backend}, {self.setting}" if self.setting else self.backend


def installed() -> str:
    """Names and versions of the installed backends, as one text; `torch.compile` is not listed."""
    return " ".join(f"{name} {importlib.metadata.version(name)}" for name in NEEDED if has(name))


def ways(module: FlatModule, cores: int, file: Path | None) -> Iterator[tuple[Way, Callable[[], TensorCall]]]:
    """Yield every way to run `module`, and a function that builds its call. `file`: the ONNX form, None without one."""
    for backend, settings in (("onnxruntime", sessions), ("openvino", requests)):
        if file is not None and has(backend):
            yield from ((Way(backend, setting), make) for setting, make in settings(file, cores).items())
    yield Way("torch.compile", ""), partial(compiled_call, module)


def has(name: str) -> bool:
    """Return whether the libraries that the backend `name` needs are installed."""
    return all(importlib.util.find_spec(library) is not None for library in NEEDED[name])
