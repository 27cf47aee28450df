"""A client's request body on its way to the origin: bounded in size and in silence, and honest about how it ended.

What goes wrong here surfaces in the upstream client as a failed request; `error` tells whose fault it was.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from aiohttp import hdrs, web

from gateway.config import LimitsConfig
from gateway.errors import BadRequest, BodyTooLarge, GatewayError, RequestTimeout, UnknownTransferCoding


class Upload:
    """The body of one request, to be read once."""

    def __init__(self, request: web.BaseRequest, limits: LimitsConfig) -> None:
        if (request.content_length or 0) > limits.max_request_bytes:
            raise BodyTooLarge
        codings = ",".join(request.headers.getall(hdrs.TRANSFER_ENCODING, ()))
        if codings and codings.strip(" \t").lower() != "chunked":
            raise UnknownTransferCoding
        self._request = request
        self._limits = limits
        self.error: GatewayError | None = None

    async def chunks(self) -> AsyncIterator[bytes]:
        """The body as it arrives."""
        size = 0
        content = self._request.content
        while True:
            try:
                async with asyncio.timeout(self._limits.client_idle_timeout_s):
                    chunk = await content.readany()
            except TimeoutError:
                self.error = RequestTimeout()
                raise self.error from None
            except web.RequestPayloadError:
                self.error = BadRequest("Malformed request body")
                raise self.error from None
            except Exception:
                self.error = BadRequest("Request body ended early")
                raise
            if not chunk:
                return
            size += len(chunk)
            if size > self._limits.max_request_bytes:
                self.error = BodyTooLarge()
                raise self.error
            yield chunk
