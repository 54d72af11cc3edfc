"""Killed at any moment, out of disk, or two at once: what is registered is whole, old or new."""

from __future__ import annotations

import os
import random
import resource
import signal
import stat
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest

from tests.models.stored_kinds import stored
from tests.waiting import HANGS_S, eventually
from threadcast.core.errors import ArtefactError, InvalidInput, NotFound
from threadcast.models import stored_files
from threadcast.models.aliases import Aliases
from threadcast.models.base import PerformanceModel
from threadcast.models.hill_climb import HillClimb
from threadcast.models.registry import ModelRegistry
from threadcast.models.registry_of_kinds import create

pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
KILLS = 50
DOZEN_KB = 12_000


@pytest.fixture
def registry(tmp_path: Path) -> ModelRegistry:
    return ModelRegistry(tmp_path / "models")


def child(work: Callable[[], object]) -> int:
    """Fork a process that does `work` and ends; its id."""
    process = os.fork()
    if process == 0:
        signal.alarm(60)
        try:
            work()
            os._exit(0)
        finally:
            os._exit(1)
    return process


def save_for_ever(registry: ModelRegistry, model: PerformanceModel) -> None:
    while True:
        registry.set_alias("champion", registry.save(model, trained_on={"ops": 8}, metrics={}))


def check_whole(registry: ModelRegistry) -> int:
    """Load the latest versions and what the alias stands for; how many versions there are."""
    versions = registry.versions()
    for version in versions[-2:]:  # the others were loaded after earlier kills, and versions never change
        assert registry.load(version).name == "ols"
    assert registry.resolve("champion") in versions
    return len(versions)


def wait_for_more_than(versions: int, registry: ModelRegistry) -> None:
    eventually(lambda: len(registry.versions()) > versions)


@pytest.mark.system
def test_a_writer_that_is_killed_at_any_moment_leaves_what_was_or_what_is_new(registry: ModelRegistry) -> None:
    model, rng = create("ols").from_files(stored("ols")), random.Random(5)
    registry.set_alias("champion", registry.save(model, trained_on={}, metrics={}))
    started_s = time.perf_counter()
    registry.save(model, trained_on={}, metrics={})
    one_s, seen = time.perf_counter() - started_s, 2
    for round_ in range(KILLS):
        process = child(lambda: save_for_ever(registry, model))
        if round_ % 2:  # else a busy machine may kill all before their first save is done
            wait_for_more_than(seen, registry)
        time.sleep(rng.uniform(0.0, 3 * one_s))  # the moment is the case
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
        found = check_whole(registry)
        assert found >= seen
        seen = found
    assert seen >= 2 + KILLS // 2
    assert registry.save(model, trained_on={}, metrics={}) == f"ols@{seen + 1}"


def test_what_a_killed_writer_leaves_is_private_and_removed_after_a_day(registry: ModelRegistry) -> None:
    process = child(lambda: _killed_while_staged(registry.root))
    os.waitpid(process, 0)
    (left,) = (registry.root / "staging").iterdir()
    assert stat.S_IMODE(left.stat().st_mode) == 0o700
    assert stat.S_IMODE((left / "model.json").stat().st_mode) == 0o600
    registry.save(HillClimb(), trained_on={}, metrics={})
    assert left.exists()
    yesterday = time.time() - stored_files.ABANDONED_S - 60
    os.utime(left, (yesterday, yesterday))
    registry.save(HillClimb(), trained_on={}, metrics={})
    assert list((registry.root / "staging").iterdir()) == []


def _killed_while_staged(root: Path) -> None:
    os.umask(0)  # the modes must not depend on it
    with stored_files.staged(root) as directory:
        stored_files.write(directory / "model.json", b"{}")
        os.kill(os.getpid(), signal.SIGKILL)


def test_what_is_registered_can_be_read_by_other_users(registry: ModelRegistry) -> None:
    before = os.umask(0o077)
    try:
        version = registry.save(HillClimb(), trained_on={}, metrics={})
        registry.set_alias("champion", version)
    finally:
        os.umask(before)
    directory = registry.root / "versions" / version
    assert stat.S_IMODE(directory.stat().st_mode) == 0o755
    files = [*directory.iterdir(), registry.root / "aliases" / "champion" / "1.json"]
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o644}


def _save_beyond_a_limit(registry: ModelRegistry, limit: int) -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    try:
        registry.save(create("random_forest").from_files(stored("random_forest")), trained_on={}, metrics={})
    except OSError:
        os._exit(7)


def test_a_file_that_cannot_be_written_whole_leaves_nothing(registry: ModelRegistry) -> None:
    largest = max(len(data) for data in stored("random_forest").values())
    for limit in (0, 100, DOZEN_KB if largest > DOZEN_KB else 500, largest - 1):
        _, status = os.waitpid(child(lambda limit=limit: _save_beyond_a_limit(registry, limit)), 0)
        assert os.waitstatus_to_exitcode(status) == 7
        assert registry.versions() == []
        assert list((registry.root / "staging").iterdir()) == []
    registry.save(HillClimb(), trained_on={}, metrics={})


def _save_at(barrier: Barrier, root: Path, interval: int) -> None:
    registry = ModelRegistry(root)
    barrier.wait(HANGS_S)
    registry.save(HillClimb(interval=interval), trained_on={}, metrics={})


def test_two_processes_that_take_the_same_number_get_two_and_lose_nothing(registry: ModelRegistry) -> None:
    context = get_context("fork")
    for round_ in range(10):
        barrier = context.Barrier(2)
        processes = [context.Process(target=_save_at, args=(barrier, registry.root, 2 + which)) for which in (0, 1)]
        for process in processes:
            process.start()
        for process in processes:
            process.join(HANGS_S)
            assert process.exitcode == 0
        pair = [f"hill_climb@{2 * round_ + 1}", f"hill_climb@{2 * round_ + 2}"]
        assert registry.versions()[-2:] == pair
        assert {registry.load(version).interval for version in pair} == {2, 3}  # type: ignore[attr-defined]


def _move_at(barrier: Barrier, registry: ModelRegistry, version: str) -> None:
    barrier.wait(HANGS_S)
    with suppress(NotFound):
        registry.set_alias("champion", version)


def _remove_at(barrier: Barrier, registry: ModelRegistry, version: str) -> None:
    barrier.wait(HANGS_S)
    with suppress(InvalidInput):
        registry.remove(version)


def test_no_alias_is_set_to_a_version_that_another_process_removes(
    registry: ModelRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Aliases.returnable

    def slowly(aliases: Aliases, alias: str) -> list[str]:  # a removal looks whether its version is needed
        found = real(aliases, alias)
        time.sleep(0.02)
        return found

    monkeypatch.setattr(Aliases, "returnable", slowly)
    registry.set_alias("champion", registry.save(HillClimb(), trained_on={}, metrics={}))
    context = get_context("fork")
    for _ in range(10):
        version, _ = (registry.save(HillClimb(), trained_on={}, metrics={}) for _ in range(2))
        barrier = context.Barrier(2)
        processes = [context.Process(target=act, args=(barrier, registry, version)) for act in (_move_at, _remove_at)]
        for process in processes:
            process.start()
        for process in processes:
            process.join(HANGS_S)
            assert process.exitcode == 0
        assert registry.load("champion").name == "hill_climb"
        assert (version in registry.versions()) == (registry.resolve("champion") == version)


def test_a_process_that_keeps_the_lock_is_an_error_in_the_end(
    registry: ModelRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry.set_alias("champion", registry.save(HillClimb(), trained_on={}, metrics={}))
    monkeypatch.setattr(stored_files, "LOCK_S", 0.1)
    with stored_files.locked(registry.root / "needed.lock"), pytest.raises(ArtefactError, match="locked by another"):
        registry.set_alias("other", "champion")
    registry.set_alias("other", "champion")


def test_an_alias_in_a_registry_that_is_not_there_makes_none(registry: ModelRegistry) -> None:
    with pytest.raises(NotFound):
        registry.set_alias("champion", "ols@1")
    assert not registry.root.exists()
