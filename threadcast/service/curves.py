"""GET /v1/curves/{op}: the curve of one stored op, with an entity tag."""

from __future__ import annotations

from apiflask import APIBlueprint
from flask import Response, request

from threadcast.core.op import MAX_KEY, Op
from threadcast.prediction.predictor import LocalPredictor
from threadcast.service.answer_formats import CurveTable
from threadcast.service.answer_forms import FORMS, accepted_form
from threadcast.service.answers import Example, answer
from threadcast.service.conditional import etag_of, matches
from threadcast.service.context import Context, context
from threadcast.service.curve_responses import CurveId, CurveResponse
from threadcast.service.curve_text import curve_content
from threadcast.service.documents import asked_machine
from threadcast.service.measurements import EXAMPLE
from threadcast.service.problems import Problem
from threadcast.service.request_marks import timed
from threadcast.service.whole_answer import WholeAnswer

MAX_NAME = 200
"""Most characters of a name in the query."""

blueprint = APIBlueprint("curves", __name__, url_prefix="/v1")

_NAME = {"type": "string", "minLength": 1, "maxLength": MAX_NAME}
_PARAMETERS = [
    {"name": "op", "in": "path", "required": True, "description": "key of an op that the store knows",
     "schema": {"type": "string", "minLength": 1, "maxLength": MAX_KEY}},
    {"name": "machine", "in": "query", "required": False, "schema": _NAME,
     "description": "a number of cores, local, or a name of /v1/machines; may be left out where the store knows one"},
    {"name": "model", "in": "query", "required": False, "schema": _NAME,
     "description": 'alias or "name@version"; the default model if left out'},
]  # fmt: skip


@blueprint.get("/curves/<key:op>")
@blueprint.doc(
    extensions=answer(
        CurveTable,
        "The curve: one row.",
        forms=FORMS,
        problems=(404, 406, 422),
        parameters=_PARAMETERS,
        example=Example(
            path={"op": lambda: Op.from_json(EXAMPLE["ops"][0]).key},
            query="?machine=example",
            status=404,
            until="the example of POST /v1/measurements was sent",
            then=200,
        ),
    )
)
def curve(op: str) -> Response:
    """Forecast the seconds of one op at every case of a machine

    What `POST /v1/predictions` answers for the op's key. The answer changes with the model and with what is measured
    of the op; ask with If-None-Match to get it only then.
    """
    here = context()
    asked = _query()
    machine = asked_machine(asked.get("machine"), here.stored, where="query")
    model, _, version = here.model_asked_for(asked.get("model"), machine, where="query")
    form = accepted_form()
    measured, changes = here.adapted.of(model, version, machine).measured, here.stored.changes(machine.fingerprint)
    last = here.stored.last_measurement()
    curve_id = CurveId(machine.fingerprint, version, op, last, measured, changes.stamp, form)
    response = here.curve_responses.get(curve_id)
    if response is None:
        with timed("model"):
            response = _predicted(op, here.predictor_with(model, machine, version), form, here)
        here.curve_responses.put(curve_id, response)
    here.metrics.count_points(version, response.points)
    headers = {"ETag": response.etag, "Cache-Control": "no-cache", "Vary": "Accept"}
    if matches(response.etag):
        return Response(status=304, headers=headers)
    return WholeAnswer(response.content, headers=headers, content_type=form)


def _query() -> dict[str, str]:
    if not request.query_string:
        return {}
    for name, value in request.args.items():
        if name not in ("machine", "model"):
            raise Problem(422, f"unknown parameter {name[:40]!r}", pointer=f"/{name[:40]}", where="query")
        if not 1 <= len(value) <= MAX_NAME:
            raise Problem(422, f"{name} must have 1 to {MAX_NAME} characters", pointer=f"/{name}", where="query")
    return request.args.to_dict()


def _predicted(key: str, predictor: LocalPredictor, form: str, here: Context) -> CurveResponse:
    op = here.stored.ops({key}).get(key)
    if op is None:
        raise Problem(404, f"the store knows no op with the key {key[:80]!r}", pointer="/op", where="path")
    table = predictor.curves([op])
    content = curve_content(form, table, machine=predictor.machine.fingerprint, keys=[key])
    return CurveResponse(content, etag_of(content), len(table.cases))
