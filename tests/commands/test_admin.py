"""`top`, `streams`, `purge`, `drain` and `reload`, over a real gateway's admin port."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from gateway.app import RunningGateway
from gateway.origin.app import RunningOrigin
from gateway.origin.requests import Kind
from tests.commands.conftest import Client
from tests.commands.runs import Run, finished, running, shows

TOKEN = "DURABLE_GATEWAY_ADMIN_TOKEN"
PURGES = "PATH / '--prefix' / '--key' / '--all'"


@pytest.fixture
async def streams(client: Client, url: str) -> dict[str, str]:
    """Three streams, read once, twice and three times; their tails."""
    tails: dict[str, str] = {}
    for count, path in enumerate(("/a/one", "/a/two", "/b/three"), 1):
        tails[path] = await client.put(path, b"[%d]" % count, Stream_Closed="true", Surrogate_Key="all")
        for _ in range(count):
            assert (await client.read(url + path)).status_code == 200
    return tails


@asynccontextmanager
async def serving(origin: RunningOrigin, *arguments: str, **environ: str) -> AsyncIterator[tuple[Run, str, str]]:
    """A gateway in a process of its own; its URL and its admin port's."""
    where = ("--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0")
    environ = {"DURABLE_GATEWAY_ROUTE__DEFAULT__ORIGIN": origin.url, **environ}
    async with running("serve", *where, *arguments, environ=environ) as run:
        await run.until(lambda run: b"READY admin" in run.out)
        words = run.out.decode().split()
        yield run, words[2], words[5]


# -- streams -----------------------------------------------------------------------------------------------------------


async def test_streams_are_tab_separated_lines_in_a_pipe(streams: dict[str, str], admin: str) -> None:
    status, out, err = await finished("streams", "--admin", admin)
    assert (status, err) == (0, "")
    head, *rows = (line.split("\t") for line in out.splitlines())
    found = [dict(zip(head, row, strict=True)) for row in rows]
    assert [row["stream"] for row in found] == list(streams)
    assert [row["tail"] for row in found] == list(streams.values())
    assert [(row["state"], row["bytes"], row["readers"]) for row in found] == [("closed", "1", "0")] * 3
    assert [row["reads"] for row in found] == ["1", "2", "3"]


async def test_streams_are_selected_by_prefix_and_limit(streams: dict[str, str], admin: str) -> None:
    status, out, err = await finished("streams", "/a/", "--limit", "1", "--json", "--admin", admin)
    assert (status, err) == (0, "there are more than 1 streams: raise --limit\n")
    assert [json.loads(line)["path"] for line in out.splitlines()] == ["/a/one"]
    status, out, err = await finished("streams", "/a/", "--limit", "2", "--json", "--admin", admin)
    assert (len(out.splitlines()), err) == (2, "")


async def test_all_pages_are_read(client: Client, url: str, admin: str) -> None:
    paths = [f"/many/{number:04}" for number in range(101)]
    for path in paths:
        await client.put(path, b"[1]")
        await client.read(url + path)
    status, out, _ = await finished("streams", "--json", "--admin", admin)
    assert status == 0
    assert [json.loads(line)["path"] for line in out.splitlines()] == paths


async def test_on_a_terminal_streams_are_a_table(streams: dict[str, str], admin: str) -> None:
    async with running("streams", "--admin", admin, on_terminal=True) as run:
        assert (await run.finished())[0] == 0
        rows = [line.split() for line in run.shown.splitlines() if "/b/three" in line]
    assert rows == [["/b/three", streams["/b/three"], "closed", "1", "B", "0", "3", "66.7%", rows[0][-2], "B"]]


# -- purge -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("what", "said", "left"),
    [
        (["/a/one"], "purged 1 stream", ["/a/two", "/b/three"]),
        (["a/one"], "purged 1 stream", ["/a/two", "/b/three"]),
        (["--prefix", "a/"], "purged 2 streams", ["/b/three"]),
        (["--prefix", "/a/"], "purged 2 streams", ["/b/three"]),
        (["--key", "nobody"], "purged 0 streams", ["/a/one", "/a/two", "/b/three"]),
        (["--all", "--soft", "--yes"], "marked 3 streams stale", ["/a/one", "/a/two", "/b/three"]),
        (["--all", "--yes"], "purged 3 streams", []),
    ],
)
async def test_purging(streams: dict[str, str], admin: str, what: list[str], said: str, left: list[str]) -> None:
    assert await finished("purge", *what, "--admin", admin) == (0, f"{said}\n", "")
    _, out, _ = await finished("streams", "--json", "--admin", admin)
    assert [json.loads(line)["path"] for line in out.splitlines()] == left


@pytest.mark.parametrize(
    ("what", "why"),
    [
        (["--prefix", ""], "Invalid value for '--prefix': is empty: --all purges every stream"),
        (["--prefix", "/"], "Invalid value for '--prefix': / is every stream: --all purges them"),
        (["--key", ""], "Invalid value for '--key': is empty: --all purges every stream"),
        ([""], "Invalid value for 'PATH': is empty: --all purges every stream"),
        (["--prefix", "/a/../"], "prefix: /a/../ is every stream: send all"),
        (["--all"], "purging every stream needs --yes if no terminal is there for the question"),
        (["--all", "--prefix", "/a/"], f"Invalid value for {PURGES}: give exactly one of them"),
    ],
)
async def test_a_purge_of_everything_by_an_empty_variable_is_refused(
    streams: dict[str, str], admin: str, what: list[str], why: str
) -> None:
    status, out, err = await finished("purge", *what, "--admin", admin)
    assert status in (1, 2)
    assert (out, err) == ("", f"durable-gateway: {why}\n")
    _, out, _ = await finished("streams", "--json", "--admin", admin)
    assert len(out.splitlines()) == len(streams)


@pytest.mark.parametrize(("typed", "said"), [(b"n\n", "nothing was purged"), (b"y\n", "purged 3 streams")])
async def test_a_purge_of_everything_asks_on_a_terminal(
    streams: dict[str, str], admin: str, typed: bytes, said: str
) -> None:
    async with running("purge", "--all", "--admin", admin, on_terminal=True) as run:
        await run.until(shows(f"Purge every stream of {admin}? [y/N]: "))
        await run.write(typed)
        status, _, _ = await run.finished()
    assert run.shown.rstrip().endswith(said)
    assert status == (0 if typed == b"y\n" else 1)


async def test_a_stale_stream_is_revalidated_before_the_next_hit(
    client: Client, streams: dict[str, str], durable_origin: RunningOrigin, url: str, admin: str
) -> None:
    counters = durable_origin.origin.counters
    await client.read(f"{url}/b/three")
    before = counters.requests[Kind.CATCHUP] + counters.requests[Kind.HEAD]
    await client.read(f"{url}/b/three")
    assert counters.requests[Kind.CATCHUP] + counters.requests[Kind.HEAD] == before
    assert (await finished("purge", "/b/three", "--soft", "--admin", admin))[0] == 0
    assert (await client.read(f"{url}/b/three")).json() == [3]
    assert counters.requests[Kind.CATCHUP] + counters.requests[Kind.HEAD] == before + 1


# -- top ---------------------------------------------------------------------------------------------------------------


async def test_top_once_shows_what_was_counted(
    streams: dict[str, str], durable_gateway: RunningGateway, admin: str
) -> None:
    status, out, err = await finished("top", "--once", "--admin", admin)
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].startswith("durable-gateway 0.1.0  durable-gateway  up ")
    assert lines[0].rstrip().endswith("ready")
    assert re.match(r"origin spared \d+\.\d% of reads, \d+\.\d% of bytes in the last \d+s   origin answers$", lines[1])
    assert lines[2].startswith("requests 6   origin requests ")
    assert lines[3].startswith("subscribers 0   streams followed 0   ")
    assert [line.split()[0] for line in lines if line.startswith(" /")] == ["/b/three", "/a/two", "/a/one"]
    status, out, _ = await finished("top", "--limit", "1", "--admin", admin)  # a pipe: as with --once
    assert status == 0
    assert "/b/three" in out
    assert "/a/two" not in out


async def test_top_in_a_pipe_prints_full_names(client: Client, url: str, admin: str) -> None:
    path = f"/{'long' * 200}"
    await client.put(path, b"[1]")
    await client.read(url + path)
    _, out, _ = await finished("top", "--admin", admin)
    assert any(line.split()[:1] == [path] for line in out.splitlines())
    assert max(map(len, out.splitlines())) < len(path) + 100


async def test_top_updates_on_a_terminal_and_reads_keys(client: Client, url: str, admin: str) -> None:
    await client.put("/quiet", b"[0]", Stream_Closed="true")
    for _ in range(5):
        await client.read(f"{url}/quiet")
    await client.put("/busy", b"[1]", Stream_Closed="true")
    async with running("top", "--interval", "0.1", "--admin", admin, on_terminal=True) as top:
        await top.until(shows("reads/s"))
        assert b"\x1b[?1049h" in top.out  # a screen of its own, which is left at the end

        # Busy now goes before busy once: rates are what counts while one watches.
        while "/busy" not in _first_row(top):
            await client.read(f"{url}/busy")
        await top.write(b"\x1b[Ab")  # an arrow is Escape and two more, and not one of the keys that leave
        await top.until(lambda run: b"\x1b[1msent/s" in _last_frame(run))
        await top.write(b"s")
        await top.until(lambda run: b"\x1b[1mreaders" in _last_frame(run))
        await top.write(b"q")
        status, _, _ = await top.finished()
    assert status == 0
    assert b"\x1b[?1049l" in top.out


def _last_frame(top: Run) -> bytes:
    """The last frame that is whole: another has begun behind it."""
    return top.out.rpartition(b"\x1b[H")[0].rpartition(b"\x1b[H")[2]


def _first_row(top: Run) -> str:
    rows = [line for line in _last_frame(top).decode("utf-8", "ignore").splitlines() if line.startswith(" /")]
    return rows[0] if rows else ""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_top_restores_the_terminal_after_a_signal(admin: str, number: signal.Signals) -> None:
    async with running("top", "--admin", admin, on_terminal=True) as top:
        await top.until(shows("reads"))
        assert not top.is_cooked()
        assert (await top.finished(number))[0] == 0
        assert top.is_cooked()
        assert b"\x1b[?1049l" in top.out


async def test_top_goes_on_when_the_gateway_stops(durable_origin: RunningOrigin) -> None:
    async with (
        serving(durable_origin) as (gateway, _, admin),
        running("top", "--interval", "0.1", "--admin", admin, on_terminal=True) as top,
    ):
        await top.until(shows("ready"))
        assert (await gateway.finished(signal.SIGTERM))[0] == 0
        await top.until(shows("cannot connect to"))
        await top.write(b"q")
        assert (await top.finished())[0] == 0


# -- drain and reload --------------------------------------------------------------------------------------------------


async def test_a_drain_is_watched_to_its_end(
    client: Client, http: httpx.AsyncClient, url: str, durable_gateway: RunningGateway
) -> None:
    await client.put("/s", b"[1]")
    async with http.stream("GET", f"{url}/s?offset=-1&live=sse") as reader:
        pieces = reader.aiter_raw()
        await anext(pieces)
        where = ("--within", "1", "--admin", durable_gateway.admin_url)
        async with running("drain", *where, on_terminal=True) as drain:
            await drain.until(shows("1 left"))
            async for _ in pieces:
                pass  # it is the gateway that ends it
            assert drain.process.returncode is None
            status, _, _ = await drain.finished()
    assert status == 0
    assert drain.shown.endswith("drained 1 live reader\n")
    assert not durable_gateway.is_ready


async def test_a_drain_without_readers_is_done_at_once(admin: str, durable_gateway: RunningGateway) -> None:
    assert await finished("drain", "--admin", admin) == (0, "drained 0 live readers\n", "")
    assert not durable_gateway.is_ready
    assert await finished("drain", "--no-wait", "--admin", admin) == (0, "draining 0 live readers\n", "")
    assert await finished("drain", "--undo", "--admin", admin) == (0, "ready again\n", "")
    assert durable_gateway.is_ready


async def test_a_reload_without_a_file_says_so(durable_origin: RunningOrigin) -> None:
    async with serving(durable_origin) as (run, _, admin):
        said = "nothing changed: the gateway was started without a configuration file\n"
        assert await finished("reload", "--admin", admin) == (0, said, "")
        run.process.send_signal(signal.SIGHUP)
        await run.until(lambda run: b"started without a configuration file" in run.err)


async def test_a_reload_prints_changes_and_rejects_an_invalid_file(
    durable_origin: RunningOrigin, tmp_path: Path
) -> None:
    file = tmp_path / "gateway.toml"
    plain = f'[[route]]\norigin = "{durable_origin.url}"\n'
    file.write_text(plain)
    async with serving(durable_origin, "--config", str(file)) as (_, _, admin):
        assert await finished("reload", "--admin", admin) == (0, "nothing changed\n", "")
        file.write_text(f'[limits]\ncache_bytes = "8MiB"\n[server]\nnode_name = "other"\n{plain}trust_s = 7\n')
        status, out, err = await finished("reload", "--admin", admin)
        assert (status, err) == (0, "")
        assert "changed limits.cache_bytes" in out.splitlines()
        assert "needs a restart: server.node_name" in out.splitlines()
        file.write_text(f"{plain}nonsense = 1\n")
        status, out, err = await finished("reload", "--admin", admin)
        assert (status, out) == (1, "")
        assert err.startswith(f"durable-gateway: {file}:3: route.default.nonsense: unknown key")
        assert err.count("\n") == 1


# -- the port ----------------------------------------------------------------------------------------------------------


async def test_the_token_comes_from_the_environment(durable_origin: RunningOrigin) -> None:
    async with serving(durable_origin, **{TOKEN: "sesame"}) as (_, _, admin):
        assert (await finished("streams", "--admin", admin, environ={TOKEN: "sesame"}))[0] == 0
        missing = f"durable-gateway: the admin port requires a token: set {TOKEN}\n"
        wrong = f"durable-gateway: the admin port does not accept the token in {TOKEN}\n"
        for environ, said in (({}, missing), ({TOKEN: "wrong"}, wrong)):
            for command in (["streams"], ["purge", "/s"]):
                assert await finished(*command, "--admin", admin, environ=environ) == (1, "", said)


@pytest.mark.parametrize("command", [["streams"], ["top"], ["purge", "/s"], ["drain"], ["reload"]])
async def test_an_unreachable_port_is_one_line(command: list[str], url: str) -> None:
    status, out, err = await finished(*command, "--admin", "127.0.0.1:1")
    assert (status, out) == (1, "")
    assert err == "durable-gateway: admin port: cannot connect to 127.0.0.1:1: Connection refused\n"
    status, out, err = await finished(*command, "--admin", url)
    assert (status, out) == (1, "")
    assert err.startswith(f"durable-gateway: {url} is not a gateway's admin port: it answered ")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["purge"], f"Invalid value for {PURGES}: give exactly one of them"),
        (["purge", "/s", "--key", "k"], f"Invalid value for {PURGES}: give exactly one of them"),
        (["purge", "http://a/s"], "Invalid value for 'PATH': expected a path such as /demo, got 'http://a/s'"),
        (["top", "--by", "mood"], "Invalid value for '--by'"),
        (["top", "--admin", "ftp://x"], "Invalid value for '--admin': expected an http:// or https:// URL"),
        (["streams", "--limit", "0"], "Invalid value for '--limit'"),
        (["drain", "--within", "-1"], "Invalid value for '--within'"),
        (["drain", "--within", "1", "--undo"], "Invalid value for '--within': does not go with --undo"),
    ],
)
async def test_misuse_is_one_line_and_status_2(arguments: list[str], said: str) -> None:
    status, out, err = await finished(*arguments)
    assert (status, out) == (2, "")
    assert err.startswith(f"durable-gateway: {said}")
    assert err.count("\n") == 1
