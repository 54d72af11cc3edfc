"""The real server: it starts, answers over loopback, refuses to start with one line, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import urllib3

from tests.processes import children_of, command_of
from tests.service.service_data import MACHINE, MEASURED, OPS, UNSEEN
from tests.waiting import HANGS_S, eventually
from threadcast.core import Case, Op
from threadcast.core.errors import InvalidInput
from threadcast.models.registry import ModelRegistry
from threadcast.prediction.predictor import LocalPredictor
from threadcast.prediction.remote import RemotePredictor
from threadcast.scheduler import compile_planner
from threadcast.service.keys import add_key
from threadcast.service.server import listen, url_of
from threadcast.service.settings import ServiceSettings
from threadcast.store import Store

LONG_S = HANGS_S
"""What starting, stopping and answering never take."""

COMMAND = [sys.executable, "-c", "from threadcast.cli.main import main; main()", "serve"]


def arguments(settings: ServiceSettings, *more: str) -> list[str]:
    return [*COMMAND, "--port", "0", "--store", str(settings.store), "--models", str(settings.models), *more]


def environment(directory: Path) -> dict[str, str]:
    """The environment of a process that is to leave its files in `directory`, and takes its time for requests."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("THREADCAST_", "OMP_"))}
    told = {"PYTHONPATH": os.pathsep.join(sys.path), "TMPDIR": str(directory)}
    return {**kept, **told, "THREADCAST_SERVICE_DEADLINE_S": str(LONG_S)}


class Running:
    """A server process in a session of its own, and the URL that it said it listens on."""

    def __init__(self, command: list[str], directory: Path) -> None:
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
            cwd=directory, env=environment(directory),
        )  # fmt: skip
        assert self.process.stdout is not None
        self.said = self.process.stdout.readline()
        found = re.search(r"https?://[^\s\"]+", self.said)
        if found is None:
            self.end()
            raise AssertionError(f"no URL in {self.said!r}; stderr: {self.errors}")
        self.url = found[0]

    def get(self, path: str) -> urllib3.BaseHTTPResponse:
        headers = {"Connection": "close"}  # a server may close a kept connection just when the next request is sent
        return urllib3.request("GET", self.url + path, timeout=LONG_S, retries=False, headers=headers)

    def post(self, path: str, body: Any, key: str = "") -> urllib3.BaseHTTPResponse:
        headers = {"Idempotency-Key": key} if key else {}
        return urllib3.request(
            "POST", self.url + path, json=body, headers={"Content-Type": "application/json", **headers},
            timeout=LONG_S, retries=False,
        )  # fmt: skip

    def workers(self) -> list[int]:
        """The process ids of the server's children, without the one that compiles the planner."""
        compiling = compile_planner.__name__.encode()
        commands = {child: command_of(child) for child in children_of(self.process.pid)}
        return [child for child, command in commands.items() if command and compiling not in command]

    def left(self) -> bool:
        """Whether any process of the session is still there."""
        try:
            os.killpg(self.process.pid, 0)
        except ProcessLookupError:
            return False
        return True

    def stop(self, number: signal.Signals) -> int:
        self.process.send_signal(number)
        _, self.errors = self.process.communicate(timeout=LONG_S)
        return self.process.returncode

    def end(self) -> None:
        """Leave nothing of the session, whatever state it is in."""
        self.process.terminate()
        try:
            _, self.errors = self.process.communicate(timeout=LONG_S)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)


@contextlib.contextmanager
def running(settings: ServiceSettings, directory: Path, *more: str) -> Iterator[Running]:
    server = Running(arguments(settings, *more), directory)
    try:
        yield server
    finally:
        server.end()


def wait_for_end(descriptor: int) -> bool:
    """Whether the process behind this descriptor ends in good time."""
    return bool(select.select([descriptor], [], [], LONG_S)[0])


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, models: Path) -> ServiceSettings:
    path = tmp_path_factory.mktemp("server") / "store.sqlite"
    with Store.open(path) as store:
        store.add(MEASURED)
    return ServiceSettings(store=path, models=models)


@pytest.fixture(scope="module")
def server(place: ServiceSettings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(place, tmp_path_factory.mktemp("cwd"), "--workers", "2") as started:
        yield started


def test_what_it_says_first_is_where_it_listens_and_it_is_ready_then(server: Running) -> None:
    assert server.said == f"threadcast listens on {server.url}\n"
    assert json.loads(server.get("/health/ready").data)["model"] == "roofline@1"


def test_remote_and_local_curves_are_the_same_to_the_last_bit(server: Running, place: ServiceSettings) -> None:
    ops = [*OPS, UNSEEN]
    with Store.open(place.store) as store:
        model = ModelRegistry(place.models).load("champion")
        local = LocalPredictor(model, MACHINE, store, version="roofline@1")
        remote = RemotePredictor(server.url, MACHINE, deadline_s=LONG_S)
        for cases in (None, [Case(4), Case(2)]):
            expected, found = local.curves(ops, cases=cases), remote.curves(ops, cases=cases)
            assert (found.cases, found.model) == (expected.cases, expected.model)
            for name in ("seconds", "low", "high", "source"):
                np.testing.assert_array_equal(getattr(found, name), getattr(expected, name), strict=True)
    assert remote.status.source_of_curves == "cache"


def test_metrics_are_those_of_all_workers_together(server: Running) -> None:
    def count() -> float:
        text = server.get("/metrics").data.decode()
        found = re.search(r'http_requests_total{code="200",method="GET",route="/v1/info"} ([0-9.]+)', text)
        return float(found[1]) if found else 0.0

    assert len(server.workers()) == 2
    before = count()
    for _ in range(12):  # each on a connection of its own, which any worker may take
        assert server.get("/v1/info").status == 200
    assert count() == before + 12


def samples_of(op: Op, seconds: float) -> dict[str, Any]:
    rows = [{"op": 0, "threads": 4, "seconds": [seconds]}]
    return {"machine": MACHINE.to_json(), "ops": [op.to_json()], "measurements": rows}


@pytest.mark.system
def test_what_was_acknowledged_survives_kill_9_and_is_stored_once(settings: ServiceSettings, tmp_path: Path) -> None:
    acknowledged = []
    for kill in range(3):
        with running(settings, tmp_path) as server:
            for i in range(4):
                key, body = f"{kill}-{i}", samples_of(UNSEEN, 1.0 + kill + i / 8)
                answer = server.post("/v1/measurements", body, key)
                assert answer.status == 201
                acknowledged.append((key, body))
            os.killpg(server.process.pid, signal.SIGKILL)  # the worker too, right after its answer
    with running(settings, tmp_path) as server:
        for key, body in acknowledged:
            again = server.post("/v1/measurements", body, key)
            assert (again.status, again.headers["Idempotency-Replayed"]) == (201, "true")
    with Store.open(settings.store) as store:
        found = [m.seconds for m in store.measurements(keys=[UNSEEN.key])]
        assert found == [second for _, body in acknowledged for second in body["measurements"][0]["seconds"]]
        assert store.check() == []


@pytest.mark.system
@pytest.mark.parametrize("workers", [1, 2])
def test_a_worker_in_place_of_one_that_ended_is_started_until_it_can_load(
    settings: ServiceSettings, tmp_path: Path, workers: int
) -> None:
    shutil.copytree(settings.models, tmp_path / "registry")
    mine = replace(settings, models=tmp_path / "registry")
    with running(mine, tmp_path, "--workers", str(workers)) as server:
        assert eventually(lambda: len(server.workers()) == workers, LONG_S)
        first = set(server.workers())
        mine.models.rename(tmp_path / "away")
        os.kill(max(first), signal.SIGKILL)
        tried: set[int] = set()

        def again() -> bool:
            tried.update(set(server.workers()) - first)
            return len(tried) >= 3 or server.process.poll() is not None

        assert eventually(again, LONG_S)
        assert server.process.poll() is None, "the service has ended"
        if workers > 1:
            assert server.get("/health/ready").status == 200
        (tmp_path / "away").rename(mine.models)
        for pid in first & set(server.workers()):
            os.kill(pid, signal.SIGKILL)
        assert eventually(lambda: not first & set(server.workers()) and ready(server), LONG_S)
        assert server.stop(signal.SIGTERM) == 0
    assert "a worker in place of one that ended could not start: no model or alias" in server.errors


def ready(server: Running) -> bool:
    """Whether the service answers that it is ready; with one worker nobody answers while it is started."""
    with contextlib.suppress(urllib3.exceptions.HTTPError):
        return server.get("/health/ready").status == 200
    return False


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_a_signal_stops_it_whole(place: ServiceSettings, tmp_path: Path, number: signal.Signals) -> None:
    with running(place, tmp_path, "--json") as server:
        assert json.loads(server.said) == {"url": server.url}
        assert server.get("/health/live").status == 200
        assert server.stop(number) == 0
        assert not server.left()
        assert server.errors == ""


def test_workers_end_when_their_parent_is_killed(place: ServiceSettings, tmp_path: Path) -> None:
    with running(place, tmp_path, "--workers", "2") as server:
        workers = [os.pidfd_open(pid) for pid in server.workers()]
        server.process.kill()
        assert all(wait_for_end(worker) for worker in workers)
        for worker in workers:
            os.close(worker)


def test_a_worker_computes_on_one_thread(place: ServiceSettings, tmp_path: Path) -> None:
    script = f"""
import os, sys
from pathlib import Path
from threadpoolctl import threadpool_info
from threadcast.scheduler import compile_planner
from threadcast.service.keys import add_key
from threadcast.service.server import listen, serve
from threadcast.service.settings import ServiceSettings

def ready(url):
    print(url, os.environ["OMP_NUM_THREADS"], [pool["num_threads"] for pool in threadpool_info()], flush=True)

settings = ServiceSettings(store=Path({str(place.store)!r}), models=Path({str(place.models)!r}))
sys.exit(serve(settings, listen("127.0.0.1", 0), workers=1, threads=2, ready=ready))
"""
    server = Running([sys.executable, "-c", script], tmp_path)
    try:
        _, threads, pools = server.said.split(" ", 2)
        assert threads == "1"
        assert set(json.loads(pools)) == {1}
        assert server.stop(signal.SIGTERM) == 0
    finally:
        server.end()


def refused(command: list[str], directory: Path) -> str:
    """The one line that a command which must fail says."""
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=directory, timeout=LONG_S, check=False,
        env=environment(directory),
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (1, ""), done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    assert done.stderr.startswith("threadcast: error: ")
    return done.stderr


def test_a_port_in_use_is_one_line_and_exit_1(place: ServiceSettings, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert f"127.0.0.1:{port}: Address already in use" in refused(arguments(place, "--port", port), tmp_path)


def test_a_full_disk_under_its_output_is_one_line_and_exit_1(place: ServiceSettings, tmp_path: Path) -> None:
    command = ["sh", "-c", 'exec "$@" > /dev/full', "sh", *arguments(place, "--workers", "2")]
    assert "No space left on device" in refused(command, tmp_path)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1"])
def test_addresses_that_others_reach_are_refused(host: str) -> None:
    with pytest.raises(InvalidInput, match=f"{host}.*can be reached by others.*--allow-public"):
        listen(host, 0)


def test_a_public_address_is_taken_with_keys() -> None:
    with listen("0.0.0.0", 0, keys=True) as listener:
        assert url_of(listener).startswith("http://0.0.0.0:")


def test_a_server_with_keys_lets_in_who_has_one(place: ServiceSettings, tmp_path: Path) -> None:
    token = add_key(tmp_path / "keys.json", "ci", ["read"])
    with running(place, tmp_path, "--keys", str(tmp_path / "keys.json"), "--host", "0.0.0.0") as server:
        url = server.url.replace("0.0.0.0", "127.0.0.1")
        for headers, status in (({}, 401), ({"Authorization": f"Bearer {token}"}, 200)):
            assert urllib3.request("GET", f"{url}/v1/models", headers=headers, retries=False).status == status
