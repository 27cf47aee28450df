"""The types of configuration values: addresses, sizes, URLs, names.

Each type checks a value and converts it to a canonical form: hosts and header names in lower case, paths and URLs
without a trailing slash.  An invalid value raises ValueError with one line that states the expected form.
"""

from __future__ import annotations

import ipaddress
import re
from typing import Annotated, Final, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr

from gateway.config.addresses import HOST_NAME, MAX_PORT, parse_address
from gateway.config.sizes import parse_bytes

_HEADER_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_NODE_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9._-]{0,63}")
_ROUTE_NAME: Final = re.compile(r"[a-z0-9]+(?:[-_][a-z0-9]+)*")
_BASIN_NAME: Final = re.compile(r"[a-z0-9][a-z0-9-]{6,46}[a-z0-9]")
_TOKEN: Final = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_CONTENT_TYPE: Final = re.compile(rf"{_TOKEN}/{_TOKEN}(?: ?; ?{_TOKEN}={_TOKEN})*")
_MAX_ROUTE_NAME_CHARS: Final = 64
_LEAST_KEY_CHARS: Final = 16
MOST_WORKERS: Final = 256


def _address(text: str) -> str:
    return str(parse_address(text))


def origin_url(text: str) -> str:
    """Check an origin's URL; return it without a trailing slash, so that a request's path can be appended."""
    url = urlsplit(text)
    if url.scheme not in ("http", "https") or not url.hostname:
        raise ValueError(f"expected an http:// or https:// URL with a host, got {text!r}")
    if url.query or url.fragment or "?" in text or "#" in text:
        raise ValueError("an origin URL has no query and no fragment")
    if "@" in url.netloc:
        raise ValueError("an origin URL holds no user name or password: they would end up in logs")
    if not text.isascii() or not text.isprintable() or " " in text or "\\" in text:
        raise ValueError("an origin URL is printable ASCII without spaces: percent-encode the rest")
    if any(segment in (".", "..") for segment in url.path.split("/")):
        raise ValueError("an origin URL has no dot segments")
    if url.path.rstrip("/").startswith("//"):
        raise ValueError("the path of an origin URL does not begin with two slashes")
    try:
        port = url.port
    except ValueError:
        raise ValueError(f"a port is 1 to {MAX_PORT}") from None
    if port == 0 or (port is None and url.netloc.endswith(":")):
        raise ValueError(f"a port is 1 to {MAX_PORT}")
    host = url.hostname
    if ":" in host:
        host = f"[{ipaddress.IPv6Address(host)}]"
    elif not HOST_NAME.fullmatch(host):
        raise ValueError(f"{host!r} is not a host name")
    authority = host if port is None else f"{host}:{port}"
    return f"{url.scheme}://{authority}{url.path.rstrip('/')}"


def _collector_url(text: str) -> str:
    """Check that the text is empty or an http(s) URL with a path; return it unchanged, even with a trailing slash."""
    if not text:
        return text
    url = urlsplit(text)
    if url.scheme not in ("http", "https") or not url.hostname or not url.path:
        raise ValueError(f"expected a URL such as http://127.0.0.1:4318/v1/traces, got {text!r}")
    if "@" in url.netloc or not text.isascii() or not text.isprintable() or " " in text:
        raise ValueError("a collector's URL is printable ASCII and holds no user name or password")
    return text


def _log_stream_url(text: str) -> str:
    """Check that the text is empty or the http(s) URL of a stream; return it without a trailing slash."""
    if text and not urlsplit(text).path.strip("/"):
        raise ValueError(f"expected the URL of a stream such as http://127.0.0.1:4438/logs/edge, got {text!r}")
    return origin_url(text) if text else text


def _partition_key(secret: SecretStr) -> SecretStr:
    if 0 < len(secret.get_secret_value()) < _LEAST_KEY_CHARS:
        raise ValueError(f"a key of fewer than {_LEAST_KEY_CHARS} characters can be guessed")
    return secret


def _route_host(text: str) -> str:
    host = text.lower()
    if host.startswith("[") and host.endswith("]"):
        return f"[{ipaddress.IPv6Address(host[1:-1])}]"
    if host != "*" and not HOST_NAME.fullmatch(host.removeprefix("*.")):
        raise ValueError(f'expected "*", a host name without port, or "*.example.org", got {text!r}')
    return host


def _prefix(text: str) -> str:
    """Check a path prefix; return it without a trailing slash, except for `/` itself."""
    if not text.startswith("/") or "//" in text or any(part in (".", "..") for part in text.split("/")):
        raise ValueError(f"expected a path such as / or /v1/stream, got {text!r}")
    if not text.isascii() or not text.isprintable() or not {" ", "?", "#", "\\"}.isdisjoint(text):
        raise ValueError("a prefix is a plain path: no query, no fragment, no spaces, printable ASCII")
    return text.rstrip("/") or "/"


def _request_path(text: str) -> str:
    if not text.startswith("/") or not text.isascii() or not text.isprintable() or not {" ", "#"}.isdisjoint(text):
        raise ValueError(f"should be a path such as /healthz, got {text!r}")
    return text


def _route_name(text: str) -> str:
    if not _ROUTE_NAME.fullmatch(text) or len(text) > _MAX_ROUTE_NAME_CHARS:
        raise ValueError(f"a route's name is lower-case letters, digits, single - or _, got {text!r}")
    return text


def _basin_name(text: str) -> str:
    if text and not _BASIN_NAME.fullmatch(text):
        raise ValueError(f"a basin's name has 8 to 48 lower-case letters, digits and inner hyphens, got {text!r}")
    return text


def _content_type(text: str) -> str:
    if not _CONTENT_TYPE.fullmatch(text):
        raise ValueError(f"should be a content type such as text/plain, got {text!r}")
    if text.partition(";")[0].strip().lower() == "application/json":
        raise ValueError('is application/json: set records = "json", because concatenated bytes are not JSON')
    return text


def _node_name(text: str) -> str:
    if not _NODE_NAME.fullmatch(text):
        raise ValueError(f"a node's name is a letter, then letters, digits, . _ or -, at most 64, got {text!r}")
    return text


def _header_name(text: str) -> str:
    if not _HEADER_NAME.fullmatch(text):
        raise ValueError(f"{text!r} is not a header name")
    return text.lower()


def _allowed_origin(text: str) -> str:
    """Check a web origin as browsers send it: scheme, host and port, without a path."""
    if text in ("*", "null"):
        return text
    url = urlsplit(text.lower())
    if url.scheme not in ("http", "https") or not url.hostname or f"{url.scheme}://{url.netloc}" != text.lower():
        raise ValueError(f'expected "*" or an origin such as https://app.example.org, got {text!r}')
    return text.lower()


def _offset_pattern(text: str) -> str:
    if not text or not text.isascii() or not text.isprintable() or " " in text:
        raise ValueError(f'is {text!r}: an offset in printable ASCII is needed, with "*" for any characters')
    if not text.strip("*"):
        raise ValueError("would relay every read: set cache = false for that")
    return text


def _cookie_name(text: str) -> str:
    if not _HEADER_NAME.fullmatch(text):
        raise ValueError(f"{text!r} is not a cookie name")
    return text


def _distinct(names: tuple[str, ...]) -> tuple[str, ...]:
    if len(set(names)) < len(names):
        raise ValueError("names one twice")
    return names


def _workers(value: object) -> object:
    if value == "auto":
        return value
    if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) < 9:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST_WORKERS:
        raise ValueError(f'expected "auto" or a number from 1 to {MOST_WORKERS}, got {value!r}')
    return value


OffsetPatterns = Annotated[tuple[Annotated[str, AfterValidator(_offset_pattern)], ...], Field(strict=False)]
Bytes = Annotated[int, BeforeValidator(parse_bytes)]
ListenAddress = Annotated[str, AfterValidator(_address)]
HeaderName = Annotated[str, AfterValidator(_header_name)]
HeaderNames = Annotated[tuple[HeaderName, ...], Field(strict=False)]
CookieNames = Annotated[
    tuple[Annotated[str, AfterValidator(_cookie_name)], ...], Field(strict=False), AfterValidator(_distinct)
]
Codings = Annotated[tuple[Literal["zstd", "br", "gzip"], ...], Field(strict=False), AfterValidator(_distinct)]
AllowedOrigins = Annotated[tuple[Annotated[str, AfterValidator(_allowed_origin)], ...], Field(strict=False)]
OriginUrl = Annotated[str, AfterValidator(origin_url)]
CollectorUrl = Annotated[str, AfterValidator(_collector_url)]
LogStreamUrl = Annotated[str, AfterValidator(_log_stream_url)]
PartitionKey = Annotated[SecretStr, AfterValidator(_partition_key)]
RouteHost = Annotated[str, AfterValidator(_route_host)]
Prefix = Annotated[str, AfterValidator(_prefix)]
RequestPath = Annotated[str, AfterValidator(_request_path)]
RouteName = Annotated[str, AfterValidator(_route_name)]
BasinName = Annotated[str, AfterValidator(_basin_name)]
ContentType = Annotated[str, AfterValidator(_content_type)]
NodeName = Annotated[str, AfterValidator(_node_name)]
Workers = Annotated[int | Literal["auto"], BeforeValidator(_workers)]
