"""Request handlers: dispatch on the method, and the reply of each method.

One function turns protocol errors into replies and applies fault switches around a reply.  Only SSE replies are sent in
parts.  All others are computed completely first, so an error cannot occur after the head.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from random import Random

from aiohttp import web

from gateway.aio.clock import Clock, wait_until
from gateway.origin.counters import Counters
from gateway.origin.delivery import ConnectionCut, Delivery
from gateway.origin.faults import Delay, Faults, Hold, Replace, When
from gateway.origin.live import Drain, LiveReads
from gateway.origin.refusals import BadRequest, MethodNotAllowed, NotImplementedHere, RequestError, TooLarge
from gateway.origin.replies import CACHE_FINAL, CACHE_NEVER, CACHE_REVALIDATE, Reply, error_reply, preflight_reply
from gateway.origin.requests import (
    Kind,
    ReadParams,
    is_not_modified,
    kind_of,
    parse_claim,
    parse_create,
    parse_read,
)
from gateway.origin.store import Accepted, AppendParams, Store
from gateway.origin.streams import Slice, Stream
from gateway.protocol import names

_log = logging.getLogger("gateway.origin")


class ServerFault(RequestError):
    """A bug in this origin.  The client gets this line (500), and the log the details."""

    status = 500
    text = "Internal error"


class Handlers:
    """Answers every request of one running origin."""

    def __init__(
        self,
        store: Store,
        faults: Faults,
        counters: Counters,
        clock: Clock,
        drain: Drain,
        random: Random,
        *,
        long_poll_timeout_s: float,
        sse_lifetime_s: float,
        max_chunk_bytes: int,
        max_body_bytes: int,
    ) -> None:
        self._store = store
        self._faults = faults
        self._counters = counters
        self._clock = clock
        self._random = random
        self._max_chunk_bytes = max_chunk_bytes
        self._max_body_bytes = max_body_bytes
        self._live = LiveReads(
            store,
            counters,
            clock,
            random,
            drain,
            long_poll_timeout_s=long_poll_timeout_s,
            sse_lifetime_s=sse_lifetime_s,
            max_chunk_bytes=max_chunk_bytes,
        )

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer any request.  No request can make this method raise."""
        kind = kind_of(request.method, request.query.get(names.QUERY_LIVE))
        self._counters.began(kind)
        try:
            effects = self._faults.take(kind, request.method, request.rel_url.raw_path)
            delivery = Delivery(request, kind, self._counters, self._clock, effects)
            try:
                return await self._answer(request, kind, delivery, effects)
            except (ConnectionCut, ConnectionError):
                # A fault switch or the client has ended the connection, so the returned response is not sent.
                return delivery.response or web.Response()
        finally:
            self._counters.ended(kind)

    async def _answer(
        self, request: web.Request, kind: Kind, delivery: Delivery, effects: list[object]
    ) -> web.StreamResponse:
        await self._apply_holds(effects, When.REQUEST)
        replacement = next((effect.reply for effect in effects if isinstance(effect, Replace)), None)
        if replacement is not None:
            return await delivery.whole(replacement)
        try:
            if kind is Kind.SSE:
                return await self._events(request, delivery)
            reply = await self._reply(request, kind)
        except RequestError as error:
            reply = error_reply(error)
        except (ConnectionError, ConnectionCut):
            raise  # no reply is possible; nothing of a partly received body was stored
        except web.RequestPayloadError:
            reply = error_reply(BadRequest("Malformed request body"))
        except Exception:
            if delivery.response is not None:
                raise
            _log.exception("%s %s failed", request.method, request.rel_url.raw_path)
            reply = error_reply(ServerFault())
        await self._apply_holds(effects, When.REPLY)
        return await delivery.whole(reply)

    async def _apply_holds(self, effects: list[object], when: When) -> None:
        for effect in effects:
            if isinstance(effect, Hold) and effect.when is when:
                await effect.gate.wait()
            elif isinstance(effect, Delay) and when is When.REQUEST:
                never: asyncio.Future[object] = asyncio.get_running_loop().create_future()
                await wait_until(never, self._clock, effect.delay_s)

    # -- methods

    async def _reply(self, request: web.Request, kind: Kind) -> Reply:
        path = request.rel_url.raw_path
        if "/__ds/" in path:
            raise NotImplementedHere
        match kind:
            case Kind.CATCHUP | Kind.LONGPOLL | Kind.SSE:  # SSE never gets here: `_events` answers it
                return await self._read(request, path, kind)
            case Kind.HEAD:
                return self._head(path)
            case Kind.CREATE:
                return await self._create(request, path)
            case Kind.APPEND:
                return await self._append(request, path)
            case Kind.DELETE:
                self._store.delete(path, self._clock.wall())
                return Reply(204)
            case Kind.OTHER:
                if request.method == "OPTIONS":
                    return preflight_reply()
                raise MethodNotAllowed

    async def _create(self, request: web.Request, path: str) -> Reply:
        params = parse_create(request.headers)
        params = replace(params, body=await self._body(request))
        stream, is_new = self._store.create(path, params, self._clock.wall())
        headers = {"Content-Type": stream.content_type, names.STREAM_NEXT_OFFSET: stream.tail.token}
        if is_new:
            headers["Location"] = f"{request.scheme}://{request.host}{path}"
        if stream.is_closed:
            headers[names.STREAM_CLOSED] = "true"
        return Reply(201 if is_new else 200, headers)

    async def _append(self, request: web.Request, path: str) -> Reply:
        claim = parse_claim(request.headers)
        params = AppendParams(
            body=await self._body(request),
            content_type=request.headers.get("Content-Type"),
            close=names.is_true(request.headers.get(names.STREAM_CLOSED)),
            seq=request.headers.get(names.STREAM_SEQ),
            claim=claim,
        )
        accepted = self._store.append(path, params, self._clock.wall())
        headers = self._accepted_headers(accepted)
        if claim is not None:
            headers[names.PRODUCER_EPOCH] = str(claim.epoch)
            headers[names.PRODUCER_SEQ] = str(accepted.highest_seq)
        # 200 shows a producer that its bytes are new, 204 that they were stored before (section 5.2.1).
        is_new_data = claim is not None and bool(params.body) and not accepted.is_duplicate
        return Reply(200 if is_new_data else 204, headers)

    @staticmethod
    def _accepted_headers(accepted: Accepted) -> dict[str, str]:
        headers = {names.STREAM_NEXT_OFFSET: accepted.tail.token}
        if accepted.is_closed:
            headers[names.STREAM_CLOSED] = "true"
        return headers

    def _head(self, path: str) -> Reply:
        stream = self._store.get(path, self._clock.wall())
        headers = {
            "Content-Type": stream.content_type,
            names.STREAM_NEXT_OFFSET: stream.tail.token,
            "Cache-Control": CACHE_NEVER,
            "ETag": self._etag(stream, names.START, stream.tail.token, is_closed=stream.is_closed),
        }
        if stream.is_closed:
            headers[names.STREAM_CLOSED] = "true"
        if stream.lifetime.ttl_s is not None:
            # The current protocol text asks for the full window rather than for the rest of it.
            headers[names.STREAM_TTL] = str(stream.lifetime.ttl_s)
        if stream.lifetime.expires_at_text is not None:
            headers[names.STREAM_EXPIRES_AT] = stream.lifetime.expires_at_text
        return Reply(200, headers)

    async def _read(self, request: web.Request, path: str, kind: Kind) -> Reply:
        now = self._clock.wall()
        stream = self._store.get(path, now)
        params = parse_read(request.query, kind)
        if kind is Kind.LONGPOLL:
            return await self._live.long_poll(stream, params, self._long_poll_reply)
        if params.is_now:
            stream.renew(now)
            return self._now_reply(stream)
        found = stream.read(params.start, self._max_chunk_bytes)
        stream.renew(now)
        reply = self._found_reply(stream, params, found)
        etag = reply.headers["ETag"]
        if is_not_modified(request.headers.get("If-None-Match"), etag):
            return Reply(304, {"ETag": etag, "Cache-Control": reply.headers["Cache-Control"]})
        return reply

    async def _events(self, request: web.Request, delivery: Delivery) -> web.StreamResponse:
        path = request.rel_url.raw_path
        if "/__ds/" in path:
            raise NotImplementedHere
        stream = self._store.get(path, self._clock.wall())
        params = parse_read(request.query, Kind.SSE)
        await self._live.events(stream, params, delivery)
        await delivery.finish()
        assert delivery.response is not None
        return delivery.response

    # -- replies

    @staticmethod
    def _etag(stream: Stream, start: str, end: str, *, is_closed: bool) -> str:
        """Return an ETag that names the stream's instance and whether it is closed (section 8.1).

        A re-created stream may have the same length, and closing adds no bytes.
        """
        return f'"{stream.instance}:{start}:{end}{":c" if is_closed else ""}"'

    def _found_reply(self, stream: Stream, params: ReadParams, found: Slice) -> Reply:
        is_closed = stream.is_closed and found.up_to_date
        headers = {
            "Content-Type": stream.content_type,
            names.STREAM_NEXT_OFFSET: found.end.token,
            "ETag": self._etag(stream, params.offset, found.end.token, is_closed=is_closed),
            "Cache-Control": CACHE_REVALIDATE if found.up_to_date else CACHE_FINAL,
        }
        if found.up_to_date:
            headers[names.STREAM_UP_TO_DATE] = "true"
        if is_closed:
            headers[names.STREAM_CLOSED] = "true"
        return Reply(200, headers, found.body())

    def _long_poll_reply(self, stream: Stream, params: ReadParams, found: Slice) -> Reply:
        reply = self._found_reply(stream, params, found)
        cursor = self._live.cursor(params.cursor)
        return replace(reply, headers={**reply.headers, names.STREAM_CURSOR: cursor})

    @staticmethod
    def _now_reply(stream: Stream) -> Reply:
        headers = {
            "Content-Type": stream.content_type,
            names.STREAM_NEXT_OFFSET: stream.tail.token,
            names.STREAM_UP_TO_DATE: "true",
            "Cache-Control": CACHE_NEVER,
        }
        if stream.is_closed:
            headers[names.STREAM_CLOSED] = "true"
        return Reply(200, headers, b"[]" if stream.is_json else b"")

    # -- bodies

    async def _body(self, request: web.Request) -> bytes:
        """Read the whole request body.  Raises TooLarge as soon as the size is known."""
        if request.content_length is not None and request.content_length > self._max_body_bytes:
            raise TooLarge
        parts: list[bytes] = []
        size = 0
        async for part in request.content.iter_any():
            size += len(part)
            if size > self._max_body_bytes:
                raise TooLarge
            parts.append(part)
        return b"".join(parts)
