"""Completes the OpenAPI description that APIFlask generates: shared schemas, headers, problems, keys."""

from __future__ import annotations

from typing import Any

from threadcast.service import formats, problems

PARAMETERS = "x-parameters"
"""Name of the extension in which a route describes the headers that it reads and the variables of its path."""


_KEY = {
    "type": "http", "scheme": "bearer",
    "description": "Where the service has keys (`threadcast keys add`): read, ingest to store measurements, admin for "
    "everything. 401 without a key, 403 with one that does not allow it.",
}  # fmt: skip


def complete(spec: Any) -> Any:
    """Return the description with shared schemas and parameters, and a problem as an answer of every operation."""
    spec["components"].setdefault("schemas", {}).update(formats.COMPONENTS)
    spec["components"]["securitySchemes"] = {"key": _KEY}
    spec["security"] = [{}, {"key": []}]
    for item in spec["paths"].values():
        for operation in item.values():
            known = {parameter["name"]: parameter for parameter in operation.get("parameters", [])}
            known |= {parameter["name"]: parameter for parameter in operation.pop(PARAMETERS, [])}
            operation["parameters"] = [_without_null(parameter) for parameter in known.values()]
            if "requestBody" in operation:
                operation["requestBody"]["required"] = True
            operation["responses"]["default"] = {
                "description": "What went wrong.",
                "content": {problems.MEDIA_TYPE: {"schema": formats.ref("Problem")}},
            }
    return _with_references(spec)


def _without_null(parameter: dict[str, Any]) -> dict[str, Any]:
    """Return the parameter without the type null, which pydantic adds where a parameter may be left out."""
    choices = [choice for choice in parameter["schema"].get("anyOf", ()) if choice != {"type": "null"}]
    if len(choices) != 1:
        return parameter
    rest = {name: value for name, value in parameter["schema"].items() if name not in ("anyOf", "default")}
    return {**parameter, "schema": {**choices[0], **rest}}


def _with_references(description: Any) -> Any:
    """Return the OpenAPI description with every `formats.REF` replaced by a "$ref" to a component."""
    if isinstance(description, list):
        return [_with_references(item) for item in description]
    if not isinstance(description, dict):
        return description
    if formats.REF in description:
        return {"$ref": f"#/components/schemas/{description[formats.REF]}"}
    return {name: _with_references(value) for name, value in description.items()}
