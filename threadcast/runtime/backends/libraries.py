"""What can run a whole program in place of PyTorch: one contract, and the libraries that keep it."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import ClassVar

from torch import Tensor

from threadcast.runtime.backends.compiled import package_call, write_package
from threadcast.runtime.backends.exported import Exported
from threadcast.runtime.backends.frozen import TensorCall
from threadcast.runtime.backends.onnx_libraries import request, session, write_optimised


class Library(ABC):
    """Builds a program in the process that searches, and opens what it has built in any process of this machine.

    `needs` are the distributions that must be installed, its own last; `chooses_cpus`: its threads run on CPUs that it
    chooses, whichever the thread has that opens it. A call is made by one thread at a time or by several, and returns
    new tensors. All methods raise whatever stops the library.
    """

    name: ClassVar[str]
    needs: ClassVar[tuple[str, ...]] = ()
    chooses_cpus: ClassVar[bool] = False

    @abstractmethod
    def build(self, program: Exported, cores: int, *, convolves: bool) -> Path:
        """Write what `open` needs into the program's folder, and return its path.

        `convolves`: most of the program's arithmetic are convolutions.
        """

    @abstractmethod
    def open(self, file: Path, cores: int, example: Sequence[Tensor]) -> TensorCall:
        """Return a call, on `cores` threads, of the program that was built for this example. The file may go then."""


class OnnxRuntime(Library):
    name, needs = "onnxruntime", ("onnx", "onnxscript", "onnxruntime")

    def build(self, program: Exported, cores: int, *, convolves: bool) -> Path:
        return write_optimised(program.onnx)

    def open(self, file: Path, cores: int, example: Sequence[Tensor]) -> TensorCall:
        return session(file, cores)


class OpenVino(Library):
    name, needs, chooses_cpus = "openvino", ("onnx", "onnxscript", "openvino"), True

    def build(self, program: Exported, cores: int, *, convolves: bool) -> Path:
        return program.onnx

    def open(self, file: Path, cores: int, example: Sequence[Tensor]) -> TensorCall:
        return request(file, cores)


class Compiled(Library):
    name = "torch.compile"

    def build(self, program: Exported, cores: int, *, convolves: bool) -> Path:
        return write_package(program.program, program.folder, cores, freezing=convolves)

    def open(self, file: Path, cores: int, example: Sequence[Tensor]) -> TensorCall:
        return package_call(file, example)


LIBRARIES: dict[str, Library] = {one.name: one for one in (OnnxRuntime(), OpenVino(), Compiled())}
"""By the names that users read. The package's extra `backends` installs all that they need."""


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
