"""A reply's body as its requester takes it, from a source in memory."""

from __future__ import annotations

import pytest
from multidict import CIMultiDict, CIMultiDictProxy

from gateway.errors import GatewayError, UpstreamBroken, UpstreamTimeout
from gateway.http.reply_lines import Head
from gateway.http.reply_parser import ReplyBroken
from gateway.upstream.failures import ConnectionLost
from gateway.upstream.origin_call import Bounds
from gateway.upstream.reply import Reply
from tests.memory_upstream import MemoryInflow


def reply_of(inflow: MemoryInflow) -> Reply:
    head = Head(200, "OK", CIMultiDictProxy(CIMultiDict[str]()), None, True)
    return Reply(head, inflow, Bounds(), float("inf"))


@pytest.mark.parametrize(
    ("cut", "raised"),
    [
        (ConnectionLost("lost"), UpstreamBroken),
        (ReplyBroken("ended early"), UpstreamBroken),
        (TimeoutError(), UpstreamTimeout),
    ],
    ids=lambda one: type(one).__name__,
)
async def test_a_body_that_is_cut_short_raises_after_its_bytes(cut: Exception, raised: type[GatewayError]) -> None:
    inflow, taken = MemoryInflow(), list[bytes]()
    inflow.say(b"ab")
    inflow.cut(cut)
    reply = reply_of(inflow)

    async def take_all() -> None:
        async for piece in reply.chunks():
            taken.append(piece)

    with pytest.raises(raised):
        await take_all()
    assert taken == [b"ab"]


async def test_a_whole_body_ends_in_order() -> None:
    inflow = MemoryInflow()
    inflow.say(b"ab")
    inflow.finish()
    assert [piece async for piece in reply_of(inflow).chunks()] == [b"ab"]
