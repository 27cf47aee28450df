"""Requests to the admin API, and their answers.

An `Endpoint` has the types of its query, body and answer.  The same types validate requests and generate the OpenAPI
document, so the two always agree.  Answers are JSON, and every error is `{"error": "<one line>"}`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any, Final, Generic, TypeVar

import orjson
from aiohttp import hdrs, web
from pydantic import ConfigDict, TypeAdapter, ValidationError, with_config

HEADERS: Final[Mapping[str, str]] = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
}
MOST_BODY_BYTES: Final = 8 << 20
"""The largest body of any request: ten thousand paths of streams."""
BODY_S: Final = 30.0
"""The most seconds for a body to arrive."""
_BODY_BYTES: Final = 64 << 10
_JSON: Final = "application/json"
_SHOWN_CHARS: Final = 60
_NOT_ALLOWED: Final = "should be a path that begins with a slash, percent-encoded where necessary"
_MOST_ERRORS: Final = 1_000
"""With more validation errors than this, the answer states no single error, because writing out all texts would take a
second.
"""
_KEY_PROBLEMS: Final = frozenset({"missing", "unexpected_keyword_argument", "extra_forbidden"})

AUDITED: Final = web.RequestKey("audited", str)
"""The audit log's description of the change, kept on the request."""

API_TYPE: Final = ConfigDict(use_attribute_docstrings=True, extra="forbid")
"""The configuration of all query, body and answer types: docstrings become descriptions, and unknown keys are
refused."""

Q = TypeVar("Q")
B = TypeVar("B")


class Refused(Exception):
    """Refuses the request, with a status and one line of text."""

    def __init__(self, status: int, text: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(" ".join(text.split()))
        self.status = status
        self.headers = dict(headers or {})


@with_config(API_TYPE)
@dataclass(frozen=True, slots=True)
class Error:
    """The reason for a refusal."""

    error: str
    """The reason, in one line."""


@with_config(API_TYPE)
@dataclass(frozen=True, slots=True)
class MemberOutcome:
    """Whether another member of the fleet has made the same change."""

    member: str
    affected: int | None
    """The number of streams or live reads that the change concerned at this member.  Null if the member has not
    confirmed the change.  It then makes the change as soon as it reaches another member."""
    why_not: str = ""
    """Why the member has not confirmed; empty if it has."""


@with_config(API_TYPE)
@dataclass(frozen=True, slots=True)
class Nothing:
    """No parameters."""


@dataclass(frozen=True, slots=True)
class ApiRequest(Generic[Q, B]):
    """One request: its parameters, its body, and the variable parts of its path."""

    query: Q
    body: B
    path: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One method of one path.  `answer` is the type that `handle` returns."""

    method: str
    path: str
    summary: str
    handle: Callable[[ApiRequest[Any, Any]], Awaitable[object]]
    answer: Any
    query: Any = Nothing
    body: Any = Nothing
    status: int = 200
    expects: str = ""
    """A description of the expected body, if it has several forms."""
    most_bytes: int = _BODY_BYTES
    """The largest body, in bytes."""
    audited: Callable[[Any, Any], str] | None = None
    """Describes a change for the audit log, from the body and the answer."""
    refusals: Mapping[int, str] = field(default_factory=dict)
    """Error statuses that only this endpoint has, with their meaning."""

    @property
    def changes(self) -> bool:
        """Whether the request takes a body."""
        return self.method != "GET"

    def route(self) -> web.RouteDef:
        """Return the endpoint as an aiohttp route."""

        async def answered(asked: ApiRequest[Any, Any], _: bytes, __: web.Request) -> object:
            return await self.handle(asked)

        return self.route_with(answered)

    def route_with(
        self, answered: Callable[[ApiRequest[Any, Any], bytes, web.Request], Awaitable[object]]
    ) -> web.RouteDef:
        """Return a route that validates requests in the same way as this endpoint.  The route gets its answers from
        `answered`.  The arguments of `answered` are the validated request, the text of its body, and the request
        itself."""
        query, body = adapter_of(self.query), adapter_of(self.body)

        async def handle(request: web.Request) -> web.Response:
            given = await _read(request, self.most_bytes) if self.changes else b"{}"
            asked: ApiRequest[Any, Any] = ApiRequest(
                _validated(partial(query.validate_strings, _parameters(request)), "query"),
                # The text of a parameter may be converted to a number, but a body must have the right JSON types.
                _validated(partial(body.validate_json, given, strict=True), "body", self.expects),
                request.match_info,
            )
            answer = await answered(asked, given, request)
            if self.audited is not None:
                request[AUDITED] = self.audited(asked.body, answer)
            return json_response(answer, self.status)

        return web.route(self.method, self.path, handle) if self.changes else web.get(self.path, handle)


@cache
def adapter_of(shape: Any) -> TypeAdapter[Any]:
    """Return the adapter of a type.  Made once, because pydantic parses source files for docstrings, 3 ms for each
    type.
    """
    return TypeAdapter(shape)


def json_response(value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    """Make a JSON answer that must not be cached."""
    body = orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS)
    return web.Response(status=status, body=body, headers={**HEADERS, **(headers or {}), hdrs.CONTENT_TYPE: _JSON})


def refusal_response(error: Refused) -> web.Response:
    """Make the answer to a refused request."""
    return json_response(Error(str(error)), error.status, error.headers)


async def _read(request: web.Request, most_bytes: int) -> bytes:
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_S):
            async for chunk in request.content.iter_any():
                body += chunk
                if len(body) > most_bytes:
                    raise Refused(413, f"the body is larger than {most_bytes} bytes")
    except TimeoutError:
        raise Refused(408, f"the body did not arrive completely within {BODY_S:.0f} s") from None
    return bytes(body)


def _parameters(request: web.Request) -> dict[str, str]:
    query = request.query
    for name in query:
        if len(query.getall(name)) > 1:
            raise Refused(422, f"{_short(name)}: given more than once")
    return dict(query)


def _validated(read: Callable[[], Any], where: str, expects: str = "") -> Any:
    try:
        return read()
    except ValidationError as error:
        if error.error_count() > _MOST_ERRORS:
            raise Refused(
                422, f"{where}: should be {expects or 'as documented'}, and is wrong in many places"
            ) from None
        found = error.errors(include_url=False, include_context=False, include_input=False)
        # A body may have several forms.  Prefer errors in the form whose keys match the body.
        first = next((one for one in found if one["type"] not in _KEY_PROBLEMS), found[0])
        if first["type"] == "json_invalid":
            raise Refused(400, "the body is not JSON") from None
        if expects and first["type"] in _KEY_PROBLEMS:
            raise Refused(422, f"{where}: should be {expects}") from None
        # A part with an initial capital is the name of a form of the body, not a key.
        place = ".".join(str(part) for part in first["loc"] if not str(part)[:1].isupper()) or where
        is_pattern = first["type"] == "string_pattern_mismatch"
        raise Refused(422, f"{_short(place)}: {_NOT_ALLOWED if is_pattern else _reworded(first['msg'])}") from None


def _reworded(message: str) -> str:
    return message.replace("Input should", "should", 1).replace("Unexpected keyword argument", "unknown key")


def _short(text: str) -> str:
    printable = text if text.isprintable() else ascii(text)
    return printable if len(printable) <= _SHOWN_CHARS else printable[:_SHOWN_CHARS] + "…"
