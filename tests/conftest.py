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

settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")

SLOW = frozenset(
    (
        "capture/test_optimizer_settings.py",
        "cli/test_corun_tables.py",
        "cli/test_demo.py",
        "cli/test_doctor.py",
        "cli/test_model_commands.py",
        "cli/test_profile_command.py",
        "cli/test_run.py",
        "collector/test_cachegrind.py",
        "collector/test_rotation.py",
        "databases/test_databases.py",
        "malleable/test_attached.py",
        "malleable/test_deadlines.py",
        "malleable/test_family.py",
        "malleable/test_lending.py",
        "malleable/test_limits.py",
        "malleable/test_sockets.py",
        "models/test_artefact_fuzz.py",
        "models/test_correction.py",
        "models/test_evaluation.py",
        "models/test_learned_curve.py",
        "models/test_model_contract.py",
        "models/test_nothing_unpickles.py",
        "models/test_per_case.py",
        "models/test_registry_faults.py",
        "models/test_retraining.py",
        "models/test_tuned.py",
        "networks/test_builtin_networks.py",
        "runtime/backends/test_backends.py",
        "runtime/backends/test_found_backends.py",
        "runtime/backends/test_in_bfloat16.py",
        "runtime/backends/test_search.py",
        "runtime/bundles/test_bundles_refused.py",
        "runtime/compile_backend/test_channels_last.py",
        "runtime/compile_backend/test_collectives.py",
        "runtime/compile_backend/test_cores.py",
        "runtime/compile_backend/test_ddp.py",
        "runtime/compile_backend/test_fallback.py",
        "runtime/compile_backend/test_graphs.py",
        "runtime/compile_backend/test_inference.py",
        "runtime/compile_backend/test_loops.py",
        "runtime/compile_backend/test_short_way_autograd.py",
        "runtime/compile_backend/test_training.py",
        "runtime/compile_backend/test_unused_results.py",
        "runtime/engines/native/test_arena.py",
        "runtime/engines/native/test_library.py",
        "runtime/engines/native/test_native_engine.py",
        "runtime/engines/native/test_random_networks.py",
        "runtime/engines/test_engine_failures.py",
        "runtime/engines/test_engine_life.py",
        "runtime/engines/test_engine_results.py",
        "runtime/engines/test_step_memory.py",
        "fleet/test_cluster.py",
        "runtime/fusion/test_fuse.py",
        "runtime/loops/test_matrix.py",
        "runtime/plans/test_malleable_plan.py",
        "runtime/test_changing_loss.py",
        "runtime/test_kinds_of_operators.py",
        "runtime/test_optimize.py",
        "runtime/test_optimize_changes.py",
        "runtime/test_optimizer_numbers.py",
        "runtime/test_parts.py",
        "runtime/test_plain_gains.py",
        "runtime/test_resize.py",
        "runtime/test_settled_optimizers.py",
        "runtime/test_size_families.py",
        "runtime/test_stale_weights.py",
        "runtime/verification/test_differences.py",
        "runtime/verification/test_optimised_results.py",
        "runtime/verification/test_shadow.py",
        "scheduler/search/test_denoising.py",
        "scheduler/search/test_search.py",
        "scheduler/test_compile_planner.py",
        "service/test_bounded_work.py",
        "service/test_compose.py",
        "service/test_dashboard_browser.py",
        "service/test_logs.py",
        "service/test_monitoring.py",
        "service/test_mutated_bodies.py",
        "service/test_pages.py",
        "service/test_postgresql.py",
        "service/test_rate_limits.py",
        "service/test_server.py",
        "service/test_slow_clients.py",
        "service/test_traces.py",
        "service/test_worker_machine.py",
        "store/test_recorded.py",
        "store/test_store_processes.py",
        "test_documents.py",
        "test_notebooks.py",
    )
)
"""Files whose tests took over 4 s together on two cores, marked `slow`: `make test-fast` leaves them out."""


ENGINE = ("databases", "malleable", "runtime", "test_documents.py", "test_notebooks.py")
"""Folders and files with tests that run the native engine."""


def pytest_sessionstart() -> None:
    """Keep the compiled engine in the checkout, and let Ctrl-C reach the tests that send it.

    Shells start what runs in the background with Ctrl-C ignored.
    """
    os.environ.setdefault("THREADCAST_ENGINE_CACHE", str(Path(__file__).parents[1] / "build" / "native"))
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the tests of slow files. Several processes begin with these, so that none works alone long at the end."""
    here = Path(__file__).parent
    for item in items:
        if item.path.relative_to(here).as_posix() in SLOW:
            item.add_marker(pytest.mark.slow)
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: item.get_closest_marker("slow") is None)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Compile the native engine where a test needs it, and spare all tests two costs that none of them is about."""
    if session.config.option.collectonly:
        return
    here = Path(__file__).parent
    if any(item.path.relative_to(here).parts[0] in ENGINE for item in session.items):
        _compile_engine()
    _leave_out_pytorchs_trace()
    gc.collect()
    gc.freeze()  # libraries and tests live as long as the process; collections would go through them each time


def _compile_engine() -> None:
    """Compile the native engine before the first test that needs it: on a busy machine it takes longer than a test may.

    It is compiled once for each version of its sources, and taken from the user's cache where `make setup` has put it.
    Where there is no compiler, tests are skipped or do without.
    """
    from threadcast.runtime.engines.native import library

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
    """A PostgreSQL server for the session; skipped, with the reason, where there can be none."""
    from tests.postgres import running

    with running() as server:
        yield server
