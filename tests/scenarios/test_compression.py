"""Compressed answers through the whole gateway: their bytes for each client, and their tags."""

import asyncio
import threading

import pytest

from gateway.engine.compression import PATIENCE_S
from gateway.origin.app import OriginSettings, RunningOrigin
from gateway.origin.counters import Counters
from gateway.origin.faults import Faults
from gateway.origin.requests import Kind
from gateway.protocol.coding import Coding
from tests.codings import DECODERS, messages
from tests.scenarios.conftest import Edge, Hostile, Start, bounded
from tests.scenarios.hostile import Asked, answer, part_of_stream
from tests.scenarios.wire import BOUND_S, Answer
from tests.waiting import eventually

JSON = "application/json"
TEXT = b"".join(b"line %d of a text that repeats itself\n" % at for at in range(4_000))
CLOSED = {"Stream_Closed": "true"}
ALL = [coding.value for coding in Coding]


def taking(coding: str, **more: str) -> dict[str, str]:
    return {"Accept-Encoding": coding, **{name.replace("_", "-"): value for name, value in more.items()}}


def coding_of(answer: Answer) -> str:
    return answer.headers.get("Content-Encoding", "identity")


def plain(answer: Answer) -> bytes:
    return DECODERS[coding_of(answer)](answer.body)


def borrowed(edge: Edge) -> int:
    """The bytes of the budget that ready answers and coded bytes claim to hold."""
    remembered = edge.gateway.clients.remembered
    return edge.gateway.engine.coder.cost + (remembered.cost if remembered is not None else 0)


async def kept(edge: Edge, path: str, body: bytes, **put: str) -> None:
    """A stream whose bytes have been read and stored: a read does not wait for bytes in flight."""
    await edge.put(path, body, **put)
    assert (await edge.get(f"{path}?offset=-1")).body == body


def compressions(edge: Edge, coding: str = "gzip") -> float:
    value = edge.gateway.metrics.registry.get_sample_value("durable_gateway_compressions_total", {"coding": coding})
    assert value is not None
    return value


def saved(edge: Edge) -> float:
    return sum(
        sample.value
        for family in edge.gateway.metrics.registry.collect()
        for sample in family.samples
        if sample.name == "durable_gateway_response_saved_bytes_total"
    )


@pytest.fixture
def origin_settings() -> OriginSettings:
    return OriginSettings(max_chunk_bytes=4 << 20)


@pytest.mark.parametrize("coding", ALL)
@pytest.mark.parametrize(
    ("content_type", "body"), [(JSON, messages(60)), (JSON, messages(3_000)), ("text/plain", TEXT)]
)
async def test_all_clients_get_the_same_bytes_in_their_coding(
    edge: Edge, counters: Counters, coding: str, content_type: str, body: bytes
) -> None:
    await edge.put("/s", body, content_type, **CLOSED)
    identity = await edge.get("/s?offset=-1")
    assert coding_of(identity) == "identity"
    assert identity.headers["Vary"] == "Accept-Encoding"
    for _ in range(3):
        answer = await edge.get("/s?offset=-1", taking(coding))
        assert coding_of(answer) == coding
        assert plain(answer) == identity.body == body
        assert len(answer.body) < len(body) / 2
        assert answer.headers["Content-Length"] == str(len(answer.body))
        assert answer.headers["Vary"] == "Accept-Encoding"
        assert answer.headers["ETag"] == identity.headers["ETag"][:-1] + f':{coding}"'
        assert answer.headers["Content-Type"] == identity.headers["Content-Type"]
        assert answer.next_offset == identity.next_offset
        assert answer.is_closed
        assert answer.is_up_to_date
    assert (await edge.get("/s?offset=-1")).body == body
    assert compressions(edge, coding) == 1
    assert counters.requests[Kind.CATCHUP] == 1


async def test_on_one_connection_each_request_is_answered_for_itself(edge: Edge) -> None:
    await edge.put("/s", TEXT, **CLOSED)
    await edge.get("/s?offset=-1")
    wire = await edge.wire()
    for _ in range(2):
        for coding in [*ALL, "identity", "gzip;q=0", "*;q=0"]:
            await wire.ask("/s?offset=-1", taking(coding))
            answer = await wire.answer()
            assert coding_of(answer) == (coding if coding in ALL else "identity")
            assert plain(answer) == TEXT


async def test_a_304_needs_a_coding_that_the_client_has_and_accepts(edge: Edge) -> None:
    await kept(edge, "/s", TEXT, **CLOSED)
    tags = {coding: (await edge.get("/s?offset=-1", taking(coding))).headers["ETag"] for coding in [*ALL, "identity"]}
    assert len(set(tags.values())) == 4
    made = {coding: compressions(edge, coding) for coding in ALL}
    for _ in range(3):
        for coding, tag in tags.items():
            answer = await edge.get("/s?offset=-1", taking(coding, If_None_Match=tag))
            assert (answer.status, answer.headers["ETag"]) == (304, tag)
            assert answer.headers["Vary"] == "Accept-Encoding"
            assert "Content-Encoding" not in answer.headers
            assert not answer.body
        assert (await edge.get("/s?offset=-1", taking("gzip", If_None_Match="W/" + tags["gzip"]))).status == 304
        assert (await edge.get("/s?offset=-1", taking("br", If_None_Match=tags["gzip"]))).status == 200
        assert (await edge.get("/s?offset=-1", {"If-None-Match": tags["gzip"]})).status == 200
        both = await edge.get("/s?offset=-1", taking("br", If_None_Match=f"{tags['gzip']}, {tags['br']}"))
        assert (both.status, both.headers["ETag"]) == (304, tags["br"])
    assert made == {coding: compressions(edge, coding) for coding in ALL}


async def test_a_304_costs_no_compression(edge: Edge) -> None:
    await edge.put("/s", TEXT, **CLOSED)
    tag = (await edge.get("/s?offset=-1")).headers["ETag"]
    for value in (tag, tag[:-1] + ':gzip"'):
        assert (await edge.get("/s?offset=-1", taking("gzip", If_None_Match=value))).status == 304
    assert compressions(edge) == 0


async def test_closing_changes_the_tag_of_a_coding_too(edge: Edge) -> None:
    await edge.put("/s", TEXT)
    before = await edge.get("/s?offset=-1", taking("gzip"))
    await edge.post("/s", b"", **CLOSED)
    after = await edge.get("/s?offset=-1", taking("gzip", If_None_Match=before.headers["ETag"]))
    assert after.status == 200
    assert after.is_closed
    assert after.headers["ETag"] != before.headers["ETag"]
    assert plain(after) == TEXT


async def test_a_growing_stream_is_read_whole_in_every_coding(edge: Edge) -> None:
    body = messages(400)
    await edge.put("/s", body, JSON)
    offset = "-1"
    for at in range(1, 4):
        more = messages(100, first=1_000 * at)
        await edge.post("/s", more, JSON)
        body = body[:-1] + b"," + more[1:]
        for coding in ALL:
            whole = await edge.get("/s?offset=-1", taking(coding))
            assert (coding_of(whole), plain(whole)) == (coding, body)
            assert whole.is_up_to_date
        if offset != "-1":
            rest = await edge.get(f"/s?offset={offset}", taking("br"))
            assert (coding_of(rest), plain(rest)) == ("br", more)
        offset = whole.next_offset


async def test_writes_are_read_at_once(edge: Edge) -> None:
    await edge.put("/s", TEXT)
    for at in range(5):
        await edge.post("/s", b"more %d\n" % at)
        assert plain(await edge.get("/s?offset=-1", taking("gzip"))).endswith(b"more %d\n" % at)


async def test_waiting_readers_get_one_compressed_body(edge: Edge) -> None:
    await edge.put("/s", messages(1), JSON)
    tail = (await edge.get("/s?offset=-1")).next_offset
    waiting = [edge.asking(f"/s?offset={tail}&live=long-poll", taking("gzip")) for _ in range(30)]
    engine = edge.gateway.engine
    await eventually(lambda: any(topic.readers >= 30 and topic.is_confirmed for topic in engine.live.topics()))
    more = messages(100, first=1)
    await edge.post("/s", more, JSON)
    answers = await asyncio.gather(*waiting)
    assert {(coding_of(answer), plain(answer)) for answer in answers} == {("gzip", more)}
    assert {answer.headers["Vary"] for answer in answers} == {"Accept-Encoding"}
    assert compressions(edge) == 1
    assert saved(edge) == sum(len(plain(answer)) - len(answer.body) for answer in answers)


async def test_what_coding_saves_is_counted_for_every_answer(start: Start, origin: RunningOrigin) -> None:
    edge = await start(origin.url)
    await kept(edge, "/s", TEXT, **CLOSED)
    await kept(edge, "/t", b"short", **CLOSED)
    answers = [await edge.get(f"{path}?offset=-1", taking("gzip")) for path in ("/s", "/s", "/s", "/t")]
    assert [coding_of(answer) for answer in answers] == ["gzip", "gzip", "gzip", "identity"]
    not_modified = await edge.get("/s?offset=-1", taking("gzip", If_None_Match=answers[0].headers["ETag"]))
    assert not_modified.status == 304
    remembered = edge.gateway.clients.remembered
    assert remembered is None or remembered.served, "none was answered at the door"
    assert saved(edge) == 3 * (len(TEXT) - len(answers[0].body))


@pytest.mark.parametrize("compress_cache_bytes", ["32MiB", 0], ids=["kept", "not kept"])
@pytest.mark.parametrize(("text", "coding"), [(TEXT[:8_000], "gzip"), (50 * TEXT, "identity")], ids=["small", "large"])
async def test_a_waiter_restarted_in_another_stream_gets_bytes_coded_at_most_once(
    hostile: Hostile, start: Start, compress_cache_bytes: str | int, text: bytes, coding: str
) -> None:
    gate, is_anew = asyncio.Event(), False

    async def script(asked: Asked, writer: asyncio.StreamWriter) -> None:
        identity, body, end = ("id2", text, "0009") if is_anew else ("id1", b"first", "0005")
        at = asked.target.partition("offset=")[2][:4]
        if "live=" in asked.target:
            await gate.wait()
        elif asked.method == "HEAD":
            headers = {"Content-Type": "text/plain", "Stream-Next-Offset": end, "ETag": f'"{identity}:-1:{end}"'}
            writer.write(answer("200 OK", headers))
        else:
            writer.write(part_of_stream(b"" if at == end else body, end, ETag=f'"{identity}:{at}:{end}"'))

    origin = await hostile(script, takes_head=True)
    edge = await start(origin.url, compress_cache_bytes=compress_cache_bytes)
    for _ in range(2):
        await edge.get("/s")
    is_anew = True
    # It begins to wait in the remembered stream, which no follower confirms.
    polled = await bounded(edge.asking("/s?offset=0005&live=long-poll", taking("gzip")))
    assert (polled.status, coding_of(polled)) == (200, coding)
    assert plain(polled) == text
    assert polled.headers["ETag"].count(":gzip") == (coding == "gzip")
    gate.set()


async def test_sse_is_never_compressed(edge: Edge) -> None:
    await edge.put("/s", TEXT, **CLOSED)
    wire = await edge.begin("/s?offset=-1&live=sse", taking("gzip, br, zstd"))
    head = await wire.head()
    assert coding_of(head) == "identity"
    assert "Vary" not in head.headers
    assert (await wire.body()).startswith(b"event: data\n")


@pytest.mark.parametrize(
    ("content_type", "body"), [("image/png", TEXT), ("application/octet-stream", TEXT), (JSON, messages(3))]
)
async def test_small_or_incompressible_bodies_are_sent_uncoded(edge: Edge, content_type: str, body: bytes) -> None:
    await edge.put("/s", body, content_type, **CLOSED)
    for _ in range(3):
        answer = await edge.get("/s?offset=-1", taking("gzip, br, zstd"))
        assert coding_of(answer) == "identity"
        assert answer.body == body
        # A short stream may be long the next time.
        assert ("Vary" in answer.headers) == (content_type == JSON)


async def test_a_body_in_flight_is_not_awaited_for_compression(edge: Edge, faults: Faults) -> None:
    body = 2 * TEXT
    await edge.put("/s", body)
    stall = faults.stall(100_000, kind="catchup", times=1)
    wire = await edge.begin("/s?offset=-1", taking("gzip"))
    await bounded(stall.waiting(1))
    head = await wire.head()
    assert coding_of(head) == "identity"
    assert head.headers["Vary"] == "Accept-Encoding"
    assert body.startswith(await wire.piece())
    stall.release()
    await wire.body()
    assert coding_of(await edge.get("/s?offset=-1", taking("gzip"))) == "gzip"


async def test_compressed_bytes_are_dropped_with_the_stream(edge: Edge) -> None:
    coder, store = edge.gateway.engine.coder, edge.gateway.engine.store
    await edge.put("/s", TEXT, **CLOSED)
    for _ in range(3):
        await edge.get("/s?offset=-1", taking("gzip"))
    assert len(coder) == 1
    assert store.lent == borrowed(edge) >= coder.cost > 0
    await edge.send("DELETE", "/s")
    assert len(coder) == store.lent == 0
    assert (await edge.get("/s?offset=-1", taking("gzip"))).status == 404
    other = TEXT[::-1]
    await edge.put("/s", other, **CLOSED)
    assert plain(await edge.get("/s?offset=-1", taking("gzip"))) == other


async def test_compressed_bytes_stay_within_the_budget(start: Start, origin: RunningOrigin) -> None:
    edge = await start(origin.url, cache_bytes=1_000_000, compress_cache_bytes=100_000)
    engine = edge.gateway.engine
    for at in range(30):
        body = TEXT + b"%d" % at
        await edge.put(f"/{at}", body, **CLOSED)
        for coding in ALL:
            for _ in range(2):
                assert plain(await edge.get(f"/{at}?offset=-1", taking(coding))) == body
        assert engine.coder.cost <= 100_000
        assert engine.store.lent == borrowed(edge)
        assert engine.store.cost + engine.store.lent <= 1_000_000
    assert len(engine.coder) > 3


async def test_compressing_a_large_body_blocks_no_other_request(edge: Edge) -> None:
    await kept(edge, "/large", TEXT, **CLOSED)
    await edge.put("/small", messages(60), JSON, **CLOSED)
    coder = edge.gateway.engine.coder
    gate = threading.Event()
    # The only thread is busy until the gate opens.
    busy = coder.executor.submit(gate.wait, BOUND_S)
    try:
        large = [edge.asking("/large?offset=-1", taking("gzip")) for _ in range(3)]
        await eventually(lambda: coder.making == 1)
        assert coding_of(await edge.get("/small?offset=-1", taking("gzip"))) == "gzip"
        assert (await edge.get("/large?offset=-1")).body == TEXT
        assert not any(task.done() for task in large)
        gate.set()
        assert [(coding_of(answer), plain(answer)) for answer in await asyncio.gather(*large)] == [("gzip", TEXT)] * 3
    finally:
        gate.set()
    assert busy.result()
    assert compressions(edge) == 2


async def test_a_long_wait_for_the_thread_ends_in_plain_bytes(edge: Edge) -> None:
    await kept(edge, "/s", TEXT, **CLOSED)
    coder = edge.gateway.engine.coder
    gate = threading.Event()
    busy = coder.executor.submit(gate.wait, BOUND_S)
    try:
        reader = edge.asking("/s?offset=-1", taking("gzip"))
        await eventually(lambda: coder.making == 1)
        edge.clock.advance(PATIENCE_S)
        answer = await reader
        assert coding_of(answer) == "identity"
        assert answer.body == TEXT
    finally:
        gate.set()
    assert busy.result()
    await eventually(lambda: not coder.making)
    # That the answer was plain once is not remembered.
    assert coding_of(await edge.get("/s?offset=-1", taking("gzip"))) == "gzip"


async def test_a_reader_that_leaves_while_it_is_compressed_leaves_nothing_behind(edge: Edge) -> None:
    await kept(edge, "/s", TEXT, **CLOSED)
    coder = edge.gateway.engine.coder
    gate = threading.Event()
    busy = coder.executor.submit(gate.wait, BOUND_S)
    try:
        wire = await edge.begin("/s?offset=-1", taking("gzip"))
        await eventually(lambda: coder.making == 1)
        wire.reset()
        await edge.until_idle()
    finally:
        gate.set()
    assert busy.result()
    await eventually(lambda: len(coder) == 1)


async def test_a_client_or_an_origin_may_forbid_it(hostile: Hostile, start: Start, edge: Edge) -> None:
    async def script(asked: Asked, writer: asyncio.StreamWriter) -> None:
        headers = {"Cache-Control": "max-age=60, no-transform", "Content-Type": "text/plain"}
        writer.write(part_of_stream(TEXT, "0001", **headers))

    strict = await start((await hostile(script)).url)
    answer = await strict.get("/s?offset=-1", taking("gzip"))
    assert (coding_of(answer), answer.body) == ("identity", TEXT)
    assert "no-transform" in answer.headers["Cache-Control"]

    await edge.put("/s", TEXT, **CLOSED)
    for _ in range(2):
        answer = await edge.get("/s?offset=-1", taking("gzip", Cache_Control="no-transform"))
        assert (coding_of(answer), answer.body) == ("identity", TEXT)
        assert coding_of(await edge.get("/s?offset=-1", taking("gzip"))) == "gzip"


async def test_a_route_may_do_without(start: Start, origin: RunningOrigin) -> None:
    edge = await start(origin.url, compression=[])
    await edge.put("/s", TEXT, **CLOSED)
    for _ in range(3):
        answer = await edge.get("/s?offset=-1", taking("gzip, br, zstd"))
        assert (coding_of(answer), answer.body) == ("identity", TEXT)
        assert "Vary" not in answer.headers


async def test_the_route_decides_among_what_a_browser_takes(start: Start, origin: RunningOrigin) -> None:
    for compression, expected in (["br", "gzip"], "br"), (["gzip"], "gzip"), (["gzip", "zstd"], "gzip"):
        edge = await start(origin.url, compression=compression)
        await edge.send("DELETE", "/s")
        await kept(edge, "/s", TEXT, **CLOSED)
        assert coding_of(await edge.get("/s?offset=-1", taking("gzip, deflate, br, zstd"))) == expected


async def test_cors_and_coding_both_stand_in_vary(start: Start, origin: RunningOrigin) -> None:
    edge = await start(origin.url, cors={"allow_origins": ["https://a.example"]})
    await kept(edge, "/s", TEXT, **CLOSED)
    for _ in range(2):
        answer = await edge.get("/s?offset=-1", taking("gzip", Origin="https://a.example"))
        assert {name.strip() for name in answer.headers["Vary"].split(",")} == {"Accept-Encoding", "Origin"}
        assert coding_of(answer) == "gzip"


async def test_head_and_relayed_answers_are_not_coded(edge: Edge) -> None:
    await edge.put("/s", TEXT, **CLOSED)
    await edge.get("/s?offset=-1", taking("gzip"))
    head = await edge.send("HEAD", "/s", taking("gzip"))
    assert coding_of(head) == "identity"
    none = await edge.get("/none?offset=-1", taking("gzip"))
    assert (none.status, coding_of(none)) == (404, "identity")
    assert "Vary" not in none.headers


async def test_a_compressed_hit_is_remembered_while_its_bytes_are_kept(start: Start, origin: RunningOrigin) -> None:
    edge = await start(origin.url, compress_cache_bytes=60_000, fast_path=True)
    remembered, coder = edge.gateway.clients.remembered, edge.gateway.engine.coder
    assert remembered is not None
    bodies = {f"/{at}": TEXT[at:] for at in range(20)}
    for path, body in bodies.items():
        await kept(edge, path, body, **CLOSED)
        for _ in range(4):
            answer = await edge.get(f"{path}?offset=-1", taking("gzip"))
            assert (coding_of(answer), plain(answer)) == ("gzip", body)
    assert remembered.served >= 2 * len(bodies)
    # Nothing else holds the bytes that the coder has dropped.
    assert len(remembered) == len(coder) < len(bodies)
    assert compressions(edge) == len(bodies)
