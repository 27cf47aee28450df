"""Reads the requests of other workers for S2 streams (`gateway.server.hop`).

Other workers send the same requests as to an S2 origin (`gateway.upstream.s2_client`).  A check of the tail is a read
of no records.
"""

from __future__ import annotations

from collections.abc import Callable

from multidict import CIMultiDict

from gateway.engine.route import Route
from gateway.engine.s2.fetch import S2Source
from gateway.engine.s2.reads import S2Reads
from gateway.engine.s2.request import BASIN_HEADER, S2CheckTail, S2Read, S2ReadRecords, parse_path, parse_read
from gateway.engine.s2.unary_read import S2Answer
from gateway.errors import BadRequest
from gateway.protocol.cache_status import Outcome
from gateway.protocol.sharing import Group, StreamKey
from gateway.protocol.target import Target
from gateway.protocol.worker_headers import HOP_RECORD, HopAsk, HopSaid
from gateway.s2.read_query import BadQuery, parse_read_query
from gateway.server.context import RequestContext, ResponseRecorder
from gateway.server.live import LiveAnswers
from gateway.server.s2 import S2Answers
from gateway.telemetry.access_record import RecordedStream
from gateway.upstream.origin_call import Handed, Shared
from gateway.upstream.s2_client import PROBE


def s2_read(
    route: Route, asked: HopAsk, target: Target, headers: CIMultiDict[str], sent: CIMultiDict[str]
) -> tuple[S2Read, S2ReadRecords | S2CheckTail | None]:
    """Parse another worker's request.  Return the read, and whether it reads records or checks the tail.

    The second result is None for a probe, which reads no records (`s2_client.PROBE`).  `sent` holds the headers for the
    origin.  This function adds the name of the basin to `sent`.  Raises BadRequest.
    """
    path = parse_path(target.path)
    wanted = parse_read(path, target.query, headers) if path is not None else None
    if path is None or (wanted is None and not _is_probe(target.query)):
        raise BadRequest("Workers ask each other for streams only")
    key = StreamKey(Group(route.authority, path.stream), asked.query, route.public._replace(readers=asked.readers))
    if (basin := headers.get(BASIN_HEADER)) is not None:
        sent[BASIN_HEADER] = basin
    named = RecordedStream.named(route.name, path.stream, asked.query, key.partition, is_s2=True)
    url, shared, config = route.url + path.stream, Shared(key, Handed.BY_WORKER), route.config
    source = S2Source(route, named, url, sent, route.bounds, route.live_bounds, shared)
    is_session = isinstance(wanted, S2ReadRecords) and not wanted.form.is_unary
    # The other worker treats the tails in a session as the origin's own.  In a session, therefore use no tail from
    # memory.
    trust_s = config.tail_heard_s if config.consistency == "bounded-staleness" and not is_session else 0.0
    return S2Read(key, source, asked.client, config.live_linger_s, trust_s, is_handed=True), wanted


class HopS2Answers(S2Answers):
    """Answers other workers.  Marks an answer if its tail comes from memory, not from the origin."""

    def __init__(
        self, reads: S2Reads, recorder: ResponseRecorder, live: LiveAnswers, said: Callable[[], HopSaid]
    ) -> None:
        """`said` returns the statement about this worker's record that is added to every answer."""
        super().__init__(reads, recorder, live)
        self._said = said

    def _dress(self, context: RequestContext, answer: S2Answer) -> None:
        if answer.outcome is Outcome.HIT and answer.span is None:
            answer.headers[HOP_RECORD] = self._said()._replace(is_stale=True).rendered()
        super()._dress(context, answer)


def _is_probe(query: str) -> bool:
    try:
        return parse_read_query(query) == PROBE
    except BadQuery:
        return False
