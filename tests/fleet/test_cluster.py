"""`threadcast campaign` over a real Dask cluster: a scheduler, two workers, PostgreSQL; one worker is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Literal

import pytest
from distributed import Client, Future
from tornado.ioloop import IOLoop

from tests.postgres import fresh_database
from tests.waiting import HANGS_S, eventually
from threadcast.collector.proposers import EveryCase
from threadcast.core import Op, TensorSpec
from threadcast.core.errors import MeasurementError
from threadcast.core.parent_process import end_with_parent
from threadcast.fleet.cluster import FleetCampaign
from threadcast.fleet.measuring import Manner
from threadcast.fleet.schedulers import local_cluster
from threadcast.store import Store

pytestmark = [pytest.mark.system, pytest.mark.timeout(400)]

NETWORK = """
import torch
from torch import nn

def build():
    layers = [layer for n in range(1, 13) for layer in (nn.Linear(16 * n, 16 * n + 16), nn.ReLU())]
    return nn.Sequential(*layers), (torch.randn(8, 16),)
"""

COMMAND = [sys.executable, "-c", "from threadcast.cli.main import main; main()", "campaign", "net.py:build"]
QUICK = ["--budget-s", "0.02", "--cases", "all", "--allow-shared", "--json"]


def environment(folder: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("THREADCAST_", "DASK_"))}
    kept["PYTHONFAULTHANDLER"] = "1"
    return {**kept, "PYTHONPATH": os.pathsep.join(sys.path), "TMPDIR": str(folder), "XDG_CONFIG_HOME": str(folder)}


@contextmanager
def running(command: list[str], folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A process in a session of its own, all of which is killed at the end; it ends with this one in any case."""
    with (folder / "stderr").open("a") as stderr:
        process = subprocess.Popen(
            command, cwd=folder, env=environment(folder), text=True, start_new_session=True, stdout=subprocess.PIPE,
            stderr=stderr, preexec_fn=end_with_parent,
        )  # fmt: skip
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def printed_by(process: subprocess.Popen[str], folder: Path, *, within_s: float = HANGS_S) -> str:
    """What a process of `running` printed until it ended; fails with what all of them wrote to stderr."""
    try:
        return process.communicate(timeout=within_s)[0]
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGABRT)  # tells where it hangs
        process.wait(10)
        return pytest.fail(f"not ended after {within_s:g} s; stderr:\n{(folder / 'stderr').read_text()}")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "net.py").write_text(NETWORK)
    return tmp_path


class Cluster:
    """A scheduler and workers, each a process of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._stack = folder, ExitStack()
        self._file = folder / "scheduler.json"
        self.scheduler = self._start(
            "scheduler", "--host", "127.0.0.1", "--port", "0", "--scheduler-file", str(self._file)
        )
        assert eventually(lambda: self._file.exists() and self._file.read_text().rstrip().endswith("}"))
        self.address = json.loads(self._file.read_text())["address"]

    def _start(self, *arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "dask", *arguments, "--no-dashboard"]
        return self._stack.enter_context(running(command, self._folder))

    def worker(self, host: str, *, threads: int = 1) -> subprocess.Popen[str]:
        return self._start("worker", self.address, "--no-nanny", "--nthreads", str(threads), "--host", host)

    def end(self) -> None:
        self._stack.close()


@pytest.fixture
def cluster(folder: Path) -> Iterator[Cluster]:
    made = Cluster(folder)
    yield made
    made.end()


def campaign(folder: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    done = subprocess.run(
        [*COMMAND, *QUICK, *arguments], cwd=folder, env=environment(folder), text=True, capture_output=True,
        check=False, timeout=HANGS_S,
    )  # fmt: skip
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def test_two_machines_share_the_work_and_one_that_is_killed_loses_nothing(
    folder: Path, cluster: Cluster, postgres: str
) -> None:
    url = fresh_database(postgres)
    workers = [cluster.worker("127.0.0.1"), cluster.worker("127.0.0.2")]
    to = ["--scheduler", cluster.address, "--store", url]
    with Store.open(url) as store, running([*COMMAND, *QUICK, *to], folder) as going:
        assert eventually(lambda: len(store.measurements()) >= 4)
        workers[0].send_signal(signal.SIGKILL)
        printed = printed_by(going, folder)
        stored = store.measurements()
    assert going.returncode == 0, (folder / "stderr").read_text()
    report = json.loads(printed)
    assert not report["unfinished"]
    assert all(not failed for failed in report["failed"].values())
    states = sorted(machine["state"] for machine in report["machines"])
    assert states == ["lost", "measured"]
    assert len(stored) == report["measured"]
    assert len({m.op.key for m in stored}) == report["ops"]
    code, again = campaign(folder, *to)
    assert code == 0
    assert (again["measured"], again["reused"]) == (0, len({(m.op.key, m.case) for m in stored}))


class Disturbed(FleetCampaign):
    """A campaign that is disturbed once, at the worst moment: a task has just ended, or parts have begun."""

    disturbance: Callable[[], object] | None = None
    when: Literal["described", "asked", "measured", "begun"] = "begun"

    def disturb(self, address: str, when: str) -> None:
        if self.disturbance is not None and when == self.when and "127.0.0.1" in address:
            self.disturbance()
            self.disturbance = None

    def _take(self, address: str, future: Future) -> None:
        self.disturb(address, "described")
        super()._take(address, future)

    def _begin(self) -> None:
        for address in self._described:
            self.disturb(address, "asked")
        super()._begin()

    def _end(self) -> None:
        for address, running in self._measuring.items():
            self.disturb(address, "measured" if running.future.done() else "begun")
        super()._end()


@pytest.fixture
def disturbed(folder: Path, cluster: Cluster) -> Iterator[Disturbed]:
    call = {"target": "aten.relu.default", "args": [{"t": 0}], "kwargs": {}}
    ops = {Op("relu", (TensorSpec((n,), "float32"),), call): 1 for n in range(1, 4)}
    manner = Manner(
        enough=0.1, check=0, max_age_days=None, mean_s=0.02, tolerance=0.1
    )  # fmt: skip
    with (
        Store.open(folder / "store.sqlite") as store,
        Disturbed(cluster.address, ops, store, manner, lambda _: EveryCase(), wait_s=60, allow_shared=True) as made,
    ):
        yield made


@pytest.mark.parametrize("when", ["described", "measured"])
def test_a_worker_that_is_killed_before_its_result_is_fetched_ends_nothing(
    cluster: Cluster, disturbed: Disturbed, when: Literal["described", "measured"]
) -> None:
    victim = cluster.worker("127.0.0.1")

    def kill() -> None:
        victim.kill()
        victim.wait()
        cluster.worker("127.0.0.2")  # not before: alone it would measure everything

    disturbed.disturbance, disturbed.when = kill, when
    report = disturbed.run()
    assert disturbed.disturbance is None
    assert (report.unfinished, [failed for failed in report.failed.values() if failed]) == ([], [])
    assert report.measured >= 3


@pytest.mark.parametrize("when", ["before it is asked", "before its part"])
def test_a_worker_that_does_other_work_is_not_waited_for(
    cluster: Cluster, disturbed: Disturbed, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("threadcast.fleet.cluster.ANSWER_S", 15.0)
    cluster.worker("127.0.0.1")
    with Client(cluster.address, set_as_default=False) as other:
        other.wait_for_workers(1)
        [victim] = other.nthreads()
        work: list[Future] = []

        def occupy() -> None:
            work.append(other.submit(time.sleep, 300, workers=[victim]))
            assert eventually(lambda: other.processing()[victim])
            cluster.worker("127.0.0.2")  # not before: alone it would measure everything

        if when == "before it is asked":
            occupy()
        else:
            disturbed.disturbance, disturbed.when = occupy, "asked"
        report = disturbed.run()
        assert report.machines[victim].left_out.endswith("its worker does other work")
        assert (report.unfinished, [failed for failed in report.failed.values() if failed]) == ([], [])
        assert report.measured >= 3


def test_a_worker_that_did_other_work_for_a_while_goes_on(
    cluster: Cluster, disturbed: Disturbed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("threadcast.fleet.cluster.ANSWER_S", 15.0)
    cluster.worker("127.0.0.1")
    with Client(cluster.address, set_as_default=False) as other:
        other.wait_for_workers(1)
        [victim] = other.nthreads()
        work: list[Future] = []

        def occupy() -> None:
            work.append(other.submit(time.sleep, 25, workers=[victim]))
            assert eventually(lambda: other.processing()[victim])

        disturbed.disturbance, disturbed.when = occupy, "asked"
        events: list[str] = []
        disturbed._on_event = events.append
        report = disturbed.run()
        assert any("other work" in event for event in events)
        assert (report.unfinished, report.machines[victim].left_out) == ([], "")
        assert report.measured >= 3


def test_a_worker_of_several_threads_is_left_out(cluster: Cluster, disturbed: Disturbed) -> None:
    cluster.worker("127.0.0.1", threads=2)
    with Client(cluster.address, set_as_default=False) as other:
        other.wait_for_workers(1)
    disturbed._wait_s = 1.0
    with pytest.raises(MeasurementError, match=r"no machine came within 1 s .* has 2 threads.* --nthreads 1"):
        disturbed.run()
    assert not disturbed.report.measured


def test_a_connection_that_breaks_is_an_error(cluster: Cluster, disturbed: Disturbed) -> None:
    cluster.worker("127.0.0.1")
    disturbed.disturbance = lambda: disturbed._client.sync(disturbed._client.scheduler_comm.close)
    with disturbed, pytest.raises(MeasurementError, match="is lost"):
        disturbed.run()
    assert disturbed._client.loop not in IOLoop._ioloop_for_asyncio.values()  # which would keep its sockets open


def test_workers_on_the_same_cpus_are_one_machine_and_no_machine_is_an_error(folder: Path, cluster: Cluster) -> None:
    store = ["--store", "store.sqlite", "--wait-s", "1", "--scheduler", cluster.address]
    none = subprocess.run(
        [*COMMAND, *store], cwd=folder, env=environment(folder), text=True, capture_output=True, check=False,
        timeout=HANGS_S,
    )  # fmt: skip
    assert none.returncode == 1
    assert "no machine came within 1 s" in none.stderr
    cluster.worker("127.0.0.1")
    cluster.worker("127.0.0.2")
    quiet = [*COMMAND, "--budget-s", "0.02", "--check", "0", "--json", *store]
    done = subprocess.run(
        [*quiet, "--wait-s", "60"], cwd=folder, env=environment(folder), text=True, capture_output=True, check=False,
        timeout=HANGS_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    machines = json.loads(done.stdout)["machines"]
    assert sorted(machine["state"] for machine in machines) in (["left out", "measured"], ["measured"])
    for machine in machines:
        assert machine["state"] == "measured" or "same CPUs" in machine["why"]


@pytest.mark.parametrize(("address", "why"), [("tcp://127.0.0.1:9", ""), ("rubbish", "missing port")])
def test_a_scheduler_that_does_not_answer_is_an_error_of_one_line(folder: Path, address: str, why: str) -> None:
    done = subprocess.run(
        [*COMMAND, "--scheduler", address, "--store", "store.sqlite"], cwd=folder, env=environment(folder),
        text=True, capture_output=True, check=False, timeout=HANGS_S,
    )  # fmt: skip
    assert done.returncode == 1
    assert f"no Dask scheduler answers at {address}: {why}" in done.stderr.splitlines()[-1]
    assert "Exception ignored" not in done.stderr


def test_a_scheduler_that_dies_is_an_error_and_what_was_measured_is_stored(folder: Path, cluster: Cluster) -> None:
    cluster.worker("127.0.0.1")
    with (
        Store.open(folder / "store.sqlite") as store,
        running([*COMMAND, *QUICK, "--scheduler", cluster.address, "--store", "store.sqlite"], folder) as going,
    ):
        assert eventually(lambda: len(store.measurements()) >= 4)
        cluster.scheduler.send_signal(signal.SIGKILL)
        printed_by(going, folder)
        assert len(store.measurements()) >= 4
    assert going.returncode == 1
    assert "is lost" in (folder / "stderr").read_text()


def test_ctrl_c_keeps_what_was_measured_and_leaves_no_process(folder: Path) -> None:
    with (
        Store.open(folder / "store.sqlite") as store,
        running([*COMMAND, *QUICK, "--store", "store.sqlite"], folder) as going,
    ):
        assert eventually(lambda: len(store.measurements()) >= 4)
        os.killpg(going.pid, signal.SIGINT)
        printed_by(going, folder)
        stored = len(store.measurements())
        with pytest.raises(ProcessLookupError):
            assert eventually(lambda: os.killpg(going.pid, 0))
    assert going.returncode == 130
    assert stored >= 4
    assert "Traceback" not in (folder / "stderr").read_text()


def test_without_a_scheduler_this_machine_measures(folder: Path) -> None:
    code, report = campaign(folder, "--store", "store.sqlite")
    with Store.open(folder / "store.sqlite") as store:
        assert (code, report["measured"]) == (0, len(store.measurements()))
    assert report["measured"] > 0


def test_a_cluster_of_this_machine_takes_no_port_that_others_may_want() -> None:
    """Dask's own default, port 8787, is taken with a warning where it is in use."""
    with local_cluster(None) as address, Client(address, set_as_default=False) as client:
        assert client.scheduler_info()["services"].get("dashboard") != 8787
