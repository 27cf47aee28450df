"""The parts of a console test: a gateway with its origin and clients, one visitor's page, and the page's modules."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from aiohttp import ClientSession
from playwright.async_api import ConsoleMessage, Locator, Page, expect
from prometheus_client.parser import text_string_to_metric_families

from gateway.app import RunningGateway
from gateway.origin.app import RunningOrigin
from tests.waiting import eventually

BOUND_S = 60.0
JSON = "application/json"

expect.set_options(timeout=BOUND_S * 1000)


@dataclass(slots=True)
class Stage:
    """A gateway, the origin behind it, and clients of both."""

    gateway: RunningGateway
    origin: RunningOrigin
    session: ClientSession

    async def create(self, path: str, *messages: Any, content_type: str = JSON) -> None:
        """Create a stream at the origin, with messages of its type."""
        async with self.session.put(self.origin.url + path, headers={"Content-Type": content_type}) as reply:
            assert reply.status == 201, await reply.text()
        for message in messages:
            await self.append(path, message, content_type=content_type)

    async def append(self, path: str, message: Any, *, content_type: str = JSON) -> None:
        body = json.dumps(message).encode() if content_type == JSON else message
        async with self.session.post(
            self.origin.url + path, data=body, headers={"Content-Type": content_type}
        ) as reply:
            assert reply.ok, await reply.text()

    async def close(self, path: str) -> None:
        async with self.session.post(self.origin.url + path, headers={"Stream-Closed": "true"}) as reply:
            assert reply.ok, await reply.text()

    async def read(self, target: str, headers: Mapping[str, str] | None = None) -> bytes:
        """Read once through the gateway; returns the body."""
        async with self.session.get(self.gateway.gateway_url + target, headers=headers) as reply:
            return await reply.read()

    async def admin(self, path: str) -> Any:
        async with self.session.get(self.gateway.admin_url + path) as reply:
            assert reply.ok, await reply.text()
            return await reply.json()

    async def samples(self) -> list[tuple[str, dict[str, str], float]]:
        """All samples of `/metrics`."""
        async with self.session.get(self.gateway.admin_url + "/metrics") as reply:
            text = await reply.text()
        families = text_string_to_metric_families(text)
        return [(one.name, one.labels, one.value) for family in families for one in family.samples]

    async def total(self, name: str, **labels: str) -> float:
        """The sum of one metric's samples with these labels."""
        return sum(
            value
            for found, has, value in await self.samples()
            if found == name and all(has.get(key) == wanted for key, wanted in labels.items())
        )

    async def until_readers(self, count: int) -> None:
        """Wait until `count` live readers are connected."""

        async def has_them() -> bool:
            return await self.total("durable_gateway_subscribers") == count

        await eventually(has_them, within_s=BOUND_S, look_s=0.02)


class Visit:
    """One visitor's page, and all complaints of the browser."""

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.url = url
        self.complaints: list[str] = []
        page.on("console", self._said)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("dialog", lambda dialog: self.complaints.append(f"dialog: {dialog.message}"))

    def _said(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning", "assert"):
            self.complaints.append(f"{message.type}: {message.text}")

    async def open(self, hash_: str = "") -> None:
        """Open a view and wait until it is shown and has refreshed once."""
        await self.page.goto(f"{self.url}/{hash_}")
        await expect(self.page.locator("#state")).to_have_text("live")

    def figure(self, label: str) -> Locator:
        """One figure of the overview: its value is in `strong`, its note in `small`."""
        return self.page.locator(".figure").filter(has=self.page.get_by_text(label, exact=True))

    @property
    def messages(self) -> Locator:
        return self.page.locator(".messages .message")

    @property
    def state_of_tail(self) -> Locator:
        return self.page.locator(".tail-head .state")

    async def texts(self) -> list[str]:
        """The messages of the tail as the page shows them."""
        return await self.messages.locator("pre").all_inner_texts()


class Modules:
    """The console's modules in a browser, without the page around them."""

    def __init__(self, shown: Visit) -> None:
        self._shown = shown

    @property
    def complaints(self) -> list[str]:
        return self._shown.complaints

    async def evaluate(self, function: str, argument: object = None) -> Any:
        """The result of a function in JavaScript, which may import modules from `/console/`."""
        return await self._shown.page.evaluate(function, argument)
