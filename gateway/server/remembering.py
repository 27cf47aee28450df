"""Has an answer from memory remembered, so that the next request with the same bytes skips the handler."""

from __future__ import annotations

from collections.abc import Sequence

from multidict import CIMultiDict

from gateway.engine.answer import BodyRun, NamedTail
from gateway.engine.route import Route
from gateway.limits.shared_bytes import SharedBytes
from gateway.protocol.cache_status import Outcome
from gateway.protocol.coding import applied
from gateway.protocol.names import STREAM_NEXT_OFFSET
from gateway.server.context import RequestContext
from gateway.server.remembered import RememberedAnswer
from gateway.telemetry.access_record import note_repeated


def learn_hit(
    context: RequestContext,
    route: Route,
    run: BodyRun,
    outcome: Outcome,
    status: int,
    headers: CIMultiDict[str],
    body: Sequence[bytes],
    *,
    trust_s: float,
    tail: NamedTail | None = None,
    saved_bytes: int = 0,
    copied: int = 0,
    shared: SharedBytes | None = None,
) -> None:
    """Remember the answer to the context's request, which is made of `run` alone.

    The answer is given for `trust_s` seconds after the stream was last asked for at the origin, while its bytes are
    confirmed, and while `tail`, if it names one, is the tail.  `copied` bytes of the body are held by it alone; the
    others belong to `shared`.
    """
    if not context.request.channel.learns:
        return
    size = sum(map(len, body))
    headers = headers.copy()
    if context.fields is not None:
        # What is left changes with each request.
        for name in ("RateLimit-Policy", "RateLimit"):
            headers.popall(name, None)
    if status == 200:
        headers["Content-Length"] = str(size)
    repeated = note_repeated(
        outcome, status, headers.get(STREAM_NEXT_OFFSET), applied(headers.get("Content-Encoding")), size, saved_bytes
    )
    answer = RememberedAnswer(
        run,
        trust_s,
        tail,
        context.mode,
        outcome,
        status,
        headers,
        body,
        saved_bytes,
        copied,
        route.config.name,
        repeated,
        shared,
    )
    context.request.channel.learn(answer, route.header_rules)
