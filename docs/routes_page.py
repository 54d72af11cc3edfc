"""The site's page of all routes of the service, made from its OpenAPI description."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

HEAD = """# HTTP routes

Made from the OpenAPI 3.1 description that the service gives at `/openapi.json` ([as a file](openapi.json)); `/docs` of
a running service shows the same. [HTTP](http.md) says how it is used, with keys, limits and errors.
"""

Json = dict[str, Any]


def render(spec: Json) -> str:
    """The page as Markdown, of the description `spec`."""
    found = [(f"{method.upper()} {path}", of) for path, item in spec["paths"].items() for method, of in item.items()]
    rows = [f"| [`{name}`](#{of['operationId']}) | {_line(of['summary'])} |" for name, of in found]
    parts = [HEAD, "\n".join(["| route | what it gives |", "|---|---|", *rows, ""])]
    for name, operation in found:
        parts += _route(name, operation)
    problems = [[status, answer["description"]] for status, answer in sorted(spec["components"]["responses"].items())]
    parts.append("## Problems\n\nOf any route, as a [Problem](#problem).\n")
    parts.append(_table(["status", "when"], problems))
    parts.append("## Documents\n")
    for name, schema in sorted(spec["components"]["schemas"].items()):
        parts += _document(name, schema)
    return "\n".join(parts)


def _route(name: str, operation: Json) -> Iterator[str]:
    yield f"## `{name}` {{: #{operation['operationId']} }}\n"
    yield f"{operation['summary']}. {operation.get('description', '')}\n"
    if parameters := operation.get("parameters"):
        rows = [[f"`{p['name']}`", p["in"], _kind(p["schema"]), _meaning({**p["schema"], **p})] for p in parameters]
        yield _table(["parameter", "in", "is", "meaning"], rows)
    for media, content in operation.get("requestBody", {}).get("content", {}).items():
        yield f"Body, `{media}`: {_kind(content['schema'])}\n"
    own = {status: answer for status, answer in operation["responses"].items() if "$ref" not in answer}
    rows = [[status, of["description"], " or ".join(_forms(of))] for status, of in own.items()]
    yield _table(["status", "when", "answer"], rows)
    shared = [f"[{status}](#problems)" for status in operation["responses"] if status not in own]
    yield f"Problems: {', '.join(shared)}\n"


def _forms(answer: Json) -> list[str]:
    """What an answer may be; the media type where it is not JSON."""
    content = {media: of["schema"] for media, of in answer.get("content", {}).items() if "schema" in of}
    return [_kind(schema) + ("" if media.endswith("json") else f" as `{media}`") for media, schema in content.items()]


def _document(name: str, schema: Json) -> Iterator[str]:
    yield f"### {name}\n"
    yield f"{schema.get('description', '')}\n"
    needed = schema.get("required", [])
    members = schema.get("properties", {}).items()
    rows = [[f"`{member}`", _kind(of), "yes" if member in needed else "", _meaning(of)] for member, of in members]
    if rows:
        yield _table(["member", "is", "needed", "meaning"], rows)


def _kind(schema: Json) -> str:
    """What a value is, with a link to the document that it refers to."""
    if "$ref" in schema:
        name = schema["$ref"].rsplit("/", 1)[1]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in schema:
        return " or ".join(map(_kind, schema["anyOf"]))
    if "enum" in schema:
        return ", ".join(map(str, schema["enum"]))
    if schema.get("type") == "array" and "items" in schema:
        return f"array of {_kind(schema['items'])}"
    return str(schema.get("const", schema.get("type", "any")))


def _meaning(schema: Json) -> str:
    default = f" [default: {schema['default']}]" if schema.get("default") is not None else ""
    return f"{schema.get('description', '')}{default}"


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(map(_line, cells))} |" for cells in lines) + "\n"


def _line(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
