"""Loads the C++ part, compiling it on first use: once for each version of its sources, of torch and of Python."""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import logging
import mmap
import os
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import TextIO

import torch

from threadcast.core import parent_process
from threadcast.core.errors import ExecutionError
from threadcast.core.printable import printable
from threadcast.core.settings import Settings
from threadcast.runtime.engine.native.compilations import Compilations
from threadcast.threads.memory import return_freed_memory
from threadcast.threads.openmp import stand_ins_rest
from threadcast.threads.this_process import this_process

NAME = "threadcast_native"
SOURCES = Path(__file__).parent / "src"
FLAGS = ("-O2", "-std=c++20", "-ffp-contract=off")
"""Versions of PyTorch before 2.13 would compile as C++17. A product and a sum are rounded one after the other, as in
PyTorch's operators."""

_TAIL_LINES = 12
"""Number of last lines of a compiler's output that an error shows; these say what is wrong."""

DRAFT = "build-"
"""Beginning of the names of folders in which a library is being compiled."""

_END_S = 5.0
"""Seconds that compilers have to end after a signal."""

_logger = logging.getLogger("threadcast")


_loading = threading.Lock()
_compilations = Compilations()
_locked: TextIO | None = None
"""The file that is locked while the library is compiled."""


def _renew() -> None:
    """In a forked child, where no thread is left that loads or compiles the library."""
    global _loading, _compilations, _locked
    _loading, _compilations = threading.Lock(), Compilations()
    if _locked is not None:  # the parent's lock, which the child would wait for without end
        _locked.close()
        _locked = None


os.register_at_fork(after_in_child=_renew)


def is_compiled() -> bool:
    """Return whether the library that fits this version of torch, Python and sources lies in the cache."""
    return (library_folder() / f"{NAME}.so").is_file()


def is_being_compiled(*, hurry: bool = False) -> bool:
    """Return whether the library is being compiled, in a thread that this starts where the library is missing.

    That thread has a low priority, but for `hurry`.
    `native_library` would wait for it. Where it fails, `native_library` raises its error without another try.
    """
    if _library.cache_info().currsize:
        return False  # at once: it is asked before each step while anything is being compiled
    built = library_folder() / f"{NAME}.so"
    if built.is_file():
        return False
    return _compilations.running(built, lambda: _build(built), hurry=hurry)


def wait_for_library(timeout_s: float) -> None:
    """Return when the library is no longer being compiled by a thread, or after `timeout_s` seconds."""
    if not _library.cache_info().currsize:
        _compilations.wait(library_folder() / f"{NAME}.so", timeout_s)


def native_library() -> ModuleType:
    """Return the loaded library; compile it first if needed, which takes about a minute on 2 cores and logs a WARNING.

    ExecutionError says why it cannot be had: there is no compiler, the compiler failed or took longer than the setting
    `engine.compile_timeout_s`, the cache cannot be written, or torch uses another OpenMP library than libgomp. Once the
    library is loaded, all of torch's larger tensors in this process are allocated in a memory region of their own.
    """
    with _loading:
        return _library()


@cache
def _library() -> ModuleType:
    built = library_folder() / f"{NAME}.so"
    if not built.is_file():
        if (failed := _compilations.error(built)) is not None:
            raise failed
        _build(built)
    module = _loaded(built)
    obstacle = module.take_over_openmp(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
    if obstacle:
        raise ExecutionError(f"the native engine cannot serve torch's OpenMP: {obstacle}")
    cores = this_process().cores
    cores.subscribe(lambda cpus: module.set_home(sorted(cpus)))
    if cores.cpus is not None:
        module.set_home(sorted(cores.cpus))
    cores.add_pinner(module)
    stand_ins_rest.append(module.rest)
    if not module.install_arena():
        _logger.warning("tensors stay with malloc: the system gives no region for them; peaks of memory are higher")
    return module


@cache
def has_engine() -> bool:
    """Return whether plans can run on this machine; the first call may compile it, and says why they cannot."""
    try:
        native_library()
    except ExecutionError as error:
        _logger.warning("no plans are made, only PyTorch's memory formats and other libraries are tried: %s", error)
        return False
    return True


def loaded_library() -> ModuleType | None:
    """Return the library if this process has loaded it already, else None. Never compiles."""
    return _library() if _library.cache_info().currsize else None


def lead_to_lanes(library: Path) -> bool:
    """Have the engine's threads run the parallel regions of a loaded library, where it uses torch's OpenMP library.

    False: the engine is not loaded, so that this has to be asked again.
    """
    if (engine := loaded_library()) is None:
        return False
    if obstacle := engine.take_over_openmp(str(library)):
        _logger.info("%s keeps its own threads: %s", printable(str(library)), obstacle)
    return True


def in_step() -> bool:
    """Return whether the calling thread runs an operator of a native engine's step: no other step can begin there."""
    return (library := loaded_library()) is not None and bool(library.in_step())


def return_free_memory() -> None:
    """Return all memory that is free now to the system, once, from malloc and from the tensors' region.

    Call this when another pattern of memory use begins. Memory that is used again costs page faults.
    """
    if (library := loaded_library()) is not None:
        library.trim_arena()
    return_freed_memory()


def library_folder() -> Path:
    """Return the folder of the library that fits this version of sources, flags, torch and Python."""
    digest = hashlib.sha256(repr((FLAGS, torch.__version__, torch.version.git_version)).encode())
    for source in sorted(SOURCES.iterdir()):
        digest.update(source.name.encode() + source.read_bytes())
    version = f"{torch.__version__}-{sysconfig.get_config_var('SOABI')}-{digest.hexdigest()[:16]}"
    folder: Path = Settings.read()["engine.cache"]
    return folder / version


def _build(built: Path) -> None:
    compiler()
    try:
        built.parent.mkdir(parents=True, exist_ok=True)
        lock = (built.parent / "lock").open("w")
    except OSError as error:
        raise ExecutionError(f"{built.parent} cannot be written: {error.strerror}; set engine.cache") from error
    global _locked
    with lock:
        _locked = lock
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)  # given up by the kernel when its holder dies
        except OSError as error:
            raise ExecutionError(f"{lock.name} cannot be locked: {error.strerror}; set engine.cache") from error
        try:
            _build_alone(built)
        finally:
            _locked = None
            fcntl.flock(lock, fcntl.LOCK_UN)  # closing it would not where a process was forked meanwhile


def _build_alone(built: Path) -> None:
    if built.is_file():
        return  # another process has just made it
    for left in built.parent.glob(f"{DRAFT}*"):  # by one that was killed
        shutil.rmtree(left, ignore_errors=True)
    _logger.warning(
        "compiling the native engine into %s, once; this takes about a minute", printable(str(built.parent))
    )
    try:
        with draft_folder(built.parent) as folder:
            _compile(folder)
            os.replace(folder / built.name, built)
    except OSError as error:  # the disk is full
        raise ExecutionError(f"{built.parent} cannot be written: {error.strerror}; set engine.cache") from error


@contextmanager
def draft_folder(parent: Path) -> Iterator[Path]:
    """A new folder in `parent`, to compile in; removed at the end.

    Not `TemporaryDirectory`: a process that is forked meanwhile would remove it when it ends.
    """
    folder = tempfile.mkdtemp(prefix=DRAFT, dir=parent)
    try:
        yield Path(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _compile(folder: Path) -> None:
    """Compile all sources as one: nearly all of a compiler's time goes into torch's headers, which all of them need.

    By the compiler's own command, with the flags of `torch.utils.cpp_extension` of PyTorch 2.11 to 2.13, which needs
    ninja and setuptools and takes no names that are not UTF-8.
    """
    whole, built = folder / f"{NAME}.cpp", folder / f"{NAME}.so"
    whole.write_bytes(b"".join(b'#include "%b"\n' % bytes(source) for source in sorted(SOURCES.glob("*.cpp"))))
    includes = [*include_folders(), sysconfig.get_path("include", scheme="posix_prefix")]
    defined = f"-DTORCH_EXTENSION_NAME={NAME}", "-DTORCH_API_INCLUDE_EXTENSION_H"
    linked = f"-L{Path(torch.__file__).parent / 'lib'}", "-lc10", "-ltorch_cpu", "-ltorch", "-ltorch_python"
    included = [flag for path in includes for flag in ("-isystem", path)]
    command = [*compiler(), *defined, *included, "-fPIC", "-shared", *FLAGS, str(whole), *linked, "-o", str(built)]
    make_file(command, built, "the native engine")


def include_folders() -> tuple[str, str]:
    """Folders of PyTorch's headers."""
    headers = Path(torch.__file__).parent / "include"
    return str(headers), str(headers / "torch" / "csrc" / "api" / "include")


def compiler() -> list[str]:
    """Return the command that starts the C++ compiler; ExecutionError where there is none."""
    command = shlex.split(os.environ.get("CXX", "c++"))
    if not command or shutil.which(command[0]) is None:
        raise ExecutionError("there is no C++ compiler; install one (Debian: g++) or set CXX")
    return command


def make_file(command: Sequence[str], built: Path, what: str) -> None:
    """Run `command`, which must make the file `built`, a library; `what` names the file in errors.

    The command runs in a process group of its own, which ends with this call or with this process. ExecutionError where
    the command fails, leaves no file, or takes longer than the setting `engine.compile_timeout_s`, and before it where
    no library could be loaded from the folder.
    """
    with tempfile.TemporaryFile(dir=built.parent) as probe:
        probe.write(b"a library's place")
        probe.flush()
        _require_executable(probe.fileno(), built.parent)
    timeout_s: float = Settings.read()["engine.compile_timeout_s"]
    with subprocess.Popen(
        [sys.executable, "-I", parent_process.__file__, str(os.getpid()), *command],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True, errors="replace",
        process_group=0,  # not a session: Linux weighs priorities within one, and this thread may have a low one
    ) as running:  # fmt: skip
        try:
            output, _ = running.communicate(timeout=timeout_s)
        except BaseException as error:
            _end(running)
            if isinstance(error, subprocess.TimeoutExpired):
                raise ExecutionError(
                    f"{what}: not made within {timeout_s:g} s; raise engine.compile_timeout_s"
                ) from None
            raise
    if running.returncode != 0 or not built.is_file():
        tail = "\n".join(output.strip().splitlines()[-_TAIL_LINES:])
        raise ExecutionError(f"{what} cannot be made:\n{tail}")


def _require_executable(file: int, folder: Path) -> None:
    """Raise ExecutionError where the system runs no code from this open file in `folder`, as it does for a library."""
    try:
        mmap.mmap(file, 1, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_EXEC).close()
    except OSError as error:
        raise ExecutionError(
            f"no library can be loaded from {folder}: its file system is mounted noexec, or maps no files into memory "
            f"({error.strerror}); set engine.cache to a folder of another one"
        ) from error


def _end(running: subprocess.Popen[str]) -> None:
    """End the command's process group."""
    for ending in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(running.pid, ending)
        with suppress(subprocess.TimeoutExpired):
            running.communicate(timeout=_END_S)  # until none of them holds the output any more
            return


def _loaded(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(NAME, path)
    assert spec is not None
    assert spec.loader is not None
    try:
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    except ImportError as error:
        with path.open("rb") as file:
            _require_executable(file.fileno(), path.parent)
        raise ExecutionError(f"{path} cannot be loaded: {error}; delete it to have it made anew") from error
    return module
