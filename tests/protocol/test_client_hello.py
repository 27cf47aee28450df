"""The server name in a ClientHello equals the one that OpenSSL's client sent, in any pieces."""

from __future__ import annotations

import ssl
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.protocol.client_hello import LONGEST_BYTES, BadServerName, ClientHello, read_client_hello

NAMES = st.from_regex(r"[a-z0-9]{1,20}(\.[a-zA-Z0-9]{1,20}){0,4}", fullmatch=True).filter(
    lambda name: not name.rpartition(".")[2].isdecimal()
)
VERSIONS = st.sampled_from([ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])


def hello(name: str | None, version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3) -> bytes:
    """The first message of OpenSSL's client."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.maximum_version = context.minimum_version = version
    context.set_alpn_protocols(["h2", "http/1.1"])
    outgoing = ssl.MemoryBIO()
    client = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname=name)
    with suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


def in_records(data: bytes, size: int) -> bytes:
    """The same message in records of `size` bytes each."""
    message = data[5:]
    parts = [message[at : at + size] for at in range(0, len(message), size)]
    return b"".join(data[:3] + len(part).to_bytes(2, "big") + part for part in parts)


@given(name=st.none() | NAMES, version=VERSIONS, record=st.integers(1, 600))
def test_the_name_is_the_one_that_was_sent(name: str | None, version: ssl.TLSVersion, record: int) -> None:
    data = hello(name, version)
    wanted = ClientHello(name.lower() if name is not None else None)
    assert read_client_hello(data) == wanted
    assert read_client_hello(in_records(data, record) + b"more") == wanted


@given(name=NAMES, record=st.integers(1, 600))
def test_an_incomplete_message_has_no_result(name: str, record: int) -> None:
    """The number of bytes needed never exceeds the message, and changes a few times only."""
    data = in_records(hello(name), record)
    size, rounds = 1, 0
    while isinstance(found := read_client_hello(data[:size]), int):
        assert size < found <= len(data)
        size, rounds = found, rounds + 1
    assert found == ClientHello(name.lower())
    assert rounds < 60


@given(name=NAMES, at=st.integers(0, 700), byte=st.integers(0, 255), cut=st.integers(0, 700))
def test_corrupted_messages_terminate(name: str, at: int, byte: int, cut: int) -> None:
    data = bytearray(hello(name))
    data[at % len(data)] = byte
    with suppress(BadServerName):
        found = read_client_hello(bytes(data[: cut or None]))
        assert isinstance(found, ClientHello) or found > min(cut or len(data), len(data))


@given(st.binary(max_size=300))
def test_any_bytes_terminate(data: bytes) -> None:
    for found in (data, b"\x16\x03\x01" + data, b"\x16\x03\x01\x00\xc0\x01\x00\x00\xbc" + data):
        with suppress(BadServerName):
            read_client_hello(found)


def test_a_trailing_dot_is_dropped() -> None:
    assert read_client_hello(hello("edge.test").replace(b"edge.test", b"edge.tes.")) == ClientHello("edge.tes")


def test_a_name_that_is_not_ascii_is_refused() -> None:
    with pytest.raises(BadServerName):
        read_client_hello(hello("edge.test").replace(b"edge.test", b"edg\xe9.test"))


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x00\x05nonsense",
        b"\x16\x03\x01\x00\x00" * 9,
        b"\x17\x03\x01\x00\x05\x01\x00\x00\x01\x00",
        b"\x16\x03\x01\x40\x00\x01" + (LONGEST_BYTES + 1).to_bytes(3, "big"),
        b"\x16\x03\x01\x00\x04\x01\x00\x00\x00",
    ],
)
def test_another_message_yields_no_name(data: bytes) -> None:
    assert read_client_hello(data) == ClientHello(None)
