"""What was planned and run is on the dashboard: when, on which machine, what, and the forecast times."""

from __future__ import annotations

import re
from typing import Any

import pytest
from flask.testing import FlaskClient

from tests.service.service_data import CURVES, GRAPH, MACHINE, graph_document
from threadcast.core import Placement, Plan, Trace
from threadcast.service.dashboard.frame import duration
from threadcast.store import Store

CURVED = {"graph": graph_document(**CURVES), "cores": 4}


def lines(client: FlaskClient) -> list[tuple[str, ...]]:
    """What, of what, forecast and machine of each line of the list, and where it leads."""
    body = client.get("/plans").text.partition("<tbody>")[2].partition("</tbody>")[0]
    rows = []
    for row in body.split("<tr>")[1:]:
        when, of, forecast, _, _, machine = re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", row)
        assert re.search(r">20\d\d-\d\d-\d\d \d\d:\d\d</time>", when)
        [link] = re.findall('href="(.*?)"', of)
        name, _, what = re.sub("<br>", "|", re.sub(r"</?(?:a|span)[^>]*>", "", of)).partition("|")
        rows.append((what, name, re.sub("<[^>]*>", " ", forecast), re.sub("<[^>]*>", "", machine), link))
    return rows


def test_a_plan_asked_for_is_listed_with_its_forecast_and_drawn_on_a_page(client: FlaskClient) -> None:
    assert "Nothing planned yet" in client.get("/plans").text
    answer = client.post("/v1/plans", json={"graph": "net"})
    made = Plan.from_json(answer.json)
    [(what, of, forecast, machine, link)] = lines(client)
    assert (what, of, forecast, machine) == ("plan", "net", duration(made.makespan_s), MACHINE.fingerprint)
    assert link == answer.headers["Content-Location"].replace("/v1", "")
    page = client.get(link).text
    assert page.count('class="track"') == len({core for op in made.ops for core in op.cores})
    assert all(f">{duration(op.duration_s)}</td>" in page for op in made.ops)
    assert client.get(answer.headers["Content-Location"]).json == answer.json


@pytest.mark.parametrize("more", [{}, {"policy": "fifo"}], ids=["default", "fifo"])
def test_decisions_asked_for_are_listed_and_their_page_shows_what_they_lead_to(
    client: FlaskClient, more: dict[str, Any]
) -> None:
    answer = client.post("/v1/decisions", json={**CURVED, **more, "ready": ["a", "b"]})
    assert answer.status_code == 200
    [(what, of, forecast, machine, link)] = lines(client)
    work_s = sum(min(curve.values()) for curve in CURVES.values())
    assert (what, of, forecast.split()) == ("decisions", "4 ops", f"{duration(work_s)} of work".split())
    assert machine.startswith("cores-4c-")
    assert link == f"/plans/{answer.json['context']}"
    page = client.get(link).text
    assert f"Decisions by {more.get('policy', 'critical_path')}" in page
    assert all(f'title="{op_id}"' in page for op_id in GRAPH.ids)


def test_runs_are_listed_beside_them_the_last_first(client: FlaskClient, settings: Any) -> None:
    placed = (Placement("a", (0,), 1, 0.0, 0.25), Placement("b", (1,), 1, 0.0, 0.5))
    with Store.open(settings.store) as store:
        store.add_run("net", MACHINE, plan=Plan(2, "fifo", placed), trace=Trace(2, "fifo", placed))
        store.add_run(
            "net", MACHINE, plan=Plan(2, "fifo", placed[:1]), trace=Trace(2, "fifo", placed), time="2020-01-01"
        )
    client.post("/v1/plans", json=CURVED)
    found = lines(client)
    assert {line[0] for line in found[:2]} == {"plan", "run"}
    assert found[2][:3] == ("run", "net", duration(0.25))
    assert client.get(found[2][4].replace("&amp;", "&")).status_code == 200
