"""The access log as a handler around the request handler; in place only if an access log is kept.

Each request gets a record when it arrives.  It is the current record (`record_now`) while the request handler runs, so
any code on the way can add to it (`gateway.telemetry.access_record`).  This handler fills in what the request and the
response themselves show, and writes the record when the answer has ended.  A live answer outlives the handler: its
record is parked, and the live answer writes it at its own end.
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
    """Wraps a handler and keeps one record for each request."""

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
            # The target as sent, until the request handler has parsed it; an invalid one is logged as it is.
            stream=without_authority(request.target),
            client=request.client,
            user_agent=headers.get("User-Agent"),
            # The trace id of this gateway's span if there is one, so that log lines match spans; else the client's.
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
            # The connection answers with a 500.
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
            record.next_offset = response.headers.get(STREAM_NEXT_OFFSET, record.next_offset)
            record.coding = applied(response.headers.get("Content-Encoding"))
        record.ended_at = self._clock.wall()
        record.duration_s = self._clock.now() - began
        self._access_log.record(record)
