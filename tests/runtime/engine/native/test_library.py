"""Compiling on first use: what stands in the way is told, and nothing half-made is left."""

from __future__ import annotations

import _ctypes
import errno
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from functools import _lru_cache_wrapper
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils import cpp_extension

from tests.runtime.compiler import needs_compiler
from tests.waiting import HANGS_S, eventually
from threadcast.capture.graph.capture import capture_forward
from threadcast.core.errors import ExecutionError
from threadcast.runtime.engine.engine import why_not
from threadcast.runtime.engine.native import library
from threadcast.runtime.engine.native.compilations import Compilations
from threadcast.runtime.engine.native.library import has_engine, native_library

pytestmark = needs_compiler


@pytest.fixture
def uncached() -> Iterator[None]:
    """What is known of the library is forgotten before and after."""
    caches: tuple[_lru_cache_wrapper[Any], ...] = (library._library, has_engine)
    for function in caches:
        function.cache_clear()
    yield
    for function in caches:
        function.cache_clear()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uncached: None) -> Path:
    """An empty cache."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("THREADCAST_ENGINE_CACHE", str(folder))
    return folder


def compiler(path: Path, script: str) -> Path:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def left(cache: Path) -> list[str]:
    return sorted(path.name for path in cache.rglob("*") if path.is_file() and path.name != "lock")


@pytest.mark.parametrize(
    ("cxx", "folder", "said"),
    [
        ("/nonexistent/c++", "cache", r"no C\+\+ compiler"),
        ("echo this machine is too old >&2; exit 1", "cache", r"cannot be made:\nthis machine is too old"),
        ("exit 1", "/dev/null/cache", r"cannot be written.*engine\.cache"),
    ],
)
def test_what_stands_in_the_way_is_told_and_leaves_nothing(
    cxx: str, folder: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uncached: None
) -> None:
    monkeypatch.setenv("THREADCAST_ENGINE_CACHE", str(tmp_path / folder))
    monkeypatch.setenv("CXX", cxx if cxx.startswith("/") else str(compiler(tmp_path / "cxx", cxx)))
    with pytest.raises(ExecutionError, match=said):
        native_library()
    assert left(tmp_path / folder) == []


LOADED = "from threadcast.runtime.engine.native.library import native_library; native_library()"


@pytest.mark.needs_root
@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount")
@pytest.mark.parametrize("compiled", [False, True])
def test_a_cache_from_which_nothing_can_be_loaded_is_told_before_anything_is_compiled(
    cache: Path, tmp_path: Path, compiled: bool
) -> None:
    cache.mkdir()
    told, built = tmp_path / "told", library.library_folder() / f"{library.NAME}.so"
    fill = f"install -D {_ctypes.__file__} {built}" if compiled else "true"
    mounted = f'mount -t tmpfs -o noexec none {cache} && {fill} && exec "$0" -c "{LOADED}"'
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", mounted, sys.executable], capture_output=True, text=True,
        env={**os.environ, "CXX": str(compiler(tmp_path / "cxx", f"touch {told}; exit 1"))},
    )  # fmt: skip
    if "permi" in done.stderr.splitlines()[0]:
        pytest.skip(done.stderr)
    said = done.stderr.splitlines()[-1]
    assert f"ExecutionError: no library can be loaded from {cache}/" in said
    assert "mounted noexec" in said
    assert "set engine.cache" in said
    assert not told.exists()


def test_the_compiler_is_called_as_pytorch_would_also_in_a_folder_whose_name_is_not_utf_8(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uncached: None
) -> None:
    told = tmp_path / "told"
    monkeypatch.setenv("THREADCAST_ENGINE_CACHE", str(tmp_path / "cache \udcff"))
    monkeypatch.setenv("CXX", str(compiler(tmp_path / "cxx", f'printf "%s\\n" "$@" > {told}; exit 1')))
    with pytest.raises(ExecutionError, match="cannot be made"):
        native_library()
    given = os.fsdecode(told.read_bytes()).splitlines()
    assert str(tmp_path / "cache \udcff") in given[-1]
    assert {*library.FLAGS, "-shared", "-fPIC", f"-DTORCH_EXTENSION_NAME={library.NAME}"} <= set(given)
    folders = [given[at + 1] for at, flag in enumerate(given) if flag == "-isystem"]
    assert folders[:2] == cpp_extension.include_paths("cpu")
    assert (Path(folders[2]) / "Python.h").is_file()
    assert [flag for flag in given if flag.startswith("-l")] == ["-lc10", "-ltorch_cpu", "-ltorch", "-ltorch_python"]


def test_a_compiler_that_hangs_is_ended_with_all_that_it_started(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = tmp_path / "started"
    monkeypatch.setenv("CXX", str(compiler(tmp_path / "cxx", f"trap '' TERM; echo $$ >> {started}; exec sleep 600")))
    monkeypatch.setattr(library, "_END_S", 0.2)  # until what ignores a signal gets another
    for limit_s in (1, 4, 16, 64, 256):  # until it is long enough for the compiler to begin
        monkeypatch.setenv("THREADCAST_ENGINE_COMPILE_TIMEOUT_S", str(limit_s))
        with pytest.raises(ExecutionError, match=f"not made within {limit_s} s"):
            native_library()
        assert left(cache) == []
        if processes := processes_in(started):
            break
    assert processes
    for process in processes:
        assert ended(process)


def test_a_process_killed_while_it_compiles_leaves_no_compiler_and_the_next_one_clears_up(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = tmp_path / "started"
    compiling = {"CXX": str(compiler(tmp_path / "cxx", f"echo $$ >> {started}; exec sleep 600"))}
    code = "from threadcast.runtime.engine.native.library import native_library; native_library()"
    with subprocess.Popen([sys.executable, "-c", code], env={**os.environ, **compiling}) as process:
        assert eventually(lambda: process.poll() is not None or processes_in(started))  # it imports torch twice
        assert process.poll() is None
        process.kill()
    for left_over in processes_in(started):
        assert ended(left_over)
    assert list(cache.glob("*/build-*"))
    monkeypatch.setenv("CXX", str(compiler(tmp_path / "cxx", "exit 1")))
    with pytest.raises(ExecutionError, match="cannot be made"):
        native_library()
    assert not list(cache.glob("*/build-*"))


def processes_in(started: Path) -> list[int]:
    return [int(process) for process in started.read_text().split()] if started.exists() else []


def ended(process: int) -> bool:
    def is_gone() -> bool:
        try:
            return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
        except FileNotFoundError:
            return True

    return eventually(is_gone)


def test_a_disk_that_is_full_while_it_is_compiled_is_told(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(library, "_compile", fails)
    with pytest.raises(ExecutionError, match=r"cannot be written: No space left.*engine\.cache"):
        native_library()
    assert not has_engine()
    assert left(cache) == []


def test_a_damaged_library_is_told(cache: Path) -> None:
    built = library.library_folder() / f"{library.NAME}.so"
    built.parent.mkdir(parents=True)
    built.write_bytes(b"nothing")
    with pytest.raises(ExecutionError, match="delete it"):
        native_library()


def test_without_a_library_no_plan_is_made_and_the_reason_is_said_once(
    cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CXX", "/nonexistent/c++")
    captured = capture_forward(lambda x: x * 2 + 1, torch.ones(4))
    for _ in range(3):
        assert "cannot be had on this machine" in str(why_not(captured))
    assert caplog.text.count("no plans are made") == caplog.text.count("no C++ compiler") == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_process_that_is_forked_while_the_library_is_compiled_does_not_wait_for_itself(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started, go = tmp_path / "started", tmp_path / "go"
    script = f"touch {started}; while [ ! -e {go} ]; do sleep 0.05; done; exit 1"
    monkeypatch.setenv("CXX", str(compiler(tmp_path / "cxx", script)))
    monkeypatch.setattr(library, "_compilations", Compilations())
    assert library.is_being_compiled()
    assert eventually(started.exists)
    child = os.fork()
    if child == 0:
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(500)
            native_library()
        except ExecutionError:  # of the same compiler, which ends at once now
            os._exit(0)
        finally:
            os._exit(1)
    go.touch()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    library.wait_for_library(HANGS_S)
    assert left(cache) == []


def test_a_process_that_is_forked_and_ends_leaves_what_its_parent_compiles(cache: Path, tmp_path: Path) -> None:
    started = tmp_path / "started"
    code = """
import os, sys, time
from pathlib import Path
from threadcast.runtime.engine.engine import why_not
from threadcast.runtime.engine.native import library
from threadcast.runtime.engine.native.compilations import Compilations

assert library.is_being_compiled()
while not Path(sys.argv[1]).exists():
    time.sleep(0.05)
if (child := os.fork()) == 0:
    sys.exit()
os.waitpid(child, 0)
print(*library.library_folder().glob(library.DRAFT + "*"), flush=True)
os._exit(0)
"""
    environment = {**os.environ, "CXX": str(compiler(tmp_path / "cxx", f"touch {started}; exec sleep 600"))}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, str(started)],
        env=environment, capture_output=True, text=True, timeout=HANGS_S, check=True,
    )  # fmt: skip
    assert done.stdout.strip(), "the folder in which the library is compiled is gone"
