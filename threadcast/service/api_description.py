"""Completes the OpenAPI description that APIFlask generates: schemas of the documents, answers, headers, keys."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from flask import Flask
from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema

from threadcast.service import answer_formats, answers, auth

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
    bodies = (getattr(view, "_spec", {}).get("body") for view in app.view_functions.values())
    documents: dict[str, Any] = {"Problem": answer_formats.Problem, **{body.__name__: body for body in bodies if body}}
    spec["components"]["responses"] = answers.problem_responses()
    spec["components"]["securitySchemes"] = {"key": _KEY}
    spec["security"] = [{"key": []}] if has_keys else [{}, {"key": []}]
    open_paths = {rule.rule for rule in app.url_map.iter_rules() if rule.endpoint in auth.OPEN}
    for path, item in spec["paths"].items():
        for method, operation in item.items():
            if document := operation.pop(answers.DOCUMENT):
                documents[document.__name__] = document
            open_to_all = path in open_paths
            if open_to_all:
                operation["security"] = []
            if "requestBody" in operation:
                operation["requestBody"]["required"] = True
            answers.complete(operation, method, path, open_to_all=open_to_all)
    spec["components"]["schemas"] = _schemas(documents.values())
    return spec


def _schemas(documents: Iterable[Any]) -> dict[str, Any]:
    """The JSON schemas of these documents, from the models that requests are checked by."""
    models = [(model, "validation", TypeAdapter(model)) for model in documents]
    _, found = TypeAdapter.json_schemas(
        models,  # type: ignore[arg-type]
        ref_template="#/components/schemas/{model}",
        schema_generator=_Untitled,
    )
    return dict(sorted(found["$defs"].items()))
