"""Ops that cannot be forecast have problems of their own, in an answer with the forecasts of all others."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flask.testing import FlaskClient
from werkzeug.serving import make_server

from tests.prediction.predicting import SerialShare
from tests.service.service_data import MACHINE, OPS, UNSEEN
from tests.service.test_server import LONG_S
from threadcast.core import Case, Curve, Machine, Measurement, Op, OpGraph, Source
from threadcast.core.errors import ModelError
from threadcast.models import registry_of_kinds
from threadcast.models.registry import ModelRegistry
from threadcast.prediction import arrow_curves
from threadcast.prediction.answers import read_curves, read_stream
from threadcast.prediction.predictor import LocalPredictor
from threadcast.prediction.remote import RemotePredictor
from threadcast.service.app import create_app
from threadcast.service.settings import ServiceSettings
from threadcast.store import Store

ODD = Op("odd", OPS[0].inputs)
NOBODY = "mm-0123456789abcdef"


class Picky(SerialShare):
    """Refuses ops of one kind."""

    name = "picky"

    def knows(self, op: Op) -> Source | None:
        if op.kind == ODD.kind:
            raise ModelError(f"{op.kind} lacks the feature rows; did you mean row?")
        return Source.LEARNED

    def predict(self, op: Op, observed: Sequence[Measurement], cases: Sequence[Case], *, machine: Machine) -> Curve:
        self.knows(op)
        return super().predict(op, observed, cases, machine=machine)

    def from_files(self, files: Mapping[str, bytes]) -> Picky:
        super().from_files(files)
        return self


@pytest.fixture
def client(settings: ServiceSettings, tmp_path: Path) -> Iterator[FlaskClient]:
    """A service whose champion is picky, and that knows an op that it refuses."""
    registry_of_kinds.register(Picky.name, Picky)
    registry = ModelRegistry(tmp_path / "models")
    registry.set_alias("champion", registry.save(Picky(), trained_on={}, metrics={}))
    with Store.open(settings.store) as store:
        store.add_graph("odd", OpGraph(("a", "b"), (OPS[0], ODD)))
    app = create_app(replace(settings, models=tmp_path / "models"))
    yield app.test_client()
    app.extensions["threadcast"].store.close()
    registry_of_kinds.unregister(Picky.name)


def ask(client: FlaskClient, **question: Any) -> Any:
    return client.post("/v1/predictions", json={"machine": MACHINE.fingerprint, **question})


def test_one_unknown_op_and_one_that_the_model_refuses_do_not_fail_the_others(client: FlaskClient) -> None:
    ops = [OPS[0].key, NOBODY, UNSEEN.to_json(), ODD.to_json(), OPS[1].key]
    answer = ask(client, ops=ops)
    assert answer.status_code == 200
    found, alone = answer.get_json(), ask(client, ops=[ops[0], ops[2], ops[4]]).get_json()
    assert found["ops"] == [OPS[0].key, NOBODY, UNSEEN.key, ODD.key, OPS[1].key]
    for name in ("seconds", "low", "high", "source"):
        assert [found[name][row] for row in (0, 2, 4)] == alone[name]
        assert [found[name][row] for row in (1, 3)] == [None, None]
    assert "errors" not in alone
    assert [None if e is None else (e["status"], e["pointer"]) for e in found["errors"]] == [
        None, (404, "/ops/1"), None, (422, "/ops/3"), None
    ]  # fmt: skip
    assert found["errors"][3]["detail"] == "odd lacks the feature rows; did you mean row?"
    assert answer.headers["ETag"] != ask(client, ops=[*ops[:1], "mm-0123456789abcde0", *ops[2:]]).headers["ETag"]


@pytest.mark.parametrize("ops", [[NOBODY, ODD.to_json()], [ODD.to_json()], [NOBODY]])
def test_where_no_op_has_a_forecast_the_first_problem_is_the_answer(client: FlaskClient, ops: list[Any]) -> None:
    answer = ask(client, ops=ops)
    problem = answer.get_json()
    assert (answer.content_type, answer.status_code) == ("application/problem+json", problem["status"])
    assert (problem["status"], problem["pointer"]) == (404 if ops[0] == NOBODY else 422, "/ops/0")
    assert [e["pointer"] for e in problem.get("errors", [{"pointer": "/ops/0"}])] == [
        f"/ops/{i}" for i in range(len(ops))
    ]


@pytest.mark.parametrize("arrow", [False, True])
def test_the_python_client_reads_what_there_is(client: FlaskClient, arrow: bool) -> None:
    keys, cases = [OPS[0].key, NOBODY, OPS[1].key], MACHINE.cases()
    headers = {"Accept": arrow_curves.MEDIA_TYPE} if arrow else {}
    body = {"machine": MACHINE.fingerprint, "ops": keys}
    content = client.post("/v1/predictions", json=body, headers=headers).data
    rows, table, why_not = (read_stream if arrow else read_curves)(content, keys=keys, cases=cases, machine=MACHINE)
    alone = ask(client, ops=[keys[0], keys[2]]).get_json()
    assert (rows, table.seconds.tolist()) == ([0, 2], alone["seconds"])
    assert why_not.startswith("the store knows no op with the key 'mm-0123456789abcdef'")


def test_the_remote_predictor_asks_its_fallback_for_the_ops_that_the_service_refuses(client: FlaskClient) -> None:
    server = make_server("127.0.0.1", 0, client.application, threaded=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        fallback = LocalPredictor(SerialShare(0.9), MACHINE, {})
        with RemotePredictor(
            f"http://127.0.0.1:{server.server_port}", MACHINE, deadline_s=LONG_S, fallback=fallback
        ) as remote:
            found = remote.curves([UNSEEN, ODD, OPS[0]])
            assert "odd lacks the feature rows" in str(remote.status.last_error)
            assert (remote.status.source_of_curves, remote.status.fallbacks) == ("cache and fallback", 1)
            np.testing.assert_array_equal(found.seconds[1], fallback.curves([ODD]).seconds[0])
            served = ask(client, ops=[UNSEEN.to_json(), OPS[0].key]).get_json()
            np.testing.assert_array_equal(found.seconds[[0, 2]], served["seconds"])
            np.testing.assert_array_equal(remote.curves([UNSEEN]).seconds, served["seconds"][:1])
            assert remote.status.source_of_curves == "cache"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
