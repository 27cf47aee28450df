"""The console's files: read once from the package, and served from memory under a strict content security policy.

The page shows the contents of streams next to an API that can purge and drain.  The policy therefore lets only these
files run.  It forbids inline scripts and styles, markup made from text (Trusted Types), frames around the page, and
requests to other servers than the admin port.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Final

from aiohttp import web

PREFIX: Final = "/console/"

POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "connect-src 'self'",
        "img-src 'self' data:",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)

_HEADERS: Final = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    # The files of one version belong together, so each is revalidated.  Unchanged files get a 304.
    "Cache-Control": "no-cache",
}
_TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


@dataclass(frozen=True, slots=True)
class StaticFile:
    """One file, ready to send."""

    body: bytes
    content_type: str
    etag: str


def is_open(path: str) -> bool:
    """Return whether the path is a file of the page, which needs no token."""
    return path == "/" or path.startswith(PREFIX)


@cache
def static_files() -> dict[str, StaticFile]:
    """Return all files of the page by their paths on the admin port.  `/` is the page itself."""
    found = {PREFIX + name: _read(entry) for name, entry in _walk(files(__package__) / "static", "")}
    return {"/": found[f"{PREFIX}index.html"], **found}


def _walk(folder: Traversable, before: str) -> Iterator[tuple[str, Traversable]]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _walk(entry, f"{before}{entry.name}/")
        elif _suffix(entry.name) in _TYPES:
            yield before + entry.name, entry


def _suffix(name: str) -> str:
    return name[name.rfind(".") :]


def _read(entry: Traversable) -> StaticFile:
    body = entry.read_bytes()
    etag = hashlib.blake2b(body, digest_size=12).hexdigest()
    return StaticFile(body, _TYPES[_suffix(entry.name)], etag)


def site_routes() -> list[web.RouteDef]:
    """Make the routes `GET /` and `GET /console/…`."""
    found = static_files()

    async def serve(request: web.Request) -> web.Response:
        file = found.get(request.path)
        if file is None:
            raise web.HTTPNotFound(text="No such file\n")
        headers = {**_HEADERS, "ETag": f'W/"{file.etag}"', "Vary": "Accept-Encoding"}
        if any(tag.value in (file.etag, "*") for tag in request.if_none_match or ()):
            return web.Response(status=304, headers=headers)
        response = web.Response(body=file.body, headers={**headers, "Content-Type": file.content_type})
        response.enable_compression()
        return response

    async def to_page(_: web.Request) -> web.Response:
        raise web.HTTPPermanentRedirect("/")

    return [web.get("/", serve), web.get("/console", to_page), web.get(PREFIX + "{name:.+}", serve)]
