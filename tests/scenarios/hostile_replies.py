"""Replies that no good origin gives, and what each must come to: a table for `test_hostile_replies.py`.

The stream is `GOOD`, which ends at `END`.  A reply that the gateway may take for good says the same, so that a later
read, from an origin that has become good, shows whether anything else was remembered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from tests.scenarios.hostile import answer
from tests.waiting import pause

GOOD: Final = b"good bytes"
END: Final = "0010"
TEXT: Final = {"Content-Type": "text/plain"}
NEXT: Final = {**TEXT, "Stream-Next-Offset": END, "Stream-Up-To-Date": "true"}
WHOLE: Final = answer("200 OK", NEXT, GOOD)
_CHUNKS: Final = b"a\r\n%b\r\n0\r\n\r\n" % GOOD
CUT: Final = 0
"""In place of a status: the connection ends before the answer does."""

Reply = bytes | Callable[[asyncio.StreamWriter], Awaitable[None]]

_START: Final = "/s?offset=-1"
_TAIL: Final = f"/s?offset={END}"
POLL: Final = f"/s?offset={END}&live=long-poll"
EVENTS: Final = f"/s?offset={END}&live=sse"


@dataclass(frozen=True)
class Row:
    """One reply: `to` is the request, `gives` what its client may get (statuses, or CUT)."""

    name: str
    reply: Reply
    gives: tuple[int, ...]
    method: str = "GET"
    to: str = _START
    keeps: bool | None = False
    """Whether the connection to the origin stays in use; None if either is right."""


def _head(*lines: str, status: str = "200 OK", body: bytes = GOOD) -> bytes:
    fields = [*(f"{name}: {value}" for name, value in NEXT.items()), *lines]
    return f"HTTP/1.1 {status}\r\n".encode() + "".join(f"{field}\r\n" for field in fields).encode() + b"\r\n" + body


def _sized(*lines: str, status: str = "200 OK") -> bytes:
    return _head(f"Content-Length: {len(GOOD)}", *lines, status=status)


def _chunked(body: bytes, *lines: str) -> bytes:
    return _head("Transfer-Encoding: chunked", *lines, body=body)


def _endless(begin: bytes, piece: bytes, pause_s: float = 0.0) -> Reply:
    """Write until the connection is gone."""

    async def write(writer: asyncio.StreamWriter) -> None:
        writer.write(begin)
        while not writer.is_closing():
            writer.write(piece)
            await writer.drain()
            await pause(pause_s)

    return write


def _byte_by_byte(reply: bytes) -> Reply:
    async def write(writer: asyncio.StreamWriter) -> None:
        for byte in reply:
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(0)

    return write


def _cut_off(reply: bytes) -> Reply:
    """Write this and end the connection."""

    async def write(writer: asyncio.StreamWriter) -> None:
        writer.write(reply)
        await writer.drain()
        writer.close()

    return write


def _said(body: bytes = GOOD, **fields: str) -> bytes:
    """A reply whose fields differ from those of a good one."""
    return answer("200 OK", {**NEXT, **{name.replace("_", "-"): value for name, value in fields.items()}}, body)


def _event(name: str, data: str) -> bytes:
    return f"event: {name}\ndata: {data}\n\n".encode()


def _events(body: bytes) -> Reply:
    """An open answer of events."""

    async def write(writer: asyncio.StreamWriter) -> None:
        fields = {"Content-Type": "text/event-stream", "Transfer-Encoding": "chunked"}
        writer.write(answer("200 OK", {**fields, "Stream-SSE-Data-Encoding": "base64"}))
        writer.write(b"%x\r\n%b\r\n" % (len(body), body))
        await writer.drain()
        # Open until the gateway has had enough of it.
        await writer.wait_closed()

    return write


def _control(offset: str = END, more: str = "") -> bytes:
    return _event("control", f'{{"streamNextOffset":"{offset}","streamCursor":"1","upToDate":true{more}}}')


HEADS: Final = [
    Row("two replies", WHOLE + WHOLE, (200,)),
    Row("a body longer than announced", WHOLE + b"more", (200,)),
    Row("a body shorter than announced", _cut_off(_head("Content-Length: 100")), (502, CUT)),
    Row("a reset in the middle", _cut_off(_head("Content-Length: 100", body=b"go")), (502, CUT)),
    Row("two lengths", _head("Content-Length: 10", "Content-Length: 11"), (502,)),
    Row("two equal lengths", _head("Content-Length: 10", "Content-Length: 10"), (502,)),
    Row("a list of lengths", _head("Content-Length: 10, 10"), (502,)),
    Row("a signed length", _head("Content-Length: +10"), (502,)),
    Row("a length of twenty digits", _head("Content-Length: " + "9" * 20), (502,)),
    Row("a length beside chunks", _chunked(_CHUNKS, "Content-Length: 10"), (502,)),
    Row("gzip, chunked", _head("Transfer-Encoding: gzip, chunked", body=_CHUNKS), (502,)),
    Row("chunked twice", _chunked(_CHUNKS, "Transfer-Encoding: chunked"), (502,)),
    Row("chunked in HTTP/1.0", b"HTTP/1.0" + _chunked(_CHUNKS)[8:], (200, 502), keeps=None),
    Row("trailers that frame", _chunked(b"a\r\n%b\r\n0\r\nContent-Length: 5\r\n\r\n" % GOOD), (200, 502, CUT)),
    Row("trailers with an offset", _chunked(_CHUNKS[:-2] + b"Stream-Next-Offset: 9\r\n\r\n"), (200,), keeps=None),
    Row("a chunk of twenty hexits", _chunked(b"f" * 20 + b"\r\n" + GOOD), (502, CUT)),
    Row("a negative chunk", _chunked(b"-1\r\n" + GOOD), (502, CUT)),
    Row("endless chunk extensions", _endless(_chunked(b"a;"), b"x" * 4_096), (502, CUT)),
    Row("endless trailers", _endless(_chunked(b"a\r\n%b\r\n0\r\n" % GOOD), b"X: y\r\n" * 1_000), (502, CUT)),
    Row("a body after 204", _head("Content-Length: 10", status="204 No Content"), (204,)),
    Row("a body after 304", _head("Content-Length: 10", status="304 Not Modified"), (502,)),
    Row("a switch of protocols", _head("Upgrade: x", "Connection: upgrade", status="101 Switch", body=b""), (502,)),
    Row("an upgrade beside 200", _sized("Upgrade: x", "Connection: upgrade"), (200, 502), keeps=None),
    Row("a flood of 103", b"HTTP/1.1 103 E\r\n\r\n" * 100 + WHOLE, (502,)),
    Row("endless 100", _endless(b"", b"HTTP/1.1 100 C\r\n\r\n" * 100), (502,)),
    Row("an endless head", _endless(b"HTTP/1.1 200 OK\r\n", b"X: y\r\n" * 100), (502,)),
    Row("an endless line", _endless(b"HTTP/1.1 200 OK\r\nX: ", b"y" * 4_096), (502,)),
    Row("a slow head", _endless(b"HTTP/1.1 200 OK\r\nX: ", b"y", 0.02), (504,)),
    Row("a stalled body", _head("Content-Length: 1000"), (502, 504, CUT), keeps=None),
    Row("a value of 20 KB", _sized("X: " + "y" * 20_000), (502,)),
    Row("a thousand fields", _sized(*(f"X{number}: y" for number in range(1_000))), (502,)),
    Row("a NUL in a field", _sized("X: a\0b"), (502,)),
    Row("a folded field", _sized("X: a\r\n b"), (502,)),
    Row("bare line feeds", _sized().replace(b"\r\n", b"\n"), (502,)),
    Row("bare carriage returns", _sized().replace(b"\r\n", b"\r"), (502, 504)),
    Row("HTTP/2.0", b"HTTP/2.0" + WHOLE[8:], (502,)),
    Row("no head at all", GOOD, (502,)),
    Row("nothing", _cut_off(b""), (502,)),
    Row("status 99", b"HTTP/1.1 099 X" + WHOLE[15:], (502,)),
    Row("byte by byte", _byte_by_byte(WHOLE), (200,), keeps=True),
]  # fmt: skip
"""What breaks HTTP."""

STREAMS: Final = [
    Row("no offset", answer("200 OK", TEXT, GOOD), (200,), keeps=True),
    Row("a sentinel for an offset", _said(Stream_Next_Offset="-1"), (502,), keeps=None),
    Row("now for an offset", _said(Stream_Next_Offset="now"), (502,), keeps=None),
    Row("an offset with a space", _said(Stream_Next_Offset="00 10"), (502,), keeps=None),
    Row("an offset with a comma", _said(Stream_Next_Offset="0010,0011"), (502,), keeps=None),
    Row("an empty offset", _said(Stream_Next_Offset=""), (502,), keeps=None),
    Row("an offset of 10 KB", _said(Stream_Next_Offset="9" * 10_000), (502,), keeps=None),
    Row("two offsets", _sized("Stream-Next-Offset: 0099"), (502,), keeps=None),
    Row("another stream's offset", _said(Stream_Next_Offset="9999"), (200,), keeps=True),
    Row("bytes that lead nowhere", answer("200 OK", NEXT, GOOD), (200, 502, CUT), to=_TAIL, keeps=None),
    Row("an offset behind the asked one", _said(b"", Stream_Next_Offset="0005"), (200,), to=_TAIL, keeps=None),
    Row("closed and not up to date", _said(Stream_Closed="true", Stream_Up_To_Date="false"), (200,), keeps=True),
    Row("flags that are none", _said(Stream_Closed="maybe", Stream_Up_To_Date="2"), (200,), keeps=True),
    Row("an unquoted ETag", _sized("ETag: x"), (200,), keeps=True),
    Row("an ETag of one quote", _sized('ETag: "'), (200,), keeps=True),
    Row("an ETag of 8 KB", _sized('ETag: "' + "x" * 8_000 + '"'), (200,), keeps=True),
    Row("two ETags", _sized('ETag: "a:-1:0010"', 'ETag: "b:-1:0010"'), (200,), keeps=True),
    Row("a coding that is a lie", _sized("Content-Encoding: gzip"), (200,), keeps=True),
    Row("a partial reply", _sized("Content-Range: bytes 0-9/10", status="206 Partial Content"), (206,), keeps=True),
    Row("a redirect to itself", _sized("Location: /s?offset=-1", status="302 Found"), (302,), keeps=True),
    Row("a redirect elsewhere", _sized("Location: http://192.0.2.1/", status="307 Moved"), (307,), keeps=True),
    Row("300 years to wait", _sized("Retry-After: 9999999999", status="503 Service Unavailable"), (503,), keeps=None),
    Row("a wait that is none", _sized("Retry-After: -1, x", status="503 Service Unavailable"), (503,), keeps=None),
    Row("a cookie", _sized("Set-Cookie: a=b"), (200,), keeps=True),
    Row("freshness for ever", _sized("Cache-Control: max-age=99999999999999999999", "Age: -5"), (200,), keeps=True),
    Row("JSON that is no array", _said(b'{"a":"bcd"}', Content_Type="application/json"), (502, CUT), keeps=None),
    Row("JSON that is cut short", _said(b"[1,2,3", Content_Type="application/json"), (502, CUT), keeps=None),
    Row("a type of 8 KB", _said(Content_Type="text/" + "x" * 8_000), (200,), keeps=True),
    Row("a million years", _sized("Stream-TTL: " + "9" * 20, "Stream-Expires-At: 9999-99-99"), (200,), keeps=True),
]  # fmt: skip
"""What is HTTP and breaks the protocol."""

_LARGE: Final = answer("200 OK", {"Content-Type": "text/event-stream", "Content-Length": "104857600"})
_ANY: Final = (200, 204, 404, 502, 503)

LIVE: Final = [
    Row("204 without a cursor", answer("204 No Content", {"Stream-Next-Offset": END}), (200, 204), to=POLL, keeps=None),
    Row("204 that goes back", answer("204 No Content", {"Stream-Next-Offset": "0005"}), _ANY, to=POLL, keeps=None),
    Row("204 without an offset", answer("204 No Content", {}), (200, 204, 502, 503), to=POLL, keeps=None),
    Row("204 with a body", answer("204 No Content", {"Stream-Next-Offset": END}, GOOD), (200, 204), to=POLL),
    Row("200 that leads nowhere", WHOLE, _ANY, to=POLL, keeps=None),
    Row("a long-poll of garbage", b"garbage\r\n\r\n", (200, 204, 502, 503), to=POLL),
    Row("a long-poll cut short", _cut_off(_head("Content-Length: 100", body=b"go")), (200, 204, 502, 503), to=POLL),
    Row("data without control", _events(_event("data", "eHl6")), (200,), to=EVENTS, keeps=None),
    Row("control before data", _events(_control() + _event("data", "eHl6")), (200,), to=EVENTS, keeps=None),
    Row("control that is no JSON", _events(_event("control", "{")), (200,), to=EVENTS, keeps=None),
    Row("control of another kind", _events(_event("control", '{"streamNextOffset":7}')), (200,), to=EVENTS, keeps=None),
    Row("control behind", _events(_control("0005")), (200, 404, 502), to=EVENTS, keeps=None),
    Row("data that is no base64", _events(_event("data", "!!") + _control("0011")), (200,), to=EVENTS, keeps=None),
    Row("data that leads nowhere", _events(_event("data", "eHl6") + _control()), (200, 404), to=EVENTS, keeps=None),
    Row("events of NULs", _events(b"\0" * 10_000), (200,), to=EVENTS, keeps=None),
    Row("events of carriage returns", _events(b"\r" * 10_000), (200,), to=EVENTS, keeps=None),
    Row("an endless event", _endless(_LARGE, b"data: " + b"x" * 65_530), (200,), to=EVENTS),
    Row("an endless comment", _endless(_LARGE, b":" + b"x" * 65_535), (200,), to=EVENTS),
]  # fmt: skip
"""What breaks live reads.  A client of events gets nothing of it, but for the head."""

_DONE: Final = answer("204 No Content", {"Stream-Next-Offset": END})
_SWITCH: Final = b"HTTP/1.1 101 S\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n"

OTHERS: Final = [
    Row("a body after HEAD", WHOLE, (200,), "HEAD", "/s"),
    Row("two replies to HEAD", _head("Content-Length: 10", body=b"") * 2, (200,), "HEAD", "/s"),
    Row("garbage after HEAD", b"garbage\r\n\r\n", (502,), "HEAD", "/s"),
    Row("a HEAD with two offsets", _head("Stream-Next-Offset: 0099", body=b""), (200, 502), "HEAD", "/s", None),
    *(
        row
        for method in ("POST", "PUT", "DELETE")
        for row in (
            Row("two replies", _DONE * 2, (204,), method, "/s"),
            Row("a body after 204", _DONE + GOOD, (204,), method, "/s"),
            Row("no offset", answer("200 OK", {}), (200,), method, "/s", True),
            Row("a long offset", answer("200 OK", {"Stream-Next-Offset": "9" * 10_000}), (200,), method, "/s", True),
            Row("a flood of 103", b"HTTP/1.1 103 E\r\n\r\n" * 100 + _DONE, (502,), method, "/s"),
            Row("garbage", b"garbage\r\n\r\n", (502,), method, "/s"),
            Row("nothing", _cut_off(b""), (502,), method, "/s"),
            Row("a redirect", _sized("Location: http://192.0.2.1/", status="308 Moved"), (308,), method, "/s", True),
            Row("a switch of protocols", _SWITCH, (502,), method, "/s"),
            Row("gzip, chunked", _head("Transfer-Encoding: gzip, chunked", body=b"0\r\n\r\n"), (502,), method, "/s"),
            Row("a slow head", _endless(b"HTTP/1.1 200 OK\r\nX: ", b"y", 0.02), (504,), method, "/s"),
        )
    ),
]  # fmt: skip
"""What breaks HEAD and writes."""

ROWS: Final = [*HEADS, *STREAMS, *LIVE, *OTHERS]
