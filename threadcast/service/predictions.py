"""POST /v1/predictions: the curves of many ops in one dense answer."""

from __future__ import annotations

from apiflask import APIBlueprint
from flask import Response

from threadcast.core import Case, Machine, Op
from threadcast.core.errors import FormatError, InvalidInput
from threadcast.service.answer_formats import CurveTable
from threadcast.service.answer_forms import FORMS, accepted_form
from threadcast.service.answers import Example, answer
from threadcast.service.conditional import etag_of_table, matches
from threadcast.service.context import context
from threadcast.service.curve_text import curve_content
from threadcast.service.deadlines import curves_of_each, deadline
from threadcast.service.documents import asked_machine, read_case, read_each_op, read_graph
from threadcast.service.problems import Problem, all_of
from threadcast.service.request_marks import timed
from threadcast.service.schemas import PredictionRequest
from threadcast.service.settings import ServiceSettings
from threadcast.service.whole_answer import WholeAnswer

blueprint = APIBlueprint("predictions", __name__, url_prefix="/v1")


@blueprint.post("/predictions")
@blueprint.input(PredictionRequest, arg_name="asked")
@blueprint.doc(
    extensions=answer(
        CurveTable, "The curves.", tagged=True, forms=FORMS, problems=(404, 406, 412),
        reads=("X-Deadline-S", "If-None-Match"), scope="read",
        example=Example({"machine": 4, "ops": [{"kind": "mm", "inputs": [[256, 256], [256, 256]]}]}),
    )
)  # fmt: skip
def predict(asked: PredictionRequest) -> Response:
    """Forecast the seconds of ops at every case of a machine

    One row an op (in the order given) and one column a case, with a 90 % interval and the source of every point.
    Ops are given in full or by the keys of measured ones, or as a whole graph. What the store holds of an op on
    this machine is taken into account. An op whose key is unknown, or that cannot be forecast, has a problem in
    `errors` and null for its rows; where that are all ops, the answer is the first one's problem. Asked with the
    If-None-Match of an earlier answer, 412 says that it still holds. Large tables are shorter and sooner written as an
    Arrow stream (docs/formats.md).
    """
    here = context()
    until = deadline(here.settings.deadline_s)
    form = accepted_form()
    machine = asked_machine(asked.machine, here.stored)
    ops = _ops(asked)
    cases = None if asked.cases is None else [read_case(value) for value in asked.cases]
    _check_size(len(ops), machine, cases, here.settings)
    wrong = {row: op for row, op in enumerate(ops) if isinstance(op, Problem)}
    known = {row: op for row, op in enumerate(ops) if not isinstance(op, Problem)}
    try:
        with timed("model"):
            predictor = here.predictor_asked_for(machine, asked.model)
            table, refused = curves_of_each(predictor, [*known.values()], cases, until)
    except InvalidInput as error:
        raise FormatError(str(error), pointer="/cases") from error
    rows = [*known]
    member = "/ops" if asked.graph is None else "/graph/ops"
    wrong |= {rows[i]: Problem(422, str(why), pointer=f"{member}/{rows[i]}") for i, why in refused.items()}
    if len(wrong) == len(ops):
        raise all_of(wrong.values())
    here.metrics.count_points(table.model, table.seconds.size)
    keys = [known[row].key if row in known else str((asked.ops or ())[row]) for row in range(len(ops))]
    errors = [wrong[row].member() if row in wrong else None for row in range(len(ops))] if wrong else []
    etag = etag_of_table(table, form, machine.fingerprint, *keys, *map(str, errors))
    if matches(etag):
        raise Problem(
            412, "the answer is still the one with this entity tag", pointer="/If-None-Match", where="header",
            headers={"ETag": etag},
        )  # fmt: skip
    with timed("write"):
        content = curve_content(form, table, machine=machine.fingerprint, keys=keys, errors=errors)
    headers = {"ETag": etag, "Cache-Control": "no-cache", "Vary": "Accept"}
    return WholeAnswer(content, headers=headers, content_type=form)


def _ops(asked: PredictionRequest) -> list[Op | Problem]:
    here = context()
    if (asked.ops is None) == (asked.graph is None):
        raise FormatError("give either ops or a graph", pointer="/ops" if asked.graph is None else "/graph")
    if asked.ops is not None:
        return read_each_op(asked.ops, here.stored)
    ops: list[Op | Problem] = list(read_graph(asked.graph, here.store, here.settings).ops)
    if not ops:
        raise FormatError("the graph has no ops", pointer="/graph/ops")
    return ops


def _check_size(ops: int, machine: Machine, cases: list[Case] | None, limits: ServiceSettings) -> None:
    points = ops * len(machine.cases() if cases is None else cases)
    if points > limits.max_points:
        raise FormatError(
            f"{ops} ops make {points} points; {limits.max_points} are allowed in one answer; ask in parts"
        )
