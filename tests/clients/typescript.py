"""The reference client, `@durable-streams/client`, in a Node.js process: see `tests/node/client.mjs`."""

from __future__ import annotations

from typing import Any

from tests.clients.program import Program


class TypeScript(Program):
    """One client process; its commands run one after another, except `cancel`."""

    script = "client.mjs"

    async def follow(self, url: str, live: str | bool, as_: str, offset: str = "-1") -> None:
        """Begin to follow a stream; `batch` returns its data."""
        self.say({"do": "follow", "url": url, "live": live, "as": as_, "offset": offset})

    async def batch(self) -> dict[str, Any]:
        """The next batch, empty ones included, or the end (`done`).  Raises Failed."""
        return await self.hear()

    async def until_up_to_date(self) -> list[dict[str, Any]]:
        """The batches up to the first that is up to date, that one included."""
        batches = [await self.batch()]
        while not batches[-1]["upToDate"]:
            batches.append(await self.batch())
        return batches

    async def until_end(self) -> list[dict[str, Any]]:
        """The remaining batches, without the final `done` line."""
        batches = []
        while "done" not in (said := await self.batch()):
            batches.append(said)
        return batches

    def cancel(self) -> None:
        self.say({"do": "cancel"})
