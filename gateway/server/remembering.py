"""Has an answer from memory remembered, so that the next request with the same bytes skips the handler."""

from __future__ import annotations

from gateway.engine.answer import NamedTail
from gateway.engine.route import Route
from gateway.protocol.coding import applied
from gateway.protocol.names import STREAM_NEXT_OFFSET
from gateway.server.context import RequestContext
from gateway.server.remembered import RememberedAnswer, Repeatable
from gateway.telemetry.access_record import note_repeated


def learn_hit(
    context: RequestContext, route: Route, answer: Repeatable, trust_s: float, tail: NamedTail | None = None
) -> None:
    """Remember the answer to the context's request.

    It is given for `trust_s` seconds after the stream was last asked for at the origin, while its bytes are confirmed,
    and while `tail`, if it names one, is the tail.
    """
    if not context.request.channel.learns:
        return
    size, headers = sum(map(len, answer.body)), answer.headers.copy()
    if context.fields is not None:
        # What is left changes with each request.
        for name in ("RateLimit-Policy", "RateLimit"):
            headers.popall(name, None)
    if answer.status == 200:
        headers["Content-Length"] = str(size)
    coding = applied(headers.get("Content-Encoding"))
    repeated = note_repeated(
        answer.outcome, answer.status, headers.get(STREAM_NEXT_OFFSET), coding, size, answer.saved_bytes
    )
    remembered = RememberedAnswer(
        answer._replace(headers=headers), trust_s, tail, context.mode, route.config.name, repeated
    )
    context.request.channel.learn(remembered, route.header_rules)
