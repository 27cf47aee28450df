"""The list of streams: search, pages, rows; and one stream with its tape."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from playwright.async_api import Route, expect

from tests.console.visit import BOUND_S, Modules, Stage, Visit

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_streams_are_found_by_prefix_and_paged(visit: Visit, stage: Stage) -> None:
    for number in range(56):
        await stage.create(f"/many/{number:03}", number)
        await stage.read(f"/many/{number:03}?offset=-1")
    await stage.create("/few/1", 1)
    await stage.read("/few/1?offset=-1")
    await visit.open("#/streams")
    rows = visit.page.locator(".streams tbody tr")
    await expect(rows).to_have_count(50)
    await visit.page.get_by_role("button", name="Next →").click()
    await expect(rows).to_have_count(7)
    await expect(rows.last.locator("a")).to_have_text("/many/055")
    await visit.page.get_by_role("button", name="← Before").click()
    await expect(rows).to_have_count(50)
    await visit.page.locator("#search").fill("/many/05")
    await expect(rows).to_have_count(6)
    await visit.page.locator("#search").fill("/none")
    await expect(visit.page.locator("main .card .quiet")).to_contain_text(
        "No stream that is remembered begins with /none"
    )
    for _ in range(3):
        await stage.read("/few/1?offset=-1")
    await visit.page.get_by_role("button", name="Most read", exact=True).click()
    await expect(rows.first.locator("a")).to_have_text(
        (await stage.admin("/api/top?by=requests"))["streams"][0]["path"]
    )


async def test_a_search_needs_no_slash_and_a_refused_one_says_why(visit: Visit, stage: Stage) -> None:
    await stage.create("/slash/1", 1)
    await stage.read("/slash/1?offset=-1")
    await visit.open("#/streams")
    rows = visit.page.locator(".streams tbody tr")
    await visit.page.locator("#search").fill("slash")
    await expect(rows.first.locator("a")).to_have_text("/slash/1")
    # The browser names each refused request in its console.
    complaints = visit.complaints.copy()
    await visit.page.locator("#search").fill("/a?b")
    await expect(visit.page.locator("main .card .quiet")).to_contain_text("Not a path that a stream can have")
    await expect(visit.page.locator("#state")).to_have_text("live")
    visit.complaints[:] = complaints


async def test_back_leads_to_the_same_place_in_the_list(visit: Visit, stage: Stage) -> None:
    for number in range(120):
        await stage.create(f"/place/{number:03}", number)
        await stage.read(f"/place/{number:03}?offset=-1")
    page = visit.page
    await page.set_viewport_size({"width": 400, "height": 700})
    await visit.open("#/streams")
    await page.locator("#search").fill("/place/")
    await page.get_by_role("button", name="Next →").click()
    link = page.get_by_role("link", name="/place/090")
    await link.scroll_into_view_if_needed()
    scrolled = await page.evaluate("scrollY")
    assert scrolled > 0
    await link.click()
    await expect(page.locator("h1")).to_have_text("/place/090")
    # A stream opens at its beginning, also on a phone.
    assert await page.evaluate("scrollY") == 0
    await page.get_by_role("link", name="← Streams").click()
    await expect(page.locator("#search")).to_have_value("/place/")
    await expect(page.locator(".pager [role=status]")).to_have_text("51 to 100")
    await expect(link).to_be_in_viewport()
    await link.click()
    await expect(page.locator("h1")).to_have_text("/place/090")
    await page.go_back()
    await expect(page.locator(".pager [role=status]")).to_have_text("51 to 100")
    await expect(link).to_be_in_viewport()


async def test_selected_text_stays_over_a_refresh(visit: Visit, stage: Stage) -> None:
    await stage.create("/selected", 1)
    await stage.read("/selected?offset=-1")
    await visit.open("#/streams")
    name = visit.page.get_by_role("link", name="/selected")
    await name.select_text()
    for _ in range(3):
        await stage.read("/selected?offset=-1")
    # The next refresh has other figures.
    async with visit.page.expect_response(lambda reply: "/api/streams" in reply.url):
        pass
    async with visit.page.expect_response(lambda reply: "/api/streams" in reply.url):
        pass
    assert await visit.page.evaluate("String(getSelection())") == "/selected"
    await visit.page.evaluate("getSelection().removeAllRanges()")
    row = visit.page.locator(".streams tbody tr").filter(has=name)
    await expect(row.locator("[data-label=reads]")).to_have_text("4")


async def test_arrows_go_from_row_to_row_and_enter_opens(visit: Visit, stage: Stage) -> None:
    for name in "abc":
        await stage.create(f"/{name}", name)
        await stage.read(f"/{name}?offset=-1")
    await visit.open("#/streams")
    await visit.page.locator(".streams a").first.focus()
    await visit.page.keyboard.press("ArrowDown")
    await visit.page.keyboard.press("ArrowDown")
    await visit.page.keyboard.press("Enter")
    await expect(visit.page.locator("h1")).to_have_text("/c")


async def test_the_drawing_matches_the_tape(visit: Visit, stage: Stage) -> None:
    await stage.create("/tape")
    # A block is full at one mebibyte.
    for number in range(3):
        await stage.append("/tape", {"n": number, "text": "x" * 600_000})
        async with stage.session.get(f"{stage.gateway.gateway_url}/tape?offset=-1") as reply:
            await reply.read()
    reader = await stage.session.get(f"{stage.gateway.gateway_url}/tape?offset=now&live=sse")
    await stage.until_readers(1)
    (row,) = (await stage.admin("/api/streams?prefix=/tape"))["streams"]
    one: dict[str, Any] = await stage.admin(f"/api/streams/{row['id']}")
    await visit.open(f"#/streams/{row['id']}")
    page = visit.page
    await expect(page.locator(".tape-block")).to_have_count(len(one["tape"]))
    assert len(one["tape"]) > 1
    await expect(page.locator(".tape-tail text")).to_contain_text(one["tail"][-12:])
    await expect(page.locator(".tape-pin")).to_have_count(1)
    await expect(page.locator(".tape-pin text")).to_have_text("sse")
    pin, tail = (
        await page.locator(".tape-pin circle").get_attribute("cx"),
        await page.locator(".tape-tail line").get_attribute("x1"),
    )
    assert pin == tail

    await page.locator('.tape-block[tabindex="0"]').focus()
    await page.keyboard.press("ArrowLeft")
    chosen = sorted(one["tape"], key=lambda run: run["start"])[-2]
    await expect(page.locator(".tape-told")).to_contain_text(f"From {chosen['start']} to {chosen['end']}")
    await expect(page.locator(".readers")).to_contain_text("sse")

    # An offset may wrap between its numbers.
    assert await page.locator(".facts dd").first.inner_text() == one["tail"]
    assert await page.locator(".facts dd").first.locator("wbr").count() == one["tail"].count("_") + 1

    await stage.append("/tape", {"n": 8})
    await expect(page.locator(".facts")).to_contain_text((await stage.admin(f"/api/streams/{row['id']}"))["tail"])
    await stage.close("/tape")
    await expect(page.locator(".tape-tail.is-closed")).to_have_count(1)
    reader.close()


async def test_gaps_and_overlaps_of_a_tape_are_distinguished(modules: Modules) -> None:
    runs = [("8", "9", 5), ("2", "3", 10), ("-1", "5", 100), ("5", "6", 50)]
    tape = [{"start": start, "end": end, "bytes": size, "tokens": 1, "age_s": 1} for start, end, size in runs]
    readers = [
        {"mode": "sse", "at": "9", "clients": 1, "lived_s": 1},
        {"mode": "sse", "at": "9", "clients": 2, "lived_s": 1},
        {"mode": "longpoll", "at": None, "clients": 1, "lived_s": None},
    ]
    plan = await modules.evaluate(
        "async (stream) => (await import('/console/tape.js')).layout(stream, 800)",
        {"tape": tape, "tail": "9", "live_readers": readers},
    )
    assert [(run["start"], run.get("isBeside", False)) for run in plan["blocks"]] == [
        ("-1", False),
        ("2", True),
        ("5", False),
        ("8", False),
    ]
    assert [(gap["start"], gap["end"]) for gap in plan["gaps"]] == [("6", "8")]
    first, beside, second, _ = plan["blocks"]
    assert first["x"] <= beside["x"] < second["x"]
    assert [(pin["x"], pin["count"]) for pin in plan["pins"]] == [(plan["tail"]["x"], 3)]


async def test_purging_empties_the_tape_and_says_so(visit: Visit, stage: Stage) -> None:
    await stage.create("/purged", 1)
    await stage.read("/purged?offset=-1")
    (row,) = (await stage.admin("/api/streams?prefix=/purged"))["streams"]
    await visit.open(f"#/streams/{row['id']}")
    await visit.page.get_by_role("button", name="Soft purge").click()
    await expect(visit.page.locator(".tools [role=status]")).to_have_text("1 tape to be looked at before the next hit")
    # A purge asks for confirmation; leaving the button cancels.
    await visit.page.get_by_role("button", name="Purge", exact=True).click()
    await visit.page.get_by_role("link", name="Tail it live").focus()
    await expect(visit.page.get_by_role("button", name="Purge", exact=True)).to_be_visible()
    await visit.page.get_by_role("button", name="Purge", exact=True).click()
    assert len((await stage.admin("/api/streams"))["streams"]) == 1
    await visit.page.get_by_role("button", name="Really purge?").click()
    await expect(visit.page.locator(".tools [role=status]")).to_contain_text("no longer on a tape")
    assert (await stage.admin("/api/streams"))["streams"] == []
    # Nothing of the old tape is left in the drawing.
    await expect(visit.page.locator(".tape-block, .tape-tail")).to_have_count(0)
    await expect(visit.page.locator(".tape-told")).to_have_text("Nothing is on the tape now.")
    assert set(await visit.page.locator(".facts dd").all_inner_texts()) == {"–"}
    # After another read it is drawn again.
    await stage.read("/purged?offset=-1")
    await expect(visit.page.locator(".tape-block")).to_have_count(1)
    await expect(visit.page.get_by_role("button", name="Purge", exact=True)).to_be_visible()
    await expect(visit.page.locator(".facts dd").first).to_have_text(row["tail"])
    # The browser itself logs the 404.
    assert all("404" in complaint for complaint in visit.complaints)
    visit.complaints.clear()


async def test_a_purge_shows_without_waiting_for_the_next_refresh(visit: Visit, stage: Stage) -> None:
    """An answer to a request from before the purge is not drawn after it."""
    await stage.create("/purged", 1)
    await stage.read("/purged?offset=-1")
    (row,) = (await stage.admin("/api/streams?prefix=/purged"))["streams"]
    await visit.open(f"#/streams/{row['id']}")
    await expect(visit.page.locator(".tape-block")).to_have_count(1)
    held = asyncio.Event()
    is_out = asyncio.Event()

    async def hold(route: Route) -> None:
        old = await route.fetch()
        held.set()
        await is_out.wait()
        await route.fulfill(response=old)

    await visit.page.route("**/api/streams/*", hold, times=1)
    async with asyncio.timeout(BOUND_S):
        await held.wait()
    await visit.page.get_by_role("button", name="Purge", exact=True).click()
    await visit.page.get_by_role("button", name="Really purge?").click()
    await expect(visit.page.locator(".tape-block")).to_have_count(0)
    is_out.set()
    await expect(visit.page.locator(".tools [role=status]")).to_contain_text("no longer on a tape")
    visit.complaints.clear()


async def test_live_readers_are_listed_by_offset(visit: Visit, stage: Stage) -> None:
    await stage.create("/crowd", "one")
    await stage.read("/crowd?offset=-1")
    url = f"{stage.gateway.gateway_url}/crowd"
    replies = [await stage.session.get(f"{url}?offset=now&live=sse") for _ in range(20)]
    tail = (await stage.admin("/api/streams"))["streams"][0]["tail"]
    polls = [
        asyncio.create_task(stage.read(f"/crowd?offset={tail}&live=long-poll{more}"))
        for more in ("", "", "", "&cursor=5", "&cursor=7")
    ]
    await stage.until_readers(25)
    (row,) = (await stage.admin("/api/streams?prefix=/crowd"))["streams"]
    await visit.open(f"#/streams/{row['id']}")
    lines = visit.page.locator(".readers li")
    await expect(lines).to_have_count(2)
    await expect(lines.first).to_contain_text("20 sse")
    await expect(lines.nth(1)).to_contain_text("5 longpoll")
    await expect(visit.page.locator(".tape-pin")).to_have_count(2)
    assert sorted(await visit.page.locator(".tape-pin text").all_text_contents()) == ["20 sse", "5 longpoll"]
    for reply in replies[:19]:
        reply.close()
    await expect(lines.nth(1)).to_contain_text("sse")
    await expect(lines.nth(1)).not_to_contain_text("20")
    await stage.close("/crowd")
    await asyncio.gather(*polls)
    replies[19].close()


async def test_readers_beyond_the_listed_ones_are_counted(modules: Modules) -> None:
    readers = [{"mode": "sse", "at": f"{at:03}", "clients": 2, "lived_s": at} for at in range(20)]
    readers += [{"mode": "longpoll", "at": "500", "clients": 50, "lived_s": None}]
    found = await modules.evaluate(
        "async ([readers, all]) => (await import('/console/stream.js')).groups(readers, all)", [readers, 1_000]
    )
    assert found["shown"][0] == {"mode": "longpoll", "at": "500", "clients": 50, "lived_s": None}
    assert len(found["shown"]) == 12
    assert found["others"] == 1_000 - 50 - 11 * 2


@pytest.mark.parametrize("width", [320, 500, 1280])
async def test_an_offset_is_never_wrapped_inside_a_number(visit: Visit, stage: Stage, width: int) -> None:
    await stage.create("/wrapped", *(["x" * 1_000] * 3))
    await stage.read("/wrapped?offset=-1")
    (row,) = (await stage.admin("/api/streams?prefix=/wrapped"))["streams"]
    await visit.page.set_viewport_size({"width": width, "height": 860})
    await visit.open(f"#/streams/{row['id']}")
    await visit.page.locator('.tape-block[tabindex="0"]').focus()
    await expect(visit.page.locator(".tape-told")).to_contain_text(row["tail"])
    numbers = visit.page.locator(".facts .whole, .tape-told .whole")
    assert await numbers.count() >= 4
    lines = await numbers.evaluate_all("all => all.map((one) => one.getClientRects().length)")
    assert set(lines) == {1}
    wide = "document.documentElement.scrollWidth <= document.documentElement.clientWidth"
    assert await visit.page.evaluate(wide), "the page itself does not scroll sideways"


@pytest.mark.parametrize("settings", [{"prefix": "/public", "strip_prefix": True}])
async def test_a_stream_leads_to_its_tail_by_the_route_that_its_readers_take(visit: Visit, stage: Stage) -> None:
    await stage.create("/deep/stream", "hello")
    await stage.read("/public/deep/stream?offset=-1")
    (row,) = (await stage.admin("/api/streams"))["streams"]
    assert row["path"] == "/deep/stream"
    await visit.open(f"#/streams/{row['id']}")
    await visit.page.get_by_role("link", name="Tail it live").click()
    await expect(visit.page.locator("#path")).to_have_value("/public/deep/stream")
    await expect(visit.messages).to_have_count(1)
