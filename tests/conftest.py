"""What holds for all tests."""

from __future__ import annotations

import gc
import logging
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

os.environ.setdefault("OMP_WAIT_POLICY", "passive")
"""Threads that wait sleep, else they would take cores from other tests. OpenMP reads it when PyTorch is imported."""

settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")

ENGINE = ("databases", "malleable", "runtime", "test_documents.py", "test_notebooks.py")
"""Folders and files with tests that run the native engine."""


def pytest_sessionstart() -> None:
    """Keep the compiled engine in the checkout, and let Ctrl-C reach the tests that send it.

    Shells start what runs in the background with Ctrl-C ignored.
    """
    gc.disable()  # until all libraries and tests are imported
    os.environ.setdefault("THREADCAST_ENGINE_CACHE", str(Path(__file__).parents[1] / "build" / "native"))
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_xdist_auto_num_workers() -> int:
    """Processes of `-n auto`: one more than cores, as tests wait; at most 8, as each takes a gigabyte of memory."""
    return min(len(os.sched_getaffinity(0)) + 1, 8)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Compile the native engine where a test needs it, and spare all tests two costs that none of them is about."""
    if session.config.option.collectonly:
        return
    here = Path(__file__).parent
    if any(item.path.relative_to(here).parts[0] in ENGINE for item in session.items):
        _compile_engine()
    _leave_out_pytorchs_trace()
    gc.freeze()  # libraries and tests live as long as the process; collections would go through them each time
    gc.enable()


def _compile_engine() -> None:
    """Compile the native engine before the first test that needs it: on a busy machine it takes longer than a test may.

    It is compiled once for each version of its sources, and taken from the user's cache where `make setup` has put it.
    Where there is no compiler, tests are skipped or do without.
    """
    from threadcast.runtime.engine.native import library

    built = library.library_folder() / f"{library.NAME}.so"
    if built.is_file():
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("THREADCAST_ENGINE_CACHE")
        users = library.library_folder() / built.name
    if users.is_file():
        built.parent.mkdir(parents=True, exist_ok=True)
        draft = built.with_name(f"{built.name}.{os.getpid()}")  # other workers do the same
        shutil.copyfile(users, draft)
        os.replace(draft, built)
    else:
        program = f"from {library.__name__} import native_library; native_library()"
        subprocess.run([sys.executable, "-c", program], check=False)


def _leave_out_pytorchs_trace() -> None:
    """Let PyTorch describe its compilations (guards, graphs, sources) to nobody, as outside of tests.

    It does so where its logger of traces has a handler, and pytest gives one to each logger that does not propagate.
    """
    if "torch" in sys.modules:
        logging.getLogger("torch.__trace").propagate = True


@pytest.fixture(scope="module", autouse=True)
def nothing_to_collect() -> Iterator[None]:
    """What a file leaves, as libraries that it has imported, stays: later collections do not go through it."""
    yield
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module")
def one_library_thread() -> Iterator[None]:
    """Linear algebra and the libraries that fit models use one thread.

    Where other processes use the cores, several would wait for each other, and take up to ten times as long.
    """
    import sklearn.ensemble  # noqa: F401 - a library that is loaded later would not be limited
    import xgboost  # noqa: F401
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1):
        yield


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """A PostgreSQL server for the session; what needs it is marked `system`."""
    from tests.postgres import running

    with running() as server:
        yield server
