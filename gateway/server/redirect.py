"""The handler of a listener that only redirects to https."""

from __future__ import annotations

import re
from typing import Final

from multidict import CIMultiDict

from gateway.protocol.host import BadHost, host_of
from gateway.protocol.target import without_authority
from gateway.server.clients import Handler
from gateway.server.request import Answered, Request

_TARGET: Final = re.compile(r"/[!-~]*")


def redirect(port: int) -> Handler:
    """A handler that redirects every request to the same URL with https, at `port`.

    308 keeps the method (RFC 9110 section 15.4.9).  A host or a target that cannot be part of a URL gets a 400.
    """
    suffix = "" if port == 443 else f":{port}"

    async def answer(request: Request) -> Answered:
        headers = CIMultiDict({"Cache-Control": "no-store", "Content-Type": "text/plain; charset=utf-8"})
        hosts = request.headers.getall("Host", ())
        try:
            host = host_of(hosts[0]) if len(hosts) == 1 else None
        except BadHost:
            host = None
        target = without_authority(request.target)
        if host is None or not _TARGET.fullmatch(target):
            request.keeps_alive = False
            request.channel.respond(request, 400, headers, b"Bad request\n")
            return Answered(400, headers)
        headers["Location"] = f"https://{host}{suffix}{target}"
        request.channel.respond(request, 308, headers, b"This is served over https\n")
        return Answered(308, headers)

    return answer
