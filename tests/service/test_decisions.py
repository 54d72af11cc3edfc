"""POST /v1/decisions: a runtime that asks at every event ends with a valid schedule."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from flask.testing import FlaskClient

from tests.service.service_data import CURVES, graph_document
from threadcast.core import Machine, OpGraph, Placement, Trace
from threadcast.scheduler.policies import Problem, create, names
from threadcast.scheduler.problem.graph_curves import curves_of
from threadcast.scheduler.simulation.checker import check_schedule
from threadcast.scheduler.simulation.simulator import simulate
from threadcast.service.app import create_app
from threadcast.service.decision_contexts import DecisionContext
from threadcast.service.decisions import _idle
from threadcast.service.schemas import DecisionRequest
from threadcast.service.settings import ServiceSettings

GRAPH = OpGraph.from_json(graph_document(**CURVES))
MACHINE = Machine.uniform("cores", 4)
OPTIONS = {"uniform": {"inter": 2, "intra": 2}}


def decide(client: FlaskClient, **question: Any) -> dict[str, Any]:
    response = client.post("/v1/decisions", json=question)
    assert response.status_code == 200, response.text
    document: dict[str, Any] = response.get_json()
    return document


def drive(client: FlaskClient, **context: Any) -> Trace:
    """Run GRAPH to its end on what the service says at each event."""
    now_s, done, finish, placed = 0.0, set[str](), dict[str, tuple[float, Placement]](), list[Placement]()
    waiting = {op: {GRAPH.ids[i] for i in before} for op, before in zip(GRAPH.ids, GRAPH.predecessors)}
    while len(done) < len(GRAPH):
        ready = [op for op in GRAPH.ids if op not in done and op not in finish and waiting[op] <= done]
        running = [
            {"id": op, "cores": list(at.cores), "threads": at.threads, "remaining_s": end_s - now_s,
             "hardware_thread": at.hardware_thread}
            for op, (end_s, at) in finish.items()
        ]  # fmt: skip
        for launch in decide(client, ready=ready, running=running, **context)["launches"]:
            end_s = now_s + launch["predicted_s"]
            at = Placement(launch["id"], tuple(launch["cores"]), launch["threads"], now_s, end_s)
            assert launch["id"] in ready
            finish[at.id] = end_s, at
            placed.append(at)
        assert finish, "nothing runs and nothing was launched"
        op, (now_s, _) = min(finish.items(), key=lambda item: item[1][0])
        del finish[op]
        done.add(op)
    return Trace(4, "service", tuple(placed))


@pytest.mark.parametrize("policy", [name for name in names() if "4" not in name and name != "strategies"])
def test_decisions_one_by_one_are_the_simulation(client: FlaskClient, policy: str) -> None:
    options = OPTIONS.get(policy, {})
    first = decide(client, graph=graph_document(**CURVES), cores=4, policy=policy, options=options, ready=["a", "b"])
    trace = drive(client, context=first["context"])
    check_schedule(GRAPH, trace, machine=MACHINE, oversubscribed=True)
    simulated = simulate(create(policy, Problem(GRAPH, curves_of(GRAPH, MACHINE), MACHINE), **options))
    assert trace.makespan_s == pytest.approx(simulated.makespan_s, rel=1e-12)


def test_launches_on_cores_that_are_not_given_away_are_held_back(client: FlaskClient) -> None:
    one_core_each = {"policy": "uniform", "options": {"inter": 4, "intra": 1}}
    first = decide(client, graph=graph_document(**CURVES), cores=4, ready=["a", "b"], **one_core_each)
    assert [launch["cores"] for launch in first["launches"]] == [[0], [1]]
    answer = decide(client, context=first["context"], ready=["a", "b"], idle=[1, 2])
    assert [(launch["id"], launch["cores"]) for launch in answer["launches"]] == [("b", [1])]


@contextmanager
def served(settings: ServiceSettings) -> Iterator[FlaskClient]:
    """A client of a service process of its own over these settings."""
    app = create_app(settings)
    try:
        yield app.test_client()
    finally:
        app.extensions["threadcast"].store.close()


def test_contexts_used_last_are_kept(settings: ServiceSettings) -> None:
    with served(replace(settings, max_kept_contexts=2, max_contexts=1)) as client:
        graph = graph_document(**CURVES)
        names = [decide(client, graph=graph, cores=cores, ready=[])["context"] for cores in (1, 2)]
        assert decide(client, graph=graph, cores=1, ready=[])["context"] == names[0]
        names.append(decide(client, graph=graph, cores=3, ready=[])["context"])
        asked = [client.post("/v1/decisions", json={"context": name, "ready": []}) for name in names]
    assert [response.status_code for response in asked] == [200, 404, 200]


def test_every_process_and_a_restarted_one_go_on_with_a_context(settings: ServiceSettings) -> None:
    asked = {"ready": ["b"], "running": [{"id": "a", "cores": [0, 1], "remaining_s": 0.5}]}
    with served(settings) as first, served(settings) as second:
        named = decide(first, graph="net", ready=["a", "b"], policy="uniform", options={"inter": 2, "intra": 2})
        here, there = (decide(client, context=named["context"], **asked) for client in (first, second))
    with served(settings) as third:
        assert here == there == decide(third, context=named["context"], **asked)
    assert here["launches"]
    assert (here["curves_from"], here["context"]) == ("roofline@1", named["context"])


def test_a_context_of_another_version_is_not_known_any_more(
    settings: ServiceSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    with served(settings) as first, served(settings) as second:
        name = decide(first, graph="net", ready=[])["context"]
        monkeypatch.setattr("threadcast.service.decision_contexts.__version__", "0.0.0")
        assert second.post("/v1/decisions", json={"context": name, "ready": []}).status_code == 404
    for other in (b"\0\0\xff", b"[]", b"{}"):
        assert DecisionContext.from_bytes(other) is None


BASE = {"graph": graph_document(**CURVES), "cores": 4}
AT = {"id": "a", "cores": [0], "remaining_s": 1.0}
REFUSED: dict[str, tuple[Any, int, str]] = {
    "graph and context": ({**BASE, "context": "abc", "ready": []}, 422, ""),
    "a context unheard of": ({"context": "abc", "ready": []}, 404, "/context"),
    "an op unheard of": ({**BASE, "ready": ["a", "z"]}, 422, "/ready/1"),
    "an op ready and running": ({**BASE, "ready": ["a"], "running": [AT]}, 422, "/running/0/id"),
    "a running op unheard of": ({**BASE, "ready": [], "running": [{**AT, "id": "z"}]}, 422, "/running/0/id"),
    "a core that is not there": ({**BASE, "ready": [], "running": [{**AT, "cores": [9]}]}, 422, "/running/0"),
    "fewer threads than cores": (
        {**BASE, "ready": [], "running": [{**AT, "cores": [0, 1], "threads": 1}]}, 422, "/running/0"),
    "an idle core that is busy": ({**BASE, "ready": ["b"], "running": [AT], "idle": [1, 0]}, 422, "/idle/1"),
    "a context and cores": ({"context": "abc", "ready": [], "cores": 2}, 422, "/cores"),
    "automatic choice": ({**BASE, "ready": [], "policy": "auto"}, 422, "/policy"),
}  # fmt: skip


@pytest.mark.parametrize(("question", "status", "pointer"), REFUSED.values(), ids=REFUSED.keys())
def test_a_wrong_question_is_refused_with_a_pointer(
    client: FlaskClient, question: Any, status: int, pointer: str
) -> None:
    response = client.post("/v1/decisions", json=question)
    assert response.content_type == "application/problem+json"
    problem = response.get_json()
    assert (response.status_code, problem["pointer"]) == (status, pointer), problem


def test_idle_cores_are_not_looked_for_one_by_one() -> None:
    """On 4096 cores that would be 4096 times 4096 comparisons for each decision."""
    compared: list[int] = []

    class Core(int):
        def __eq__(self, other: object) -> bool:
            compared.append(1)
            return int(self) == other

        __hash__ = int.__hash__

    free = tuple(map(Core, range(400)))
    asked = DecisionRequest.model_construct(idle=list(range(400)))
    assert _idle(asked, free) == tuple(range(400))
    assert len(compared) <= 4 * 400
