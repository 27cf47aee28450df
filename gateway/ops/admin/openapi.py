"""Generates the OpenAPI 3.1 document of the admin port from its endpoints and their types."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from pydantic import TypeAdapter

from gateway import __version__
from gateway.ops.admin.endpoint import Endpoint, Error, Nothing

_REFERENCE: Final = "#/components/schemas/{model}"
_IN_PATH: Final = re.compile(r"\{(\w+)\}")
_DESCRIPTION: Final = (
    "Inspect and control a durable-gateway. Every request except those of /healthz and /readyz needs the token, "
    "unless the admin address is loopback and no token is set. A request that changes something is "
    "application/json. Every error is one line of text in JSON."
)
_REFUSALS: Final = {
    401: "A token is required, and it is missing or wrong.",
    403: "The Host header does not name the address of this port, or the request comes from a page of another origin.",
    422: "A parameter or the body is invalid.",
}
_BODY_REFUSALS: Final = {
    400: "The body is not JSON.",
    413: "The body is too large.",
    415: "The body is not application/json.",
}
_VERBOSE: Final = {
    "name": "verbose",
    "in": "query",
    "required": False,
    "description": "With any value, the answer also lists the origins, one a line. Such a request needs the token.",
    "allowEmptyValue": True,
    "schema": {"type": "string"},
}
_TEXT: Final = {"text/plain": {"schema": {"type": "string"}}}


def openapi_document(endpoints: Sequence[Endpoint]) -> dict[str, Any]:
    """Make the document for these endpoints, the probes, the metrics and the document itself."""
    schemas, definitions = _schemas(endpoints)
    paths: dict[str, dict[str, Any]] = {}
    for number, endpoint in enumerate(endpoints):
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = _operation(endpoint, number, schemas)
    paths["/healthz"] = {"get": _plain("Whether the process runs", {"200": "The process runs."})}
    paths["/readyz"] = {
        "get": _guarded(
            _plain(
                "Whether the gateway takes requests",
                {"200": "The gateway takes requests.", "503": "The gateway is starting or draining."},
            )
        )
    }
    paths["/readyz"]["get"]["parameters"] = [_VERBOSE]
    paths["/metrics"] = {"get": _guarded(_plain("The metrics, in the Prometheus text format", {"200": "The metrics."}))}
    document = {"description": "This document", "content": {"application/json": {"schema": {"type": "object"}}}}
    paths["/openapi.json"] = {
        "get": {"summary": "This document", "operationId": "get_openapi_json", **_answers({"200": document})}
    }
    return {
        "openapi": "3.1.0",
        "info": {"title": "durable-gateway admin", "version": __version__, "description": _DESCRIPTION},
        "security": [{"token": []}, {}],
        "paths": paths,
        "components": {
            "schemas": definitions,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _schemas(endpoints: Sequence[Endpoint]) -> tuple[dict[tuple[object, str], Any], dict[str, Any]]:
    """Return schemas by an endpoint's number and part, and the definitions that they refer to."""
    wanted: list[tuple[Any, Any, TypeAdapter[Any]]] = [("error", "serialization", TypeAdapter(Error))]
    for number, endpoint in enumerate(endpoints):
        wanted.append(((number, "answer"), "serialization", TypeAdapter(endpoint.answer)))
        wanted.append(((number, "body"), "validation", TypeAdapter(endpoint.body)))
        wanted.append(((number, "query"), "validation", TypeAdapter(endpoint.query)))
    schemas, more = TypeAdapter.json_schemas(wanted, ref_template=_REFERENCE)
    return {key: schema for (key, _), schema in schemas.items()}, more.get("$defs", {})


def _operation(endpoint: Endpoint, number: int, schemas: dict[Any, Any]) -> dict[str, Any]:
    error = {"application/json": {"schema": schemas["error"]}}
    refusals = {**_REFUSALS, **(_BODY_REFUSALS if endpoint.changes else {}), **endpoint.refusals}
    answers: dict[str, Any] = {
        str(status): {"description": text, "content": error} for status, text in sorted(refusals.items())
    }
    answers[str(endpoint.status)] = {
        "description": endpoint.summary,
        "content": {"application/json": {"schema": schemas[number, "answer"]}},
    }
    operation: dict[str, Any] = {
        "summary": endpoint.summary,
        "operationId": re.sub(r"\W+", "_", f"{endpoint.method.lower()}{endpoint.path}").strip("_"),
        "parameters": [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
            for name in _IN_PATH.findall(endpoint.path)
        ],
        "responses": answers,
    }
    if endpoint.query is not Nothing:
        operation["parameters"] += _parameters(endpoint.query)
    if endpoint.changes:
        schema = schemas[number, "body"]
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
    return operation


def _parameters(query: Any) -> list[dict[str, Any]]:
    schema = TypeAdapter(query).json_schema()
    parameters: list[dict[str, Any]] = []
    for name, part in schema["properties"].items():
        description = part.pop("description", "")
        is_required = name in schema.get("required", ())
        parameters.append(
            {"name": name, "in": "query", "required": is_required, "description": description, "schema": part}
        )
    return parameters


def _plain(summary: str, answers: dict[str, str]) -> dict[str, Any]:
    name = "get_" + summary.lower().replace(" ", "_").partition(",")[0]
    responses = {status: {"description": text, "content": _TEXT} for status, text in answers.items()}
    return {"summary": summary, "operationId": name, **_answers(responses)}


def _guarded(operation: dict[str, Any]) -> dict[str, Any]:
    for status in (401, 403):
        operation["responses"][str(status)] = {
            "description": _REFUSALS[status],
            "content": {"application/json": {"schema": {"$ref": _REFERENCE.format(model="Error")}}},
        }
    return operation


def _answers(responses: dict[str, Any]) -> dict[str, Any]:
    return {"responses": responses}
