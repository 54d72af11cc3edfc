"""Completes the OpenAPI description that APIFlask generates: schemas of the documents, answers, headers, keys."""

from __future__ import annotations

from typing import Any

from flask import Flask
from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema

from threadcast.service import answer_formats, answers, auth, formats, schemas

_REQUESTS = (
    schemas.PredictionRequest, schemas.PlanRequest, schemas.DecisionRequest, schemas.MeasurementsRequest,
    schemas.AliasMove, schemas.Rollback,
)  # fmt: skip
_ANSWERS = (
    answer_formats.CurveTable, formats.Plan, answer_formats.Decision, answer_formats.Measurements,
    answer_formats.Stored, answer_formats.Health, answer_formats.Info, answer_formats.Models,
    answer_formats.AliasTable, answer_formats.Alias, answer_formats.Problem,
)  # fmt: skip

_KEY = {
    "type": "http", "scheme": "bearer",
    "description": "Where the service has keys (`threadcast keys add`): read, ingest to store measurements, admin for "
    "everything. 401 without a key, 403 with one that does not allow it.",
}  # fmt: skip


class _Untitled(GenerateJsonSchema):
    """Leaves out the titles of members, which only repeat their names."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def complete(spec: Any, app: Flask) -> Any:
    """Return the description with all schemas and answers; `security` says whether this service asks for keys."""
    has_keys = auth.has_keys(app)
    spec["components"]["schemas"] = _schemas()
    spec["components"]["responses"] = answers.problem_responses()
    spec["components"]["securitySchemes"] = {"key": _KEY}
    spec["security"] = [{"key": []}] if has_keys else [{}, {"key": []}]
    open_paths = {rule.rule for rule in app.url_map.iter_rules() if rule.endpoint in auth.OPEN}
    for path, item in spec["paths"].items():
        for method, operation in item.items():
            open_to_all = path in open_paths
            if open_to_all:
                operation["security"] = []
            if "requestBody" in operation:
                operation["requestBody"]["required"] = True
            answers.complete(operation, method, path, open_to_all=open_to_all)
    return spec


def _schemas() -> dict[str, Any]:
    """The JSON schemas of all documents, from the models that requests are checked by."""
    models = [(model, "validation", TypeAdapter(model)) for model in (*_REQUESTS, *_ANSWERS)]
    _, found = TypeAdapter.json_schemas(
        models,  # type: ignore[arg-type]
        ref_template="#/components/schemas/{model}",
        schema_generator=_Untitled,
    )
    return dict(sorted(found["$defs"].items()))
