"""Compiles the loops of fused operators on first use, each once, and defines operators that run them."""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from threadcast.core.errors import ExecutionError
from threadcast.core.printable import printable
from threadcast.core.settings import Settings
from threadcast.runtime.engine.native.compilations import Compilations
from threadcast.runtime.engine.native.library import (
    compiler,
    draft_folder,
    include_folders,
    make_file,
    native_library,
)
from threadcast.runtime.operators.kernels import PRELUDE, Kernel

_ISA_FLAGS = {
    "AVX2": ("-mavx2", "-mfma", "-mf16c"),
    "AVX512": ("-mavx512f", "-mavx512dq", "-mavx512vl", "-mavx512bw", "-mfma"),
}
"""Compiler flags for each instruction set that PyTorch has kernels for."""


_logger = logging.getLogger("threadcast")
_compilations = Compilations()
_defining = threading.Lock()


def _renew() -> None:
    """In a forked child, where no thread is left that compiles or defines anything."""
    global _defining, _compilations
    _defining, _compilations = threading.Lock(), Compilations()


os.register_at_fork(after_in_child=_renew)


class FusedOperators:
    """Defines operators for kernels, and holds those that are defined in this process."""

    def __init__(self) -> None:
        self._defined: dict[str, Any] = {}

    def of(self, kernels: Sequence[Kernel]) -> list[Any]:
        """Return an operator of PyTorch's dispatcher for each kernel.

        Kernels that no process has compiled before are compiled. ExecutionError where that fails, or has failed before
        in a thread (`are_being_compiled`).
        """
        if (failed := _compilations.error(_symbols(kernels))) is not None:
            raise failed
        with _defining:
            self._define([kernel for kernel in kernels if kernel.name not in self._defined])
        return [self._defined[kernel.name] for kernel in kernels]

    def _define(self, kernels: Sequence[Kernel]) -> None:
        if not kernels:
            return
        native = native_library()
        folder = compiled(kernels)
        for kernel in kernels:
            if kernel.name in self._defined:
                continue
            path = folder / f"{kernel.symbol}.so"
            try:
                _define(native, kernel, path)
            except RuntimeError as error:
                raise ExecutionError(f"{path} cannot be loaded: {error}; delete it to have it made anew") from error
            self._defined[kernel.name] = getattr(torch.ops.threadcast, kernel.name).default


def _define(native: ModuleType, kernel: Kernel, path: Path) -> None:
    native.define_fused(
        schema=kernel.schema, name=f"threadcast::{kernel.name}", path=str(path), symbol=kernel.symbol,
        sizes=list(kernel.shape), inputs=len(kernel.inputs),
        outputs=[(list(spec.shape), list(spec.laid_out)) for spec in kernel.outputs],
    )  # fmt: skip


def are_being_compiled(kernels: Sequence[Kernel], *, hurry: bool = False) -> bool:
    """Return whether these kernels are being compiled, in a thread that this starts where some are missing.

    That thread has a low priority, but for `hurry`.
    """
    return bool(kernels) and _compilations.running(_symbols(kernels), lambda: compiled(kernels), hurry=hurry)


def wait_for(kernels: Sequence[Kernel], timeout_s: float) -> None:
    """Return when these kernels are no longer being compiled, or after `timeout_s` seconds."""
    _compilations.wait(_symbols(kernels), timeout_s)


def are_compiled(kernels: Sequence[Kernel]) -> bool:
    """Return whether these kernels are compiled; starts nothing."""
    folder = fused_folder()
    return all((folder / f"{kernel.symbol}.so").is_file() for kernel in kernels)


def _symbols(kernels: Sequence[Kernel]) -> tuple[str, ...]:
    return tuple(sorted(kernel.symbol for kernel in kernels))


def fused_folder() -> Path:
    """Return the folder of the loops that fit this version of flags, of their common source and of torch."""
    digest = hashlib.sha256(repr((_flags(), PRELUDE, torch.__version__, torch.version.git_version)).encode())
    cache: Path = Settings.read()["engine.cache"]
    return cache / f"fused-{torch.__version__}-{digest.hexdigest()[:16]}"


def compiled(kernels: Iterable[Kernel]) -> Path:
    """Return a folder with a shared object `SYMBOL.so` for each kernel; missing ones are compiled together."""
    folder = fused_folder()
    missing = {k.symbol: k.source for k in kernels if not (folder / f"{k.symbol}.so").is_file()}
    if missing:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with draft_folder(folder) as draft:
                _compile(missing, draft, folder, _flags())
        except OSError as error:
            raise ExecutionError(f"{folder} cannot be written: {error.strerror}; set engine.cache") from error
    return folder


def _compile(sources: dict[str, str], draft: Path, folder: Path, flags: Sequence[str]) -> None:
    """Compile all loops into one shared object, and link it into the folder under the symbol of each."""
    command = compiler()
    _logger.warning(
        "compiling %d fused operators into %s, once; this takes some seconds", len(sources), printable(str(folder))
    )
    (draft / "fused.cpp").write_text(PRELUDE + "".join(sources.values()))
    included = [flag for path in include_folders() for flag in ("-isystem", path)]
    linked = f"-L{Path(torch.__file__).parent / 'lib'}", "-ltorch_cpu"  # its vector functions
    built = draft / "fused.so"
    command += [*flags, *included, str(draft / "fused.cpp"), *linked, "-o", str(built)]
    make_file(command, built, "fused operators")
    for symbol in sources:
        try:
            os.link(built, draft / f"{symbol}.so")
        except OSError:  # not every file system has hard links
            shutil.copyfile(built, draft / f"{symbol}.so")
        os.replace(draft / f"{symbol}.so", folder / f"{symbol}.so")


def _flags() -> tuple[str, ...]:
    # Without contraction: where PyTorch's own kernels round a product and a sum as one, the formulas say so.
    found = torch.backends.cpu.get_cpu_capability()
    capability = found if found in _ISA_FLAGS else "DEFAULT"
    common = ("-std=c++20", "-O3", "-ffp-contract=off", "-fPIC", "-shared", f"-DCPU_CAPABILITY={capability}")
    return (*common, f"-DCPU_CAPABILITY_{capability}", *_ISA_FLAGS.get(capability, ()))
