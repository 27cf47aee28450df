"""The access log around the request handler, put in place only where an access log is kept.

Each request has a record from its first moment on, which is the running one while the request handler answers, so that whoever
knows something adds it (`gateway.telemetry.access_record`).  What the request and the response show by themselves is filled in here,
and the record is handed over when the answer has ended; that of a live answer by whoever gives it.
"""

from __future__ import annotations

import asyncio

from gateway.aio.clock import Clock
from gateway.protocol.cache_status import Outcome
from gateway.protocol.coding import applied
from gateway.protocol.names import STREAM_NEXT_OFFSET
from gateway.protocol.target import without_authority
from gateway.protocol.trace_context import trace_id_of
from gateway.server.clients import AsyncHandler
from gateway.server.request import Answered, Request
from gateway.telemetry.access_record import AccessLog, Record, record_now
from gateway.telemetry.tracing import current


class AccessLogHandler:
    """A handler with a record for every request."""

    def __init__(self, handler: AsyncHandler, access_log: AccessLog, clock: Clock) -> None:
        self._handler = handler
        self._access_log = access_log
        self._clock = clock

    async def __call__(self, request: Request) -> Answered | None:
        began = self._clock.now()
        headers = request.headers
        traces = headers.getall("traceparent", ())
        record = Record(
            method=request.method,
            # Until it is understood; what cannot be is written as it came.
            stream=without_authority(request.target),
            client=request.client,
            user_agent=headers.get("User-Agent"),
            # Where spans are made, a line is found by them; else by what the client sent.
            trace_id=current().trace_id or (trace_id_of(traces[0]) if len(traces) == 1 else None),
        )
        token = record_now.set(record)
        response: Answered | None = None
        try:
            response = await self._handler(request)
        except (asyncio.CancelledError, ConnectionError):
            record.outcome = Outcome.ABORTED
            raise
        except BaseException:
            # The connection makes a 500 of it.
            record.outcome, record.status = Outcome.FAILED, 500
            raise
        finally:
            record_now.reset(token)
            if not record.is_parked:
                self._hand_over(record, response, began)
        return response

    def _hand_over(self, record: Record, response: Answered | None, began: float) -> None:
        if response is not None:
            record.status = response.status
            record.next_offset = response.headers.get(STREAM_NEXT_OFFSET)
            record.coding = applied(response.headers.get("Content-Encoding"))
        record.ended_at = self._clock.wall()
        record.duration_s = self._clock.now() - began
        self._access_log.record(record)
