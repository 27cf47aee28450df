"""A gateway with a cache plan: pinned, warmed, unstored and expiring streams, and the plan's metrics."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession

from gateway.aio.clock import ManualClock
from gateway.app import start_gateway
from gateway.config.cache_plan import parse_plan
from gateway.config.errors import ConfigError
from gateway.config.gateway import GatewayConfig
from gateway.origin.app import RunningOrigin
from gateway.origin.counters import Counters
from gateway.origin.requests import Kind
from tests.plans import MIB, PlanFile, entry
from tests.scenarios.conftest import Edge, Start, bounded
from tests.scenarios.noting import confirmed
from tests.scenarios.wire import Answer
from tests.waiting import eventually


@pytest.fixture
def plan(tmp_path: Path) -> PlanFile:
    return PlanFile(tmp_path / "plan.json")


@pytest.fixture
def settings(plan: PlanFile) -> dict[str, Any]:
    return {"file": str(plan.path), "warm_s": 10}


@pytest.fixture
async def edge(start: Start, settings: dict[str, Any], plan: PlanFile, origin: RunningOrigin) -> Edge:
    plan.write()
    return await start(origin.url, **settings)


async def behind(edge: Edge, origin: RunningOrigin, path: str, body: bytes, **headers: str) -> Answer:
    """Create a stream directly at the origin, unknown to the gateway."""
    fields = {"Content-Type": "text/plain", **{name.replace("_", "-"): value for name, value in headers.items()}}
    return await edge.send_to(origin.url, "PUT", path, fields, body)


async def shown(edge: Edge) -> Any:
    async with ClientSession() as session, session.get(f"{edge.gateway.admin_url}/api/plan") as answer:
        assert answer.status == 200
        return (await answer.json())["plan"]


def sample_of(edge: Edge, name: str, **labels: str) -> float | None:
    return edge.gateway.metrics.registry.get_sample_value(name, labels)


def held(edge: Edge, path: str) -> int:
    """Bytes of the path's streams on tapes."""
    return sum(stream.tape.size for stream in edge.gateway.engine.store if stream.key.group.path == path)


async def warmed(edge: Edge) -> None:
    warming = edge.gateway.planned.warming
    assert warming is not None
    async with edge.time_passing():
        await eventually(lambda: warming.is_over)


# -- memory ------------------------------------------------------------------------------------------------------------


async def test_the_plan_sets_the_budget_unless_the_operator_did(
    start: Start, settings: dict[str, Any], plan: PlanFile, origin: RunningOrigin
) -> None:
    plan.write(cache_bytes=7 * MIB)
    for more, budget in (({}, 7), ({"take_memory": False}, 256), ({"cache_bytes": 256 * MIB}, 256)):
        edge = await start(origin.url, **settings, **more)
        assert edge.gateway.engine.store.budget_bytes == budget * MIB
        assert sample_of(edge, "durable_gateway_cache_limit_bytes") == budget * MIB
        memory = (await shown(edge))["memory"]
        assert (memory["recommended_bytes"], memory["is_taken"]) == (7 * MIB, budget == 7)


async def test_the_memory_of_a_short_plan_is_taken_only_if_told(
    start: Start, settings: dict[str, Any], plan: PlanFile, origin: RunningOrigin, caplog: pytest.LogCaptureFixture
) -> None:
    two_minutes = {"last": "2026-11-20T00:02:00Z"}
    for made_from, is_short, more, budget in (
        (two_minutes | {"is_short": None}, True, {}, 256),
        (two_minutes | {"is_short": None}, True, {"take_short_memory": True}, 7),
        # The mark overrides the time.
        (two_minutes | {"is_short": False}, False, {}, 7),
        ({"is_short": True}, True, {}, 256),
        # The operator has set the budget: there is nothing to warn of.
        ({"is_short": True}, True, {"cache_bytes": 9 * MIB}, 9),
        ({"is_short": None}, False, {}, 7),
    ):
        caplog.clear()
        plan.write(cache_bytes=7 * MIB, made_from=made_from, pin=[entry("/kept")])
        edge = await start(origin.url, **settings, **more)
        assert edge.gateway.engine.store.budget_bytes == budget * MIB
        warned = [record.getMessage() for record in caplog.records if "too little to set the memory by" in record.msg]
        assert len(warned) == (budget == 256)
        about = await shown(edge)
        assert about["memory"]["is_taken"] == (budget == 7)
        assert about["is_short"] == is_short
        assert about["span_s"] == pytest.approx(120 if "last" in made_from else 86_400, abs=1)
        # The lists hold all the same.
        assert about["pinned"]["wished"] == 1


# -- pins --------------------------------------------------------------------------------------------------------------


async def test_a_pinned_stream_outlives_a_crowd_of_others(
    start: Start, settings: dict[str, Any], plan: PlanFile, origin: RunningOrigin, counters: Counters
) -> None:
    plan.write(cache_bytes=200_000, pin=[entry("/kept?a=1")])
    edge = await start(origin.url, **settings)
    await behind(edge, origin, "/kept?a=1", b"k" * 50_000, Stream_Closed="true")
    assert (await edge.get("/kept?offset=-1&a=1")).body == b"k" * 50_000
    for number in range(12):
        await behind(edge, origin, f"/{number}", b"x" * 40_000, Stream_Closed="true")
        for _ in range(2):
            edge.clock.advance(2)
            assert len((await edge.get(f"/{number}?offset=-1")).body) == 40_000
    before = counters.requests[Kind.CATCHUP]
    assert (await edge.get("/kept?offset=-1&a=1")).body == b"k" * 50_000
    assert counters.requests[Kind.CATCHUP] == before
    store = edge.gateway.engine.store
    assert store.cost + store.lent <= store.budget_bytes
    assert sample_of(edge, "durable_gateway_plan_pinned_streams") == 1
    pinned = (await shown(edge))["pinned"]
    assert pinned["bytes"] >= 50_000
    assert (pinned["wished"], pinned["kept"], pinned["limit_bytes"]) == (1, 1, 100_000)


async def test_a_pinned_stream_in_memory_stays_when_the_plan_leaves_less_room(
    edge: Edge, plan: PlanFile, origin: RunningOrigin
) -> None:
    for path in ("/pinned", "/a", "/b"):
        await behind(edge, origin, path, b"x" * 40_000)
        await edge.get(f"{path}?offset=-1")
    plan.write(cache_bytes=100_000, pin=[entry("/pinned")])
    edge.gateway.take_plan(parse_plan(plan.path), is_budget_set=False)
    assert held(edge, "/pinned") == 40_000
    store = edge.gateway.engine.store
    assert store.cost + store.lent <= store.budget_bytes == 100_000


# -- warming -----------------------------------------------------------------------------------------------------------


async def test_a_warmed_stream_is_fetched_once_and_then_hit(
    start: Start, settings: dict[str, Any], plan: PlanFile, origin: RunningOrigin, counters: Counters, fast_path: bool
) -> None:
    plan.write(warm=[entry("/a"), entry("/missing"), entry("/b?x=1")])
    first = await start(origin.url)
    await behind(first, origin, "/a", b"a" * 1_000, Stream_Closed="true")
    await behind(first, origin, "/b?x=1", b"b" * 2_000, Stream_Closed="true")
    edge = await start(origin.url, **settings)
    await warmed(edge)
    asked = counters.requests[Kind.CATCHUP]
    answer = await edge.get("/a?offset=-1")
    assert (answer.body, "; hit" in answer.headers["Cache-Status"]) == (b"a" * 1_000, True)
    assert (await edge.get("/b?x=1&offset=-1")).body == b"b" * 2_000
    assert counters.requests[Kind.CATCHUP] == asked == 2
    told = (await shown(edge))["warmed"]
    assert told == {"wished": 3, "streams": 2, "bytes": 3_000, "is_under_way": False}
    assert sample_of(edge, "durable_gateway_plan_warmed_bytes_total") == 3_000


async def test_warming_works_with_an_origin_without_head(
    start: Start, settings: dict[str, Any], plan: PlanFile, origin: RunningOrigin, counters: Counters
) -> None:
    plan.write(warm=[entry("/a")])
    first = await start(origin.url)
    await behind(first, origin, "/a", b"a" * 1_000, Stream_Closed="true")
    origin.origin.faults.status(405, kind="head", times=None)
    edge = await start(origin.url, **settings)
    await warmed(edge)
    assert held(edge, "/a") == 1_000
    assert counters.requests[Kind.CATCHUP] == 1


async def test_a_reader_who_comes_meanwhile_shares_the_fetch(
    start: Start, settings: dict[str, Any], plan: PlanFile, origin: RunningOrigin, counters: Counters
) -> None:
    plan.write(warm=[entry("/a")])
    first = await start(origin.url)
    await behind(first, origin, "/a", b"a" * 1_000, Stream_Closed="true")
    gate = origin.origin.faults.hold(kind="catchup")
    edge = await start(origin.url, **settings)
    async with edge.time_passing():
        await gate.waiting(1)
    read = edge.asking("/a?offset=-1")
    await eventually(edge.readers(2))
    gate.release()
    assert (await bounded(read)).body == b"a" * 1_000
    await warmed(edge)
    # The reader may look at the tail himself; the bytes are fetched once.
    assert counters.body_bytes[Kind.CATCHUP] == 1_000


@pytest.mark.parametrize("why", ["time", "drain"])
async def test_warming_ends_with_its_time_and_with_the_gateway(
    start: Start, settings: dict[str, Any], plan: PlanFile, origin: RunningOrigin, why: str
) -> None:
    plan.write(warm=[entry(f"/{number}") for number in range(9)])
    first = await start(origin.url)
    for number in range(9):
        await behind(first, origin, f"/{number}", b"a")
    gate = origin.origin.faults.hold()
    edge = await start(origin.url, **settings, warm_fetches=3)
    warming = edge.gateway.planned.warming
    assert warming is not None
    # Few fetches run at once: the others wait for these.
    for _ in range(10):
        edge.clock.advance(0.1)
    await gate.waiting(3)
    assert len(edge.gateway.engine.fetches) == 3
    if why == "time":
        edge.clock.advance(10)
    else:
        edge.gateway.drain(0.0)
    await eventually(lambda: warming.is_over and not edge.gateway.engine.fetches)
    gate.release()


async def test_warming_stops_at_its_bound_of_bytes(
    start: Start, settings: dict[str, Any], plan: PlanFile, origin: RunningOrigin
) -> None:
    plan.write(warm=[entry("/a"), entry("/large", 9_000), entry("/b")])
    first = await start(origin.url)
    for path in ("/a", "/large", "/b"):
        await behind(first, origin, path, b"x" * 1_000)
    edge = await start(origin.url, **settings, warm_bytes=2_500)
    await warmed(edge)
    assert [held(edge, path) for path in ("/a", "/large", "/b")] == [1_000, 0, 1_000]


async def test_streams_too_large_to_keep_count_towards_the_bound(
    start: Start, settings: dict[str, Any], plan: PlanFile, origin: RunningOrigin, counters: Counters
) -> None:
    plan.write(cache_bytes=400_000, warm=[entry(f"/{number}", 1) for number in range(9)])
    first = await start(origin.url)
    for number in range(9):
        await behind(first, origin, f"/{number}", b"x" * 300_000)
    edge = await start(origin.url, **settings, warm_bytes=250_000, warm_fetches=1)
    await warmed(edge)
    assert counters.body_bytes[Kind.CATCHUP] <= 300_000


@pytest.mark.parametrize("how", ["refused", "unavailable"])
async def test_an_origin_that_fails_is_given_time_and_then_warmed_from(
    start: Start, settings: dict[str, Any], plan: PlanFile, origin: RunningOrigin, how: str
) -> None:
    plan.write(warm=[entry(f"/{number}") for number in range(100)])
    faults = origin.origin.faults
    fault = faults.refuse(times=None) if how == "refused" else faults.status(503, times=None)
    edge = await start(origin.url, **settings | {"warm_s": 60})
    warming = edge.gateway.planned.warming
    assert warming is not None

    def asked() -> float:
        names = [family for family in edge.gateway.metrics.registry.collect() if family.name.endswith("am_requests")]
        return sum(sample.value for sample in names[0].samples if sample.name.endswith("_total"))

    def is_later() -> bool:
        edge.clock.advance(0.02)
        return edge.clock.now() >= 1_010

    await eventually(is_later)
    # Four at once with a retry each: a few rounds, and not all streams.
    assert 0 < asked() < 60
    fault.remove()
    await behind(edge, origin, "/0", b"x" * 1_000)
    async with edge.time_passing(0.01):
        await eventually(lambda: held(edge, "/0") == 1_000)
    warming.stop()


# -- not storing -------------------------------------------------------------------------------------------------------


async def test_an_unstored_stream_is_shared_while_it_is_fetched(
    start: Start, settings: dict[str, Any], plan: PlanFile, origin: RunningOrigin, counters: Counters
) -> None:
    plan.write(do_not_store=[entry("/once")])
    edge = await start(origin.url, **settings)
    tail = (await behind(edge, origin, "/once", b"0123456789" * 100)).headers["Stream-Next-Offset"]
    gate = origin.origin.faults.hold(kind="catchup")
    reads = [edge.asking("/once?offset=-1")]
    await gate.waiting(1)
    reads += [edge.asking("/once?offset=-1") for _ in range(3)]
    await eventually(edge.readers(4))
    gate.release()
    for read in reads:
        answer = await bounded(read)
        assert (answer.body, answer.headers["Stream-Next-Offset"]) == (b"0123456789" * 100, tail)
        assert "stored" not in answer.headers["Cache-Status"]
    # One fetch of the bytes, and one look at the tail for the readers that came after it was sent.
    assert counters.requests[Kind.CATCHUP] <= 2
    assert held(edge, "/once") == 0
    before = counters.requests[Kind.CATCHUP]
    again = await edge.get("/once?offset=-1", {"Authorization": "Bearer a"})
    assert again.body == b"0123456789" * 100
    assert counters.requests[Kind.CATCHUP] > before
    assert held(edge, "/once") == 0
    assert sample_of(edge, "durable_gateway_plan_unstored_bytes_total") == 2_000
    assert sample_of(edge, "durable_gateway_plan_unstored_streams") == 1


async def test_live_readers_of_what_is_not_stored_still_share_one_connection(
    start: Start, settings: dict[str, Any], plan: PlanFile, origin: RunningOrigin, counters: Counters
) -> None:
    plan.write(do_not_store=[entry("/once")])
    edge = await start(origin.url, **settings)
    await edge.put("/once", b"[1,2,3]", "application/json")
    readers = [await edge.begin("/once?live=sse&offset=-1") for _ in range(3)]
    await confirmed(edge, 3)
    await edge.post("/once", b"[4]", "application/json")
    await edge.send("POST", "/once", {"Content-Type": "application/json", "Stream-Closed": "true"})
    for reader in readers:
        body = (await bounded(reader.answer("GET"))).body
        assert b"[1,2,3]" in body
        assert b"[4]" in body
    assert counters.requests[Kind.SSE] == 1
    await edge.until_idle()
    assert held(edge, "/once") == 0
    assert (await edge.get("/once?offset=-1")).body == b"[1,2,3,4]"


# -- lifetimes ---------------------------------------------------------------------------------------------------------


async def test_an_idle_tape_is_given_up_after_its_time_and_no_sooner(
    start: Start, settings: dict[str, Any], plan: PlanFile, origin: RunningOrigin
) -> None:
    plan.write(lifetimes=[entry("/idle", idle_s=100)])
    edge = await start(origin.url, **settings)
    for path in ("/idle", "/other"):
        await behind(edge, origin, path, b"x" * 1_000, Stream_Closed="true")
        await edge.get(f"{path}?offset=-1")
    for _ in range(6):
        # Every read, however it is answered, restarts the idle time.
        for _ in range(45):
            edge.clock.advance(1)
        assert (await edge.get("/idle?offset=-1")).body == b"x" * 1_000
        assert held(edge, "/idle") == 1_000
    for _ in range(130):
        edge.clock.advance(1)
    assert (held(edge, "/idle"), held(edge, "/other")) == (0, 1_000)
    assert sample_of(edge, "durable_gateway_plan_given_up_tapes_total") == 1
    assert (await edge.get("/idle?offset=-1")).body == b"x" * 1_000


async def test_the_last_of_very_many_lifetimes_is_kept_to_as_the_first(
    start: Start, settings: dict[str, Any], plan: PlanFile, origin: RunningOrigin
) -> None:
    plan.write(lifetimes=[entry(f"/{number}", idle_s=20) for number in range(1_000)])
    edge = await start(origin.url, **settings)
    for path in ("/0", "/500", "/999"):
        await behind(edge, origin, path, b"x", Stream_Closed="true")
        await edge.get(f"{path}?offset=-1")
    for _ in range(15):
        edge.clock.advance(1)
    await edge.get("/500?offset=-1")
    for _ in range(12):
        edge.clock.advance(1)
    assert [held(edge, path) for path in ("/0", "/500", "/999")] == [0, 1, 0]


async def test_a_read_of_a_remembered_answer_is_a_sign_of_life_at_once(
    start: Start, settings: dict[str, Any], plan: PlanFile, origin: RunningOrigin
) -> None:
    plan.write(lifetimes=[entry("/idle", idle_s=50)])
    edge = await start(origin.url, **settings, trust_s=1_000)
    await behind(edge, origin, "/idle", b"x" * 1_000, Stream_Closed="true")
    for pause_s in (0, 30, 40):
        for _ in range(pause_s):
            edge.clock.advance(1)
        assert held(edge, "/idle") == (1_000 if pause_s else 0)
        for _ in range(1 if pause_s else 2):
            await edge.get("/idle?offset=-1")


async def test_a_tape_with_a_live_reader_is_not_idle(
    start: Start, settings: dict[str, Any], plan: PlanFile, origin: RunningOrigin
) -> None:
    plan.write(lifetimes=[entry("/idle", idle_s=5)])
    edge = await start(origin.url, **settings, sse_lifetime_s=1_000)
    await edge.put("/idle", b"[1]", "application/json")
    await edge.begin("/idle?live=sse&offset=-1")
    await confirmed(edge)
    for _ in range(60):
        edge.clock.advance(1)
    assert held(edge, "/idle") > 0


async def test_a_reader_who_was_there_before_the_plan_keeps_his_stream(edge: Edge, plan: PlanFile) -> None:
    await edge.put("/idle", b"[1]", "application/json")
    reader = await edge.begin("/idle?live=sse&offset=-1")
    await confirmed(edge)
    edge.clock.advance(20)
    plan.write(lifetimes=[entry("/idle", idle_s=5)])
    gateway = edge.gateway
    assert gateway.planned.apply(parse_plan(plan.path), gateway.config.cache.plan, gateway.routes.routes)
    for _ in range(3):
        edge.clock.advance(1)
    assert held(edge, "/idle") > 0
    await edge.send("POST", "/idle", {"Content-Type": "application/json", "Stream-Closed": "true"}, b"[2]")
    assert b"[2]" in (await bounded(reader.answer("GET"))).body


# -- reading it --------------------------------------------------------------------------------------------------------


async def test_no_plan_shows_nothing_and_costs_nothing(start: Start, origin: RunningOrigin) -> None:
    edge = await start(origin.url)
    assert await shown(edge) is None
    assert not [family for family in edge.gateway.metrics.registry.collect() if "_plan_" in family.name]
    assert not edge.gateway.engine.store.pinned


async def test_a_broken_plan_fails_the_start_with_one_line(plan: PlanFile, origin: RunningOrigin) -> None:
    plan.path.write_text('{"version": 2}', encoding="utf-8")
    config = GatewayConfig.for_origin(origin.url, listen="127.0.0.1:0", admin="127.0.0.1:0", file=str(plan.path))
    with pytest.raises(ConfigError, match=r"^cache\.plan\.file: .*plan\.json: version: should be 1, got 2") as caught:
        await start_gateway(config)
    assert "\n" not in str(caught.value)


async def test_a_reload_takes_another_plan_by_the_same_name_and_keeps_the_old_one_where_it_is_broken(
    plan: PlanFile, origin: RunningOrigin, clock: ManualClock
) -> None:
    more: dict[str, Any] = {"file": str(plan.path)}

    def load() -> GatewayConfig:
        return GatewayConfig.for_origin(
            origin.url, listen="127.0.0.1:0", admin="127.0.0.1:0", shutdown_timeout_s=1, **more
        )

    plan.write(cache_bytes=5 * MIB, pin=[entry("/a")])
    gateway = await start_gateway(load(), clock=clock, load=load)
    try:
        store = gateway.engine.store

        async def reloaded() -> tuple[str, ...]:
            return (await bounded(gateway.reload())).changed

        assert await reloaded() == ()
        plan.write(cache_bytes=6 * MIB, pin=[entry("/b"), entry("/c")])
        assert await reloaded() == ("cache.plan",)
        assert (store.budget_bytes, len(list(store.pinned.preferred))) == (6 * MIB, 2)
        plan.path.write_text("{", encoding="utf-8")
        with pytest.raises(ConfigError, match="not JSON"):
            await reloaded()
        assert (store.budget_bytes, len(list(store.pinned.preferred))) == (6 * MIB, 2)
        plan.path.unlink()
        with pytest.raises(ConfigError, match="No such file"):
            await reloaded()
        more["take_pins"] = False
        plan.write(cache_bytes=6 * MIB, pin=[entry("/b"), entry("/c")])
        assert await reloaded() == ("cache.plan.take_pins",)
        assert not store.pinned
        more.clear()
        assert set(await reloaded()) == {"cache.plan.file", "cache.plan.take_pins", "cache.plan"}
        assert gateway.planned.plan is None
        assert store.budget_bytes == 256 * MIB
    finally:
        await gateway.stop()


async def test_expectation_and_outcome_stand_side_by_side(edge: Edge, plan: PlanFile, origin: RunningOrigin) -> None:
    await behind(edge, origin, "/a", b"x" * 1_000, Stream_Closed="true")
    assert sample_of(edge, "durable_gateway_plan_hit_ratio", kind="actual") is None
    for _ in range(4):
        await edge.get("/a?offset=-1")
    told = await shown(edge)
    assert (told["actual"]["hits"], told["actual"]["misses"]) == (3, 1)
    assert (told["actual"]["hit_ratio"], told["actual"]["byte_hit_ratio"]) == (0.75, 0.75)
    assert told["expected"] == {"hit_ratio": 0.953, "byte_hit_ratio": 0.928, "error": 0.006}
    assert sample_of(edge, "durable_gateway_plan_hit_ratio", kind="actual") == 0.75
    assert sample_of(edge, "durable_gateway_plan_hit_ratio", kind="expected") == 0.953


async def test_bytes_that_coding_saves_are_read_from_the_tape_all_the_same(
    edge: Edge, plan: PlanFile, origin: RunningOrigin
) -> None:
    text = b"the same again and " * 1_000
    await behind(edge, origin, "/a", text, Stream_Closed="true")
    for _ in range(4):
        coded = await edge.get("/a?offset=-1", {"Accept-Encoding": "gzip"})
        assert len(coded.body) < len(text) / 10
    actual = (await shown(edge))["actual"]
    assert (actual["byte_hit_ratio"], actual["read_bytes"], actual["fetched_bytes"]) == (0.75, 4 * len(text), len(text))


async def test_entries_that_no_route_leads_to_are_counted_and_left_out(
    start: Start, settings: dict[str, Any], plan: PlanFile, origin: RunningOrigin
) -> None:
    plan.write(
        pin=[entry("/a", route="gone"), entry("/elsewhere"), entry("/in/it")],
        warm=[entry("/in/it?offset=5")],
        do_not_store=[entry("/in/once")],
    )
    edge = await start(origin.url, **settings, prefix="/in")
    assert (await shown(edge))["unmatched"] == 3
    assert len(list(edge.gateway.engine.store.pinned.preferred)) == 1
