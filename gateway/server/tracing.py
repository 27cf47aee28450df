"""Tracing as a handler around the request handler; in place only if a tracer is configured.

Each request gets a span, which is the current one (`request_now`) while the request handler runs.  A live answer
outlives the handler: the request handler parks the span, which then ends with the answer.  Requests that are answered
from remembered bytes skip the handlers; the frontend reports them to the tracer one by one.
"""

from __future__ import annotations

import asyncio

from gateway.protocol.target import without_authority
from gateway.server.clients import AsyncHandler
from gateway.server.request import Answered, Request
from gateway.telemetry.tracing import Tracer, request_now


class TracingHandler:
    """Wraps a handler and makes a span for each request."""

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
            # The connection answers with a 500.
            span.answered(500)
            span.end()
            raise
        finally:
            request_now.reset(token)
        if response is not None and not span.is_parked:
            span.answered(response.status)
            span.end()
        return response
