"""Validates the URL and the headers of a command's requests.

A stream is given by its URL, or as an S2 stream: `s2://host:port/basin/stream`, or `s2+https://…` for TLS.
`s2://basin/stream` works as in S2's own tool, with the server from the variable S2_BASIN_ENDPOINT.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Final
from urllib.parse import parse_qsl, quote, urlsplit

import typer

from gateway.protocol.names import QUERY_CURSOR, QUERY_LIVE, QUERY_OFFSET

_OURS: Final = frozenset({QUERY_OFFSET, QUERY_LIVE, QUERY_CURSOR})
_STARTS_WITH_HOST: Final = re.compile(r"(localhost|[\w.-]+\.[\w-]+|[\w.-]+:\d+|\[[0-9A-Fa-f:.]+\])(:\d+)?(/|\?|$)")
"""A URL without `http://`: a host with a dot or a port, an address in brackets, or localhost."""

_S2_SCHEMES: Final = {"s2": "http", "s2+https": "https"}
_ENDPOINT: Final = "S2_BASIN_ENDPOINT"
_TOKEN: Final = "S2_ACCESS_TOKEN"
"""The variables that S2's SDKs read."""

Headers = Annotated[
    list[str] | None,
    typer.Option("--header", "-H", metavar="NAME:VALUE", help="A request header to send along; may be repeated."),
]


@dataclass(frozen=True, slots=True)
class Target:
    """A stream, or a URL below which streams can be created."""

    url: str
    """The HTTP URL."""
    headers: dict[str, str] = field(repr=False)
    """The headers of all requests: those of the user, and for S2 the basin and the access token."""
    is_s2: bool = False


def stream_target(text: str, given: Sequence[str] | None, environ: Mapping[str, str]) -> Target:
    """Parse the stream and the headers that a command is given.  Raises BadParameter."""
    headers = request_headers(given)
    found = _s2_target(text, headers, environ)
    if found is None:
        return Target(stream_url(text), headers)
    if found.url.endswith("/"):
        raise typer.BadParameter(f"expected s2://host:port/basin/stream, got {text!r}", param_hint="'URL'")
    return found


def gateway_target(text: str, given: Sequence[str] | None, environ: Mapping[str, str]) -> Target:
    """Parse a URL, or an S2 basin, below which streams can be created.  Raises BadParameter.

    The URL of a stream is the result's URL, a slash, and the stream's name.
    """
    headers = request_headers(given)
    found = _s2_target(text, headers, environ)
    if found is None:
        url = http_url(text, "URL").rstrip("/")
        if "?" in url:
            raise typer.BadParameter("a gateway's URL has no query", param_hint="'URL'")
        return Target(url, headers)
    if not found.url.endswith("/"):
        raise typer.BadParameter(f"expected a basin, s2://host:port/basin, got {text!r}", param_hint="'URL'")
    return Target(found.url.rstrip("/"), found.headers, is_s2=True)


def _s2_target(text: str, headers: Mapping[str, str], environ: Mapping[str, str]) -> Target | None:
    """Parse an S2 stream or basin; return None for an HTTP URL.  The URL of a basin ends in a slash."""
    scheme, separator, rest = text.partition("://")
    if not separator or scheme not in _S2_SCHEMES:
        return None
    if _STARTS_WITH_HOST.match(rest):
        host, _, rest = rest.partition("/")
        endpoint = f"{_S2_SCHEMES[scheme]}://{host}"
    else:
        endpoint = environ.get(_ENDPOINT, "")
        if not endpoint:
            wanted = f"expected s2://host:port/basin/stream, or the server in {_ENDPOINT}; got {text!r}"
            raise typer.BadParameter(wanted, param_hint="'URL'")
    basin, _, stream = rest.partition("/")
    if not basin or not (basin + stream).isprintable():
        raise typer.BadParameter(f"expected s2://host:port/basin/stream, got {text!r}", param_hint="'URL'")
    endpoint = http_url(endpoint.replace("{basin}", basin), "URL").rstrip("/")
    own = {"s2-basin": basin}
    if token := environ.get(_TOKEN):
        own["Authorization"] = f"Bearer {token}"
    named = {name.lower() for name in headers}
    own = {name: value for name, value in own.items() if name.lower() not in named}
    return Target(f"{endpoint}/v1/streams/{quote(stream, safe='')}", {**own, **headers}, is_s2=True)


def http_url(text: str, name: str) -> str:
    """Check an http(s) URL; return it without its fragment.  `127.0.0.1:4437/demo` gets `http://` in front.

    Raises BadParameter for the argument `name`.
    """
    url = f"http://{text}" if _STARTS_WITH_HOST.match(text) else text
    try:
        parts = urlsplit(url)
        host = (parts.hostname or "").removesuffix(".")
        # IDNA encoding detects invalid DNS names, such as an empty label, before they are resolved.
        is_url = parts.scheme in ("http", "https") and bool(host.encode("idna")) and parts.port != 0
    except ValueError:
        is_url = False
    if not is_url or any(ord(char) <= 0x20 or ord(char) == 0x7F for char in text):
        raise typer.BadParameter(f"expected an http:// or https:// URL, got {text!r}", param_hint=f"'{name}'")
    return url.partition("#")[0]


def stream_path(text: str, name: str) -> str:
    """Return a stream's path with a leading slash.  Raises BadParameter for the argument `name` if it is a URL."""
    if "://" in text:
        raise typer.BadParameter(f"expected a path such as /demo, got {text!r}", param_hint=f"'{name}'")
    return text if text.startswith("/") else f"/{text}"


def stream_url(text: str) -> str:
    """Check a stream's URL.  Raises BadParameter if it has `offset`, `live` or `cursor`, which the command adds."""
    url = http_url(text, "URL")
    for key, _ in parse_qsl(urlsplit(url).query, keep_blank_values=True):
        if key in _OURS:
            raise typer.BadParameter(f"leave {key}= out of the stream's URL", param_hint="'URL'")
    return url


def with_query(url: str, query: Mapping[str, str]) -> str:
    """Append parameters to the query of `url`."""
    added = "&".join(f"{key}={quote(value, safe='')}" for key, value in query.items())
    return f"{url}{'&' if '?' in url else '?'}{added}"


def request_headers(given: Sequence[str] | None) -> dict[str, str]:
    """Parse `NAME:VALUE` headers.  Raises BadParameter."""
    headers: dict[str, str] = {}
    for text in given or ():
        name, colon, value = text.partition(":")
        if not colon or not name.strip() or not text.isprintable():
            raise typer.BadParameter(f"expected NAME:VALUE, got {text!r}", param_hint="'--header'")
        headers[name.strip()] = value.strip()
    return headers
