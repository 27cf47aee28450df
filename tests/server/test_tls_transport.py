"""TLS between a transport and a protocol: bytes arrive however they are cut, ends are reported, bounds hold."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import uvloop
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.server.tls import TlsTransport
from gateway.server.turns import Turns
from tests.certificates import Authority
from tests.server.conftest import Held
from tests.waiting import pass_turns


class Raw(asyncio.Transport):
    """The transport below, in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = b""
        self.is_paused = self.is_closed = self.is_aborted = self.has_ended = False
        self.protocol: asyncio.BaseProtocol | None = None

    def write(self, data: Any) -> None:
        assert not self.is_closed
        self.sent += data

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        self.write(b"".join(list_of_data))

    def write_eof(self) -> None:
        self.has_ended = True

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = protocol

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self.is_closed = True

    def abort(self) -> None:
        self.is_closed = self.is_aborted = True


class Up(asyncio.Protocol):
    """The protocol above."""

    def __init__(self) -> None:
        self.transport: TlsTransport | None = None
        self.pieces: list[bytes] = []
        self.has_ended = self.is_lost = self.keeps_open = False
        self.pauses_after = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, TlsTransport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        assert data
        self.pieces.append(data)
        assert self.transport is not None
        if self.pauses_after and len(self.pieces) % self.pauses_after == 0:
            self.transport.pause_reading()

    def eof_received(self) -> bool:
        self.has_ended = True
        return self.keeps_open

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True

    @property
    def data(self) -> bytes:
        return b"".join(self.pieces)


class Wired:
    """A client in memory, connected through TLS to a protocol."""

    def __init__(
        self,
        contexts: tuple[ssl.SSLContext, ssl.SSLContext],
        early: bytes = b"",
        raw: Raw | None = None,
        up: Up | None = None,
        turns: Turns | None = None,
    ) -> None:
        server, client = contexts
        self.raw, self.up = raw or Raw(), up or Up()
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = server.wrap_bio(incoming, outgoing, server_side=True)
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.client = client.wrap_bio(self._in, self._out, server_hostname="edge.test")
        sides = [(self.client, self._out, incoming), (tls, outgoing, self._in)]
        done: set[int] = set()
        while len(done) < 2:
            for index, (side, source, sink) in enumerate(sides):
                try:
                    if index not in done:
                        side.do_handshake()
                        done.add(index)
                except ssl.SSLWantReadError:
                    pass
                if index == 0 and 0 in done and early:
                    self.client.write(early)
                    early = b""
                sink.write(source.read())
        self.transport = TlsTransport(self.raw, tls, incoming, outgoing, self.up, turns)
        self.transport.connect()

    def sealed(self, data: bytes) -> bytes:
        """The client's TLS bytes for `data`."""
        for at in range(0, len(data), 1 << 14):
            self.client.write(data[at : at + (1 << 14)])
        return self._out.read()

    def ended(self) -> bytes:
        """The client's close_notify."""
        with pytest.raises(ssl.SSLWantReadError):
            self.client.unwrap()
        return self._out.read()

    def opened(self) -> bytes:
        """What the client has received.  Raises SSLZeroReturnError only behind the last byte."""
        self._in.write(self.raw.sent)
        self.raw.sent = b""
        found = b""
        while True:
            try:
                piece = self.client.read(1 << 16)
            except ssl.SSLWantReadError:
                return found
            if not piece:
                return found + b"<end>"
            found += piece


Contexts = tuple[ssl.SSLContext, ssl.SSLContext]


def made(folder: Path, version: ssl.TLSVersion) -> Contexts:
    authority = Authority(folder)
    pair = authority.issue("edge.test")
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(pair.certificate, pair.key)
    server.options |= ssl.OP_NO_RENEGOTIATION
    client = authority.client()
    client.maximum_version = version
    return server, client


@pytest.fixture(scope="module", params=[ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3], ids=["1.2", "1.3"])
def contexts(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Contexts:
    return made(tmp_path_factory.mktemp("certificates"), request.param)


def run(contexts: Contexts, scenario: Any) -> None:
    """In a loop, for what is left for its next turn."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(scenario(contexts))


@settings(max_examples=30)
@given(sizes=st.lists(st.integers(1, 40_000), max_size=6), cuts=st.lists(st.integers(1, 30_000), max_size=20))
def test_what_is_sent_comes_whole_however_it_is_cut(contexts: Contexts, sizes: list[int], cuts: list[int]) -> None:
    wired = Wired(contexts)
    sent = [bytes([index]) * size for index, size in enumerate(sizes)]
    stream = b"".join(map(wired.sealed, sent))
    for cut in cuts:
        if stream[:cut]:
            wired.transport.data_received(stream[:cut])
        stream = stream[cut:]
    if stream:
        wired.transport.data_received(stream)
    assert wired.up.data == b"".join(sent)


@settings(max_examples=30)
@given(sizes=st.lists(st.integers(0, 40_000), max_size=6), is_joined=st.booleans())
def test_what_is_written_comes_whole(contexts: Contexts, sizes: list[int], is_joined: bool) -> None:
    wired = Wired(contexts)
    parts = [bytes([index]) * size for index, size in enumerate(sizes)]
    if is_joined:
        wired.transport.writelines(parts)
    else:
        for part in parts:
            wired.transport.write(part)
    assert wired.opened() == b"".join(parts)


@settings(max_examples=30)
@given(size=st.integers(1, 200_000), every=st.integers(1, 3), cut=st.integers(1, 70_000))
def test_a_protocol_that_pauses_gets_no_more_until_it_resumes(
    contexts: Contexts, size: int, every: int, cut: int
) -> None:
    async def scenario(contexts: Contexts) -> None:
        wired = Wired(contexts)
        wired.up.pauses_after = every
        stream = wired.sealed(bytes(size))
        while stream or wired.raw.is_paused:
            if wired.raw.is_paused:
                seen = len(wired.up.pieces)
                assert seen % every == 0
                wired.transport.resume_reading()
                assert len(wired.up.pieces) == seen, "not while the caller of resume_reading is on the stack"
                await pass_turns(1)
            else:
                wired.transport.data_received(stream[:cut])
                stream = stream[cut:]
        assert wired.up.data == bytes(size)

    run(contexts, scenario)


@settings(max_examples=10)
@given(cut=st.integers(500, 40_000), every=st.integers(0, 3))
def test_short_records_are_opened_a_part_at_a_time(contexts: Contexts, cut: int, every: int) -> None:
    async def scenario(contexts: Contexts) -> None:
        held = Held()
        wired = Wired(contexts, turns=held)
        wired.up.pauses_after = every
        sent = bytes(n % 251 for n in range(1_000))
        stream = b"".join(wired.sealed(bytes((n,))) for n in sent) + wired.sealed(bytes(20_000)) + wired.ended()
        for _ in range(2_000):
            before = len(wired.up.data)
            if not stream and not wired.raw.is_paused:
                break
            if not wired.raw.is_paused:
                wired.transport.data_received(stream[:cut])
                stream = stream[cut:]
            elif held.takers:
                held.takers.pop().take_turn()
            else:
                wired.transport.resume_reading()
                await pass_turns(1)
            assert len(wired.up.data) - before <= (1 << 14) + 66
            assert before >= len(sent) - 66 or len(wired.up.data) - before <= 66
        assert wired.up.data == sent + bytes(20_000)
        assert wired.up.has_ended

    run(contexts, scenario)


@pytest.mark.parametrize(("size", "are_crumbs"), [(1, True), (15, True), (16, False)])
def test_short_records_that_hold_next_to_nothing_are_crumbs(contexts: Contexts, size: int, are_crumbs: bool) -> None:
    async def scenario(contexts: Contexts) -> None:
        turns = Held()
        wired = Wired(contexts, turns=turns)
        wired.transport.data_received(b"".join(wired.sealed(bytes(size)) for _ in range(70)))
        assert turns.are_crumbs == [are_crumbs]
        turns.takers.pop().take_turn()
        assert wired.up.data == bytes(70 * size)

    run(contexts, scenario)


@pytest.mark.parametrize("at_once", [1, 2, 63])
def test_a_few_tiny_records_that_arrive_alone_are_read_at_once(contexts: Contexts, at_once: int) -> None:
    async def scenario(contexts: Contexts) -> None:
        turns = Held()
        wired = Wired(contexts, turns=turns)
        for n in range(1, 101):
            wired.transport.data_received(b"".join(wired.sealed(b"x") for _ in range(at_once)))
            assert len(wired.up.data) == n * at_once
        assert not turns.takers
        assert not wired.raw.is_paused

    run(contexts, scenario)


def test_what_came_behind_the_handshake_is_not_lost(contexts: Contexts) -> None:
    assert Wired(contexts, early=b"GET / HTTP/1.1\r\n\r\n").up.data == b"GET / HTTP/1.1\r\n\r\n"


@pytest.mark.parametrize("has_said_so", [True, False])
def test_an_end_of_the_client_is_told_and_answered(contexts: Contexts, has_said_so: bool) -> None:
    wired = Wired(contexts)
    if has_said_so:
        wired.transport.data_received(wired.sealed(b"last") + wired.ended())
    else:
        wired.transport.data_received(wired.sealed(b"last"))
        assert wired.transport.eof_received()
    assert wired.up.data == b"last"
    assert wired.up.has_ended
    assert wired.raw.is_closed
    assert not wired.raw.is_aborted
    assert wired.raw.sent[:1] == b"\x17" or wired.raw.sent[:1] == b"\x15", "a last word"


def test_a_protocol_may_still_write_to_a_client_that_has_ended(contexts: Contexts) -> None:
    wired = Wired(contexts)
    wired.up.keeps_open = True
    wired.transport.data_received(wired.sealed(b"ask") + wired.ended())
    wired.transport.write(b"answer")
    assert not wired.raw.is_closed
    wired.transport.close()
    assert wired.raw.is_closed


def test_a_close_ends_in_order(contexts: Contexts) -> None:
    wired = Wired(contexts)
    wired.transport.write(b"answer")
    wired.transport.close()
    wired.transport.write(b"too late")
    wired.transport.close()
    assert wired.opened() == b"answer<end>"
    assert wired.transport.is_closing()
    wired.transport.data_received(b"\x17\x03\x03")
    assert not wired.up.pieces


def test_an_abort_sends_nothing(contexts: Contexts) -> None:
    wired = Wired(contexts)
    wired.opened()
    wired.transport.abort()
    assert (wired.raw.sent, wired.raw.is_aborted) == (b"", True)


def test_after_its_last_word_a_side_drops_what_comes(contexts: Contexts) -> None:
    wired = Wired(contexts)
    wired.transport.write(b"answer")
    wired.transport.write_eof()
    wired.transport.write(b"too late")
    assert wired.opened() == b"answer<end>"
    assert wired.raw.has_ended
    assert not wired.raw.is_closed
    wired.transport.data_received(bytes(1 << 20))
    assert not wired.up.pieces
    assert not wired.transport.eof_received(), "the transport below closes by itself"


@pytest.mark.parametrize("spoils", [False, True])
def test_what_came_before_its_last_word_and_is_not_taken_is_dropped(contexts: Contexts, spoils: bool) -> None:
    async def scenario(contexts: Contexts) -> None:
        wired = Wired(contexts)
        wired.opened()
        wired.up.pauses_after = 1
        sealed = bytearray(wired.sealed(bytes(100_000)))
        if spoils:
            sealed[-1] ^= 0x55
        wired.transport.data_received(bytes(sealed))
        wired.transport.write_eof()
        taken = len(wired.up.pieces)
        wired.transport.resume_reading()
        for _ in range(3):
            await asyncio.sleep(0)
        assert len(wired.up.pieces) == taken
        # The client reads the answer first; the transport below goes on and drops what comes.
        assert not wired.raw.is_paused
        assert not wired.raw.is_closed
        assert wired.opened() == b"<end>"

    run(contexts, scenario)


@pytest.mark.parametrize("at", [0, 1, 3, 7, -1])
def test_a_changed_byte_ends_the_connection_with_an_alert(contexts: Contexts, at: int) -> None:
    wired = Wired(contexts)
    wired.opened()
    sealed = bytearray(wired.sealed(b"x" * 100))
    sealed[at] ^= 0x55
    # A record with a larger length is incomplete, so more is awaited.
    wired.transport.data_received(bytes(sealed) + bytes(1 << 16))
    assert not wired.up.pieces
    assert wired.raw.is_closed
    assert wired.raw.sent or wired.raw.is_aborted
    wired.transport.write(b"no more")
    wired.transport.abort()


def test_plain_text_behind_the_handshake_is_refused(contexts: Contexts) -> None:
    wired = Wired(contexts)
    wired.transport.data_received(b"GET / HTTP/1.1\r\n\r\n")
    assert wired.raw.is_closed
    assert not wired.up.pieces


def test_records_without_plain_text_are_bounded(contexts: Contexts) -> None:
    """Key updates, empty records, warning alerts: OpenSSL accepts some of them without end."""
    wired = Wired(contexts)
    sent = 0
    while not wired.raw.is_closed and sent < 1 << 20:
        # A record of 16 KB that arrives byte by byte.
        piece = b"\x17\x03\x03\x40\x00" if not sent else bytes(1_000)
        wired.transport.data_received(piece)
        sent += len(piece)
    assert sent <= (1 << 14) + 2_000


def expanded(secret: bytes, label: str, size: int) -> bytes:
    """HKDF-Expand-Label (RFC 8446 section 7.1) with SHA-384."""
    name = b"tls13 " + label.encode()
    info = size.to_bytes(2, "big") + bytes([len(name)]) + name + b"\0"
    return HKDFExpand(hashes.SHA384(), size, info).derive(secret)


def key_updates(secret: bytes, count: int, *, has_words: bool) -> Iterable[bytes]:
    """Records of a client that updates its key with each one, and requests the same (RFC 8446 section 4.6.3)."""
    for _ in range(count):
        key, iv = expanded(secret, "key", 32), expanded(secret, "iv", 12)
        for number, inner in enumerate([b"w\x17"] * has_words + [b"\x18\x00\x00\x01\x01\x16"]):
            head = b"\x17\x03\x03" + (len(inner) + 16).to_bytes(2, "big")
            nonce = (int.from_bytes(iv, "big") ^ number).to_bytes(12, "big")
            yield head + AESGCM(key).encrypt(nonce, inner, head)
        secret = expanded(secret, "traffic upd", 48)


@pytest.mark.parametrize("has_words", [False, True])
def test_endless_key_updates_close_the_connection(tmp_path: Path, has_words: bool) -> None:
    """Also from a client that sends data now and then, and never reads the answers."""
    server, client = made(tmp_path, ssl.TLSVersion.TLSv1_3)
    client.keylog_filename = str(tmp_path / "keys")
    wired = Wired((server, client))
    lines = (tmp_path / "keys").read_text().splitlines()
    [secret] = [line.split()[2] for line in lines if line.startswith("CLIENT_TRAFFIC_SECRET_0")]
    assert wired.client.cipher() == ("TLS_AES_256_GCM_SHA384", "TLSv1.3", 256)
    wired.opened()
    sent = 0
    for record in key_updates(bytes.fromhex(secret), 10_000, has_words=has_words):
        wired.transport.data_received(record)
        sent += len(record)
        if wired.raw.is_closed:
            break
    assert bool(wired.up.pieces) is has_words
    assert wired.raw.is_closed
    assert sent < 3 << 16
    assert len(wired.raw.sent) < (1 << 16) + 100


def test_back_pressure_is_that_of_the_transport_below(contexts: Contexts) -> None:
    wired = Wired(contexts)
    paused: list[bool] = []
    wired.up.pause_writing = lambda: paused.append(True)  # type: ignore[method-assign]
    wired.up.resume_writing = lambda: paused.append(False)  # type: ignore[method-assign]
    wired.transport.pause_writing()
    wired.transport.resume_writing()
    assert paused == [True, False]


class Full(Raw):
    """A transport below whose client takes nothing until `take`."""

    HIGH = 100_000

    def __init__(self) -> None:
        super().__init__()
        self.unsent = 0

    def write(self, data: Any) -> None:
        was_full = self.unsent > self.HIGH
        super().write(data)
        self.unsent += len(data)
        if self.unsent > self.HIGH and not was_full:
            assert isinstance(self.protocol, asyncio.Protocol)
            self.protocol.pause_writing()

    def take(self) -> None:
        """The client takes everything."""
        was_full, self.unsent = self.unsent > self.HIGH, 0
        if was_full:
            assert isinstance(self.protocol, asyncio.Protocol)
            self.protocol.resume_writing()

    def get_write_buffer_size(self) -> int:
        return self.unsent


class Counting(Up):
    """Counts what it hears of back-pressure."""

    def __init__(self) -> None:
        super().__init__()
        self.pauses = self.resumes = 0

    def pause_writing(self) -> None:
        self.pauses += 1

    def resume_writing(self) -> None:
        self.resumes += 1


@pytest.mark.parametrize("ending", ["open", "end", "close", "end and close"])
def test_a_large_answer_becomes_records_as_the_client_takes_it(contexts: Contexts, ending: str) -> None:
    async def scenario(contexts: Contexts) -> None:
        raw, up = Full(), Counting()
        wired = Wired(contexts, raw=raw, up=up)
        body = bytes(range(256)) * 4_000
        wired.transport.write(body)
        wired.transport.writelines([b"x", b"y" * 20_000])
        wired.transport.write(b"z")
        if "end" in ending:
            wired.transport.write_eof()
        if "close" in ending:
            wired.transport.close()
            assert wired.transport.is_closing()
        whole = len(body) + 20_002
        assert raw.unsent < raw.HIGH + 70_000
        assert whole < wired.transport.get_write_buffer_size() < whole + 20_000
        assert not raw.has_ended
        assert not raw.is_closed
        assert (up.pauses, up.resumes) == (1, 0)
        got = b""
        while raw.unsent:
            got += wired.opened()
            raw.take()
        assert got == body + b"x" + b"y" * 20_000 + b"z" + b"<end>" * (ending != "open")
        assert raw.has_ended == (ending == "end")
        assert raw.is_closed == ("close" in ending)
        assert (up.pauses, up.resumes) == (1, 1)

    run(contexts, scenario)


def test_an_abort_drops_what_the_client_has_not_taken(contexts: Contexts) -> None:
    async def scenario(contexts: Contexts) -> None:
        raw = Full()
        wired = Wired(contexts, raw=raw)
        wired.transport.write(bytes(1_000_000))
        wired.transport.abort()
        assert raw.is_aborted
        assert wired.transport.get_write_buffer_size() == raw.unsent
        size = len(raw.sent)
        raw.take()
        assert len(raw.sent) == size

    run(contexts, scenario)


def test_a_lost_connection_is_reported_once_and_nothing_is_written(contexts: Contexts) -> None:
    wired = Wired(contexts)
    wired.transport.connection_lost(None)
    assert wired.up.is_lost
    wired.raw.is_closed = True
    wired.transport.write(b"x")
    wired.transport.close()


def test_extra_info_reaches_the_transport_below(contexts: Contexts) -> None:
    transport = Wired(contexts).transport
    assert transport.get_extra_info("peername", "none") == "none"
