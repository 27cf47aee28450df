"""The URL and headers of a command's requests, validated before anything is sent."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Final
from urllib.parse import parse_qsl, quote, urlsplit

import typer

from gateway.protocol.names import QUERY_CURSOR, QUERY_LIVE, QUERY_OFFSET

_OURS: Final = frozenset({QUERY_OFFSET, QUERY_LIVE, QUERY_CURSOR})
_STARTS_WITH_HOST: Final = re.compile(r"(localhost|[\w.-]+\.[\w-]+|[\w.-]+:\d+|\[[0-9A-Fa-f:.]+\])(:\d+)?(/|\?|$)")
"""A URL without `http://`: a host with a dot or a port, an address in brackets, or localhost."""

Headers = Annotated[
    list[str] | None,
    typer.Option("--header", "-H", metavar="NAME:VALUE", help="A request header to send along; may be repeated."),
]


def http_url(text: str, name: str) -> str:
    """`text` as an http(s) URL without fragment.  A usage error about the argument `name` for anything else.

    `127.0.0.1:4437/demo` becomes `http://127.0.0.1:4437/demo`.
    """
    url = f"http://{text}" if _STARTS_WITH_HOST.match(text) else text
    try:
        parts = urlsplit(url)
        host = (parts.hostname or "").removesuffix(".")
        # IDNA encoding finds invalid DNS names (an empty label, one too long), which fail only at look-up otherwise.
        is_url = parts.scheme in ("http", "https") and bool(host.encode("idna")) and parts.port != 0
    except ValueError:
        is_url = False
    if not is_url or any(ord(char) <= 0x20 or ord(char) == 0x7F for char in text):
        raise typer.BadParameter(f"expected an http:// or https:// URL, got {text!r}", param_hint=f"'{name}'")
    return url.partition("#")[0]


def stream_path(text: str, name: str) -> str:
    """`text` as the path of a stream; a leading slash is added.  A usage error about the argument `name` for a URL."""
    if "://" in text:
        raise typer.BadParameter(f"expected a path such as /demo, got {text!r}", param_hint=f"'{name}'")
    return text if text.startswith("/") else f"/{text}"


def stream_url(text: str) -> str:
    """A stream's URL without `offset`, `live` or `cursor`, which the command adds itself.  A usage error otherwise."""
    url = http_url(text, "URL")
    for key, _ in parse_qsl(urlsplit(url).query, keep_blank_values=True):
        if key in _OURS:
            raise typer.BadParameter(f"leave {key}= out of the stream's URL", param_hint="'URL'")
    return url


def with_query(url: str, query: Mapping[str, str]) -> str:
    """`url` with these parameters after its own, which keep their spelling."""
    added = "&".join(f"{key}={quote(value, safe='')}" for key, value in query.items())
    return f"{url}{'&' if '?' in url else '?'}{added}"


def request_headers(given: Sequence[str] | None) -> dict[str, str]:
    """Parse `NAME:VALUE` headers.  A usage error for anything else."""
    headers: dict[str, str] = {}
    for text in given or ():
        name, colon, value = text.partition(":")
        if not colon or not name.strip() or not text.isprintable():
            raise typer.BadParameter(f"expected NAME:VALUE, got {text!r}", param_hint="'--header'")
        headers[name.strip()] = value.strip()
    return headers
