"""What can run a whole program in place of PyTorch: one contract, and the libraries that keep it."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from threadcast.runtime.backends.compiled import package_call, write_package
from threadcast.runtime.backends.exported import Exported
from threadcast.runtime.backends.frozen import TensorCall
from threadcast.runtime.backends.onnx_libraries import request, session, write_optimised


@dataclass(frozen=True, slots=True)
class Library:
    """Builds a program in the process that searches, and opens what it has built in any process of this machine.

    `build(program, cores, convolves)` writes what `open` needs into the program's folder and returns its path;
    `convolves`: most of the program's arithmetic are convolutions. `open(file, cores, example)` returns a call, on so
    many threads, of the program that was built for this example; the file may go then. Threads may call it side by
    side, and it returns new tensors. Both raise whatever stops the library.
    """

    name: str
    build: Callable[[Exported, int, bool], Path]
    open: Callable[[Path, int, Sequence[Tensor]], TensorCall]
    needs: Sequence[str] = ()
    """The distributions that must be installed, its own last; the package's extra `backends` installs all."""
    chooses_cpus: bool = False
    """Whether its threads run on CPUs that it chooses, whichever the thread has that opens it."""


_ALL = (
    Library(
        "onnxruntime", lambda program, *_: write_optimised(program.onnx), lambda file, cores, _: session(file, cores),
        ("onnx", "onnxscript", "onnxruntime"),
    ),
    Library(
        "openvino", lambda program, *_: program.onnx, lambda file, cores, _: request(file, cores),
        ("onnx", "onnxscript", "openvino"), chooses_cpus=True,
    ),
    Library(
        "torch.compile",
        lambda program, cores, convolves: write_package(program.program, program.folder, cores, freezing=convolves),
        lambda file, _, example: package_call(file, example),
    ),
)  # fmt: skip
LIBRARIES = {one.name: one for one in _ALL}
"""By the names that users read."""


def installed(cpus: Sequence[int] | None = None) -> str:
    """Names and versions of the installed libraries that can keep to `cpus` (None: that run anywhere), as one text.

    `torch.compile`, which is always there, is not listed.
    """
    able = [one for one in LIBRARIES.values() if one.needs and (cpus is None or not one.chooses_cpus)]
    return " ".join(f"{one.name} {importlib.metadata.version(one.name)}" for one in able if has(one.name))


def has(name: str) -> bool:
    """Return whether all that the library `name` needs is installed."""
    return all(importlib.util.find_spec(one) is not None for one in LIBRARIES[name].needs)


def versions(names: Iterable[str]) -> list[str]:
    """Return names and versions of PyTorch and of all that those of these libraries need that are there."""
    needed = [one for name in sorted(names) if has(name) for one in LIBRARIES[name].needs]
    return [f"{one} {importlib.metadata.version(one)}" for one in ("torch", *needed)]
