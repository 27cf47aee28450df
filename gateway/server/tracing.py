"""Tracing around the request handler, put in place only where a tracer is configured: without one neither exists.

The request handler is wrapped in a span per request, which is the running one while the request handler answers.  A live answer goes on
after that: where the request handler has parked the span, it ends with the answer.  Requests that are
answered from ready bytes never reach the request handler: the frontend tells of them one by one.
"""

from __future__ import annotations

import asyncio

from gateway.protocol.target import without_authority
from gateway.server.clients import AsyncHandler
from gateway.server.request import Answered, Request
from gateway.telemetry.tracing import Tracer, request_now


class TracingHandler:
    """A handler with a span around every request."""

    def __init__(self, handler: AsyncHandler, tracer: Tracer) -> None:
        self._handler = handler
        self._tracer = tracer

    async def __call__(self, request: Request) -> Answered | None:
        span = self._tracer.request(
            request.method, without_authority(request.target).partition("?")[0], request.headers
        )
        token = request_now.set(span)
        try:
            response = await self._handler(request)
        except (asyncio.CancelledError, ConnectionError):
            span.aborted()
            span.end()
            raise
        except BaseException:
            # The connection makes a 500 of it.
            span.answered(500)
            span.end()
            raise
        finally:
            request_now.reset(token)
        if response is not None and not span.is_parked:
            span.answered(response.status)
            span.end()
        return response
