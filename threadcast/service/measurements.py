"""POST and GET /v1/measurements: stores and lists measurements."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from apiflask import APIBlueprint
from flask import Response, request

from threadcast.core import Machine, Measurement, Op
from threadcast.core.errors import FormatError, ThreadcastError
from threadcast.core.measurement_documents import measurement_document
from threadcast.models.drift import MOST_OPS, ratios
from threadcast.service.answer_formats import Measurements, Stored
from threadcast.service.answers import Example, answer
from threadcast.service.auth import owned
from threadcast.service.context import Context, context, reply
from threadcast.service.documents import asked_machine, read_ops
from threadcast.service.formats import Measurement as Entry
from threadcast.service.measurement_documents import References, read_entries
from threadcast.service.problems import Problem
from threadcast.service.request_marks import timed
from threadcast.service.schemas import MeasurementsQuery, MeasurementsRequest
from threadcast.store.paging import MeasurementFilter
from threadcast.store.receipts import Receipt

IDEMPOTENCY_KEY = "Idempotency-Key"
MAX_KEY = 255
"""Most characters of an idempotency key."""

blueprint = APIBlueprint("measurements", __name__, url_prefix="/v1")

EXAMPLE: dict[str, Any] = {
    "machine": {"name": "example", "cores": [[0, [0], 0, 0, 0, None], [1, [1], 0, 0, 0, None]]},
    "ops": [{"kind": "mm", "inputs": [[256, 256], [256, 256]]}],
    "measurements": [{"op": 0, "threads": 1, "seconds": [0.004]}, {"op": 0, "threads": 2, "seconds": [0.0025]}],
}
"""Two samples of an op, on a machine of two cores that no other is taken for."""

_KEY_PARAMETER = {
    "name": IDEMPOTENCY_KEY, "in": "header", "required": False,
    "schema": {"type": "string", "minLength": 1, "maxLength": MAX_KEY, "pattern": "^[!-~]+$"},
    "description": "what is sent again under the same key is stored once",
}  # fmt: skip


@blueprint.post("/measurements")
@blueprint.input(MeasurementsRequest, arg_name="asked")
@blueprint.doc(
    extensions=answer(
        Stored, "Stored.", status=201, optional=("Idempotency-Replayed",), problems=(404, 409),
        parameters=[_KEY_PARAMETER], example=Example(EXAMPLE, status=201), scope="ingest",
    )
)  # fmt: skip
def add(asked: MeasurementsRequest) -> Response:
    """Store measurements

    All of them or none; what was acknowledged survives the end of the process and of the machine. An Idempotency-Key
    makes it safe to send a request again: it then gets the answer of the first time, with Idempotency-Replayed, and
    nothing is stored; another body under the same key is refused. Keys are forgotten after a while (`/v1/info`).
    """
    here = context()
    key = _idempotency_key()
    with timed("read"):
        measured = _read(asked, here)
    answer = {"measurements": len(measured), "samples": sum(len(m.samples) for m in measured)}
    receipt = None if key is None else Receipt(owned(key), _digest(), json.dumps(answer))
    off = _observed_over_predicted(measured, here)
    with timed("store"):
        former = here.store.add_once(measured, receipt, keep_s=here.settings.idempotency_s)
    if former is None:
        here.stored.last_measurement.expire()
        here.metrics.samples.inc(answer["samples"])
        here.metrics.observe(off)
        return reply(answer, 201)
    return _replayed(former)


def _observed_over_predicted(measured: Sequence[Measurement], here: Context) -> dict[str, list[float]]:
    """Measured over predicted seconds of the first `MOST_OPS` ops, by the "name@number" of the default model: a metric
    that shows drift. Nothing where there is no such model, which does not keep measurements from being stored."""
    with suppress(ThreadcastError):
        model, version = here.models.get()
        return {version: ratios(model, measured, most_ops=MOST_OPS)}
    return {}


def _replayed(former: Receipt) -> Response:
    """Return the first answer to this idempotency key; Problem 409 where another body was sent then."""
    if former.digest not in ("", _digest()):  # empty: stored by the command line
        raise Problem(
            409, f"this {IDEMPOTENCY_KEY} was used for another body; take a new one", pointer=f"/{IDEMPOTENCY_KEY}",
            where="header",
        )  # fmt: skip
    response = reply(json.loads(former.answer) if former.answer else {"measurements": 0, "samples": 0}, 201)
    response.headers["Idempotency-Replayed"] = "true"
    return response


def _digest() -> str:
    return hashlib.sha256(request.get_data()).hexdigest()


def _idempotency_key() -> str | None:
    key = request.headers.get(IDEMPOTENCY_KEY)
    if key is not None and not (1 <= len(key) <= MAX_KEY and all("!" <= char <= "~" for char in key)):
        raise Problem(
            422, f"{IDEMPOTENCY_KEY} must be 1 to {MAX_KEY} visible ASCII characters",
            pointer=f"/{IDEMPOTENCY_KEY}", where="header",
        )  # fmt: skip
    return key


def _read(asked: MeasurementsRequest, here: Context) -> list[Measurement]:
    samples, most = sum(len(entry["seconds"]) for entry in asked.measurements), here.settings.max_rows
    if samples > most:
        raise FormatError(f"{samples} samples; at most max_rows={most} are allowed", pointer="/measurements")
    return read_entries(asked.measurements, _references(asked, asked.measurements, here), now_s=time.time())


def _references(asked: MeasurementsRequest, entries: Sequence[Entry], here: Context) -> References:
    """The ops and machines that the entries may refer to: those that the request describes, and those stored."""
    default = None if asked.machine is None else asked_machine(asked.machine, here.stored)
    given = [asked_machine(m, here.stored, pointer=f"/machines/{i}") for i, m in enumerate(asked.machines)]
    machines = {m.fingerprint: m for m in ([default] if default else []) + given}
    if not all(entry["machine"] in machines for entry in entries if "machine" in entry):
        machines = here.stored.machines() | machines
    ops = read_ops(asked.ops, here.stored) if asked.ops else []
    keys = {key for entry in entries if isinstance(key := entry["op"], str)}
    keys -= {op.key for op in ops}
    return References(ops, list(here.stored.ops(keys).values()), machines, default)


@blueprint.get("/measurements")
@blueprint.input(MeasurementsQuery, location="query", arg_name="asked")
@blueprint.doc(
    extensions=answer(Measurements, "One page, in the order in which they were stored.", problems=(404, 422))
)
def show(asked: MeasurementsQuery) -> Response:
    """List measurements

    In pages: `next` of an answer is the `after` of the next request, null on the last page.
    """
    here = context()
    limit = min(asked.limit, here.settings.max_page)
    machine = None if asked.machine is None else asked_machine(asked.machine, here.stored, where="query").fingerprint
    which = MeasurementFilter(machine, asked.op, asked.kind, asked.network)
    total, page, following = here.store.page(which, after=asked.after, limit=limit)
    document = {
        "total": total,
        "next": following,
        "machines": _named("fingerprint", {m.machine.fingerprint: m.machine for m in page}),
        "ops": _named("key", {m.op.key: m.op for m in page}),
        "measurements": [measurement_document(m) for m in page],
    }
    try:
        return reply(document)
    except ValueError:  # a program has stored features that are infinite, which JSON lacks
        return reply(json.loads(json.dumps(document), parse_constant=lambda name: None))


def _named(name: str, things: Mapping[str, Machine | Op]) -> list[dict[str, Any]]:
    """Return the documents of machines or ops, each with its identity under `name`."""
    return [{name: identity, **thing.to_json()} for identity, thing in things.items()]
