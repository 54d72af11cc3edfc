"""A service over nothing: no measurement, no model. Machines are named as people name them, and examples run."""

from __future__ import annotations

import html
import itertools
import json
import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from tests.service.service_data import CURVES, MACHINE, graph_document
from tests.waiting import HANGS_S
from threadcast.core import Machine, read_machine
from threadcast.service.app import Service, create_app
from threadcast.service.openapi import description
from threadcast.service.settings import ServiceSettings

OP = {"kind": "mm", "inputs": [[64, 64], [64, 64]]}
ROW = {"op": 0, "threads": 1, "seconds": [1e-3]}
LOCAL = read_machine()
ASKED: dict[str, Callable[[FlaskClient, Any], TestResponse]] = {
    "predictions": lambda client, machine: client.post("/v1/predictions", json={"ops": [OP], "machine": machine}),
    "plans": lambda client, machine: client.post("/v1/plans", json={"graph": graph_document(), "machine": machine}),
    "decisions": lambda client, machine: client.post(
        "/v1/decisions", json={"graph": graph_document(**CURVES), "machine": machine, "ready": ["a"]}
    ),
    "measurements": lambda client, machine: client.post(
        "/v1/measurements", json={"ops": [OP], "measurements": [ROW], "machine": machine}
    ),
}


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[Service]:
    """A service on its first day."""
    app = create_app(ServiceSettings(store=tmp_path / "new.sqlite", models=tmp_path / "none", deadline_s=HANGS_S))
    yield app
    app.extensions["threadcast"].store.close()


@pytest.mark.parametrize("route", ASKED)
@pytest.mark.parametrize("machine", [3, 3.0, "3", "local", LOCAL.fingerprint, LOCAL.name.upper()])
def test_a_machine_is_a_number_of_cores_local_or_a_known_name(fresh: Service, route: str, machine: Any) -> None:
    answer = ASKED[route](fresh.test_client(), machine)
    assert answer.status_code in (200, 201), answer.text
    if route == "predictions":
        meant = Machine.uniform("cores", 3) if str(machine).startswith("3") else LOCAL
        assert answer.json["machine"] == meant.fingerprint


@pytest.mark.parametrize("route", ASKED)
@pytest.mark.parametrize(
    ("machine", "status", "said"),
    [
        ("locl", 404, "did you mean 'local'"), (0, 422, "from 1 to 4096"), (2.5, 422, "from 1 to 4096"),
        (True, 422, '"local", a name of /v1/machines'), ([4], 422, "a number of cores"),
    ],
)  # fmt: skip
def test_a_machine_that_is_none_is_refused(fresh: Service, route: str, machine: Any, status: int, said: str) -> None:
    answer = ASKED[route](fresh.test_client(), machine)
    assert (answer.status_code, answer.json["pointer"]) == (status, "/machine")
    assert said in answer.json["detail"]


def test_the_known_machines_are_listed_with_where_they_are_known_from(client: FlaskClient, fresh: Service) -> None:
    local = {"fingerprint": LOCAL.fingerprint, "name": LOCAL.name, "cores": len(LOCAL), "local": True}
    local["names"] = ["local", LOCAL.name, LOCAL.fingerprint]
    assert fresh.test_client().get("/v1/machines").json == {"machines": [{**local, "known_from": ["this machine"]}]}
    bench = {"fingerprint": MACHINE.fingerprint, "name": "bench", "cores": 4, "local": False}
    bench["names"] = ["bench", MACHINE.fingerprint]
    listed = client.get("/v1/machines").json["machines"]
    assert listed == [{**local, "known_from": ["this machine"]}, {**bench, "known_from": ["measurements"]}]
    ASKED["measurements"](client, "local")
    assert client.get("/v1/machines").json["machines"][0]["known_from"] == ["this machine", "measurements"]
    ASKED["measurements"](client, (named_local := Machine.uniform("local", 3)).to_json())
    assert client.get("/v1/machines").json["machines"][-1]["names"] == [named_local.fingerprint]


EXAMPLES = re.findall(r"Example, answered by (\d+)(?: until .*?)?(?:, and (\d+) from then on)?:\n\n    (.*)", "\n".join(
    operation["description"] for item in json.loads(description())["paths"].values() for operation in item.values()
))  # fmt: skip


def send(app: Service, command: str) -> int:
    """The status that the service answers to a command line of curl."""
    words = shlex.split(command)
    [url] = [word for word in words if word.startswith("localhost:8321/")]
    given = dict(itertools.pairwise(words))
    body = json.loads(given["-d"]) if "-d" in given else None
    method = given.get("-X", "GET")
    assert (body is None) == (method == "GET")
    return app.test_client().open(url.removeprefix("localhost:8321"), method=method, json=body).status_code


def test_every_route_has_an_example_that_runs_against_a_fresh_service(fresh: Service, tmp_path: Path) -> None:
    routes = [rule for item in json.loads(description())["paths"].values() for rule in item]
    assert len(EXAMPLES) == len(routes)
    for number, (status, _, command) in enumerate(EXAMPLES):
        store = tmp_path / f"{number}.sqlite"
        app = create_app(ServiceSettings(store=store, models=tmp_path / "none", deadline_s=HANGS_S))
        assert send(app, command) == int(status), command
        app.extensions["threadcast"].store.close()
    for _, _, command in EXAMPLES:
        send(fresh, command)
    for status, then, command in EXAMPLES:
        assert send(fresh, command) == int(then or status), command


def test_the_page_of_the_api_says_what_every_status_means_and_has_every_example(fresh: Service) -> None:
    page = fresh.test_client().get("/docs", base_url="http://localhost:9090").text
    meanings = re.findall(r">(\d{3})</th><td[^>]*>(.*?)</td>", page)
    assert len(meanings) > 100
    assert all(len(text) > 5 for _, text in meanings)
    assert {"200", "304", "400", "404", "422", "429", "503"} <= {status for status, _ in meanings}
    shown = [html.unescape(text) for text in re.findall(r"<pre[^>]*><code>(.*?)</code>", page, re.DOTALL)]
    assert sorted(shown) == sorted(command.replace(":8321", ":9090") for _, _, command in EXAMPLES)
