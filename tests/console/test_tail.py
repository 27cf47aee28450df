"""The live tail in the browser, and the forms beside it."""

from __future__ import annotations

import json

import pytest
from playwright.async_api import expect

from tests.console.visit import JSON, Stage, Visit

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest.mark.parametrize(("live", "label"), [("sse", "live by SSE"), ("long-poll", "live by long-poll")])
async def test_a_tail_shows_old_and_new_messages_up_to_the_end(
    visit: Visit, stage: Stage, live: str, label: str
) -> None:
    await stage.create("/live", {"n": 0}, {"n": 1})
    await visit.open("#/tail")
    await visit.page.get_by_label("By").select_option(live)
    await visit.page.locator("#path").fill("/live")
    await visit.page.keyboard.press("Enter")
    await expect(visit.messages).to_have_count(2)
    await expect(visit.state_of_tail).to_have_text(label)
    await stage.until_readers(1)
    for number in range(2, 5):
        await stage.append("/live", {"n": number})
        await expect(visit.messages).to_have_count(number + 1)
    await stage.close("/live")
    await expect(visit.state_of_tail).to_have_text("closed")
    assert [json.loads(text) for text in await visit.texts()] == [{"n": number} for number in range(5)]
    await stage.until_readers(0)


@pytest.mark.parametrize("settings", [{"sse_lifetime_s": 1.0}])
async def test_nothing_is_lost_or_repeated_when_connections_end(visit: Visit, stage: Stage) -> None:
    await stage.create("/ends")
    await visit.open("#/tail?path=/ends")
    await expect(visit.state_of_tail).to_have_text("live by SSE")
    sent = 0
    while await stage.total("durable_gateway_requests_total", mode="sse") < 2:
        await stage.append("/ends", sent)
        sent += 1
        await expect(visit.messages).to_have_count(sent)
    assert [json.loads(text) for text in await visit.texts()] == list(range(sent))


async def test_stream_content_is_shown_and_never_run(visit: Visit, stage: Stage) -> None:
    hostile = "<img src=x onerror='window.ran = 1'><script>window.ran = 1</script>"
    await stage.create("/hostile", {hostile: hostile})
    await stage.create("/text", hostile.encode(), content_type="text/html")
    for path in ("/hostile", "/text"):
        await visit.open("#/streams")
        await visit.open(f"#/tail?path={path}")
        await expect(visit.messages).to_have_count(1)
        assert hostile in (await visit.texts())[0]
    assert await visit.page.evaluate("window.ran") is None
    assert await visit.page.locator(".messages img, .messages script").count() == 0


async def test_bytes_are_shown_in_hexadecimal(visit: Visit, stage: Stage) -> None:
    await stage.create("/bytes", bytes(range(65, 75)), content_type="application/octet-stream")
    await visit.open("#/tail?path=/bytes")
    await expect(visit.messages).to_have_count(1)
    await stage.append("/bytes", b"\x00\xffZ", content_type="application/octet-stream")
    await expect(visit.messages).to_have_count(2)
    first, second = await visit.texts()
    assert first.split("  ")[1] == "41 42 43 44 45 46 47 48 49 4a"
    assert second.startswith("0000  00 ff 5a")


async def test_a_paused_tail_keeps_counting_and_a_filter_hides(visit: Visit, stage: Stage) -> None:
    await stage.create("/held", {"colour": "red"})
    await visit.open("#/tail?path=/held")
    await expect(visit.state_of_tail).to_have_text("live by SSE")
    await visit.page.get_by_role("button", name="Hold").click()
    await stage.append("/held", {"colour": "blue"})
    await expect(visit.page.locator(".tail-head")).to_contain_text("2 messages")
    await expect(visit.page.locator(".tail-head")).to_contain_text("1 held")
    await expect(visit.messages).to_have_count(1)
    await visit.page.get_by_role("button", name="Hold").click()
    await expect(visit.messages).to_have_count(2)
    await visit.page.get_by_label("Show only messages with this text").fill("blue")
    await expect(visit.messages.filter(visible=True)).to_have_count(1)
    await visit.page.get_by_role("button", name="Stop").click()
    await expect(visit.state_of_tail).to_have_text("stopped")
    await stage.until_readers(0)


async def test_a_missing_stream_is_reported(visit: Visit) -> None:
    await visit.open("#/tail?path=/nowhere")
    await expect(visit.state_of_tail).to_contain_text("ended: 404")
    visit.complaints.clear()


async def test_a_stream_is_created_appended_to_closed_and_deleted_by_the_forms(visit: Visit, stage: Stage) -> None:
    await visit.open("#/tail")
    page, said = visit.page, visit.page.locator(".said")
    await page.locator("#path").fill("/made here")
    await page.get_by_label("TTL in seconds").fill("600")
    await page.get_by_role("button", name="Create").click()
    await expect(said).to_contain_text("201 created")
    await expect(visit.state_of_tail).to_have_text("live by SSE")
    async with stage.session.head(stage.origin.url + "/made%20here") as reply:
        assert (reply.headers["Content-Type"], reply.headers["Stream-TTL"]) == (JSON, "600")

    await page.locator("#body").fill('{"oops": ')
    await page.keyboard.press("Control+Enter")
    await expect(said).to_contain_text("Not JSON")
    await page.locator("#body").fill('{"hello": "wörld"}')
    await page.keyboard.press("Control+Enter")
    await expect(said).to_contain_text("204 appended")
    await expect(visit.messages).to_have_count(1)
    await page.get_by_role("button", name="Append").click()
    await expect(visit.messages).to_have_count(2)
    assert json.loads(await stage.read("/made%20here?offset=-1")) == [{"hello": "wörld"}] * 2

    await page.get_by_role("button", name="Close the stream").click()
    await expect(visit.state_of_tail).to_have_text("closed")
    await page.get_by_role("button", name="Delete").click()
    await page.get_by_role("button", name="Really delete?").click()
    await expect(said).to_contain_text("204 deleted")
    async with stage.session.head(stage.origin.url + "/made%20here") as reply:
        assert reply.status == 404


@pytest.mark.parametrize("settings", [{"console_writes": False}])
async def test_without_permission_there_are_no_forms(visit: Visit) -> None:
    await visit.open("#/tail")
    await expect(visit.page.locator(".bench")).to_contain_text("server.console_writes is off")
    await expect(visit.page.locator("form")).to_have_count(3)  # the tail's, and those of the two dialogs
