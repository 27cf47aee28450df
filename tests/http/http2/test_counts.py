"""Counters over all sessions."""

from __future__ import annotations

from gateway.http.http2.flood_limits import ALLOWANCES, Kind
from gateway.http.http2.frames import ErrorCode
from tests.http.http2.peer import POST, Server, ping, request, reset


def test_streams_reset_by_this_side_count_by_error_code() -> None:
    server = Server(most_streams=1)
    server.take(request(1, POST, ends=False))
    server.take(request(3), request(5))
    assert server.counts.resets == {ErrorCode.REFUSED_STREAM: 2}
    # Resets by the client are not counted.
    server.take(reset(1))
    assert server.counts.resets.total() == 2
    server.take(request(7, [("x", "y")]))
    assert server.counts.resets[ErrorCode.PROTOCOL_ERROR] == 1
    assert server.counts.resets.total() == len(server.resets())


def test_the_two_frames_of_an_orderly_end_count_as_one() -> None:
    server = Server()
    server.session.send_goaway(is_final=False)
    server.session.send_goaway(is_final=True)
    server.session.send_goaway(is_final=True)
    assert server.counts.goaways == {ErrorCode.NO_ERROR: 1}
    idle = Server()
    idle.session.send_goaway(is_final=True)
    assert idle.counts.goaways == {ErrorCode.NO_ERROR: 1}


def test_a_failed_connection_counts_by_error_code() -> None:
    server = Server()
    server.take(request(2))
    server.session.fail(ErrorCode.ENHANCE_YOUR_CALM)
    assert server.counts.goaways == {ErrorCode.PROTOCOL_ERROR: 1}
    assert not server.counts.floods


def test_a_flood_counts_by_kind_of_frame() -> None:
    server = Server()
    server.take(*[ping()] * (ALLOWANCES[Kind.PING].holds + 5))
    assert server.counts.floods == {Kind.PING: 1}
    assert server.counts.goaways == {ErrorCode.ENHANCE_YOUR_CALM: 1}


def test_an_abandoned_session_writes_and_counts_nothing() -> None:
    server = Server()
    server.take(request(1, POST, ends=False))
    server.session.abandon()
    server.session.reset(server.streams[1], ErrorCode.CANCEL)
    server.session.send_goaway(is_final=True)
    assert server.said() == []
    assert not server.counts.goaways
    assert not server.counts.resets


def test_open_sessions_are_counted_with_their_streams() -> None:
    one, other = Server(), Server()
    counts = one.counts
    counts.opened(one.session)
    counts.opened(other.session)
    one.take(request(1), request(3))
    other.take(request(1))
    assert repr(counts) == "<SessionCounts 2 connections, 3 streams>"
    counts.closed(one.session)
    counts.closed(one.session)
    assert repr(counts) == "<SessionCounts 1 connections, 1 streams>"
