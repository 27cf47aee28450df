"""`append`: stdin is on the stream, once, even if answers are lost."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from gateway.origin.app import RunningOrigin
from tests.commands.conftest import Client
from tests.commands.runs import finished, running, shows, wrote, wrote_lines

# -- messages ----------------------------------------------------------------------------------------------------------


async def test_json_values_are_messages_with_any_white_space(client: Client, url: str) -> None:
    await client.put("/s")
    data = b' {"a":\n  1.10} [1,\n[2]]"x\\"y" 3\n\n4\tnull'
    status, out, err = await finished("append", f"{url}/s", data=data)
    assert await client.content("/s") == b'[{"a":\n  1.10},[1,\n[2]],"x\\"y",3,4,null]'
    assert (status, err) == (0, "")
    tail = (await client.read(f"{url}/s")).headers["Stream-Next-Offset"]
    assert out == f"appended 6 messages; the tail is {tail}\n"


async def test_the_output_of_tail_is_input_of_append(client: Client, url: str) -> None:
    await client.put("/a", rb'[{"n":1e400},"\ud83d",1.10]', Stream_Closed="true")
    await client.put("/b")
    _, out, _ = await finished("tail", f"{url}/a")
    assert (await finished("append", f"{url}/b", data=out.encode()))[::2] == (0, "")
    assert await client.content("/b") == await client.content("/a")


async def test_lines_are_strings_in_json_and_bytes_in_text(client: Client, url: str) -> None:
    data = 'é "quoted"\r\n\n{"a":1}\nlast'.encode()
    assert (await finished("append", f"{url}/j", "--create", "application/json", "--lines", data=data))[0] == 0
    assert await client.content("/j") == '["é \\"quoted\\"","","{\\"a\\":1}","last"]'.encode()
    for flags in ([], ["--lines"], ["--binary"]):
        assert (await finished("append", f"{url}/t{len(flags)}", "--create", "text/plain", *flags, data=data))[0] == 0
        assert (await client.content(f"/t{len(flags)}")).startswith(data)


async def test_large_input_arrives_whole_and_in_order(client: Client, url: str, tmp_path: Path) -> None:
    lines = b"".join(b'{"n":%d,"pad":"%s"}\n' % (number, b"x" * 90) for number in range(30_000))
    (tmp_path / "lines").write_bytes(lines)
    with (tmp_path / "lines").open("rb") as file:
        async with running("append", f"{url}/s", "--create", "application/json", stdin=file.fileno()) as run:
            status, out, _ = await run.finished()
    assert status == 0
    assert out.startswith("appended 30000 messages; ")
    async with running("tail", f"{url}/s", "--from", "start") as tail:
        await tail.until(lambda run: len(run.out) >= len(lines))
        assert tail.out == lines


async def test_bytes_are_bytes(client: Client, url: str) -> None:
    data = os.urandom(200_000)
    status, out, _ = await finished("append", f"{url}/s", "--create", "application/octet-stream", data=data)
    assert status == 0
    assert out.startswith("appended 200000 bytes; ")
    assert await client.content("/s") == data


async def test_input_from_a_pipe_is_appended_before_the_pipe_ends(client: Client, url: str) -> None:
    await client.put("/s")
    reading, writing = os.pipe()
    async with running("tail", f"{url}/s") as tail, running("append", f"{url}/s", stdin=reading) as append:
        for number in range(3):
            os.write(writing, b"%d\n" % number)
            await tail.until(wrote_lines(number + 1))
            # A shell's terminal is shared in the same way, and stays as it was.
            assert os.get_blocking(reading)
        os.close(writing)
        os.close(reading)
        assert (await append.finished())[0] == 0
        assert tail.out == b"0\n1\n2\n"


# -- once --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("through", ["gateway", "origin"])
async def test_an_append_whose_answer_was_lost_is_there_once(
    client: Client, durable_origin: RunningOrigin, url: str, through: str
) -> None:
    await client.put("/s")
    # The switch acts after the append has been taken: what is lost is the answer, three times.
    lost = durable_origin.origin.faults.refuse(kind="append", times=3)
    at = url if through == "gateway" else durable_origin.url
    async with running("append", f"{at}/s", "--close") as append:
        await append.write(b"1 2 ")
        await append.until(lambda run: b"trying again" in run.err)
        await append.write(b"3")
        append.end_input()
        status, out, _ = await append.finished()
    assert lost.hits == 3
    assert (status, out.split(";")[0]) == (0, "appended 3 messages and closed")
    assert await client.content("/s") == b"[1,2,3]"
    assert await client.is_closed("/s")


async def test_an_origin_that_is_busy_is_asked_again(client: Client, durable_origin: RunningOrigin, url: str) -> None:
    await client.put("/s")
    busy = durable_origin.origin.faults.status(503, kind="append", times=2, text="busy")
    status, out, err = await finished("append", f"{url}/s", data=b"1")
    assert (status, err) == (0, "503 busy; trying again\n")
    assert out.startswith("appended 1 message; ")
    assert (busy.hits, await client.content("/s")) == (2, b"[1]")


async def test_it_gives_up_in_time_and_prints_what_was_appended(
    client: Client, durable_origin: RunningOrigin, url: str
) -> None:
    await client.put("/s")
    async with running("append", f"{url}/s", "--retry-for", "0") as append:
        async with running("tail", f"{url}/s") as tail:
            await append.write(b"1 2\n")
            await tail.until(wrote(b"1\n2\n"))
        durable_origin.origin.faults.status(503, kind="append", times=None, text="no")
        await append.write(b"3\n")
        status, out, err = await append.finished()
    assert (status, out) == (1, "")
    assert err.splitlines()[-1] == "durable-gateway: 503 no; gave up after 0 s (appended 2 messages before)"
    assert await client.content("/s") == b"[1,2]"


async def test_a_stopped_append_prints_what_was_acknowledged(
    client: Client, durable_origin: RunningOrigin, url: str
) -> None:
    await client.put("/s")
    async with running("append", f"{url}/s") as append, running("tail", f"{url}/s") as tail:
        await append.write(b"1\n2\n")
        await tail.until(wrote_lines(2))
        held = durable_origin.origin.faults.hold(kind="append", times=1)
        await append.write(b"3\n")
        await held.waiting(1)
        assert await append.finished(signal.SIGINT) == (
            1,
            "",
            "durable-gateway: stopped (appended 2 messages before)\n",
        )
        held.release()


# -- streams -----------------------------------------------------------------------------------------------------------


async def test_a_stream_is_created_written_and_closed(client: Client, url: str) -> None:
    status, out, err = await finished("append", f"{url}/s", "--create", "text/plain", "--close", data=b"a\nb\n")
    assert (status, err) == (0, "")
    assert out.startswith("appended 2 messages and closed; the tail is ")
    got = await client.read(f"{url}/s")
    assert (got.content, got.headers["Content-Type"]) == (b"a\nb\n", "text/plain")
    assert got.headers["Stream-Closed"] == "true"


async def test_an_empty_stdin_appends_nothing_and_may_still_close(client: Client, url: str) -> None:
    await client.put("/s")
    assert (await finished("append", f"{url}/s", "--close"))[0] == 0
    assert await client.content("/s") == b"[]"
    assert await client.is_closed("/s")


async def test_bad_input_ends_it_after_the_valid_messages(client: Client, url: str) -> None:
    await client.put("/s")
    status, out, err = await finished("append", f"{url}/s", data=b'{"a":1}\n2\n\n  {"b":\n nope}\n3')
    assert (status, out) == (1, "")
    assert err == "durable-gateway: stdin, line 4: not JSON (appended 2 messages before)\n"
    assert await client.content("/s") == b'[{"a":1},2]'


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["{url}/nothing"], 1, "{url}/nothing: no such stream; --create TYPE makes one"),
        (["{url}/closed"], 1, "{url}/closed: the stream is closed"),
        (
            ["{url}/json", "--create", "text/plain"],
            1,
            "{url}/json: exists, but not as an open stream of text",
        ),
        (["{url}/json", "--binary"], 1, "--binary is not for JSON streams: use --json or --lines"),
        (["{url}/text", "--json"], 1, "--json is for JSON streams, and this one is text/plain"),
        (["http://127.0.0.1:1/s"], 1, "cannot connect to 127.0.0.1:1: Connection refused"),
        (
            ["{url}/json", "--json", "--lines"],
            2,
            "Invalid value for '--json' / '--lines' / '--binary': use only one of them",
        ),
        (["{url}/json", "--create", "json"], 2, "Invalid value for '--create': expected a content type, got 'json'"),
        (["{url}/json", "--retry-for", "-1"], 2, "Invalid value for '--retry-for'"),
        (["gateway/s"], 2, "Invalid value for 'URL': expected an http:// or https:// URL"),
    ],
)
async def test_errors_are_one_line(client: Client, url: str, arguments: list[str], status: int, said: str) -> None:
    await client.put("/json")
    await client.put("/text", content_type="text/plain")
    await client.put("/closed", Stream_Closed="true")
    got = await finished("append", *[text.format(url=url) for text in arguments])
    assert got[:2] == (status, "")
    assert got[2].startswith(f"durable-gateway: {said.format(url=url)}")
    assert got[2].count("\n") == 1


# -- on a terminal -----------------------------------------------------------------------------------------------------


async def test_lines_typed_at_a_terminal_are_appended_one_by_one(client: Client, url: str) -> None:
    await client.put("/s", content_type="text/plain")
    async with running("tail", f"{url}/s") as tail, running("append", f"{url}/s", on_terminal=True) as append:
        await append.write(b"first\n")
        await tail.until(wrote(b"first\n"))
        await append.write(b"second\n\x04")
        assert (await append.finished())[0] == 0
        assert "appended 2 messages" in append.shown
        await tail.until(wrote(b"first\nsecond\n"))


async def test_progress_is_shown_on_a_terminal_only(
    client: Client, durable_origin: RunningOrigin, url: str, tmp_path: Path
) -> None:
    (tmp_path / "bytes").write_bytes(bytes(3 * 1024 * 1024))
    await client.put("/s", content_type="application/octet-stream")
    held = durable_origin.origin.faults.hold(kind="append", times=1)
    with (tmp_path / "bytes").open("rb") as file:
        async with running("append", f"{url}/s", on_terminal=True, stdin=file.fileno()) as append:
            await held.waiting(1)
            await append.until(shows("appending"))
            held.release()
            assert (await append.finished())[0] == 0
            assert "appended 3145728 bytes" in append.shown
