"""What the tests of the access log read with: lines with numbers, the messages of a stream, and time that passes."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import aiohttp
import orjson

BOUND_S = 10.0


def numbered(numbers: Iterable[int], **more: object) -> bytes:
    """A line for each number."""
    return b"".join(orjson.dumps({"n": number, **more}, option=orjson.OPT_APPEND_NEWLINE) for number in numbers)


def numbers_in(text: bytes) -> list[int]:
    """The numbers of whole lines, in order."""
    assert not text or text.endswith(b"\n")
    return [orjson.loads(line)["n"] for line in text.splitlines()]


def lines_of(log: Path) -> list[dict[str, Any]]:
    """What a log file says so far; a line that is being written is not in it yet."""
    whole, _, _ = log.read_bytes().rpartition(b"\n")
    return [orjson.loads(line) for line in whole.splitlines()]


async def messages(url: str) -> list[dict[str, object]]:
    """Every message of a JSON stream, asked for at its origin."""
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=BOUND_S)) as session:
        found: list[dict[str, object]] = []
        offset = "-1"
        while True:
            async with session.get(url, params={"offset": offset}) as reply:
                assert reply.status == 200, reply.status
                found += orjson.loads(await reply.read())
                offset = reply.headers["Stream-Next-Offset"]
                if reply.headers.get("Stream-Up-To-Date") == "true":
                    return found
