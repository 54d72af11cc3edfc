"""Measurements reach a service, each once, whatever breaks meanwhile. The service is the real one, over HTTP."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from werkzeug.serving import make_server

from tests.service.service_data import MACHINE, MEASURED
from tests.waiting import HANGS_S, eventually
from threadcast.core import Case, Measurement, Sample
from threadcast.core.errors import ServiceError
from threadcast.fleet import outbox as outboxes
from threadcast.fleet.outbox import Outbox, SendingInBackground
from threadcast.prediction.bounded_request import BoundedClient
from threadcast.prediction.service_client import ServiceClient
from threadcast.service.app import create_app
from threadcast.service.settings import ServiceSettings
from threadcast.store import Store
from threadcast.store.sent import Sent


class Service:
    """A service with a store of its own; `breaks` lets requests arrive, whose answers are lost."""

    def __init__(self, folder: Path, **more: Any) -> None:
        self.app = create_app(ServiceSettings(store=folder / "service.sqlite", models=folder / "models", **more))
        self.store = self.app.extensions["threadcast"].store
        self.breaks, self.requests = False, 0
        self.server = make_server("127.0.0.1", 0, self._answer, threaded=True)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def _answer(self, environ: dict[str, Any], start: Any) -> Any:
        self.requests += 1
        answer = list(self.app(environ, (lambda *_: None) if self.breaks else start))
        if self.breaks:
            raise ConnectionAbortedError("the answer is lost")
        return answer

    @property
    def measured(self) -> list[Measurement]:
        return [*self.store.measurements()]


@contextmanager
def serving(folder: Path, **more: Any) -> Iterator[Service]:
    service = Service(folder, **more)
    thread = threading.Thread(target=service.server.serve_forever)
    thread.start()
    try:
        yield service
    finally:
        service.server.shutdown()
        thread.join()
        service.server.server_close()
        service.store.close()


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with serving(tmp_path) as made:
        yield made


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "own.sqlite") as made:
        yield made


def outbox(store: Store, url: str) -> Outbox:
    made = Outbox(store, ServiceClient(BoundedClient(url)), url)
    made.add(MACHINE)
    return made


def identity(measured: list[Measurement]) -> list[Any]:
    return [(m.op.key, m.machine.fingerprint, m.case, m.samples, dict(m.conditions)) for m in measured]


def test_all_is_sent_in_order_and_once(store: Store, service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outboxes, "BATCH", 7)
    samples = (Sample(1e-3, {"cycles": 5.0, "misses": None}), Sample(2e-3, {"cycles": 6.0, "misses": None}))
    counted = Measurement(MEASURED[0].op, MACHINE, Case(1), samples, {"cache": "cold", "converged": True})
    store.add([*MEASURED, counted])
    sender = outbox(store, service.url)
    sender.send(deadline_s=60)
    assert identity(service.measured) == identity([*MEASURED, counted])
    assert (sender.sent, sender.unsent(), sender.refused) == (len(MEASURED) + 1, 0, 0)
    sender.send(deadline_s=60)
    store.add(MEASURED[:1])
    outbox(store, service.url).send(deadline_s=60)
    assert len(service.measured) == len(MEASURED) + 2


def test_what_arrived_without_an_answer_is_not_stored_twice(store: Store, service: Service) -> None:
    store.add(MEASURED[:5])
    service.breaks = True
    with pytest.raises(ServiceError):
        outbox(store, service.url).send(deadline_s=60)
    assert len(service.measured) == 5
    store.add(MEASURED[5:9])  # the next request must not take these into what is sent again
    service.breaks = False
    again = outbox(store, service.url)
    assert again.unsent() == 9
    again.send(deadline_s=60)
    assert identity(service.measured) == identity(list(MEASURED[:9]))


def test_a_process_that_others_overtake_sends_nothing_twice(
    store: Store, service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = ServiceClient.ask

    def overtaken(client: ServiceClient, *given: Any, **named: Any) -> Any:
        answer = ask(client, *given, **named)
        if client is slow_client and len(service.measured) == 5:
            other.send(deadline_s=60)
            store.add(MEASURED[5:8])
            other.send(deadline_s=60)
            store.add(MEASURED[8:10])
        return answer

    monkeypatch.setattr(ServiceClient, "ask", overtaken)
    store.add(MEASURED[:5])
    with Store.open(tmp_path / "own.sqlite") as again:
        other, slow = outbox(again, service.url), outbox(store, service.url)
        slow_client = slow._client
        slow.send(deadline_s=60)
        assert identity(service.measured) == identity(list(MEASURED[:10]))
        assert (other.sent, slow.sent, slow.unsent()) == (8, 2, 0)


def test_other_machines_and_other_services_have_their_own_account(
    store: Store, service: Service, tmp_path: Path
) -> None:
    store.add(MEASURED)
    other = Outbox(store, ServiceClient(BoundedClient(service.url)), service.url)
    other.send(deadline_s=60)  # of no machine
    assert not service.measured
    outbox(store, service.url).send(deadline_s=60)
    (tmp_path / "second").mkdir()
    with serving(tmp_path / "second") as second:
        outbox(store, second.url).send(deadline_s=60)
        assert len(second.measured) == len(MEASURED)


def test_what_the_service_refuses_is_left_out_and_the_rest_arrives(store: Store, tmp_path: Path) -> None:
    first = MEASURED[0]
    many = Measurement(first.op, MACHINE, Case(1), (Sample(1e-3),) * 60)
    store.add([*MEASURED[:3], many, *MEASURED[3:6]])
    with serving(tmp_path, max_rows=50) as service:
        sender = outbox(store, service.url)
        sender.send(deadline_s=60)
        assert identity(service.measured) == identity(list(MEASURED[:6]))
    assert sender.refused == 1
    assert "max_rows" in sender.refusal
    assert sender.unsent() == 0


def test_what_was_under_way_may_have_been_pruned(store: Store, service: Service) -> None:
    store.add(MEASURED[:4])
    numbers = [m.number for m in store.measurements()]
    store.note_sent(service.url, MACHINE.fingerprint, Sent(numbers[3], numbers[3] + 2), was=Sent())
    store.add(MEASURED[4:6])
    outbox(store, service.url).send(deadline_s=60)
    assert identity(service.measured) == identity(list(MEASURED[4:6]))


def test_in_the_background_all_is_sent_while_and_after_it_is_stored(store: Store, service: Service) -> None:
    with SendingInBackground(outbox(store, service.url), every_s=0.05) as background:
        for measurement in MEASURED[:20]:
            store.add([measurement])
    assert identity(service.measured) == identity(list(MEASURED[:20]))
    assert background.problem is None
    assert not [thread for thread in threading.enumerate() if thread.name == "threadcast-outbox"]


def test_ctrl_c_does_not_wait_for_a_service_that_does_not_answer(store: Store) -> None:
    store.add(MEASURED[:3])
    with socket.create_server(("127.0.0.1", 0)) as silent:
        sender = outbox(store, f"http://127.0.0.1:{silent.getsockname()[1]}")
        background = SendingInBackground(sender, every_s=0.01, deadline_s=60)
        with suppress(KeyboardInterrupt), background:
            connection, _ = silent.accept()
            raise KeyboardInterrupt
        assert background._thread.is_alive()  # it was not waited for
        connection.close()
    background._thread.join(HANGS_S)
    assert background.outbox.unsent() == 3


def test_an_outage_is_told_and_loses_nothing(store: Store, service: Service) -> None:
    store.add(MEASURED[:3])
    nowhere = "http://127.0.0.1:9"
    told: list[Exception] = []
    sender = outbox(store, nowhere)
    with SendingInBackground(sender, every_s=0.01, deadline_s=2, on_problem=told.append) as background:
        assert eventually(lambda: told)
    assert len(told) == 1
    assert isinstance(background.problem, ServiceError)
    assert background.outbox.unsent() == 3
