"""What every answer carries: an id, times, and a tag by which it can be asked for again."""

from __future__ import annotations

import json
import re
from html import unescape
from urllib.parse import quote, unquote

import pytest
from flask.testing import FlaskClient

from tests.service.service_data import CURVES, MACHINE, OPS, graph_document, measure
from tests.waiting import eventually
from threadcast.core import Case, Op
from threadcast.service.settings import ServiceSettings
from threadcast.store import Store

PATHS = ["/v1/info", "/health/live", "/nowhere", "/v1/curves/none", "/metrics", "/", "/openapi.json"]


@pytest.mark.parametrize("path", PATHS)
def test_every_answer_has_an_id_and_says_how_long_it_took(client: FlaskClient, path: str) -> None:
    headers = client.get(path).headers
    assert re.fullmatch("[0-9a-f]{32}", headers["X-Request-Id"])
    assert re.search(r"total;dur=[0-9]+\.[0-9]{3}$", headers["Server-Timing"])


def test_a_sane_id_comes_back_and_any_other_is_replaced(client: FlaskClient) -> None:
    sane = "gateway-7:4f/a=+"
    assert client.get("/v1/info", headers={"X-Request-Id": sane}).headers["X-Request-Id"] == sane
    for odd in ("", "x" * 129, "a b", "<script>", "caf\u00e9", "-x"):
        given = client.get("/v1/info", headers={"X-Request-Id": odd}).headers["X-Request-Id"]
        assert re.fullmatch("[0-9a-f]{32}", given)


def test_a_curve_is_what_a_prediction_of_the_op_is(client: FlaskClient) -> None:
    for _ in range(2):  # predicted, then kept
        curve = client.get(f"/v1/curves/{OPS[0].key}")
        assert curve.get_json() == client.post("/v1/predictions", json={"ops": [OPS[0].key]}).get_json()
    assert curve.content_type == "application/json"


@pytest.mark.parametrize("kind", ["a/b", "/a", "a//b", "../a", "..", "a/../b", "?a#b", "9%", "a%2Fb", "a b", "\u00e9"])
def test_ops_of_all_kinds_have_curves_and_pages(client: FlaskClient, settings: ServiceSettings, kind: str) -> None:
    op = Op(kind, OPS[0].inputs)
    with Store.open(settings.store) as store:
        store.add([measure(op, Case(1))])
    curve = client.get(f"/v1/curves/{quote(op.key, safe='')}", query_string={"machine": MACHINE.fingerprint})
    assert (curve.status_code, curve.get_json()["ops"]) == (200, [op.key])
    linked = re.findall('href="(/ops/[^"]+)"', client.get("/ops?q=" + quote(kind)).text)
    [path] = [unescape(path) for path in linked if unquote(path.partition("?")[0]) == f"/ops/{op.key}"]
    assert "/" not in path.removeprefix("/ops/").partition("?")[0]  # nothing that a browser resolves
    assert client.get(path).status_code == 200


def tagged_paths(client: FlaskClient) -> list[str]:
    made = client.post("/v1/plans", json={"graph": graph_document(**CURVES), "cores": 2})
    paths = [f"/v1/curves/{OPS[0].key}", "/v1/models", "/v1/models/champion", "/v1/models/aliases/champion", "/v1/info"]
    return [*paths, made.headers["Content-Location"]]


def test_who_has_the_answer_is_told_so_in_place_of_getting_it(client: FlaskClient) -> None:
    for path in tagged_paths(client):
        first = client.get(path)
        assert re.fullmatch('"[0-9a-f]{24}"', first.headers["ETag"])
        for sent in (first.headers["ETag"], f'"x", {first.headers["ETag"]}', "*", "W/" + first.headers["ETag"]):
            again = client.get(path, headers={"If-None-Match": sent})
            assert (again.status_code, again.data, again.headers["ETag"]) == (304, b"", first.headers["ETag"]), path
        assert client.get(path, headers={"If-None-Match": '"x"'}).data == first.data


def test_a_kept_curve_follows_what_another_process_stores(client: FlaskClient, settings: ServiceSettings) -> None:
    path, other = (f"/v1/curves/{op.key}" for op in OPS[1:3])
    tag = client.get(other).headers["ETag"]
    before = client.get(path)
    slower = measure(OPS[4], Case(4))
    with Store.open(settings.store) as store:
        store.add([type(slower)(OPS[1], MACHINE, Case(4), slower.samples)] * 2)
    eventually(lambda: client.get(path).data != before.data)
    assert client.get(other, headers={"If-None-Match": tag}).status_code == 304  # nothing new of this op
    after = client.get(path)
    assert after.headers["ETag"] != before.headers["ETag"]
    assert after.get_json() == client.post("/v1/predictions", json={"ops": [OPS[1].key]}).get_json()


def test_a_curve_follows_what_the_service_stores_at_once(client: FlaskClient) -> None:
    path = f"/v1/curves/{OPS[1].key}"
    for turn in (1, 2, 3):
        before = client.get(path).data
        rows = [{"op": OPS[1].key, "threads": 4, "seconds": [0.5 * turn] * 9**turn}]
        sent = {"machine": MACHINE.fingerprint, "measurements": rows}
        assert client.post("/v1/measurements", json=sent).status_code == 201
        after = client.get(path).data
        assert after != before
        assert json.loads(after) == client.post("/v1/predictions", json={"ops": [OPS[1].key]}).get_json()


@pytest.mark.parametrize(
    ("path", "status", "pointer", "where"),
    [
        ("/v1/curves/none", 404, "/op", "path"),
        (f"/v1/curves/{OPS[0].key}?machine=none", 404, "/machine", "query"),
        (f"/v1/curves/{OPS[0].key}?model=none", 404, "/model", "query"),
        (f"/v1/curves/{OPS[0].key}?model=", 422, "/model", "query"),
        (f"/v1/curves/{OPS[0].key}?colour=red", 422, "/colour", "query"),
    ],
)
def test_a_curve_that_cannot_be_is_refused_with_a_pointer(
    client: FlaskClient, path: str, status: int, pointer: str, where: str
) -> None:
    problem = client.get(path).get_json()
    assert (problem["status"], problem["pointer"], problem["in"]) == (status, pointer, where)


def test_a_plan_is_made_once_and_says_of_each_op_what_its_time_is(client: FlaskClient) -> None:
    first = client.post("/v1/plans", json={"graph": "net"})
    assert "plan;dur" in first.headers["Server-Timing"]
    assert {op["source"] for op in first.get_json()["ops"]} == {"measured"}
    again = client.post("/v1/plans", json={"graph": "net"})
    assert "plan;dur" not in again.headers["Server-Timing"]
    assert again.data == first.data == client.get(first.headers["Content-Location"]).data
