"""Request lines with credentials: a live read that joins others is decided like one that is parsed."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import uvloop
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from gateway.app import RunningGateway
from gateway.auth.signed_urls import PARAMETERS
from gateway.engine.route import Route
from gateway.server import query_credentials
from gateway.server.header_meanings import Presented
from gateway.server.live_requests import LiveRequests
from gateway.server.query_credentials import Beginning, Beginnings, CredentialLines, NamedStream, beginning_of
from tests.scenarios.credentials import WALL, signed, signed_rule
from tests.server.conftest import BOUND_S, Pair, close, connect, get, read_response, start_pair, stop_pair, write
from tests.waiting import eventually

NAMES = ("expires", "signature", "key", "token")
PARTS = (
    "/s",
    "?",
    "&",
    "signature=s",
    "signature=",
    "signature",
    "key=k&",
    "expires=1&",
    "=",
    "d",
    "x=1",
    "offset=4",
    " ",
)


@pytest.mark.parametrize(
    ("query", "rest", "credentials"),
    [
        ("expires=1&key=k&signature=s&offset=4&live=sse", "&offset=4&live=sse", "expires=1&key=k&signature=s"),
        ("cursor=5&expires=1&live=sse&offset=4&signature=s", "&cursor=5&live=sse&offset=4", "expires=1&signature=s"),
        ("x=1&signature=&&offset=4", "&x=1&&offset=4", "signature="),
        ("signature=s", "", "signature=s"),
        ("token=a&token=b&offset=4&token=c", "&offset=4", "token=a&token=b&token=c"),
        ("signature=s&x=1?key=2&offset=4", "&x=1?key=2&offset=4", "signature=s"),
        ("keys=1&tokenx&signature=s=t&=&offset=4", "&keys=1&tokenx&=&offset=4", "signature=s=t"),
        ("%6bey=1&KEY=2&signature=s", "&%6bey=1&KEY=2", "signature=s"),
    ],
)
def test_a_line_is_divided_into_its_credentials_and_the_rest(query: str, rest: str, credentials: str) -> None:
    lines, line = CredentialLines(NAMES), f"GET /s?{query} HTTP/1.1".encode()
    divided = lines.divide(line)
    assert divided == (f"GET /s\r\n{rest} HTTP/1.1".encode(), credentials.encode())


def test_beginnings_take_a_bounded_number_of_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    beginning = _beginning(b"GET /s?key=k&signature=s&offset=4 HTTP/1.1")
    beginnings = Beginnings()
    first = beginnings.keep(beginning, None)
    monkeypatch.setattr(query_credentials, "MOST_BEGINNING_BYTES", 2 * beginnings.size + 1)
    second = beginnings.keep(beginning, None)
    assert first is second is beginning
    assert beginnings.keep(beginning, None) is None
    # One that is replaced makes room for its successor.
    assert beginnings.keep(beginning, second) is second
    for one in (first, second, None):
        beginnings.drop(one)
    assert beginnings.size == 0


def test_lines_that_are_read_again_take_a_bounded_number_of_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query_credentials, "MOST_READ_BYTES", 3_000)
    lines, key = CredentialLines(NAMES), NamedStream(cast("Route", None), "/s", "", b"signature=s")
    for number in range(100):
        line = b"GET /s?signature=s&n=%03d HTTP/1.1" % number
        for _ in range(10):
            lines.keep(line, b"", key, key)
        assert line in lines.read
        assert len(lines.read) <= 5


async def test_clients_that_share_a_connection_have_each_read_with_a_signed_url_divided_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As behind a proxy."""
    divided: list[bytes] = []
    divide = CredentialLines.divide

    def divide_and_count(lines: CredentialLines, line: bytes) -> Any:
        divided.append(line)
        return divide(lines, line)

    pair = await _begin(tmp_path)
    reader, writer = await connect(pair.fast)

    async def read(link: str) -> int:
        writer.write(get(link))
        return (await read_response(reader)).status

    links = [signed("/s", WALL + 7_200 + number) for number in range(3)]
    forged = links[0].replace("signature=", "signature=AAAA")
    # The first read fills memory, the second is remembered, and the third finds the verdict.
    for _ in range(3):
        assert [await read(link) for link in links] == [200] * 3
    monkeypatch.setattr(CredentialLines, "divide", divide_and_count)
    remembered = pair.fast.clients.remembered
    assert remembered is not None
    before = remembered.served
    for _ in range(5):
        assert [await read(link) for link in links] == [200] * 3
    assert remembered.served == before + 15
    assert not divided
    assert [await read(forged) for _ in range(2)] == [401] * 2
    assert len(divided) >= 2, "a line without a verdict is not kept"
    await close(writer)
    await stop_pair(pair)


async def test_a_connection_that_polls_with_a_signed_url_keeps_the_beginning_of_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    divided: list[bytes] = []
    divide = CredentialLines.divide

    def divide_and_count(lines: CredentialLines, line: bytes) -> Any:
        divided.append(line)
        return divide(lines, line)

    monkeypatch.setattr(CredentialLines, "divide", divide_and_count)
    pair = await _begin(tmp_path)
    gateway = pair.fast
    beginnings = gateway.clients.joins.beginnings
    # The first reader's requests are parsed, and the others join it.
    wires = [await connect(gateway) for _ in range(3)]
    links = [signed("/s"), signed("/s", WALL + 7_200), signed("/s", WALL + 7_300)]
    others = [b"%d" % (WALL + 7_200), b"%d" % (WALL + 7_300)]
    wires[0][1].write(get(f"{links[0]}&offset=-1"))
    tail = (await read_response(wires[0][0])).headers["stream-next-offset"][0]

    async def poll(links: list[str]) -> None:
        """A long-poll of each reader, one after the other, which an append answers."""
        nonlocal tail
        for waiting, (link, (_, writer)) in enumerate(zip(links, wires, strict=True), 1):
            # As the official clients do, the cursor may stand before the offset.
            writer.write(get(f"{link}&cursor=7&offset={tail}&live=long-poll"))
            await eventually(partial(_are_waiting, gateway, waiting))
        await write(pair.fast, "POST", signed("/s", methods="append"), b"abc", Content_Type="text/plain")
        for reader, _ in wires:
            tail = (await read_response(reader)).headers["stream-next-offset"][0]

    try:
        for _ in range(3):
            await poll(links)
        kept = beginnings.size
        assert kept > 0
        divided.clear()
        await poll(links)
        assert not [line for line in divided if any(mark in line for mark in others)]
        # Other credentials, of equal length, replace the beginning.
        await poll([links[0], links[2], links[1]])
        divided.clear()
        await poll([links[0], links[2], links[1]])
        assert not [line for line in divided if any(mark in line for mark in others)]
        assert beginnings.size == kept
    finally:
        for _, writer in wires:
            await close(writer)
        await eventually(lambda: beginnings.size == 0)
        await stop_pair(pair)


async def test_readers_with_signed_urls_share_one_remembered_answer(tmp_path: Path) -> None:
    pair = await _begin(tmp_path)
    gateway = pair.fast
    remembered = gateway.clients.remembered
    assert remembered is not None
    links = [signed("/s", WALL + 7_200 + number) for number in range(4)]
    wires = [await connect(gateway) for _ in links]
    try:
        for _ in range(3):
            for link, (reader, writer) in zip(links, wires, strict=True):
                writer.write(get(f"{link}&offset=-1"))
                assert (await read_response(reader)).body == b"/s" * 9
        assert len(remembered) == 1
        # The first request of each is parsed, because its signature has to be verified.
        served = remembered.served
        for link, (reader, writer) in zip(links, wires, strict=True):
            writer.write(get(f"{link}&offset=-1"))
            await read_response(reader)
        assert remembered.served == served + len(links)
        # The verdict on a link that is bound to a network is not kept, so its requests replace no answer of the others.
        kept, (reader, writer) = dict(remembered.exact), wires[0]
        for _ in range(3):
            writer.write(get(f"{signed('/s', network='127.0.0.0/8')}&offset=-1"))
            assert (await read_response(reader)).status == 200
        assert remembered.exact == kept
    finally:
        for _, writer in wires:
            await close(writer)
        await stop_pair(pair)


async def test_no_verdict_is_kept_under_a_credential_that_a_public_stream_does_not_need(tmp_path: Path) -> None:
    pair = await start_pair(auth=[{"by": "public", "streams": ["/p"]}, signed_rule(tmp_path)], credentials="shared")
    find = pair.fast.clients.find
    assert find is not None
    try:
        await write(pair.fast, "PUT", signed("/p", methods="create"), b"ab", Content_Type="text/plain")
        reader, writer = await connect(pair.fast)
        for query in (*[""] * 6, "signature=1&", "signature=2&"):
            writer.write(get(f"/p?{query}offset=-1"))
            assert (await read_response(reader)).body == b"ab"
        found = find(get("/p?offset=-1"), None)
        assert found is not None
        assert len(found[1].allowed) == 1
        await close(writer)
    finally:
        await stop_pair(pair)


async def test_an_answer_to_one_signed_url_is_repeated_for_another_by_its_own_verdict(tmp_path: Path) -> None:
    """The second link expires while the answer is rendered anew for it, second by second; the first goes on."""
    pair = await _begin(tmp_path)
    gateway, clock = pair.fast, pair.clock
    links = [signed("/s", WALL + 7_200), signed("/s", WALL + 5)]

    async def statuses() -> list[int]:
        found = []
        # The first request of each second renders the answer; it is the second link's here.
        for link in reversed(links):
            # Other clients' requests had the bytes of remembered answers, so that this client's are looked up first.
            gateway.clients.repeats = True
            reader, writer = await connect(gateway)
            writer.write(get(f"{link}&offset=-1"))
            found.append((await read_response(reader)).status)
            await close(writer)
        return found

    try:
        # A connection's first answer is not remembered.
        reader, writer = await connect(gateway)
        for _ in range(3):
            writer.write(get(f"{links[0]}&offset=-1"))
            await read_response(reader)
        await close(writer)
        for _ in range(4):
            assert await statuses() == [200, 200]
            clock.advance(1)
        clock.advance(2)
        for _ in range(2):
            assert await statuses() == [401, 200]
    finally:
        await stop_pair(pair)


@pytest.mark.parametrize("target", ["/s", "/s?", "/s?offset=4&key", "/s?x?key=1", "/s&key=1?offset=4", "/key=1"])
def test_a_line_without_credentials_is_not_divided(target: str) -> None:
    lines = CredentialLines(NAMES)
    assert lines.divide(f"GET {target} HTTP/1.1".encode()) is None
    assert lines.credentials_of(f"GET {target} HTTP/1.1".encode(), ()) is None


@pytest.mark.parametrize(
    ("query", "names", "is_same"),
    [
        ("key=1&signature=s", {"key", "signature"}, True),
        ("key=1&%73ignature=s", {"key", "signature"}, False),
        ("key=1&token=t", {"token"}, False),
    ],
)
def test_credentials_are_those_of_the_parser_or_none(query: str, names: set[str], *, is_same: bool) -> None:
    found = CredentialLines(NAMES).credentials_of(f"GET /s?{query} HTTP/1.1".encode(), names)
    assert found == (query.encode() if is_same else None)


@given(st.lists(st.sampled_from(PARTS), max_size=6), st.integers(0, 60), st.lists(st.sampled_from(PARTS), max_size=6))
@example(["/s?", "x=1&", "signature=s&"], 11, ["signature=s", "d&", "offset=4"])
@example(["/s?", "signature=s", "&", "offset=4"], 60, ["&signature=t"])
def test_a_line_is_divided_by_its_beginning_as_if_it_were_divided_whole(
    former: list[str], kept: int, added: list[str]
) -> None:
    lines = CredentialLines(NAMES)
    line = f"GET {''.join(former)}".encode()
    divided = lines.divide(line + b" HTTP/1.1")
    beginning = _divided_at_once(line, divided.credentials) if divided is not None else None
    if beginning is None:
        return
    later = line[: max(kept, len(beginning.line))] + f"{''.join(added)} HTTP/1.1".encode()
    rest = beginning.rest + later[len(beginning.line) :]
    whole = lines.divide(later)
    assert whole is not None
    if whole != (rest, beginning.key.credentials):
        # Nothing is remembered for a rest with credentials.
        assert any(pair.startswith(tuple(f"{name}=".encode() for name in NAMES)) for pair in rest[:-9].split(b"&"))


def test_a_beginning_ends_after_credentials_that_stand_together() -> None:
    found = _divided_at_once(b"GET /s?expires=1&signature=s&cursor=2&offset=4 HTTP/1.1", b"expires=1&signature=s")
    assert found is not None
    assert found[:2] == (b"GET /s?expires=1&signature=s&", b"GET /s\r\n&")
    found = _divided_at_once(b"GET /s?x=1&signature=s&offset=4 HTTP/1.1", b"signature=s")
    assert found is not None
    assert found[:2] == (b"GET /s?x=1&signature=s&", b"GET /s\r\n&x=1&")
    apart = ("/s?offset=4&key=1&signature=s", "/s?key=1&x=1&signature=s&offset=4", "/s&key=1&signature=s&?offset=4")
    for target in apart:
        assert _divided_at_once(f"GET {target} HTTP/1.1".encode(), b"key=1&signature=s") is None


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = uvloop.new_event_loop()
    yield loop
    loop.close()


PATHS = ("/s", "/s/t", "/s&x=1")
LINKS = (
    signed("/s"),
    signed("/s", WALL + 7_200),
    signed("/s", others="x=1"),
    signed("/s", streams="/*"),
    signed("/s/t", streams="/s/**"),
    signed("/s&x=1", streams="/**"),
)
READS = (
    "offset=-1&live=sse",
    "live=sse&offset=-1",
    "offset=0000000000000000_0000000000000002&live=sse",
)
ODD = (
    "offset=",
    "offset=-1",
    "%6fffset=-1",
    "live=sse",
    "liv%65=",
    "cursor=",
    "cursor=7",
    "x=1",
    "x=2",
    "y",
    "",
    "=",
)
ODD_LINK = LINKS[0].replace("expires=", "%65xpires=")
WITHOUT_EXPIRY = "/s?" + LINKS[0].partition("&")[2]
SECTIONS: tuple[list[str], ...] = ([], ["User-Agent: b"])


@st.composite
def targets(draw: st.DrawFn) -> str:
    """A signed URL of a read, with up to three changes."""
    path, _, query = draw(st.sampled_from(LINKS)).partition("?")
    pairs = [*query.split("&"), *draw(st.sampled_from(READS)).split("&")]
    for _ in range(draw(st.sampled_from((0, 0, 1, 2, 3)))):
        at = draw(st.integers(0, len(pairs) - 1))
        match draw(st.integers(0, 6)):
            case 0:
                pairs = draw(st.permutations(pairs))
            case 1:
                pairs.append(pairs[at])
            case 2:
                del pairs[at]
                pairs = pairs or [""]
            case 3:
                pairs.insert(at, draw(st.sampled_from(ODD)))
            case 4:
                pairs[at] = f"%{ord(pairs[at][0]):02x}{pairs[at][1:]}" if pairs[at] else "%"
            case 5:
                other = draw(st.sampled_from(LINKS)).partition("?")[2].split("&")
                pairs[at] = draw(st.sampled_from(other))
            case 6:
                path = draw(st.sampled_from(PATHS))
    return f"{path}?{'&'.join(pairs)}"


def test_a_request_with_credentials_in_its_query_is_decided_as_if_it_were_parsed(
    loop: asyncio.AbstractEventLoop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    joins, joined = LiveRequests.join, [0]

    def noting(self: LiveRequests, *arguments: Any) -> bool:
        has_joined = joins(self, *arguments)
        joined[0] += has_joined and arguments[3] is not None
        return has_joined

    monkeypatch.setattr(LiveRequests, "join", noting)
    pair = loop.run_until_complete(_begin(tmp_path))

    find = pair.fast.clients.find
    assert find is not None
    beginnings = [_beginning(f"GET {link}&offset=-1 HTTP/1.1".encode()) for link in LINKS]
    found_by_beginning = [0]

    def find_alike(requests: list[bytes]) -> None:
        """Check that a request's join is found alike on a connection that has sent another request before."""
        for request in requests:
            without = find(request, None)
            for beginning in beginnings:
                found = find(request, beginning)
                assert found == without
                if isinstance(found[0] if found is not None else None, Presented):
                    found_by_beginning[0] += request.startswith(beginning.line)

    async def decided(requests: list[bytes]) -> list[list[tuple[bytes, bytes]]]:
        return list(
            await asyncio.gather(*(_ask(pair, is_fast=is_fast, requests=requests) for is_fast in (True, False)))
        )

    @given(st.lists(targets(), min_size=1, max_size=4), st.sampled_from(SECTIONS))
    @example([f"{ODD_LINK}&{READS[0]}", f"{WITHOUT_EXPIRY}&{READS[0]}"], [])
    @example([f"{WITHOUT_EXPIRY}&{READS[0]}", f"/s?&{READS[0]}", f"/s?{READS[0]}"], [])
    @example([f"{LINKS[3]}&{READS[0]}", f"{LINKS[3]}&{READS[0]}".replace("/s?", "/s/t?")], [])
    @settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
    def compare(several: list[str], lines: list[str]) -> None:
        requests = [get(target, *lines) for target in several * 2]
        fast, strict = loop.run_until_complete(decided(requests))
        assert fast == strict
        find_alike(requests)

    try:
        for lines in SECTIONS * 3:
            loop.run_until_complete(decided([get(f"{link}&{READS[0]}", *lines) for link in LINKS]))
        compare()
    finally:
        loop.run_until_complete(stop_pair(pair))
    assert joined[0] > 30
    assert found_by_beginning[0] > 30


def _beginning(line: bytes) -> Beginning:
    divided = CredentialLines(PARAMETERS).divide(line)
    assert divided is not None
    beginning = _divided_at_once(line, divided.credentials)
    assert beginning is not None
    return beginning


def _divided_at_once(line: bytes, credentials: bytes) -> Beginning | None:
    return beginning_of(line, NamedStream(cast(Route, None), "/s", "", credentials), None, None)


def _are_waiting(gateway: RunningGateway, number: int) -> bool:
    return len(gateway.routes.verdicts.live_reads()) == number


async def _begin(folder: Path) -> Pair:
    pair = await start_pair(auth=[signed_rule(folder)], credentials="shared")
    for path in PATHS:
        await write(pair.fast, "PUT", signed(path, methods="create"), path.encode() * 9, Content_Type="text/plain")
    return pair


async def _ask(pair: Pair, *, is_fast: bool, requests: list[bytes]) -> list[tuple[bytes, bytes]]:
    """The status line and the body of each answer; of an SSE answer, the data up to the first control event."""
    gateway, found = pair.fast if is_fast else pair.strict, []
    for request in requests:
        reader, writer = await connect(gateway)
        async with asyncio.timeout(BOUND_S):
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            if b"text/event-stream" in head:
                # Whether the control event says "up to date" depends on when the origin has confirmed the tail.
                body = b"".join(re.findall(rb"data:(.*)\n", await reader.readuntil(b"event: control")))
            else:
                body = await reader.readexactly(int(head.lower().partition(b"content-length: ")[2].split(b"\r")[0]))
        found.append((head.partition(b"\r")[0], body))
        await close(writer)
    return found
