"""The admin API, from the OpenAPI document that a gateway serves."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import aiohttp

from gateway.app import start_gateway
from gateway.config.gateway import GatewayConfig
from reference_pages.part import table

_REFERENCE = "#/components/schemas/"
_EMPTY = "Nothing"
_UNANSWERED = "http://127.0.0.1:1"
"""An origin that is never asked."""


def admin_api() -> str:
    """A section for each request, and one for each type of their bodies and answers."""
    document = asyncio.run(_document())
    common = _common_errors(document)
    requests = [
        _request(method.upper(), path, operation, common)
        for path, methods in sorted(document["paths"].items())
        for method, operation in sorted(methods.items())
    ]
    schemas = document["components"]["schemas"]
    sections = {name: _type(name, schema) for name, schema in sorted(schemas.items()) if name != _EMPTY}
    everything = "".join([*requests, *sections.values()])
    # A query's parameters are in its request's section already.
    types = [text for name, text in sections.items() if f"(#{name.lower()})" in everything]
    errors = "## Errors\n\n" + table(("status of any request", "when"), sorted(common))
    return f"{errors}\n## Requests\n\n" + "\n".join(requests) + "\n## Types\n\n" + "\n".join(types)


def _errors(operation: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for status, answer in sorted(operation["responses"].items()):
        if status >= "300":
            yield status, answer["description"]


def _common_errors(document: Mapping[str, Any]) -> set[tuple[str, str]]:
    """Errors that are described in the same words for several requests."""
    counts = Counter(
        error
        for methods in document["paths"].values()
        for operation in methods.values()
        for error in _errors(operation)
    )
    return {error for error, times in counts.items() if times > 2}


async def _document() -> Any:
    config = GatewayConfig.for_origin(_UNANSWERED, listen="127.0.0.1:0", admin="127.0.0.1:0")
    gateway = await start_gateway(config)
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=30)) as session,
            session.get(f"{gateway.admin_url}/openapi.json") as answer,
        ):
            return await answer.json()
    finally:
        await gateway.stop()


def _request(method: str, path: str, operation: Mapping[str, Any], common: set[tuple[str, str]]) -> str:
    lines = [f"### {method} {path}", "", f"{operation['summary']}.".replace("..", "."), ""]
    if parameters := operation.get("parameters"):
        rows = [(f"`{one['name']}`", one["in"], _shape(one["schema"]), _prose(one)) for one in parameters]
        lines += [table(("parameter", "in", "type", "meaning"), rows)]
    if body := operation.get("requestBody"):
        lines += [f"Body: {_shape(_schema(body))}.", ""]
    answers = operation["responses"]
    good = next(answer for status, answer in answers.items() if status.startswith("2"))
    if "content" in good:
        lines += [f"Answer: {_shape(_schema(good))}.", ""]
    if own := [error for error in _errors(operation) if error not in common]:
        lines += [table(("status", "when"), own)]
    return "\n".join(lines)


def _schema(part: Mapping[str, Any]) -> Mapping[str, Any]:
    [content] = part["content"].values()
    schema: Mapping[str, Any] = content["schema"]
    return schema


def _type(name: str, schema: Mapping[str, Any]) -> str:
    lines = [f"### {name}", "", _prose(schema), ""]
    if "enum" in schema:
        return "\n".join([*lines, ", ".join(f"`{value}`" for value in schema["enum"]) + "\n"])
    required = schema.get("required", ())
    rows = [
        (f"`{field}`" + ("" if field in required else " (optional)"), _shape(shape), _prose(shape))
        for field, shape in schema.get("properties", {}).items()
    ]
    return "\n".join([*lines, table(("field", "type", "meaning"), rows)])


def _prose(schema: Mapping[str, Any]) -> str:
    return " ".join(schema.get("description", "").split())


def _shape(schema: Mapping[str, Any]) -> str:
    return " or ".join(dict.fromkeys(_shapes(schema)))


def _shapes(schema: Mapping[str, Any]) -> Iterator[str]:
    if "$ref" in schema:
        name = schema["$ref"].removeprefix(_REFERENCE)
        yield "empty object" if name == _EMPTY else f"[{name}](#{name.lower()})"
    elif "const" in schema:
        yield f"`{schema['const']}`"
    elif "enum" in schema:
        yield from (f"`{value}`" for value in schema["enum"])
    elif choices := schema.get("anyOf") or schema.get("oneOf"):
        for choice in choices:
            yield from _shapes(choice)
    elif schema.get("type") == "array":
        inner = schema.get("items") or next(iter(schema.get("prefixItems", ({},))))
        yield f"list of {_shape(inner) or 'anything'}"
    elif schema.get("type") == "object" and isinstance(schema.get("additionalProperties"), Mapping):
        yield f"object of {_shape(schema['additionalProperties']) or 'anything'}"
    else:
        yield str(schema.get("type", "anything"))
