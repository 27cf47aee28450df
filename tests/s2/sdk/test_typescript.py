"""npm's `@s2-dev/streamstore` and `@s2-dev/streamstore-patterns`, in both transports: `tests/node/s2.mjs`."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from gateway.origin.s2.app import RunningS2Origin
from gateway.origin.s2.calls import Call
from gateway.s2.errors import S2ErrorCode
from tests.clients.program import Failed, Program
from tests.s2.sdk.conftest import BOTH_WAYS

TRANSPORTS = {"s2s": Call.READ_SESSION, "fetch": Call.READ_EVENTS}
"""The transports, and the call that a read session makes over each."""


class Sdk(Program):
    """One process with the SDK."""

    script = "s2.mjs"


@pytest.fixture(params=TRANSPORTS)
def transport(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture
async def sdk(url: str, transport: str) -> AsyncIterator[Sdk]:
    async with Sdk.start(url, transport) as program:
        yield program


@BOTH_WAYS
async def test_every_call_of_the_sdk(sdk: Sdk) -> None:
    listed = await sdk.do("calls")
    assert listed["calls"] > 30
    assert listed["missing"] == []

    failures = {}
    for name in listed["rows"]:
        try:
            await sdk.do("row", name=name)
        except Failed as failed:
            failures[name] = str(failed)
    assert failures == {}


async def test_a_session_that_breaks_is_resumed_with_nothing_lost_or_repeated(
    origin: RunningS2Origin, sdk: Sdk, transport: str
) -> None:
    await sdk.do("append", stream="s", count=300)
    call = TRANSPORTS[transport]
    broken = [
        origin.origin.faults.drop(1_500, kind=call),
        origin.origin.faults.fail_session(S2ErrorCode.UNAVAILABLE, after_messages=1, kind=call),
        origin.origin.faults.error(S2ErrorCode.UNAVAILABLE, kind=call),
    ]

    followed = await sdk.do("follow", stream="s", count=300)

    assert followed["seqNums"] == list(range(300))
    assert followed["bodies"] == [str(number) for number in range(300)]
    assert [switch.hits for switch in broken] == [1, 1, 1]


async def test_messages_of_the_patterns_are_read_once_although_appends_are_sent_twice(
    origin: RunningS2Origin, sdk: Sdk, transport: str
) -> None:
    # The records are stored, and the connection breaks before they are acknowledged.
    call = Call.APPEND_SESSION if transport == "s2s" else Call.APPEND
    broken = origin.origin.faults.drop(0 if transport == "fetch" else 30, kind=call)

    read = await sdk.do("messages", stream="s", count=40)

    assert [message.partition(":")[0] for message in read["messages"]] == [str(number) for number in range(40)]
    assert broken.hits == 1
    # 11 messages fit in one record and 29 take two; at least one record is there twice.
    assert read["tail"] > 11 + 2 * 29
