"""An origin behind TLS, through the whole gateway: every mode, wrong authorities, replaced certificates."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from gateway.config.watched_files import POLL_S
from gateway.origin.app import RunningOrigin
from gateway.origin.counters import Counters
from tests.scenarios.conftest import Edge, Start, as_json, bounded
from tests.tls_origin import behind_tls, made, server_context
from tests.waiting import eventually

JSON = "application/json"


@pytest.fixture(scope="module")
def made_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certificates")
    for name, issuer in [("ca", None), ("stranger", None), ("origin.test", "ca"), ("client", "ca")]:
        made(folder, name, issuer)
    return folder


@pytest.fixture
def certificates(made_once: Path, tmp_path: Path) -> Path:
    """Files that a test may replace."""
    return Path(shutil.copytree(made_once, tmp_path / "certificates"))


def known(folder: Path) -> dict[str, str]:
    return {"ca_file": str(folder / "ca.crt"), "server_name": "origin.test"}


def shown(folder: Path, name: str = "client") -> dict[str, str]:
    return {"cert_file": str(folder / f"{name}.crt"), "key_file": str(folder / f"{name}.key")}


def replace(folder: Path, name: str, by: str) -> None:
    """Replace a file by another one, as a renewal of certificates does."""
    shutil.copy(folder / by, folder / "new")
    (folder / "new").rename(folder / name)


async def files_are_taken(edge: Edge, caplog: pytest.LogCaptureFixture, said: str) -> None:
    """Wait for two checks of the files and for the message about them."""
    renewal, before = edge.gateway.engine.tls_reloader, len(caplog.records)
    for _ in range(2):
        polls = renewal.polls
        edge.clock.advance(POLL_S)
        await eventually(lambda polls=polls: renewal.polls > polls)
    await eventually(lambda: any(said in record.getMessage() for record in caplog.records[before:]))


@pytest.mark.parametrize("asks_client", [False, True])
async def test_every_mode_works_with_an_origin_behind_tls(
    start: Start, origin: RunningOrigin, counters: Counters, certificates: Path, asks_client: bool
) -> None:
    tls = {**known(certificates), **(shown(certificates) if asks_client else {})}
    async with behind_tls(origin.url, server_context(certificates, asks_client=asks_client)) as url:
        edge = await start(url, origin_tls=tls)
        assert (await edge.put("/s", b'["a"]', JSON)).status == 201
        read = await edge.get("/s")
        assert (as_json(read), read.is_up_to_date) == (["a"], True)
        assert (await edge.send("HEAD", "/s")).next_offset == read.next_offset
        polling = edge.asking(f"/s?offset={read.next_offset}&live=long-poll")
        events = await edge.begin(f"/s?offset={read.next_offset}&live=sse")
        assert (await events.head()).status == 200
        await bounded(counters.live_is(1))
        assert (await edge.post("/s", b'["b"]', JSON)).status == 204
        assert as_json(await bounded(polling)) == ["b"]
        while (event := await events.event()) is not None and event.name != "data":
            pass
        assert event is not None
        assert '"b"' in event.data
        assert as_json(await edge.get("/s")) == ["a", "b"]
        assert (await edge.send("DELETE", "/s")).status == 204
        await edge.leave()
        await edge.until_idle()


@pytest.mark.parametrize("method", ["GET", "POST", "HEAD"])
async def test_an_origin_whose_authority_is_another_is_answered_for_by_a_clear_502(
    start: Start, origin: RunningOrigin, counters: Counters, certificates: Path, method: str
) -> None:
    async with behind_tls(origin.url, server_context(certificates)) as url:
        tls = {"ca_file": str(certificates / "stranger.crt"), "server_name": "origin.test"}
        edge = await start(url, origin_tls=tls, retry_attempts=0)
        found = await edge.send(method, "/s", {"Content-Type": "text/plain"}, b"x" if method == "POST" else None)
        assert found.status == 502
        if method != "HEAD":
            assert found.body == b"Origin unreachable: certificate refused\n"
        assert not sum(counters.requests.values())


@pytest.mark.parametrize("name", [None, "stranger"])
async def test_an_origin_that_misses_a_certificate_gets_no_request(
    start: Start, origin: RunningOrigin, counters: Counters, certificates: Path, name: str | None
) -> None:
    async with behind_tls(origin.url, server_context(certificates, asks_client=True)) as url:
        tls = {**known(certificates), **(shown(certificates, name) if name else {})}
        edge = await start(url, origin_tls=tls, retry_attempts=0)
        found = await edge.get("/s")
        # The origin gives the reason only in a TLS alert; the tests of the connection cover that.
        assert found.status == 502
        assert found.body.startswith(b"Origin unreachable")
        assert not sum(counters.requests.values())


async def test_replaced_files_are_reloaded_and_open_connections_stay(
    start: Start, origin: RunningOrigin, counters: Counters, certificates: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """At first the client's certificate is from an unknown authority; the origin must not see it twice."""
    made(certificates, "next", "ca")
    async with behind_tls(origin.url, server_context(certificates, asks_client=True)) as url:
        edge = await start(url, origin_tls={**known(certificates), **shown(certificates)}, live_linger_s=60)
        assert (await edge.put("/s", b'["a"]', JSON)).status == 201
        tail = (await edge.get("/s")).next_offset
        polling = edge.asking(f"/s?offset={tail}&live=long-poll")
        await bounded(counters.live_is(1))
        # A certificate without its key is unusable.
        replace(certificates, "client.crt", "next.crt")
        await files_are_taken(edge, caplog, "client.crt; the previous settings stay")
        assert (await edge.post("/s", b"", JSON, Stream_Seq="0")).status == 400
        replace(certificates, "client.key", "next.key")
        await files_are_taken(edge, caplog, "files changed and were reloaded")
        assert not polling.done()
        assert (await edge.post("/s", b'["b"]', JSON)).status == 204
        assert as_json(await bounded(polling)) == ["b"]
        # From here on the gateway does not trust the origin's authority.
        replace(certificates, "ca.crt", "stranger.crt")
        await files_are_taken(edge, caplog, "files changed and were reloaded")
        assert (await edge.post("/s", b'["c"]', JSON)).status == 502
        edge.clock.advance(60)
