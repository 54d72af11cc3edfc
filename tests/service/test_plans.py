"""POST /v1/plans."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from flask.testing import FlaskClient

from tests.service.service_data import CURVES, GRAPH, MACHINE, OPS, graph_document
from threadcast.core import Machine, OpGraph, Plan
from threadcast.scheduler import planner
from threadcast.scheduler.policies import Problem, names, plan_names
from threadcast.scheduler.problem.graph_curves import curves_of
from threadcast.scheduler.simulation.checker import check_schedule
from threadcast.service.app import create_app
from threadcast.service.settings import ServiceSettings


def plan(client: FlaskClient, **question: Any) -> Plan:
    response = client.post("/v1/plans", json=question)
    assert response.status_code == 200, response.text
    return Plan.from_json(response.get_json())


def test_a_graph_with_curves_needs_neither_model_nor_machine(client: FlaskClient) -> None:
    made = plan(client, graph=graph_document(**CURVES), cores=4)
    graph, machine = OpGraph.from_json(graph_document(**CURVES)), Machine.uniform("cores", 4)
    expected = planner.plan(Problem(graph, curves_of(graph, machine), machine))
    assert made == replace(expected, lower_bound_s=made.lower_bound_s)  # how far it is raised depends on the time
    assert made.curves_from == "file"
    assert made.gap is not None


@pytest.mark.parametrize("policy", plan_names())
def test_every_policy_makes_a_plan(client: FlaskClient, policy: str) -> None:
    options = {"inter": 2, "intra": 2} if policy == "uniform" else {}
    made = plan(client, graph=graph_document(**CURVES), cores=4, policy=policy, options=options)
    graph, machine = OpGraph.from_json(graph_document(**CURVES)), Machine.uniform("cores", 4)
    check_schedule(graph, made, machine=machine, oversubscribed=True)
    assert made.makespan_s >= made.lower_bound_s > 0


@pytest.mark.parametrize("question", [{}, {"cores": 2}, {"machine": MACHINE.to_json()}])
def test_ops_without_a_curve_are_forecast_beside_those_with_one(client: FlaskClient, question: dict[str, Any]) -> None:
    curve = {"1": 4.0, "2": 2.1, "4": 1.2}
    response = client.post("/v1/plans", json={"graph": graph_document(a=curve), **question})
    assert response.status_code == 200, response.text
    made = Plan.from_json(response.get_json())
    assert made.curves_from == "roofline@1 and file"
    forecast = client.post("/v1/predictions", json={"graph": graph_document()}).get_json()
    for op, placed in zip(response.get_json()["ops"], made.ops, strict=True):
        if op["id"] == "a":
            assert (placed.duration_s, op["source"]) == (pytest.approx(curve[str(op["threads"])]), "measured")
        else:
            row = forecast["seconds"][GRAPH.ids.index(op["id"])]
            assert any(placed.duration_s == pytest.approx(seconds) for seconds in row)
            assert op["source"] in ("measured", "interpolated", "learned")


def test_points_that_are_given_stay_and_others_are_not_guessed(client: FlaskClient) -> None:
    ops = [{"id": "a", "kind": "x", "curve": {"3": 1.0}}, {"id": "b", **OPS[0].to_json()}]
    made = plan(client, graph={**ONE, "ops": ops}, policy="strategies_1")
    assert {op.id: op.threads for op in made.ops}["a"] == 3


def test_the_search_is_one_of_the_policies_and_takes_its_options(client: FlaskClient) -> None:
    graph, machine = OpGraph.from_json(graph_document(**CURVES)), Machine.uniform("cores", 4)
    problem, options = Problem(graph, curves_of(graph, machine), machine), {"seed": 3, "budget_s": 0.5}
    made = plan(client, graph=graph_document(**CURVES), cores=4, policy="search", options=options)
    assert made.ops == planner.plan(problem, policy="search", seed=3, budget_s=0.5).ops
    assert made.policy == "search"
    assert client.get("/v1/info").get_json()["policies"] == ["auto", "search", *names()]


@pytest.mark.parametrize("option", ["problem", "policy", "seed", "speed"])
@pytest.mark.parametrize("route", ["plans", "decisions"])
def test_an_option_that_a_policy_lacks_is_named(client: FlaskClient, route: str, option: str) -> None:
    question = {"graph": ONE, "cores": 1, "policy": "fifo", "options": {option: 1}}
    state = {"ready": ["a"]} if route == "decisions" else {}
    problem = client.post(f"/v1/{route}", json={**question, **state}).get_json()
    assert problem["detail"].startswith(f"policy 'fifo': got an unexpected keyword argument '{option}'; its options")


def test_a_time_that_sharing_cores_makes_is_not_said_to_be_measured(client: FlaskClient) -> None:
    ops = [{"id": name, "kind": "x", "curve": {"1": 1.0, "2": 0.6}} for name in "ab"]
    question = {"graph": {**ONE, "ops": ops}, "cores": 2, "policy": "uniform"}
    for inter, longer, source in ((1, False, "measured"), (2, True, "extrapolated")):
        made = client.post("/v1/plans", json={**question, "options": {"inter": inter, "intra": 100}}).get_json()
        assert [op["source"] for op in made["ops"]] == [source] * 2
        assert (made["ops"][0]["finish_s"] > 0.6) == longer


ONE = {"schema": "threadcast.graph/1", "ops": [{"id": "a", "kind": "x", "curve": {"1": 1.0}}]}
TWO = {**ONE, "ops": [*ONE["ops"], {"id": "b", "kind": "x", "curve": {"1": 1.0}}]}  # type: ignore[misc]
REFUSED: dict[str, tuple[Any, int, str]] = {
    "a graph unheard of": ({"graph": "nett"}, 404, "/graph"),
    "a cycle": ({"graph": {**TWO, "edges": [["a", "b"], ["b", "a"]]}, "cores": 1}, 422, "/graph/edges"),
    "curves that start too wide": ({"graph": {**ONE, "ops": [{"id": "a", "kind": "x", "curve": {"8": 1}}]},
                                    "cores": 2}, 422, "/graph/ops"),
    "curves without cores": ({"graph": ONE}, 422, "/cores"),
    "a core too many": ({"graph": "net", "cores": 5}, 422, "/cores"),
    "a policy unheard of": ({"graph": ONE, "cores": 1, "policy": "best"}, 422, "/policy"),
    "an option of the search": ({"graph": ONE, "cores": 1, "policy": "fifo", "options": {"seed": 1}}, 422, "/options"),
    "options of the automatic choice": ({"graph": ONE, "cores": 1, "options": {"speed": 9}}, 422, "/options"),
    "a budget of no time": ({"graph": ONE, "cores": 1, "policy": "search", "options": {"budget_s": 0}}, 422,
                            "/options"),
    "a huge option": ({"graph": ONE, "cores": 1, "policy": "fifo", "options": {"inter": 10**9}}, 422,
                      "/options/inter"),
    "an option for callers in process": ({"graph": ONE, "cores": 1, "policy": "manual_grid",
                                          "options": {"interference": 1}}, 422, "/options/interference"),
    "a missing option": ({"graph": ONE, "cores": 1, "policy": "uniform"}, 422, "/policy"),
}  # fmt: skip


@pytest.mark.parametrize(("question", "status", "pointer"), REFUSED.values(), ids=REFUSED.keys())
def test_a_wrong_question_is_refused_with_a_pointer(
    client: FlaskClient, question: Any, status: int, pointer: str
) -> None:
    response = client.post("/v1/plans", json=question)
    assert response.content_type == "application/problem+json"
    problem = response.get_json()
    assert (response.status_code, problem["pointer"]) == (status, pointer), problem


def test_a_plan_beyond_the_limit_is_refused_before_it_takes_memory(settings: ServiceSettings) -> None:
    app = create_app(replace(settings, max_plan_points=15))
    client = app.test_client()
    for question in ({"graph": "net"}, {"graph": graph_document(**CURVES), "cores": 4}):
        response = client.post("/v1/plans", json=question)
        assert (response.status_code, response.get_json()["pointer"]) == (422, "/graph/ops")
    assert client.post("/v1/plans", json={"graph": graph_document(**CURVES), "cores": 3}).status_code == 200
    app.extensions["threadcast"].store.close()
