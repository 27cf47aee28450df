"""`tail`: every message once, in order, across broken connections; and its output."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gateway.origin.app import RunningOrigin
from gateway.origin.faults import Faults
from tests.commands.conftest import Client
from tests.commands.runs import finished, running, wrote, wrote_lines
from tests.scenarios.hostile import Asked, HostileOrigin, Script, answer, part_of_stream

# -- what comes out of a pipe ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", [[], ["--sse"], ["--long-poll"]])
async def test_json_is_one_message_a_line_as_it_was_written(client: Client, url: str, how: list[str]) -> None:
    await client.put("/s", b'[{"n": 1.10}, 12345678901234567890123, [1, [2]], "a\\nb"]')
    async with running("tail", f"{url}/s", *how) as tail:
        await tail.until(wrote_lines(4))
        await client.post("/s", b'[1e400, {"k":\n "\xc3\xa9"}]')
        await tail.until(wrote_lines(6))
        await client.close("/s")
        status, out, err = await tail.finished()
    assert (status, err) == (0, "")
    assert out.splitlines() == [
        '{"n": 1.10}', "12345678901234567890123", "[1, [2]]", '"a\\nb"', "1e400", '{"k": "é"}'
    ]  # fmt: skip


@pytest.mark.parametrize("how", [[], ["--long-poll"]])
async def test_text_and_bytes_are_printed_unchanged(client: Client, url: str, how: list[str]) -> None:
    for path, content_type, first, second in (
        ("/text", "text/plain", b"one\r\ntwo\rthree\n", b"\n  four\r\n"),
        ("/bytes", "application/octet-stream", bytes(range(256)), b"\x00\r\n\xff"),
    ):
        await client.put(path, first, content_type)
        async with running("tail", url + path, *how) as tail:
            await tail.until(wrote(first))
            await client.post(path, second, content_type, Stream_Closed="true")
            assert (await tail.finished())[0] == 0
            assert tail.out == first + second


async def test_a_closed_stream_is_printed_to_its_end(client: Client, url: str) -> None:
    await client.put("/s", b"[1,2]", Stream_Closed="true")
    assert await finished("tail", f"{url}/s") == (0, "1\n2\n", "")
    assert await finished("tail", f"{url}/s", "--from", "now") == (0, "", "")


async def test_offsets_are_printed_and_accepted(client: Client, url: str) -> None:
    first = await client.put("/s", b"[1,2]")
    second = await client.post("/s", b"[3]", Stream_Closed="true")
    status, out, err = await finished("tail", f"{url}/s", "--offsets", "--from", first)
    assert (status, out, err) == (0, "3\n", f"offset {second}\n")


async def test_from_now_begins_with_the_next_message(client: Client, url: str) -> None:
    tail_offset = await client.put("/s", b"[1,2]")
    async with running("tail", f"{url}/s", "--from", "now", "--offsets") as tail:
        await tail.until(lambda run: run.err == f"offset {tail_offset}\n".encode())
        await client.post("/s", b"[3]", Stream_Closed="true")
        status, out, _ = await tail.finished()
    assert (status, out) == (0, "3\n")


# -- disconnects -------------------------------------------------------------------------------------------------------

Break = Callable[[Faults], object]


@pytest.mark.parametrize("how", ["--sse", "--long-poll"])
@pytest.mark.parametrize(
    "break_it",
    [
        lambda faults: faults.drop(40, kind="sse", times=3),
        lambda faults: faults.truncate(90, kind="sse", times=3, is_chunked=True),
        lambda faults: faults.drop(3, kind="longpoll", times=3),
        lambda faults: faults.truncate(2, kind="longpoll", times=3),
        lambda faults: (
            faults.status(503, kind="sse"),
            faults.status(429, kind="longpoll", headers={"Retry-After": "0"}),
        ),
        lambda faults: (faults.refuse(kind="sse", times=2), faults.refuse(kind="longpoll", times=2)),
    ],
)
async def test_nothing_is_lost_or_repeated_over_broken_connections(
    client: Client, durable_origin: RunningOrigin, how: str, break_it: Break
) -> None:
    await client.put("/s", b"[0]")
    async with running("tail", f"{durable_origin.url}/s", how) as tail:
        await tail.until(wrote(b"0\n"))
        break_it(durable_origin.origin.faults)
        for number in range(1, 9):
            await client.post("/s", b"[%d,%d.5]" % (number, number))
            if number % 3 == 0:
                await tail.until(wrote_lines(1 + 2 * number))
        await client.close("/s")
        status, out, _ = await tail.finished()
    assert status == 0
    assert out.split() == ["0", *(text for number in range(1, 9) for text in (f"{number}", f"{number}.5"))]


async def test_a_truncated_catch_up_is_read_again(client: Client, durable_origin: RunningOrigin) -> None:
    settings = durable_origin.origin.settings
    await client.put("/s", b"x" * (settings.max_chunk_bytes + 10), "text/plain", Stream_Closed="true")
    async with running("tail", f"{durable_origin.url}/s") as tail:
        await tail.until(lambda run: len(run.out) == settings.max_chunk_bytes + 10)
        assert (await tail.finished())[0] == 0
    # The first answer has to come, or a wrong URL would be tried for ever; the second breaks three times.
    faults = durable_origin.origin.faults
    first = faults.hold(kind="catchup", times=1)
    async with running("tail", f"{durable_origin.url}/s") as tail:
        await first.waiting(1)
        faults.truncate(4, kind="catchup", times=3)
        first.release()
        status, out, err = await tail.finished()
    assert (status, out) == (0, "x" * (settings.max_chunk_bytes + 10))
    assert "was lost; trying again from offset" in err
    assert err.splitlines()[-1] == "connected again"


async def test_a_gateway_that_restarts_is_waited_for(client: Client, durable_origin: RunningOrigin) -> None:
    await client.put("/s", b"[1]")
    serve = ("serve", "--origin", durable_origin.url, "--admin", "127.0.0.1:0", "--listen")
    async with running(*serve, "127.0.0.1:0") as first:
        await first.until(lambda run: b"READY gateway" in run.out)
        url = first.out.decode().split("READY gateway ")[1].split()[0]
        async with running("tail", f"{url}/s") as tail:
            await tail.until(wrote(b"1\n"))
            assert (await first.finished(signal.SIGTERM))[0] == 0
            await client.post("/s", b"[2]")
            await tail.until(lambda run: b"cannot connect" in run.err)
            async with running(*serve, url.removeprefix("http://")):
                await tail.until(wrote(b"1\n2\n"))
                await client.close("/s")
                assert (await tail.finished())[0] == 0


@asynccontextmanager
async def hostile(script: Script) -> AsyncIterator[HostileOrigin]:
    origin = HostileOrigin(script)
    await origin.start()
    try:
        yield origin
    finally:
        await origin.stop()


async def test_an_event_is_printed_only_after_its_control_event() -> None:
    async def script(asked: Asked, writer: asyncio.StreamWriter) -> None:
        if "live=" not in asked.target:
            writer.write(part_of_stream(b"[0]", "0001", "application/json"))
            return
        data = b"event: data\ndata: [%d]\n\n"
        control = b'event: control\ndata: {"streamNextOffset":"%s"%s}\n\n'
        if asked.target.split("offset=")[1].startswith("0001"):
            body = data % 1 + data % 2 + control % (b"0002", b',"streamCursor":"77"') + data % 3
        else:
            body = data % 3 + control % (b"0003", b',"streamClosed":true')
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n" + body)
        await writer.drain()
        if b"streamClosed" not in body:  # behind the last event the reader leaves by itself
            writer.close()

    async with hostile(script) as origin:
        assert await finished("tail", f"{origin.url}/s") == (0, "0\n1\n2\n3\n", "")
    assert [asked.target for asked in origin.asked] == [
        "/s?offset=-1",
        "/s?offset=0001&live=sse",
        "/s?offset=0002&live=sse&cursor=77",
    ]


async def test_an_offset_is_sent_back_unchanged_after_the_urls_own_query() -> None:
    odd = 'a+b%41#c"'

    async def script(asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(part_of_stream(b"", odd, Stream_Closed="true").replace(b"Stream_Closed", b"Stream-Closed"))

    async with hostile(script) as origin:
        assert await finished("tail", f"{origin.url}/a%2Fb?x=%20y", "--from", odd) == (0, "", "")
    assert [asked.target for asked in origin.asked] == ["/a%2Fb?x=%20y&offset=a%2Bb%2541%23c%22"]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"event: control\ndata: {}\n\n", "control event has no streamNextOffset string"),
        (b'event: data\ndata: [1\n\nevent: control\ndata: {"streamNextOffset":"2"}\n\n', "its content is not"),
    ],
)
async def test_an_answer_that_is_not_a_streams_ends_it(body: bytes, said: str) -> None:
    async def script(asked: Asked, writer: asyncio.StreamWriter) -> None:
        if "live=" in asked.target:
            writer.write(answer("200 OK", {"Content-Type": "text/event-stream"}, body))
        else:
            writer.write(part_of_stream(b"[0]", "1", "application/json"))

    async with hostile(script) as origin:
        status, out, err = await finished("tail", f"{origin.url}/s")
    assert (status, out) == (1, "0\n")
    assert said in err
    assert err.count("\n") == 1


# -- ends and refusals -------------------------------------------------------------------------------------------------


async def test_a_stream_that_is_deleted_ends_it_with_one_line(client: Client, url: str) -> None:
    await client.put("/s", b"[1]")
    async with running("tail", f"{url}/s", "--long-poll") as tail:
        await tail.until(wrote(b"1\n"))
        await client.delete("/s")
        status, out, err = await tail.finished()
    assert (status, out) == (1, "1\n")
    assert err.startswith(f"durable-gateway: {url}/s: the stream was deleted")
    assert err.count("\n") == 1


async def test_a_re_created_stream_is_not_followed(client: Client, durable_origin: RunningOrigin) -> None:
    offset = await client.put("/s", b"[1]")
    headers = {"Content-Type": "application/json", "Stream-Next-Offset": "0", "Stream-Up-To-Date": "true"}
    durable_origin.origin.faults.replace(200, headers, b"[7]")
    status, out, err = await finished("tail", f"{durable_origin.url}/s", "--from", offset)
    assert (status, out) == (1, "")
    assert f"its tail is before {offset}" in err


async def test_closing_the_pipe_ends_it_quietly(client: Client, url: str) -> None:
    await client.put("/s", b"[1]")
    reader, writer = os.pipe()
    async with running("tail", f"{url}/s", stdout=writer) as tail:
        os.close(writer)
        assert await asyncio.to_thread(os.read, reader, 64) == b"1\n"
        os.close(reader)
        for _ in range(2):  # the first may be in the pipe before the missing reader is noticed
            await client.post("/s", b"[2]")
        assert await tail.finished() == (0, "", "")


@pytest.mark.parametrize("how", [["--sse"], ["--long-poll"]])
async def test_it_ends_when_its_reader_leaves_without_a_further_message(
    client: Client, url: str, how: list[str]
) -> None:
    await client.put("/s", b"[1]")
    reader, writer = os.pipe()
    async with running("tail", f"{url}/s", *how, stdout=writer) as tail:
        os.close(writer)
        assert await asyncio.to_thread(os.read, reader, 64) == b"1\n"
        os.close(reader)
        assert await tail.finished() == (0, "", "")


async def test_output_to_a_file_is_not_watched_for_a_reader(client: Client, url: str, tmp_path: Path) -> None:
    await client.put("/s", b"[1]", Stream_Closed="true")
    with (tmp_path / "out").open("wb") as out:
        async with running("tail", f"{url}/s", stdout=out.fileno()) as tail:
            assert await tail.finished() == (0, "", "")
    assert (tmp_path / "out").read_bytes() == b"1\n"


async def test_a_url_may_be_typed_without_its_scheme(client: Client, url: str) -> None:
    await client.put("/s", b"[1]", Stream_Closed="true")
    assert await finished("tail", f"{url.removeprefix('http://')}/s") == (0, "1\n", "")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_ends_it(client: Client, url: str, number: signal.Signals) -> None:
    await client.put("/s", b"[1]")
    async with running("tail", f"{url}/s") as tail:
        await tail.until(wrote(b"1\n"))
        assert await tail.finished(number) == (0, "1\n", "")


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["{url}/nothing"], 1, "{url}/nothing: 404 Stream not found"),
        (["http://127.0.0.1:1/s"], 1, "cannot connect to 127.0.0.1:1: Connection refused"),
        (["{admin}/healthz"], 1, "{admin}/healthz: not a durable stream: no Stream-Next-Offset in the answer"),
        (["{url}/s", "--from", "no offset"], 2, "Invalid value for '--from': expected an offset, now or start"),
        (["{url}/s", "--sse", "--long-poll"], 2, "Invalid value for '--sse' / '--long-poll': use only one of them"),
        (["{url}/s?offset=1"], 2, "Invalid value for 'URL': leave offset= out of the stream's URL"),
        (["/s"], 2, "Invalid value for 'URL': expected an http:// or https:// URL"),
        (["s"], 2, "Invalid value for 'URL': expected an http:// or https:// URL"),
        (["localhost:port/s"], 2, "Invalid value for 'URL': expected an http:// or https:// URL"),
        (["ftp://a/s"], 2, "Invalid value for 'URL': expected an http:// or https:// URL"),
        (["{url}/s", "-H", "x"], 2, "Invalid value for '--header': expected NAME:VALUE"),
    ],
)
async def test_errors_are_one_line(url: str, admin: str, arguments: list[str], status: int, said: str) -> None:
    given = [text.format(url=url, admin=admin) for text in arguments]
    got = await finished("tail", *given)
    assert got[:2] == (status, "")
    assert got[2].startswith(f"durable-gateway: {said.format(url=url, admin=admin)}")
    assert got[2].count("\n") == 1


# -- on a terminal -----------------------------------------------------------------------------------------------------


async def test_on_a_terminal_json_is_indented_and_coloured(client: Client, url: str) -> None:
    await client.put("/s", b'[{"a":{"b":[1,2.50],"c":[]},"d":"\xc2\x9b31m"}]', Stream_Closed="true")
    async with running("tail", f"{url}/s", on_terminal=True) as tail:
        assert (await tail.finished())[0] == 0
        assert tail.shown == (
            '{\n  "a": {\n    "b": [\n      1,\n      2.50\n    ],\n    "c": []\n  },\n  "d": "\\u009b31m"\n}\n'
        )
        assert b"\x1b[1;36m2.50\x1b[0m" in tail.out


async def test_a_stream_cannot_control_the_terminal(client: Client, url: str) -> None:
    await client.put("/s", b"\x1b[31mred\x07\n\xc3\xa9\ttab\n", "text/plain", Stream_Closed="true")
    async with running("tail", f"{url}/s", on_terminal=True) as tail:
        assert (await tail.finished())[0] == 0
        assert tail.shown == "\\u001b[31mred\\u0007\né    tab\n"


async def test_on_a_terminal_bytes_are_dumped(client: Client, url: str) -> None:
    await client.put("/s", b"0123456789abcdef\x00\xffend", "application/octet-stream", Stream_Closed="true")
    async with running("tail", f"{url}/s", on_terminal=True) as tail:
        assert (await tail.finished())[0] == 0
        lines = [line.split("  ") for line in tail.shown.splitlines()]
    assert lines[0] == ["00000000", "30 31 32 33 34 35 36 37 38 39 61 62 63 64 65 66", "0123456789abcdef"]
    assert (lines[1][0], lines[1][1], lines[1][-1].strip()) == ("00000010", "00 ff 65 6e 64", "..end")


async def test_tls_to_a_plain_port_is_named_at_once(client: Client, url: str, admin: str) -> None:
    await client.put("/s", b"[1]")
    said = "the server does not speak TLS; is it an http:// URL?"
    for arguments in (["tail", f"{url}/s"], ["streams", "--admin", admin]):
        secure = [argument.replace("http://", "https://") for argument in arguments]
        status, out, err = await finished(*secure)
        assert (status, out, err.count("\n")) == (1, "", 1)
        assert err.endswith(f"{said}\n")
