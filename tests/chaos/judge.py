"""Whether an answer may be: pure functions of what was asked, what came and the stream's history.

Each rule raises `Wrong` with the reason in one line.  A rule says what the gateway promises and nothing that depends on
how fast the machine is, but for one: a reader of a life that is known to be over is sent off within `ENDED_WITHIN_S`.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from multidict import CIMultiDict

from gateway.origin.positions import Position, parse_token
from tests.answers import Answer
from tests.chaos.history import History, Life, Moment
from tests.chaos.manners import SHOWN_TO
from tests.codings import DECODERS

TRIMMED_WITHIN_S: Final = 3.0
"""Real seconds for which trimmed bytes may be shown: `trust_s`, and what a reply may be held up on its way."""
ENDED_WITHIN_S: Final = 2.0
"""Real seconds.  Gateway, origin and clients share one loop, so that a slow machine is slow for all of them alike."""


LEAST_WAIT_S: Final = 0.2
"""Real seconds.  Neither origin nor gateway ends an empty long-poll sooner while nothing is wrong."""


class Wrong(Exception):
    """An answer that cannot be."""


@dataclass(frozen=True)
class Shown:
    """A representation that a client holds: what a 304 that names its tag stands for."""

    etag: str
    body: bytes
    """As it was before it was coded."""
    coding: str
    end: str
    is_closed: bool


@dataclass(frozen=True)
class Asked:
    """One request for a stream."""

    method: str
    path: str
    party: str
    since: Moment
    offset: str | None = None
    live: str | None = None
    cursor: str | None = None
    accepts: tuple[str, ...] = ()
    """Content codings that the client takes beside `identity`."""
    held: tuple[Shown, ...] = ()
    """What its If-None-Match names."""
    is_calm: bool = False
    """Whether nothing was in trouble when it was sent."""
    is_stale: bool = False
    """Whether the answer says that the origin has failed, so that it may show trimmed bytes."""

    def __str__(self) -> str:
        query = "&".join(
            f"{k}={v}" for k, v in (("offset", self.offset), ("live", self.live), ("cursor", self.cursor)) if v
        )
        named = f" If-None-Match: {', '.join(one.etag for one in self.held)}" if self.held else ""
        accepts = f" Accept-Encoding: {', '.join(self.accepts)}" if self.accepts else ""
        return f"{self.method} {self.path}{'?' + query if query else ''} as {self.party}{accepts}{named}"


# -- refusals


def refusal(history: History, asked: Asked, status: int | None, *, is_calm: bool) -> bool:
    """Whether the answer is one without bytes, which may be given here; Wrong where it may not.

    `is_calm` says that nothing has been in trouble from before the request until now.
    """
    if status is None or status >= 500 or status == 429:
        if is_calm:
            raise Wrong(f"it failed ({status}) although nothing was wrong")
        return True
    if status == 410 and asked.method == "GET" and any(life.refuses(asked.offset) for life in history.lives):
        return True
    if status in (404, 410):
        alive = asked.since.alive
        if alive is not None and not history.is_over(alive):
            raise Wrong(f"{status} for a stream that was there all the time: {alive}")
        history.was_told_gone(asked.party, asked.since)
        return True
    return False


def stays(answer: Answer, *, is_calm: bool) -> None:
    """A gateway that does not drain closes no connection behind an answer in order."""
    if is_calm and answer.status in (200, 204, 304) and answer.headers.get("Connection", "").lower() == "close":
        raise Wrong("the connection closes although the gateway does not drain")


def own(answer: Answer, *, name: str, web_origin: str | None) -> None:
    """Wrong where the answer is for another client: for one of another `name` alone, or for another web origin."""
    shown_to = answer.headers.get(SHOWN_TO)
    if shown_to is not None and shown_to != name:
        raise Wrong(f"an answer for {shown_to} alone")
    allowed = answer.headers.get("Access-Control-Allow-Origin")
    if answer.status in (200, 204) and allowed not in ("*", web_origin):
        raise Wrong(f"the answer is for the web origin {allowed}, and the client's is {web_origin}")


# -- reads


def is_stale(headers: Mapping[str, str]) -> bool:
    """Whether the head of an answer says that the origin has failed to confirm the bytes with which it begins."""
    return "stale_if_error" in headers.get("Cache-Status", "")


def decoded(asked: Asked, answer: Answer) -> bytes:
    """The body without its content coding."""
    coding = answer.headers.get("Content-Encoding", "identity")
    if coding != "identity" and coding not in asked.accepts:
        raise Wrong(f"coded as {coding}, which the client does not take")
    try:
        return DECODERS[coding](answer.body)
    except Exception as error:
        raise Wrong(f"a body of {len(answer.body)} bytes that is no {coding}: {error}") from None


def stood_for(asked: Asked, answer: Answer) -> Answer:
    """The 200 that a 304 stands for."""
    if answer.body:
        raise Wrong("a 304 with a body")
    tag = answer.headers.get("ETag")
    if tag is None and len(asked.held) == 1:
        tag = asked.held[0].etag
    held = next((one for one in asked.held if one.etag == tag), None)
    if held is None:
        raise Wrong(f"a 304 for {tag}, which the client did not name")
    if held.coding != "identity" and held.coding not in asked.accepts:
        raise Wrong(f"a 304 for a representation in {held.coding}, which this client does not take")
    if answer.end not in (None, held.end):
        raise Wrong(f"a 304 that ends at {answer.end} for a representation that ends at {held.end}")
    if answer.is_closed is not held.is_closed and answer.end is not None:
        raise Wrong(f"a 304 with closed={answer.is_closed} for a representation with closed={held.is_closed}")
    headers = CIMultiDict(answer.headers)
    headers["Stream-Next-Offset"] = held.end
    if held.is_closed:
        headers["Stream-Closed"] = headers["Stream-Up-To-Date"] = "true"
    if held.body in (b"", b"[]") and "fwd=bypass" in answer.headers.get("Cache-Status", ""):
        # The origin's own: it has no flags, and nothing came after the offset yet.
        headers["Stream-Up-To-Date"] = "true"
    return Answer(200, headers, held.body)


def read(history: History, asked: Asked, answer: Answer, *, is_json: bool, is_calm: bool) -> list[Life]:
    """The lives that an answer to a GET may have shown; empty where it shows none."""
    if refusal(history, asked, answer.status, is_calm=is_calm):
        return []
    is_now = asked.offset == "now"
    asked = replace(asked, is_stale=is_stale(answer.headers))
    showable = history.showable(asked.since, asked.party, is_stale=asked.is_stale)
    candidates = [life for life in showable if is_now or life.begin(asked.offset) is not None]
    alive = asked.since.alive
    was_here = alive is not None and alive in candidates and not history.is_over(alive)
    if answer.status == 400 and not was_here:
        # No offset of what is there now.
        return []
    if answer.status == 304:
        answer = stood_for(asked, answer)
    if answer.status not in ((200, 204) if asked.live else (200,)):
        raise Wrong(f"status {answer.status} for a read: {answer.body[:80]!r}")
    body = text_of(answer, is_json=is_json)
    if is_now:
        if body:
            raise Wrong(f"bytes at offset=now: {body[:80]!r}")
        found = candidates_at(history, asked, answer.end)
    elif not body and (beyond := _from_beyond(asked, answer.end, showable)):
        found = beyond
    elif not body and not was_here:
        # An offset of another life, perhaps: whatever the origin makes of it.
        return []
    else:
        found = matching(history, body, asked, answer.end, candidates)
    if asked.live == "long-poll":
        _check_poll(asked, answer)
        if answer.status == 204 and is_calm and history.now() - asked.since.at < LEAST_WAIT_S and not answer.is_closed:
            raise Wrong(f"an empty answer to a long-poll that has not waited for {LEAST_WAIT_S} s")
    return truthful(
        asked, found, answer.end, up_to_date=answer.is_up_to_date, is_closed=answer.is_closed, has_bytes=bool(body)
    )


def _from_beyond(asked: Asked, end: str | None, lives: list[Life]) -> list[Life]:
    """The lives behind whose tails the offset lay, and that have the end which was named."""
    start = parse_token(asked.offset or "")
    return [
        life
        for life in lives
        if asked.since.is_beyond(life, asked.offset)
        and (place := life.position_of(end)) is not None
        and start is not None
        and place < start
    ]


def candidates_at(history: History, asked: Asked, end: str | None) -> list[Life]:
    found = [life for life in history.showable(asked.since, asked.party) if life.position_of(end) is not None]
    if not found:
        raise Wrong(f"{end} is no offset of a life that may be shown: {history.lives[-3:]}")
    return found


def text_of(answer: Answer, *, is_json: bool) -> bytes:
    """The stream's bytes in a body; for JSON without the array's brackets."""
    if not is_json or answer.status == 204:
        return answer.body
    if (answer.body[:1], answer.body[-1:]) != (b"[", b"]"):
        raise Wrong(f"no JSON array: {answer.body[:40]!r}…{answer.body[-40:]!r}")
    return answer.body[1:-1]


def matching(history: History, body: bytes, asked: Asked, end: str | None, candidates: list[Life]) -> list[Life]:
    """Those lives of which `body` is exactly what lies between the two offsets."""
    found = [life for life in candidates if _has(life, body, asked, asked.offset, end)]
    if not found:
        raise Wrong(
            f"{_whose(history, body, asked, end)}: {body[:60]!r} ({len(body)} bytes) from {asked.offset} to {end}"
        )
    return found


def _has(life: Life, body: bytes, asked: Asked, offset: str | None, end: str | None) -> bool:
    stop = life.position_of(end)
    starts = life.starts(offset, -math.inf if asked.is_stale else asked.since.at - TRIMMED_WITHIN_S)
    return stop is not None and any(start <= stop and life.between(start, stop) == body for start in starts)


def _whose(history: History, body: bytes, asked: Asked, end: str | None) -> str:
    """What is wrong with bytes that no life that may be shown has there."""
    for life in reversed(history.lives):
        if _has(life, body, asked, asked.offset, end):
            return f"the bytes are those of {life}, which may not be shown any more"
        if _has(life, body, replace(asked, is_stale=True), asked.offset, end):
            return f"the origin trimmed these bytes of {life} more than {TRIMMED_WITHIN_S} s ago: {life.trims}"
        start = life.begin(asked.offset)
        if body and start is not None and (rest := life.between(start, life.tail)).startswith(body):
            return (
                f"the bytes are of {life} and {len(rest) - len(body)} short of its tail, but the offset is not theirs"
            )
    return "no life has these bytes there"


def truthful(
    asked: Asked, lives: list[Life], end: str | None, *, up_to_date: bool, is_closed: bool, has_bytes: bool
) -> list[Life]:
    """Those lives of which what was said of the tail is true, some time between the moment and now."""
    if not (up_to_date or is_closed or has_bytes):
        raise Wrong(f"no bytes, and not up to date at {end}: that leads nowhere")
    found = [life for life in lives if _why_untrue(life, asked.since, end, up_to_date, is_closed) is None]
    if not found:
        why = _why_untrue(lives[0], asked.since, end, up_to_date, is_closed)
        raise Wrong(f"up-to-date={up_to_date}, closed={is_closed} at {end} is not true of {lives[0]}: {why}")
    return found


def _why_untrue(life: Life, since: Moment, end: str | None, up_to_date: bool, is_closed: bool) -> str | None:
    place = life.position_of(end)
    if place is None:
        return "it has no such offset"
    if is_closed:
        if not up_to_date:
            return "closed and not up to date"
        return None if life.is_closed and place == life.tail else "it is not closed there"
    acked, was_closed = since.acked.get(life, (place, False))
    if not up_to_date:
        return None
    if place < acked:
        return f"{acked.token} had been acknowledged before it was asked"
    return "its closure had been acknowledged before it was asked" if was_closed else None


def _check_poll(asked: Asked, answer: Answer) -> None:
    if answer.status == 204 and not answer.is_up_to_date:
        raise Wrong("a 204 that does not say up to date")
    cursor = answer.headers.get("Stream-Cursor")
    if answer.is_closed or ("ETag" in answer.headers and cursor is None):
        return
    if cursor is None or int(cursor) <= int(asked.cursor or -1):
        raise Wrong(f"the cursor {cursor} is not above the client's {asked.cursor}")


def late(history: History, lives: list[Life], now: float) -> None:
    """Wrong where all of these lives ended so long ago that no reader may see them any more."""
    buried = [life.buried_at for life in lives]
    if lives and all(at is not None and now - at > ENDED_WITHIN_S for at in buried):
        raise Wrong(
            f"shown {now - max(at for at in buried if at is not None):.1f} s after it was known to be over: {lives[0]}"
        )


def head(history: History, asked: Asked, answer: Answer, *, is_calm: bool) -> list[Life]:
    """The same for HEAD."""
    if refusal(history, asked, answer.status, is_calm=is_calm):
        return []
    if answer.status != 200:
        raise Wrong(f"status {answer.status} for a HEAD")
    found = [
        life
        for life in candidates_at(history, asked, answer.end)
        if life.stream.lifetime.ttl_s == _number(answer.headers.get("Stream-TTL"))
        and life.stream.lifetime.expires_at_text == answer.headers.get("Stream-Expires-At")
    ]
    if not found:
        named = {k: v for k, v in answer.headers.items() if k.startswith("Stream-")}
        raise Wrong(f"{named} are of no life that may be shown: {history.lives[-3:]}")
    return truthful(asked, found, answer.end, up_to_date=True, is_closed=answer.is_closed, has_bytes=False)


def _number(value: str | None) -> int | None:
    return int(value) if value is not None else None


# -- live events


@dataclass
class Following:
    """One SSE connection: where its client stands, and which lives it may be of."""

    asked: Asked
    lives: list[Life]
    at: str
    cursor: str | None
    kind: str
    """The stream's content type."""
    is_closed: bool = False
    waiting: str | None = None
    """A data event whose control event has not come."""

    def data(self, text: str) -> None:
        """A data event."""
        if self.waiting is not None:
            raise Wrong("a data event without a control event behind it")
        self.waiting = text

    def _bytes(self) -> bytes:
        text, self.waiting = self.waiting, None
        if text is None:
            return b""
        if self.kind == "application/json":
            return text_of(Answer(200, CIMultiDict(), text.encode()), is_json=True)
        if self.kind.startswith("text/"):
            return text.encode()
        try:
            return base64.b64decode(text, validate=True)
        except ValueError:
            raise Wrong(f"no base64: {text[:60]}") from None

    def control(self, text: str) -> None:
        """A control event: it concludes the data event before it, or stands alone."""
        body, control = self._bytes(), json.loads(text)
        end, is_closed = control["streamNextOffset"], bool(control.get("streamClosed"))
        up_to_date = bool(control.get("upToDate")) or is_closed
        here = [life for life in self.lives if _has(life, body, self.asked, self.at, end)]
        if not here:
            trims = [life.trims for life in self.lives]
            raise Wrong(
                f"{body[:60]!r} ({len(body)} bytes) from {self.at} to {end} is of none of {self.lives}, trimmed {trims}"
            )
        asked = replace(self.asked, offset=self.at)
        # A control event may come at any time, as a sign of life.
        self.lives = truthful(asked, here, end, up_to_date=up_to_date, is_closed=is_closed, has_bytes=True)
        cursor = control.get("streamCursor")
        if not is_closed and (cursor is None or int(cursor) < int(self.cursor or -1)):
            raise Wrong(f"the cursor went from {self.cursor} to {cursor}")
        self.at, self.cursor, self.is_closed = end, cursor, is_closed


# -- writes


def write(history: History, asked: Asked, answer: Answer, *, is_calm: bool) -> Position | None:
    """What an answer to a write says of the tail; Wrong where it cannot be."""
    if refusal(history, asked, answer.status, is_calm=is_calm) or answer.end is None:
        return None
    ends = (life.position_of(answer.end) for life in reversed(history.lives))
    place = next((end for end in ends if end), None)
    if place is None and answer.status is not None and answer.status < 300 and history.lives:
        lives = history.lives[-3:]
        if all(life.position_of(answer.end) is None for life in lives):
            raise Wrong(f"an acknowledgement names {answer.end}, which is no offset of {lives}")
    return place
