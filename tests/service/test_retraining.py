"""When the service retrains, and that it does so beside answering."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from tests.models.synthetic_ops import make_ops, measure_all
from tests.models.test_retraining import slower
from tests.service.test_server import LONG_S, Running, arguments, refused, running
from tests.waiting import eventually
from threadcast.core import Machine, Measurement
from threadcast.core.errors import ModelError
from threadcast.core.holding import all_that_holds
from threadcast.models.golden_set import GoldenSet, read_golden_set
from threadcast.models.learned_curve import LearnedCurve
from threadcast.models.measured import group
from threadcast.models.registry import ModelRegistry
from threadcast.models.retraining import held_out
from threadcast.service import retrainer as retrainer_module
from threadcast.service.retrainer import Retrainer, stored_ops
from threadcast.service.retraining import pause_s, watch
from threadcast.service.settings import ServiceSettings
from threadcast.store import Store


@pytest.fixture(scope="module")
def measured() -> list[Measurement]:
    return list(measure_all(make_ops(60)))


@pytest.fixture(scope="module")
def fitted(measured: list[Measurement]) -> LearnedCurve:
    return LearnedCurve(trees=20, samples=0).fit(measured)


@pytest.fixture(scope="module")
def measured_store(tmp_path_factory: pytest.TempPathFactory, measured: list[Measurement]) -> Path:
    """A store that holds `measured`, to be copied: making one waits for the disk many times."""
    path = tmp_path_factory.mktemp("measured") / "store.sqlite"
    with Store.open(path) as store:
        store.add(measured)
    return path


@pytest.fixture
def place(tmp_path: Path, measured_store: Path, fitted: LearnedCurve) -> ServiceSettings:
    """A store, and a registry with a champion that learned from it."""
    registry = ModelRegistry(tmp_path / "models")
    registry.set_alias("champion", registry.save(fitted, trained_on={}, metrics={}))
    shutil.copy(measured_store, tmp_path / "store.sqlite")
    return ServiceSettings(store=tmp_path / "store.sqlite", models=tmp_path / "models")


def retrainer(store: Store, place: ServiceSettings, *, every_s: float = 0.0, drift: float = 0.0) -> Retrainer:
    return Retrainer(store, ModelRegistry(place.models), "champion", every_s, drift, trained_s=0.0)


def test_on_schedule_it_retrains_when_there_is_something_new(
    place: ServiceSettings, measured: list[Measurement]
) -> None:
    with Store.open(place.store) as store:
        trainer = retrainer(store, place, every_s=60.0)
        assert trainer.step(100.0) is None  # nothing new
        store.add(slower(measured, 2.0))
        assert trainer.step(59.0) is None  # not yet
        assert trainer.step(60.0) == "learned_curve@2"
        assert trainer.step(1e6) is None  # nothing new
    registry = ModelRegistry(place.models)
    assert [move.version for move in registry.history("champion")] == ["learned_curve@1", "learned_curve@2"]
    manifest = registry.manifest("champion")
    assert manifest.trained_on["retrained_from"] == "learned_curve@1"
    assert manifest.metrics["held out"]["accuracy"] > 0.5


def test_it_retrains_when_measurements_drift(place: ServiceSettings, measured: list[Measurement]) -> None:
    with Store.open(place.store) as store:
        trainer = retrainer(store, place, drift=1.5)
        store.add(slower(measured, 1.01))
        assert trainer.step(1.0) is None
        store.add(slower(measured, 3.0)[:2])  # too few to tell
        store.add(slower(measured, 3.0))
        assert trainer.step(2.0) == "learned_curve@2"


def test_a_candidate_that_is_no_better_is_not_registered(place: ServiceSettings, measured: list[Measurement]) -> None:
    with Store.open(place.store) as store:
        trainer = retrainer(store, place, every_s=1.0)
        store.add(measured[:1])
        assert trainer.step(2.0) is None
    registry = ModelRegistry(place.models)
    assert registry.versions() == ["learned_curve@1"]


def test_a_server_retrains_beside_answering_and_one_call_goes_back(
    place: ServiceSettings, measured: list[Measurement], tmp_path: Path
) -> None:
    (tmp_path / "threadcast.toml").write_text("[service]\nretrain_drift = 1.5\n")

    def champion() -> str:
        return str(json.loads(server.get("/health/ready").data)["model"])

    with running(place, tmp_path) as server:
        assert champion() == "learned_curve@1"
        assert eventually(lambda: value(server, 'retrainer_holds_store{alias="champion"}') == 1, LONG_S)
        with Store.open(place.store) as store:
            store.add(slower(measured, 3.0))
        assert eventually(lambda: champion() == "learned_curve@2", LONG_S)
        assert value(server, 'retraining_runs_total{alias="champion",outcome="promoted"}') == 1
        assert value(server, 'retraining_runs_total{alias="champion",outcome="failed"}') == 0
        assert value(server, 'retraining_candidates_total{alias="champion",verdict="better"}') == 1
        assert value(server, 'retraining_seconds_count{alias="champion"}') == 1
        assert value(server, f'drift_factor{{kind="",machine="{measured[0].machine.fingerprint}"}}') > 1.5
        assert server.post("/v1/models/aliases/champion/rollback", {}).status == 200
        assert champion() == "learned_curve@1"
        server.process.terminate()
        server.process.wait(LONG_S)
        assert not server.left()
    assert "champion is learned_curve@2, in place of learned_curve@1" in server.errors


def test_one_version_cannot_be_retrained(place: ServiceSettings, tmp_path: Path) -> None:
    (tmp_path / "threadcast.toml").write_text("[service]\nretrain_every_s = 60\n")
    line = refused(arguments(place, "--model", "learned_curve@1"), tmp_path)
    assert "retraining moves an alias" in line


def value(server: Running, metric: str) -> float:
    """The value of `threadcast_<metric>` on the page of metrics, NaN where it is not there."""
    found = re.search(rf"^threadcast_{re.escape(metric)} (\S+)$", server.get("/metrics").data.decode(), re.MULTILINE)
    return float(found[1]) if found else float("nan")


def test_what_holds_is_read_a_few_ops_at_a_time(
    place: ServiceSettings, measured: list[Measurement], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retrainer_module, "OPS_AT_ONCE", 7)
    with Store.open(place.store) as store:
        store.add(slower(measured, 2.0))
        most = 0
        read = store.measurements
        expected = group(all_that_holds(read(), store.changes))

        def counted(**conditions: object) -> list[Measurement]:
            nonlocal most
            found = read(**conditions)  # type: ignore[arg-type]
            most = max(most, len(found))
            return found

        monkeypatch.setattr(Store, "measurements", lambda self, **conditions: counted(**conditions))
        assert list(stored_ops(store)) == list(expected)
    assert 0 < most <= 7 * 2 * len({m.case for m in measured})


def on(machine: str, measured: list[Measurement]) -> list[Measurement]:
    """The same measurements on another machine of this name."""
    return [replace(m, machine=Machine(machine, m.machine.cores, m.machine.caches)) for m in measured]


def test_one_kind_that_drifts_on_one_machine_is_enough(place: ServiceSettings, measured: list[Measurement]) -> None:
    kinds = sorted({m.op.kind for m in measured})
    with Store.open(place.store) as store:
        trainer = retrainer(store, place, drift=1.5)
        assert trainer.step(1.0) is None
        store.add([m for m in measured if m.op.kind != kinds[0]])  # most of the new times are as forecast
        assert trainer.step(2.0) is None
        store.add(slower([m for m in measured if m.op.kind == kinds[0]], 4.0))
        trainer.step(3.0)
        assert trainer.trained_to == store.last_measurement()
    drifts = trainer.metrics.registry.get_sample_value
    machine = measured[0].machine.fingerprint
    assert (drifts("threadcast_drift_factor", {"machine": machine, "kind": kinds[0]}) or 0) > 1.5
    assert (drifts("threadcast_drift_factor", {"machine": machine, "kind": kinds[1]}) or 9) < 1.5


def test_what_forgets_a_machine_of_the_golden_set_is_not_promoted(
    place: ServiceSettings, measured: list[Measurement], tmp_path: Path
) -> None:
    """The store of the second retraining has nothing of the first machine any more, as after a retention."""
    with Store.open(place.store) as store:
        trainer = retrainer(store, place, every_s=1.0)
        store.add(slower(measured, 2.0))
        assert trainer.step(2.0) == "learned_curve@2"
    golden = read_golden_set(place.models / "golden" / "champion.json")
    assert len(golden.entries) >= 4
    assert {entry.op.key for entry in golden.entries} <= {entry.op.key for entry in held_out(group(measured))}
    with Store.open(tmp_path / "pruned.sqlite") as store:
        store.add(slower(measured, 2.0)[:1])
        trainer = retrainer(store, replace(place, store=tmp_path / "pruned.sqlite"), every_s=1.0)
        store.add(slower(on("fast", measured), 0.01))
        assert trainer.step(4.0) is None
    count = trainer.metrics.registry.get_sample_value
    judged = "threadcast_retraining_candidates_total"
    assert count(judged, {"alias": "champion", "verdict": "lowers_golden"}) == 1
    assert ModelRegistry(place.models).resolve("champion") == "learned_curve@2"
    kept = read_golden_set(place.models / "golden" / "champion.json")
    assert {entry.machine.name for entry in kept.entries} == {measured[0].machine.name, "fast"}


def test_a_golden_set_keeps_its_ops_takes_newer_times_and_is_bounded(
    measured: list[Measurement], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = group(measured)
    golden = GoldenSet().renewed(entries[:3])
    assert GoldenSet.from_json(json.loads(json.dumps(golden.to_json()))) == golden
    slow = group(slower(measured, 3.0))
    newer = golden.renewed([replace(slow[1], by_case=dict(list(slow[1].by_case.items())[:1]))])
    assert [entry.op for entry in newer.entries] == [entry.op for entry in golden.entries]
    factors = [new.seconds / old.seconds for new, old in zip(
        newer.entries[1].by_case.values(), golden.entries[1].by_case.values(), strict=True)]  # fmt: skip
    assert factors == pytest.approx([3.0, *[1.0] * (len(factors) - 1)])
    monkeypatch.setattr("threadcast.models.golden_set.MOST_OPS", 4)
    assert [entry.op for entry in golden.renewed(entries).entries] == [entry.op for entry in entries[:4]]


def test_a_run_that_fails_is_counted_and_not_repeated_until_there_is_more(
    place: ServiceSettings, measured: list[Measurement], tmp_path: Path
) -> None:
    with Store.open(tmp_path / "few.sqlite") as store:
        store.add(measured[:1])
        trainer = retrainer(store, replace(place, store=tmp_path / "few.sqlite"), every_s=1.0)
        store.add(measured[1:3])
        with pytest.raises(ModelError):
            trainer.step(2.0)
        assert trainer.step(9.0) is None
    runs = trainer.metrics.registry.get_sample_value
    assert runs("threadcast_retraining_runs_total", {"alias": "champion", "outcome": "failed"}) == 1


def test_a_process_that_takes_over_knows_what_is_new(place: ServiceSettings, measured: list[Measurement]) -> None:
    with Store.open(place.store) as store:
        retrainer(store, place, every_s=60.0)  # it ends before it could train
        store.add(slower(measured, 2.0))
        assert retrainer(store, place, every_s=60.0).step(60.0) == "learned_curve@2"
        assert retrainer(store, place, every_s=60.0).step(60.0) is None  # nothing new


def test_an_alias_does_not_move_where_another_process_took_the_store(
    place: ServiceSettings, measured: list[Measurement]
) -> None:
    with Store.open(place.store) as store:
        trainer = replace(retrainer(store, place, every_s=60.0), holds=lambda: False)
        store.add(slower(measured, 2.0))
        assert trainer.step(60.0) is None
    assert ModelRegistry(place.models).resolve("champion") == "learned_curve@1"


def test_pauses_double_up_to_five_minutes() -> None:
    assert [pause_s(ends) for ends in (1, 2, 3, 9, 10, 400)] == [1, 2, 4, 256, 300, 300]


def test_a_retraining_process_that_is_killed_is_started_again_and_one_of_two_services_trains(
    place: ServiceSettings, measured: list[Measurement], tmp_path: Path
) -> None:
    (tmp_path / "threadcast.toml").write_text("[service]\nretrain_drift = 1.5\n")
    held = 'retrainer_holds_store{alias="champion"}'
    with ExitStack() as stack:
        first = stack.enter_context(running(place, tmp_path))
        assert eventually(lambda: value(first, held) == 1, LONG_S)
        second = stack.enter_context(running(place, tmp_path))
        assert eventually(lambda: value(second, held) == 0, LONG_S)
        (killed,) = training(first)
        os.kill(killed, signal.SIGKILL)
        assert eventually(lambda: value(second, held) == 1, LONG_S)  # the kernel released the lock
        assert eventually(lambda: training(first) not in ([], [killed]), LONG_S)
        assert eventually(lambda: value(first, held) == 0, LONG_S)
        assert value(first, 'retrainer_restarts_total{alias="champion"}') == 1
        with Store.open(place.store) as store:
            store.add(slower(measured, 3.0))
        assert eventually(lambda: value(second, 'retraining_seconds_count{alias="champion"}') == 1, LONG_S)
        assert value(first, 'retraining_seconds_count{alias="champion"}') != 1
    assert "ended with signal SIGKILL; it is started again in 1 s" in first.errors
    registry = ModelRegistry(place.models)
    assert [move.by for move in registry.history("champion")] == ["", "retraining"]


def test_a_retraining_process_that_cannot_be_started_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pauses = list[float]()

    def no_memory(*_: object, **__: object) -> None:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    def sleep(pause: float) -> None:
        pauses.append(pause)
        if len(pauses) == 3:
            sys.exit()

    monkeypatch.setattr(subprocess, "Popen", no_memory)
    monkeypatch.setattr(time, "sleep", sleep)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(SystemExit):
        watch({"alias": "champion", "stall_s": "1"})
    assert pauses == [1.0, 2.0, 4.0]
    assert "the retraining process cannot be started: Cannot allocate memory; it is started again in 4 s" in caplog.text
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_retraining_process_that_hangs_is_killed_and_started_again(place: ServiceSettings, tmp_path: Path) -> None:
    (tmp_path / "threadcast.toml").write_text("[service]\nretrain_drift = 1.5\nretrain_stall_s = 15\n")
    with running(place, tmp_path) as server:
        assert eventually(lambda: value(server, 'retrainer_holds_store{alias="champion"}') == 1, LONG_S)
        (hanging,) = training(server)
        os.kill(hanging, signal.SIGSTOP)  # alive, holding the store's lock, and getting nowhere
        assert eventually(lambda: training(server) not in ([], [hanging]), 15 + LONG_S)
        assert value(server, 'retrainer_restarts_total{alias="champion"}') == 1
        assert eventually(lambda: value(server, 'retrainer_holds_store{alias="champion"}') == 1, LONG_S)
    assert "made no progress for 15.0 s and is killed" in server.errors


def test_the_end_of_a_service_that_retrains_leaves_a_store_of_one_file(
    place: ServiceSettings, measured: list[Measurement], tmp_path: Path
) -> None:
    (tmp_path / "threadcast.toml").write_text("[service]\nretrain_drift = 99\n")
    with running(place, tmp_path) as server:
        assert eventually(lambda: value(server, 'retrainer_holds_store{alias="champion"}') == 1, LONG_S)
        with Store.open(place.store) as store:
            store.add(measured)
        assert server.stop(signal.SIGTERM) == 0
        assert not server.left()
    assert not Path(f"{place.store}-wal").exists()
    assert not Path(f"{place.store}-shm").exists()


def test_a_run_says_that_it_gets_on(place: ServiceSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retrainer_module, "OPS_AT_ONCE", 7)
    signs = []
    with Store.open(place.store) as store:
        replace(retrainer(store, place), progress=lambda: signs.append(1)).retrain()
    assert len(signs) == 9 + 2  # after each 7 of the 60 ops or fewer, training, and judging


def training(server: Running) -> list[int]:
    """The process ids of what trains beside a server."""

    def children(pid: int) -> list[int]:
        try:
            return [int(found) for found in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
        except OSError:
            return []

    return [
        child for watching in children(server.process.pid)
        if b"retraining\x00watch" in Path(f"/proc/{watching}/cmdline").read_bytes()
        for child in children(watching)
    ]  # fmt: skip
