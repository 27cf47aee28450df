"""The origin confirms bytes in memory from time to time: neither trimmed bytes nor those of another stream last."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from gateway.aio.clock import ManualClock
from gateway.engine.confirming import MOST_WAIT_S
from gateway.origin.app import RunningOrigin
from gateway.origin.counters import Counters
from gateway.origin.faults import Faults
from gateway.origin.requests import Kind
from tests.scenarios.conftest import Edge, Hostile, Start, bounded
from tests.scenarios.hostile import Asked, part_of_stream
from tests.scenarios.wire import Answer

JSON = "application/json"
FRESH_S = 60
"""The default of `trust_s`."""

Trim = Callable[..., None]


@pytest.fixture
def settings() -> dict[str, Any]:
    """Live reads that last while the clock passes the time of trust."""
    return {"long_poll_timeout_s": 300}


@pytest.fixture
def trim(origin: RunningOrigin, clock: ManualClock) -> Trim:
    """Trims `/s` at the origin before an offset."""

    def trim_before(offset: str, *, hides_start: bool = False) -> None:
        origin.origin.store.trim("/s", offset, clock.wall(), hides_start=hides_start)

    return trim_before


async def numbers(edge: Edge, first: int, last: int, to: str | None = None) -> str:
    """Append numbers, one message each; return where the last one ends."""
    headers, answer = {"Content-Type": JSON}, None
    for number in range(first, last + 1):
        answer = await edge.send_to(to or edge.url, "POST", "/s", headers, json.dumps([number]).encode())
        assert answer.status == 204
    assert answer is not None
    return answer.next_offset


async def created(edge: Edge, count: int) -> list[str]:
    """A stream of the numbers from 1; the offsets at which each ends."""
    assert (await edge.put("/s", content_type=JSON)).status == 201
    return [await numbers(edge, number, number) for number in range(1, count + 1)]


async def closed(edge: Edge, count: int) -> list[str]:
    """The same, closed, so that no read asks for its tail."""
    offsets = await created(edge, count)
    assert (await edge.post("/s", b"", JSON, Stream_Closed="true")).status == 204
    return offsets


def held(answer: Answer) -> list[int]:
    assert answer.status == 200, answer
    found: list[int] = json.loads(answer.body)
    return found


def requests(counters: Counters) -> int:
    return counters.requests.get(Kind.CATCHUP, 0) + counters.requests.get(Kind.HEAD, 0)


@pytest.mark.parametrize("hides_start", [False, True])
@pytest.mark.parametrize("is_direct", [False, True])
async def test_a_tape_whose_middle_is_trimmed_begins_again_with_what_the_origin_has(
    edge: Edge, origin: RunningOrigin, trim: Trim, hides_start: bool, is_direct: bool
) -> None:
    """A read from the start meets a refused offset only after bytes that are gone as well."""
    await created(edge, 4)
    assert held(await edge.get("/s?offset=-1")) == [1, 2, 3, 4]
    to = origin.url if is_direct else edge.url
    offsets = [await numbers(edge, number, number, to) for number in range(5, 9)]
    trim(offsets[1], hides_start=hides_start)
    for _ in range(3):
        answer = await edge.get("/s?offset=-1")
        direct = await edge.send_to(origin.url, "GET", "/s?offset=-1")
        assert (answer.status, answer.body) == (direct.status, direct.body)
        assert held(await edge.get(f"/s?offset={offsets[1]}")) == [7, 8]
    if not hides_start:
        assert held(answer) == [7, 8]


@pytest.mark.parametrize("live", ["", "&live=long-poll"])
async def test_a_trim_and_writes_while_the_tail_is_asked_for_refuse_no_read_from_the_start(
    edge: Edge, faults: Faults, clock: ManualClock, trim: Trim, live: str
) -> None:
    await created(edge, 4)
    assert held(await edge.get("/s?offset=-1")) == [1, 2, 3, 4]
    clock.advance(FRESH_S / 2)
    gate = faults.hold(kind="catchup", times=1)
    wire = await edge.begin(f"/s?offset=-1{live}")
    await bounded(gate.waiting(1))
    offsets = [await numbers(edge, number, number) for number in range(5, 9)]
    trim(offsets[1])
    gate.release()
    assert held(await bounded(wire.answer()))[-2:] == [7, 8]


async def test_a_long_poll_from_the_start_that_times_out_is_given_what_a_trim_has_left(
    edge: Edge, origin: RunningOrigin, faults: Faults, clock: ManualClock, trim: Trim
) -> None:
    assert (await edge.put("/s", content_type=JSON)).status == 201
    gate = faults.hold(kind="sse", times=None)
    waiting = edge.asking("/s?offset=-1&live=long-poll")
    await bounded(gate.waiting(1))
    offsets = [await numbers(edge, number, number, origin.url) for number in range(1, 4)]
    trim(offsets[0])
    clock.advance(301)
    assert held(await bounded(waiting)) == [2, 3]
    gate.release()


@pytest.mark.parametrize("hides_start", [False, True])
@pytest.mark.parametrize("is_followed", [False, True])
async def test_trimmed_bytes_are_served_for_trust_s_at_most(
    edge: Edge, counters: Counters, clock: ManualClock, trim: Trim, hides_start: bool, is_followed: bool
) -> None:
    offsets = await created(edge, 4)
    assert held(await edge.get("/s?offset=-1")) == [1, 2, 3, 4]
    waiting = edge.asking(f"/s?offset={offsets[3]}&live=long-poll") if is_followed else None
    await counters.parked_is(int(is_followed))
    trim(offsets[1], hides_start=hides_start)
    clock.advance(FRESH_S - 1)
    assert held(await edge.get("/s?offset=-1")) == [1, 2, 3, 4]
    clock.advance(2)
    for _ in range(2):
        answer = await edge.get("/s?offset=-1")
        assert answer.status == 410 if hides_start else held(answer) == [3, 4]
        assert (await edge.get(f"/s?offset={offsets[0]}")).status == 410
        assert held(await edge.get(f"/s?offset={offsets[1]}")) == [3, 4]
    if waiting is not None:
        await numbers(edge, 5, 5)
        assert held(await bounded(waiting)) == [5]


@pytest.mark.parametrize("live", ["long-poll", "sse"])
async def test_trimmed_bytes_are_not_replayed_to_live_readers_after_trust_s(
    edge: Edge, counters: Counters, clock: ManualClock, trim: Trim, live: str
) -> None:
    offsets = await created(edge, 4)
    assert held(await edge.get(f"/s?offset={offsets[0]}")) == [2, 3, 4]
    edge.asking(f"/s?offset={offsets[3]}&live=long-poll")
    await counters.parked_is(1)
    trim(offsets[1], hides_start=True)
    clock.advance(FRESH_S + 1)
    assert (await edge.get(f"/s?offset={offsets[0]}&live={live}")).status == 410


async def test_a_confirmation_is_one_request_for_all_readers_and_all_later_offsets(
    edge: Edge, counters: Counters, clock: ManualClock
) -> None:
    offsets = await closed(edge, 6)
    for start in offsets[4::-1]:
        await edge.get(f"/s?offset={start}")
    assert held(await edge.get("/s?offset=-1")) == [1, 2, 3, 4, 5, 6]
    clock.advance(FRESH_S + 1)
    before = requests(counters)
    starts = ["-1", *offsets[:5]] * 5
    answers = [await bounded(task) for task in [edge.asking(f"/s?offset={start}") for start in starts]]
    assert [held(answer)[-1] for answer in answers] == [6] * len(starts)
    for start in starts:
        assert held(await edge.get(f"/s?offset={start}"))[-1] == 6
    # The start sentinel, the first offset that was asked for, and the first that is held.
    assert requests(counters) - before <= 3


async def test_readers_in_descending_order_cost_two_confirmations(
    edge: Edge, counters: Counters, clock: ManualClock
) -> None:
    offsets = await closed(edge, 8)
    for start in offsets[6::-1]:
        await edge.get(f"/s?offset={start}")
    clock.advance(FRESH_S + 1)
    await edge.get(f"/s?offset={offsets[6]}")
    before = requests(counters)
    for start in reversed(offsets[:6]):
        assert held(await edge.get(f"/s?offset={start}"))[-1] == 8
    assert requests(counters) - before == 1


@pytest.mark.parametrize("count", [32, 200])
async def test_a_trim_costs_readers_of_later_offsets_few_confirmations(
    edge: Edge, counters: Counters, clock: ManualClock, trim: Trim, count: int
) -> None:
    """Readers at many offsets, each before the one of the reader before."""
    offsets = await closed(edge, count)
    for start in offsets[-2::-1]:
        await edge.get(f"/s?offset={start}")
    middle = count // 2
    trim(offsets[middle])
    clock.advance(FRESH_S + 1)
    before = requests(counters)
    for start in offsets[-2 : middle - 1 : -1]:
        assert held(await edge.get(f"/s?offset={start}"))[-1] == count
    assert requests(counters) - before <= 2 * count.bit_length() + 2
    assert (await edge.get(f"/s?offset={offsets[middle - 1]}")).status == 410


@pytest.mark.parametrize("content_type", [JSON, "text/plain"])
@pytest.mark.parametrize("is_closed", [False, True])
async def test_trimmed_messages_equal_to_those_after_them_last_no_longer_than_trust_s(
    edge: Edge, clock: ManualClock, trim: Trim, content_type: str, is_closed: bool
) -> None:
    message = b'"ok"' if content_type == JSON else b"ok"
    assert (await edge.put("/s", content_type=content_type)).status == 201
    offsets = [(await edge.post("/s", message, content_type)).next_offset for _ in range(8)]
    if is_closed:
        await edge.post("/s", b"", content_type, Stream_Closed="true")
    assert (await edge.get("/s?offset=-1")).body.count(b"ok") == 8
    trim(offsets[3])
    clock.advance(FRESH_S + 1)
    assert (await edge.get("/s?offset=-1")).body.count(b"ok") == 4


async def test_trimmed_messages_equal_to_those_after_them_are_found_in_a_stream_that_has_grown(
    edge: Edge, origin: RunningOrigin, clock: ManualClock, trim: Trim, counters: Counters
) -> None:
    """The origin's reply ends beyond the bytes in memory, so that its length shows the trim to the next request."""
    assert (await edge.put("/s")).status == 201
    offsets = [(await edge.post("/s", b"ok")).next_offset for _ in range(8)]
    assert (await edge.get("/s?offset=-1")).body == b"ok" * 8
    trim(offsets[3])
    for _ in range(6):
        await edge.send_to(origin.url, "POST", "/s", {"Content-Type": "text/plain"}, b"ok")
    clock.advance(FRESH_S + 1)
    await edge.get("/s?offset=-1")
    clock.advance(2)
    assert (await edge.get("/s?offset=-1")).body == b"ok" * 10
    before = requests(counters)
    clock.advance(FRESH_S - 1)
    for _ in range(5):
        assert (await edge.get("/s?offset=-1")).body == b"ok" * 10
    assert requests(counters) - before <= 5


@pytest.mark.parametrize("value", ["no-cache", "max-age=0"])
async def test_no_cache_has_the_origin_asked_at_most_once_a_second(
    edge: Edge, counters: Counters, clock: ManualClock, trim: Trim, value: str
) -> None:
    offsets = await created(edge, 4)
    await edge.get("/s?offset=-1")
    edge.asking(f"/s?offset={offsets[3]}&live=long-poll")
    await counters.parked_is(1)
    assert held(await edge.get("/s?offset=-1")) == [1, 2, 3, 4]
    clock.advance(5)
    trim(offsets[1])
    assert held(await edge.get("/s?offset=-1")) == [1, 2, 3, 4]
    assert held(await edge.get("/s?offset=-1", {"Cache-Control": value})) == [3, 4]
    await edge.get("/s?offset=-1", {"Cache-Control": value})
    before = requests(counters)
    for _ in range(5):
        assert held(await edge.get("/s?offset=-1", {"Cache-Control": value})) == [3, 4]
    assert requests(counters) == before


@pytest.mark.parametrize("directives", ["max-age=5", "public, max-age=5, must-revalidate", "s-maxage=5, max-age=900"])
async def test_the_origins_own_freshness_bounds_bytes_short_of_the_tail(
    hostile: Hostile, start: Start, clock: ManualClock, directives: str
) -> None:
    bodies = [b"one", b"two"]

    async def script(asked: Asked, writer: Any) -> None:
        if "offset=0001" in asked.target:
            writer.write(part_of_stream(b"end", "0002"))
        else:
            fields = {"Cache-Control": directives}
            part = part_of_stream(bodies[0], "0001", **fields)
            writer.write(part.replace(b"Stream-Up-To-Date: true\r\n", b""))

    edge = await start((await hostile(script)).url)
    assert (await edge.get("/s?offset=-1")).body == b"one"
    del bodies[0]
    clock.advance(4)
    assert (await edge.get("/s?offset=-1")).body == b"one"
    clock.advance(2)
    assert (await edge.get("/s?offset=-1")).body == b"two"


@pytest.mark.parametrize(
    ("directives", "fresh_s"),
    [
        ("max-age=5", 5),
        ("max-age=5, must-revalidate", 5),
        ("max-age=5, stale-while-revalidate=300", FRESH_S),
        ("no-cache", FRESH_S),
        ("max-age=0, must-revalidate", FRESH_S),
    ],
)
async def test_a_lifetime_on_replies_that_reach_the_tail_bounds_their_bytes_as_well(
    hostile: Hostile, start: Start, clock: ManualClock, directives: str, fresh_s: int
) -> None:
    """Origins say `no-cache` on each of these replies, because of the tail."""
    bodies = [b"one", b"two"]

    async def script(asked: Asked, writer: Any) -> None:
        body = b"" if "offset=0001" in asked.target else bodies[0]
        writer.write(part_of_stream(body, "0001", **{"Cache-Control": directives}))

    origin = await hostile(script)
    edge = await start(origin.url)
    assert (await edge.get("/s?offset=-1")).body == b"one"
    del bodies[0]
    clock.advance(fresh_s - 1)
    assert (await edge.get("/s?offset=-1")).body == b"one"
    clock.advance(2)
    before = len(origin.asked)
    for _ in range(9):
        assert (await edge.get("/s?offset=-1")).body == b"two"
    assert sum("offset=-1" in asked.target for asked in origin.asked[before:]) <= 2


@pytest.mark.parametrize("must_revalidate", [False, True])
async def test_bytes_that_cannot_be_confirmed_are_given_unless_the_origin_forbids_it(
    edge: Edge, origin: RunningOrigin, faults: Faults, clock: ManualClock, must_revalidate: bool
) -> None:
    assert (await edge.send_to(origin.url, "PUT", "/s", {"Content-Type": JSON}, b"[1,2,3]")).status == 201
    own = "must-revalidate" if must_revalidate else "public"
    part = {"Content-Type": JSON, "Stream-Next-Offset": "0000000000000000_0000000000000003", "Cache-Control": own}
    faults.replace(200, part, b"[1,2]", kind="catchup")
    assert held(await edge.get("/s?offset=-1")) == [1, 2]
    clock.advance(FRESH_S + 1)
    faults.status(500, times=None)
    answer = await edge.get("/s?offset=-1")
    if must_revalidate:
        assert answer.status == 500
    else:
        assert held(answer) == [1, 2]
        # Caches behind must not take it for fresh.
        assert int(answer.headers["Age"]) > FRESH_S


@pytest.mark.parametrize("why", ["silent", "failed"])
@pytest.mark.parametrize("is_followed", [False, True])
async def test_an_sse_answer_that_begins_with_bytes_that_cannot_be_confirmed_says_so(
    edge: Edge, counters: Counters, faults: Faults, clock: ManualClock, trim: Trim, why: str, is_followed: bool
) -> None:
    """An answer in the same second that begins with confirmed bytes does not say so."""
    target = "/s?offset=-1&live=sse"
    offsets = await created(edge, 4)
    assert held(await edge.get("/s?offset=-1")) == [1, 2, 3, 4]
    if is_followed:
        edge.asking(f"/s?offset={offsets[3]}&live=long-poll")
        await counters.parked_is(1)
    trim(offsets[1])
    clock.advance(FRESH_S + 1)
    gate = faults.hold(kind="catchup", times=None) if why == "silent" else None
    if gate is None:
        faults.status(500, kind="catchup", times=None)
    wire = await edge.begin(target)
    if gate is not None:
        await bounded(gate.waiting(1))
        clock.advance(MOST_WAIT_S)
    head, data = await wire.head(), await wire.event()
    assert head.headers["Cache-Status"] == "durable-gateway; fwd=stale; detail=stale_if_error"
    assert data is not None
    assert json.loads(data.data) == [1, 2, 3, 4]
    faults.clear()
    if gate is not None:
        gate.release()
    for _ in range(3):
        wire = await edge.begin(target)
        head, data = await wire.head(), await wire.event()
        assert "detail=followed" in head.headers["Cache-Status"]
        assert data is not None
        assert json.loads(data.data) == [3, 4]


@pytest.mark.parametrize("content_type", [JSON, "text/plain"])
async def test_bytes_of_another_streams_reply_last_no_longer_than_trust_s(
    edge: Edge, origin: RunningOrigin, faults: Faults, clock: ManualClock, content_type: str
) -> None:
    """A late second reply to one request has arrived as the reply to the next one."""
    right, wrong = (b"[1,2]", b"[8,9]") if content_type == JSON else (b"right", b"wrong")
    assert (await edge.send_to(origin.url, "PUT", "/s", {"Content-Type": content_type}, right)).status == 201
    end = (await edge.send_to(origin.url, "HEAD", "/s")).next_offset
    named = {"Content-Type": content_type, "Stream-Next-Offset": str(end), "Stream-Up-To-Date": "true"}
    faults.replace(200, named, wrong, kind="catchup")
    assert (await edge.get("/s?offset=-1")).body == wrong
    clock.advance(FRESH_S + 1)
    more = b"[3]" if content_type == JSON else b" more"
    assert (await edge.post("/s", more, content_type)).status == 204
    for _ in range(2):
        assert (await edge.get("/s?offset=-1")).body == (b"[1,2,3]" if content_type == JSON else b"right more")


async def test_a_nameless_stream_made_again_behind_the_gateway_is_found_by_its_bytes(
    hostile: Hostile, start: Start, clock: ManualClock
) -> None:
    """Its tail has moved on and its ETag names no incarnation, so only its bytes tell."""
    body = bytearray(b"old!")

    async def script(asked: Asked, writer: Any) -> None:
        end = f"{len(body):04d}"
        if "offset=-1" in asked.target:
            writer.write(part_of_stream(bytes(body), end))
        else:
            at = int(asked.target.split("offset=")[1][:4])
            writer.write(part_of_stream(bytes(body[at:]), end))

    edge = await start((await hostile(script)).url)
    assert (await edge.get("/s?offset=-1")).body == b"old!"
    body[:] = b"new! and more"
    clock.advance(FRESH_S + 1)
    assert (await edge.get("/s?offset=-1")).body == b"new! and more"


async def test_a_head_after_other_bytes_were_found_states_no_metadata_of_the_earlier_stream(
    hostile: Hostile, start: Start, clock: ManualClock
) -> None:
    body, ttl = bytearray(b"old!"), {"Stream-TTL": "3600"}

    async def script(asked: Asked, writer: Any) -> None:
        reply = part_of_stream(b"" if asked.method == "HEAD" else bytes(body), f"{len(body):04d}", **ttl)
        writer.write(reply)

    edge = await start((await hostile(script, takes_head=True)).url, tail_fresh_s=60)
    for wanted in ("3600", "7200"):
        assert (await edge.get("/s?offset=-1")).body == bytes(body)
        for _ in range(2):
            assert (await edge.send("HEAD", "/s")).headers["Stream-TTL"] == wanted
        body[:], ttl["Stream-TTL"] = b"new!", "7200"
        clock.advance(FRESH_S + 1)


async def test_messages_that_an_origin_spaces_differently_are_still_its_own(
    hostile: Hostile, start: Start, clock: ManualClock
) -> None:
    """A tape joins single messages by a bare comma; an origin that serialises arrays may not."""
    messages = [b'{"a": 1}']

    async def script(asked: Asked, writer: Any) -> None:
        at = 0 if "offset=-1" in asked.target else int(asked.target.split("offset=")[1][:4])
        body = b"[" + b", ".join(messages[at:]) + b"]"
        writer.write(part_of_stream(body, f"{len(messages):04d}", JSON))

    origin = await hostile(script, metadata=part_of_stream(b"", "0001", JSON))
    edge = await start(origin.url)
    await edge.get("/s?offset=-1")
    messages.append(b'{"b": [2, "x y"]}')
    first = await edge.get("/s?offset=-1")
    clock.advance(FRESH_S + 1)
    again = await edge.get("/s?offset=-1")
    assert (again.body, again.headers["ETag"]) == (first.body, first.headers["ETag"])


async def test_a_large_body_is_confirmed_by_its_beginning(edge: Edge, counters: Counters, clock: ManualClock) -> None:
    body = b"".join(b"%07d\n" % number for number in range(1 << 16))
    assert (await edge.put("/s", body)).status == 201
    assert (await edge.post("/s", b"", Stream_Closed="true")).status == 204
    tag = (await edge.get("/s?offset=-1")).headers["ETag"]
    clock.advance(FRESH_S + 1)
    before = requests(counters)
    for _ in range(2):
        answer = await edge.get("/s?offset=-1")
        assert (answer.body, answer.headers["ETag"]) == (body, tag)
    assert requests(counters) - before == 1


def reuse(answer: Answer) -> int:
    """For how many more seconds a cache behind the gateway may reuse the answer (RFC 9111 section 4.2)."""
    directives = dict(part.strip().partition("=")[::2] for part in answer.headers["Cache-Control"].split(","))
    return int(directives["max-age"]) - int(answer.headers["Age"])


@pytest.mark.parametrize(
    ("trust_s", "own"), [(60, "public, max-age=60"), (60, "public, max-age=7"), (60, ""), (600, ""), (5, "")]
)
async def test_a_hit_leaves_caches_behind_the_gateway_time_to_reuse_it(
    hostile: Hostile, start: Start, clock: ManualClock, trust_s: float, own: str
) -> None:
    """Age counts from the latest confirmation, in answers with a body and without, also when they are repeated."""

    async def script(asked: Asked, writer: Any) -> None:
        if "offset=0001" in asked.target:
            writer.write(part_of_stream(b"end", "0002"))
        else:
            part = part_of_stream(b"one", "0001", **({"Cache-Control": own} if own else {}))
            writer.write(part.replace(b"Stream-Up-To-Date: true\r\n", b""))

    edge = await start((await hostile(script)).url, trust_s=trust_s)
    await edge.get("/s?offset=-1")
    tag = (await edge.get("/s?offset=-1")).headers["ETag"]
    ages = []
    for _ in range(40):
        clock.advance(33.7)
        for fields in ({}, {"If-None-Match": tag}) * 2:
            answer = await edge.get("/s?offset=-1", fields)
            assert answer.status == (304 if fields else 200)
            assert reuse(answer) > 0
            ages.append(int(answer.headers["Age"]))
    # It is honest: hits without a request are not new.
    assert max(ages) >= min(33, trust_s - 34) or own == "public, max-age=7"


async def test_the_age_of_a_repeated_tail_counts_from_when_the_origin_named_it(
    edge: Edge, clock: ManualClock, start: Start, origin: RunningOrigin
) -> None:
    repeating = await start(origin.url, tail_fresh_s=10)
    assert (await repeating.put("/s", b"x")).status == 201
    for _ in range(5):
        clock.advance(4)
        answer = await repeating.get("/s?offset=-1")
        assert int(answer.headers.get("Age", 0)) <= 10


async def test_bytes_that_an_earlier_cache_has_had_for_long_are_older_by_that(
    hostile: Hostile, start: Start, clock: ManualClock
) -> None:
    bodies = [b"one", b"two"]

    async def script(asked: Asked, writer: Any) -> None:
        part = part_of_stream(bodies[0], "0001", Age="50", **{"Cache-Control": "max-age=60"})
        writer.write(part.replace(b"Stream-Up-To-Date: true\r\n", b""))

    edge = await start((await hostile(script)).url)
    await edge.get("/s?offset=-1")
    clock.advance(5)
    assert (await edge.get("/s?offset=-1")).headers["Age"] == "55"
    del bodies[0]
    clock.advance(6)
    assert (await edge.get("/s?offset=-1")).body == b"two"


@pytest.mark.parametrize("live", ["", "&live=long-poll"])
async def test_one_tag_never_names_a_beginning_before_and_after_a_trim(
    edge: Edge, counters: Counters, trim: Trim, live: str
) -> None:
    """Both end at the same offset, and the sentinel names another position; the bytes were evicted in between."""
    offsets = await created(edge, 3)
    edge.asking(f"/s?offset={offsets[2]}&live=long-poll")
    await counters.parked_is(1)
    tags: dict[str, bytes] = {}
    store = edge.gateway.engine.store
    for upto in (None, *offsets[:2]):
        if upto is not None:
            budget_bytes = store.budget_bytes
            store.resize(0)
            store.resize(budget_bytes)
            trim(upto)
        for _ in range(3):
            answer = await edge.get(f"/s?offset=-1{live}")
            assert tags.setdefault(answer.headers["ETag"], answer.body) == answer.body
            again = await edge.get(f"/s?offset=-1{live}", {"If-None-Match": answer.headers["ETag"]})
            assert again.status == 304
    assert sorted(set(tags.values())) == [b"[1,2,3]", b"[2,3]", b"[3]"]


@pytest.mark.parametrize("live", ["long-poll", "sse"])
async def test_a_live_read_before_a_trimmed_tail_begins_with_what_the_origin_has(
    edge: Edge, origin: RunningOrigin, faults: Faults, trim: Trim, live: str
) -> None:
    """The tail that the gateway knows is refused, and the live request with it."""
    await created(edge, 4)
    assert held(await edge.get("/s?offset=-1")) == [1, 2, 3, 4]
    offsets = [await numbers(edge, number, number, origin.url) for number in range(5, 9)]
    trim(offsets[1])
    gate = faults.hold(kind="sse", times=1)
    wire = await edge.begin(f"/s?offset=-1&live={live}")
    if live == "sse":
        await bounded(gate.waiting(1))
    gate.release()
    answer = await bounded(wire.head())
    assert answer.status == 200
    if live == "sse":
        event = await bounded(wire.event())
        assert event is not None
        assert json.loads(event.data) == [7, 8]
    else:
        assert json.loads(await bounded(wire.body())) == [7, 8]


@pytest.mark.parametrize("live", ["", "&live=long-poll"])
async def test_a_start_that_was_resolved_to_a_trimmed_offset_is_asked_for_again(
    edge: Edge, origin: RunningOrigin, trim: Trim, live: str
) -> None:
    """An empty stream has named the offset at which it begins."""
    await created(edge, 0)
    assert held(await edge.get("/s?offset=-1")) == []
    offsets = [await numbers(edge, number, number, origin.url) for number in range(1, 4)]
    trim(offsets[1])
    wire = await edge.begin(f"/s?offset=-1{live}")
    assert (await bounded(wire.head())).status == 200
    if live == "&live=sse":
        event = await bounded(wire.event())
        assert event is not None
        assert json.loads(event.data) == [3]
    else:
        assert json.loads(await bounded(wire.body())) == [3]


@pytest.mark.parametrize("live", ["", "&live=long-poll"])
async def test_a_confirmation_of_a_resolved_start_that_is_refused_is_no_answer(
    edge: Edge, clock: ManualClock, trim: Trim, live: str
) -> None:
    await created(edge, 0)
    assert held(await edge.get("/s?offset=-1")) == []
    offsets = [await numbers(edge, number, number) for number in range(1, 4)]
    assert held(await edge.get("/s?offset=-1")) == [1, 2, 3]
    trim(offsets[1])
    clock.advance(FRESH_S + 1)
    wire = await edge.begin(f"/s?offset=-1{live}")
    assert (await bounded(wire.head())).status == 200
    if live == "&live=sse":
        event = await bounded(wire.event())
        assert event is not None
        assert json.loads(event.data) == [3]
    else:
        assert json.loads(await bounded(wire.body())) == [3]
