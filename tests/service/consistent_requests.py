"""Makes requests that were generated from the description consistent: what no schema can say holds for them, too.

An edge then names ops of its graph, core ids differ, an op runs or is ready but not both. Whatever the schema leaves
free stays as it was generated.
"""

from __future__ import annotations

from typing import Any

from tests.service.service_data import MACHINE, OPS
from threadcast.core import Machine
from threadcast.scheduler.policies.registry import without_options

MOST_CORES = 8
"""Most cores of a plan, so that a hundred of them are made in good time."""

Document = dict[str, Any]


def consistent(path: str, body: Any) -> Any:
    """The body of a request to `path` that fits its schema, made consistent."""
    if not isinstance(body, dict):
        return body
    for machine in (body.get("machine"), *(body.get("machines") or ())):
        if isinstance(machine, dict):
            machine.pop("cases", None)  # of which each must be one of its cores and caches
    match path:
        case "/v1/predictions":
            _prediction(body)
        case "/v1/plans":
            _planned(body)
        case "/v1/decisions":
            _decision(body)
        case "/v1/measurements":
            _measured(body)
    return body


def _prediction(body: Document) -> None:
    for op in body.get("ops") or ():
        _op(op)
    _graph(body.get("graph"))
    body["machine"] = MACHINE.fingerprint  # of another machine, the model of this store knows nothing
    if body.get("cases"):
        body["cases"] = [_case(case, MACHINE) for case in body["cases"]]


def _case(entry: Document, machine: Machine) -> Document:
    """The members of a case of the machine in place of that of `entry`."""
    cases = machine.cases()
    case = cases[int(entry["threads"]) % len(cases)]
    return {"threads": case.threads, "affinity": case.affinity.value}


def _planned(body: Document) -> Machine | None:
    """Make graph, machine, cores, policy and options fit; return the machine that is planned for, where it is given."""
    graph = body.get("graph")
    with_curves = _graph(graph)
    machine = None
    if with_curves and isinstance(body.get("machine"), dict):
        machine = Machine.from_json(_machine(body["machine"]))
    elif not (with_curves and body.get("machine") is None):
        body["machine"], machine = MACHINE.fingerprint, MACHINE
    most = MOST_CORES if machine is None else min(len(machine), MOST_CORES)
    body["cores"] = 1 + int(body.get("cores") or 1) % most if most > 1 else 1
    policies = without_options()
    body["policy"] = policies[len(body.get("policy") or "") % len(policies)]
    body["options"] = {}
    return machine


def _decision(body: Document) -> None:
    if body.get("graph") is not None:
        machine = _planned(body)
        listed = body["graph"]["ops"] if isinstance(body["graph"], dict) else ()
        ids = [op["id"] for op in listed]
        cores = [core.id for core in machine.cores] if machine else list(range(body["cores"]))
        if machine is not None:
            body["cores"] = len(machine)
    else:
        for name in ("cores", "machine", "policy", "model", "options"):
            body.pop(name, None)
        ids, cores = [], []
    running = body.get("running") or []
    del running[min(len(ids), len(cores)) :]
    for number, op in enumerate(running):
        op["id"], op["cores"], op["threads"], op["hardware_thread"] = ids[number], [cores[number]], 1, 0
    waiting = ids[len(running) :]
    body["running"], body["ready"] = running, waiting[: len(body["ready"])]
    if body.get("idle") is not None:
        body["idle"] = cores[len(running) :][: len(body["idle"])]


def _measured(body: Document) -> None:
    if isinstance(body.get("machine"), dict):
        _machine(body["machine"])
    else:
        body["machine"] = MACHINE.to_json()
    for machine in body.get("machines") or ():
        _machine(machine)
    listed = [op for op in body.get("ops") or () if isinstance(op, dict)]
    for op in listed:
        _op(op)
    body["ops"] = [*listed, OPS[0].to_json()]
    for entry in body.get("measurements") or ():
        entry |= _case(entry, Machine.from_json(body["machine"]))
        entry.pop("machine", None)
        entry.pop("repeat", None)
        entry["op"] = int(entry["op"]) % len(body["ops"]) if isinstance(entry["op"], int | float) else OPS[1].key
        for counts in (entry.get("counters") or {}).values():
            counts[:] = (counts * len(entry["seconds"]))[: len(entry["seconds"])] or [None] * len(entry["seconds"])


def _graph(graph: Any) -> bool:
    """Make a graph consistent; return whether it brings curves."""
    if not isinstance(graph, dict):
        return False
    if not graph["ops"]:
        graph["ops"].append({"id": "a", "kind": "mm"})
    with_curves = "curve" in graph["ops"][0]
    for number, op in enumerate(graph["ops"]):
        _op(op)
        op["id"] = f"{number}{op['id']}"
        if with_curves:
            op["curve"] = {"1": next(iter((op.get("curve") or {"1": 1.0}).values()))}
        else:
            op.pop("curve", None)
    ids = [op["id"] for op in graph["ops"]]
    count = len(graph.get("edges", ())) if len(ids) > 1 else 0
    edges = [[ids[number % (len(ids) - 1)], ids[-1]] for number in range(count)]
    ordering = edges[: len(graph.get("ordering_edges", ()))]
    graph["edges"], graph["ordering_edges"] = edges, ordering
    return with_curves


def _op(op: Any) -> None:
    if isinstance(op, dict):
        for name in {"flops", "bytes"} & op.keys():
            op[name] %= 1e15  # more would take longer than any plan may
        for name in ("inputs", "outputs"):
            for tensor in op.get(name, ()):
                _tensor(tensor)


def _tensor(tensor: list[Any]) -> None:
    """Leave at most eight sides of less than 97, and as many strides."""
    if all(isinstance(side, int | float) for side in tensor):
        tensor[:] = [int(side) % 97 for side in tensor[:8]]
        return
    tensor[0] = [int(side) % 97 for side in tensor[0][:8]]
    if len(tensor) > 2 and tensor[2] is not None:
        tensor[2] = [int(stride) % 97 for stride in (tensor[2] + [1] * 8)[: len(tensor[0])]]


def _machine(machine: Document) -> Document:
    """Number the cores and their CPUs, so that none is there twice."""
    cpu = 0
    for number, core in enumerate(machine["cores"]):
        core[:5] = number, list(range(cpu, cpu + len(core[1]))), *map(int, core[2:5])
        cpu += len(core[1])
    for cache in machine.get("caches", ()):
        cache[:] = int(cache[0]), int(cache[1]), list(map(int, cache[2]))
    return machine
