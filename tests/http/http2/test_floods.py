"""Floods of frames that are valid one by one: they end their connection before much has been written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gateway.http.http2 import frames
from gateway.http.http2.flood_limits import ALLOWANCES, Kind
from gateway.http.http2.frames import ErrorCode, Setting
from gateway.http.http2.session import SETTLED_S
from tests.http.http2.peer import (
    NO_SETTINGS,
    POST,
    Server,
    data,
    frame,
    ping,
    request,
    reset,
    setting,
    u32,
    window,
)

PROTOCOL, SIZE, CLOSED = ErrorCode.PROTOCOL_ERROR, ErrorCode.FRAME_SIZE_ERROR, ErrorCode.STREAM_CLOSED
FLOW, CALM = ErrorCode.FLOW_CONTROL_ERROR, ErrorCode.ENHANCE_YOUR_CALM
OPEN = request(1, POST, ends=False)


def counted(make: Callable[[int], bytes]) -> Callable[[], object]:
    """Calls `make` with 1, 3, 5, ..."""
    ids = iter(range(1, 1 << 30, 2))
    return lambda: make(next(ids))


def test_uploads_that_are_answered_early_are_no_flood() -> None:
    """Their clients may have sent a window of each in small pieces before they read the reset."""
    server = Server()
    for number in range(10):
        id_ = 2 * number + 1
        server.take(request(id_, POST, ends=False))
        server.session.reset(server.session.streams[id_], ErrorCode.NO_ERROR)
        for _ in range(frames.DEFAULT_WINDOW // 100):
            server.take(data(id_, bytes(100)))
        server.said()
    assert server.session.failed is None


@pytest.mark.parametrize(
    ("flood", "begin"),
    [
        pytest.param(lambda: counted(lambda id_: request(id_) + reset(id_)), b"", id="rapid reset"),
        pytest.param(lambda: counted(lambda id_: request(id_, [("x", "y")])), b"", id="malformed requests"),
        pytest.param(
            lambda: counted(lambda id_: request(id_, POST, ends=False) + window(id_, 0)),
            b"",
            id="requests whose resets are provoked",
        ),
        pytest.param(
            lambda: counted(lambda id_: request(id_, POST, ends=False) + data(id_, ends=True) + data(id_)),
            b"",
            id="bodies behind their ends",
        ),
        pytest.param(lambda: counted(request), b"", id="requests beyond the bound"),
        pytest.param(lambda: ping, b"", id="PING"),
        pytest.param(lambda: lambda: frames.ping(bytes(8), is_ack=True), b"", id="answers to PINGs that were not sent"),
        pytest.param(lambda: lambda: NO_SETTINGS, b"", id="SETTINGS"),
        pytest.param(lambda: lambda: frames.SETTINGS_ACK, b"", id="acknowledgements"),
        pytest.param(lambda: lambda: setting(Setting.INITIAL_WINDOW_SIZE, 5), b"", id="windows by SETTINGS"),
        pytest.param(lambda: lambda: data(1), OPEN, id="empty DATA"),
        pytest.param(lambda: lambda: frame(frames.DATA, frames.PADDED, 1, b"\0"), OPEN, id="empty DATA with padding"),
        pytest.param(
            lambda: lambda: frame(frames.CONTINUATION, 0, 1),
            frame(frames.HEADERS, 1, 1, b"\x82"),
            id="empty CONTINUATION",
        ),
        pytest.param(
            lambda: lambda: frame(frames.CONTINUATION, 0, 1, b"\x82"),
            frame(frames.HEADERS, 1, 1, b"\x82"),
            id="CONTINUATION",
        ),
        pytest.param(lambda: lambda: window(0, 1), b"", id="WINDOW_UPDATE"),
        pytest.param(lambda: lambda: window(1, 1), OPEN, id="WINDOW_UPDATE of a stream"),
        pytest.param(lambda: lambda: window(1, 1), OPEN + reset(1), id="WINDOW_UPDATE of a stream that is over"),
        pytest.param(lambda: lambda: reset(1), OPEN, id="the same reset again"),
        pytest.param(lambda: lambda: frame(frames.PRIORITY, 0, 7, bytes(5)), b"", id="PRIORITY"),
        pytest.param(lambda: lambda: frame(99, 0, 7, bytes(5)), b"", id="frames of no known type"),
        pytest.param(lambda: lambda: frame(frames.GOAWAY, 0, 0, bytes(8)), b"", id="GOAWAY"),
    ],
)
def test_a_flood_ends_its_connection(flood: Callable[[], Callable[[], bytes]], begin: bytes) -> None:
    server, make = Server(), flood()
    server.take(begin)
    for _ in range(4_000):
        server.take(make())
        assert server.session.out_bytes < 1 << 16
        if server.session.failed:
            break
    assert server.session.failed is CALM


def test_regular_clients_are_not_floods() -> None:
    server = Server()
    ids = iter(range(1, 1 << 30, 2))
    for _ in range(120):
        # A page that sends requests, gets answers, resets some, and pings, for two minutes.
        for _ in range(30):
            id_ = next(ids)
            server.take(request(id_), window(id_, 1_000))
            server.session.send_data(server.streams[id_], bytes(100), ends=True)
            server.take(window(0, 100))
        for _ in range(10):
            id_ = next(ids)
            server.take(request(id_), reset(id_))
        server.take(ping(), frame(frames.PRIORITY, 0, 9_999, bytes(5)))
        server.said()
        server.now += 1
    assert server.session.failed is None


def answered(id_: int, server: Server) -> None:
    server.take(request(id_))
    server.session.send_head(server.streams[id_], b"\x88")


def test_resets_of_answered_streams_are_no_flood() -> None:
    server = Server()
    for id_ in range(1, 10_000, 2):
        answered(id_, server)
        server.take(reset(id_))
        server.said()
    assert server.session.failed is None
    assert server.session.last_answered_id is None


def test_resets_of_streams_that_have_waited_for_their_answers_are_no_flood() -> None:
    server = Server()
    ids = iter(range(1, 1 << 30, 2))
    for _ in range(60):
        batch = [next(ids) for _ in range(100)]
        server.take(*map(request, batch))
        server.now += SETTLED_S
        server.take(*map(reset, batch))
        server.said()
    assert server.session.failed is None
    assert server.session.last_answered_id is None


def test_resets_before_the_answers_begin_leave_the_open_streams_to_their_end() -> None:
    server = Server()
    answered(1, server)
    ids = iter(range(3, 1 << 30, 2))
    while server.session.last_answered_id is None:
        id_ = next(ids)
        server.take(request(id_))
        server.session.send_head(server.streams[id_], b"\x08\x03100", is_interim=True)
        server.take(reset(id_))
    assert id_ < 2 * (ALLOWANCES[Kind.RESET].holds + 3)
    goaways = [payload for kind, *_, payload in server.said() if kind == frames.GOAWAY]
    assert goaways == [u32(id_) + u32(CALM)]
    assert (server.counts.floods[Kind.RESET], server.counts.goaways[CALM]) == (1, 1)
    assert server.take(request(next(ids))) == []
    assert server.session.failed is None
    server.session.send_data(server.streams[1], b"last", ends=True)
    assert server.said()[-1] == (frames.DATA, frames.END_STREAM, 1, b"last")


def test_the_docs_name_the_allowances() -> None:
    page = (Path(__file__).parents[3] / "docs" / "guides" / "http2.md").read_text()
    for allowance in ALLOWANCES.values():
        assert f"| {allowance.holds:,} | {allowance.per_s} |" in page
