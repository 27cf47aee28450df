"""A whole system in one event loop: origin, gateway, writers and readers.  Every answer is judged against the log."""

from __future__ import annotations

import asyncio
import base64
import json
import math
import random
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Final

from aiohttp import ClientError, ClientSession, ClientTimeout, TCPConnector

from gateway.app import RunningGateway, start_gateway
from gateway.config.gateway import GatewayConfig
from gateway.origin.app import Origin, OriginSettings, RunningOrigin, start_origin
from gateway.origin.faults import GatedSwitch, Switch
from gateway.origin.positions import Position
from gateway.origin.store import AppendParams, CreateParams, Store
from tests.answers import BROKEN, Answer
from tests.fast_clock import FastClock
from tests.invariant.log import Incarnation, Log, Moment
from tests.waiting import eventually, pass_turns, pause

PATH: Final = "/s"
SPEED: Final = 50.0
"""Seconds of system time in one real second: pauses between retries cost milliseconds."""
PATIENCE_S: Final = 6.0
"""Real seconds after which a request counts as hung."""


@dataclass
class World:
    """`content_type` decides the format of bodies; `is_out_of_band` allows deletion behind the gateway's back."""

    content_type: str = "application/octet-stream"
    cache_bytes: int = 1 << 20
    max_chunk_bytes: int = 64
    trust_s: float = 60.0
    tail: str = "followed"
    """The route's setting for the source of the tail."""
    is_nameless: bool = False
    """Whether the origin's ETags fail to distinguish incarnations, as those of real origins do."""
    seed: int = 0
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.new_event_loop)
    has_trouble: bool = False
    """Whether the origin has misbehaved since the last quiet: only then may a request fail."""
    was_out_of_band: bool = False
    """Whether the stream was deleted behind the gateway's back since the gateway last saw it end."""
    made_unseen_at: float = -math.inf
    """When the stream was last created behind the gateway's back."""
    held_until: float = -math.inf
    """When the last of the origin's held replies was released."""

    def __post_init__(self) -> None:
        self.count = 0
        self.tokens: list[str] = ["-1"]
        self.etags: dict[tuple[str | None, str | None], tuple[str, Answer]] = {}
        self.readers: list[Reader] = []
        self.holds: list[GatedSwitch] = []
        self.tasks: set[asyncio.Task[None]] = set()
        self.failures: list[BaseException] = []
        self.poison: Switch | None = None
        """Has the next read be answered with another stream's bytes."""
        self.poisoned_at = -math.inf
        """When the latest such reply was seen to have been sent."""
        self.run(self._start())

    @property
    def is_json(self) -> bool:
        return self.content_type == "application/json"

    @property
    def is_text(self) -> bool:
        return self.content_type.startswith("text/")

    async def _start(self) -> None:
        clock = FastClock(SPEED)
        settings = OriginSettings(long_poll_timeout_s=20.0, sse_lifetime_s=40.0, max_chunk_bytes=self.max_chunk_bytes)
        self.origin = Origin(settings, clock=clock, random=random.Random(self.seed))
        if self.is_nameless:
            self.origin.store = Store(lambda: "s")
        self.log = Log(self.origin.store, PATH, clock.now)
        self.served: RunningOrigin = await start_origin(settings, origin=self.origin)
        self.gateway: RunningGateway = await start_gateway(
            GatewayConfig.for_origin(
                self.served.url,
                listen="127.0.0.1:0",
                admin="127.0.0.1:0",
                cache_bytes=self.cache_bytes,
                trust_s=self.trust_s,
                tail=self.tail,
                long_poll_timeout_s=5.0,
                sse_lifetime_s=20.0,
                live_linger_s=0.5,
                collapse_wait_s=1.0,
                # Real seconds.  A stopping origin may leave behind an accepted connection that it never serves:
                # asyncio's listener forgets those.
                first_byte_timeout_s=3.0,
                live_first_byte_timeout_s=4.0,
                max_reply_bytes=1024,
                shutdown_timeout_s=0.5,
            ),
            clock=clock,
            rng=random.Random(self.seed),
        )
        self.http = ClientSession(
            connector=TCPConnector(limit=0), timeout=ClientTimeout(total=PATIENCE_S), auto_decompress=False
        )

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run the world until `work` is done."""
        result = self.loop.run_until_complete(asyncio.wait_for(work, PATIENCE_S * 2))
        self.raise_failures()
        return result

    def raise_failures(self) -> None:
        if getattr(self, "failures", None):
            raise self.failures[0]

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self.loop.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.failures.append(error)

    # -- writing

    def message(self) -> bytes:
        """The next message: each is different, and all have one length, so that offsets of two lives agree."""
        self.count += 1
        if self.is_json:
            return json.dumps(f"{self.count:04d},[]").encode()
        if self.is_text:
            return f"{self.count:04d}é\n{self.count:04d}.".encode()
        return b"%04d\r\n\x00\xff." % self.count

    def body(self, messages: int) -> bytes:
        parts = [self.message() for _ in range(messages)]
        return b"[" + b",".join(parts) + b"]" if self.is_json else b"".join(parts)

    def url(self, is_direct: bool) -> str:
        return (self.served.url if is_direct else self.gateway.gateway_url) + PATH

    async def create(self, *, is_direct: bool = False, messages: int = 0, is_closed: bool = False) -> int | None:
        headers = {"Content-Type": self.content_type}
        if is_closed:
            headers["Stream-Closed"] = "true"
        body = self.body(messages) if messages else None
        before = self.made_unseen_at
        if is_direct:
            # Reads may come between the creation at the origin and the arrival of its answer here.
            self.made_unseen_at = self.log.now()
        answer = await self.write("PUT", headers, body, is_direct)
        if is_direct:
            self.made_unseen_at = self.log.now() if answer.status == 201 else before
        elif answer.status == 201:
            self.log.bury()
            self.was_out_of_band = False
        return answer.status

    async def append(self, messages: int, *, is_direct: bool = False, is_closing: bool = False) -> int | None:
        headers = {"Content-Type": self.content_type} if messages else {}
        if is_closing:
            headers["Stream-Closed"] = "true"
        before = self.log.alive
        answer = await self.write("POST", headers, self.body(messages) if messages else b"", is_direct)
        if answer.status in (200, 204) and not is_direct and before is not None and before is self.log.alive:
            acked = before.position_of(answer.end)
            assert acked is not None, "an acknowledgement names an offset that the stream does not have"
            before.acked = max(before.acked, acked)
            before.is_close_acked = before.is_close_acked or is_closing
        return answer.status

    async def delete(self, *, is_direct: bool = False) -> int | None:
        before = self.log.alive
        answer = await self.write("DELETE", {}, None, is_direct)
        if answer.status == 204:
            if is_direct:
                self.was_out_of_band = True
            else:
                self.log.bury()
                self.was_out_of_band = False
        elif before is not None and self.log.alive is not before:
            self.was_out_of_band = True
        return answer.status

    async def write(self, method: str, headers: dict[str, str], body: bytes | None, is_direct: bool) -> Answer:
        answer = await self._exchange(method, self.url(is_direct), headers, body)
        assert (answer.status is not None and answer.status < 500) or self.has_trouble, f"{method}: {answer}"
        return answer

    async def _exchange(self, method: str, url: str, headers: dict[str, str], body: bytes | None = None) -> Answer:
        try:
            async with self.http.request(method, url, headers=headers, data=body, allow_redirects=False) as reply:
                return Answer(reply.status, reply.headers, await reply.read())
        except (ClientError, ConnectionError):
            return BROKEN

    # -- reading

    def read_url(self, offset: str | None, live: str | None = None, cursor: str | None = None) -> str:
        query = [f"{name}={value}" for name, value in (("offset", offset), ("live", live), ("cursor", cursor)) if value]
        return f"{self.url(False)}?{'&'.join(query)}" if query else self.url(False)

    async def catch_up(
        self, offset: str | None, *, is_conditional: bool = False, credentials: str | None = None
    ) -> Answer:
        """One catch-up read, judged.  Readers with credentials read from separate tapes."""
        since = self.log.moment()
        key = (offset, credentials)
        remembered = self.etags.get(key) if is_conditional else None
        headers = {"If-None-Match": remembered[0]} if remembered else {}
        if credentials:
            headers["Authorization"] = credentials
        answer = await self._exchange("GET", self.read_url(offset), headers)
        if answer.status == 304:
            assert remembered is not None
            assert answer.body == b""
            # A 304 says that the client's copy is what a 200 with these headers would bring now.  A relayed one has
            # the origin's headers, which do not name the offset.
            assert answer.end in (None, remembered[1].end)
            assert not answer.is_closed or remembered[1].is_closed, "a 304 that hides the closure"
            answer = Answer(200, answer.headers if answer.end else remembered[1].headers, remembered[1].body)
        self.judge(answer, offset, since, is_live=False)
        if answer.status == 200 and "ETag" in answer.headers:
            self.etags[key] = (answer.headers["ETag"], answer)
        return answer

    async def now(self) -> Answer:
        since = self.log.moment()
        answer = await self._exchange("GET", self.read_url("now"), {})
        if not self.is_excused(answer, since, is_live=False):
            assert answer.status == 200
            assert answer.body == (b"[]" if self.is_json else b"")
            self.judge_end(
                answer, [one for one in self.believable(since, answer) if one.position_of(answer.end)], since
            )
        return answer

    async def head(self) -> None:
        since = self.log.moment()
        answer = await self._exchange("HEAD", self.url(False), {})
        if not self.is_excused(answer, since, is_live=False):
            assert answer.status == 200
            assert any(
                (place := one.position_of(answer.end)) is not None and place >= self.least(since).get(one, place)
                for one in self.log.incarnations
            )

    async def long_poll(self, offset: str, cursor: str | None = None, headers: dict[str, str] | None = None) -> Answer:
        since = self.log.moment()
        answer = await self._exchange("GET", self.read_url(offset, "long-poll", cursor), headers or {})
        if answer.status == 204:
            assert answer.is_up_to_date
        if answer.status in (200, 204) and not answer.is_closed:
            mine = int(cursor or 0)
            assert int(answer.headers["Stream-Cursor"]) > mine or not self.believable(since, answer)
        self.judge(answer, offset, since, is_live=True)
        return answer

    # -- judging

    def is_excused(self, answer: Answer, since: Moment, *, is_live: bool) -> bool:
        """Whether an answer without bytes is allowed here; fails if it is not."""
        status = answer.status
        if status is None or status >= 500:
            assert self.has_trouble, f"failed without a cause: {status} {answer.body!r}"
            return True
        if status == 404:
            was_here = self.log.was_alive_throughout(since)
            # A trusted follower may be late to report what happens behind the gateway's back.
            is_late = self.was_out_of_band and (is_live or self.tail == "followed")
            absent_s = self.gateway.config.routes[0].absent_s if self.tail == "followed" else -1.0
            # A 404 from before the creation is repeated for a while, and shared by all waiting requests if it is held.
            is_late |= math.isfinite(self.made_unseen_at) and (
                since.at <= max(self.made_unseen_at, self.was_held_at) + absent_s
            )
            assert not was_here or is_late, "404 for a stream that was there all the time"
            return True
        return False

    @property
    def was_held_at(self) -> float:
        """When one of the origin's replies was last held; now, if one is."""
        return self.log.now() if self.holds else self.held_until

    def release(self, pick: int) -> None:
        """Release one held reply."""
        self.holds.pop(pick % len(self.holds)).release()
        self.held_until = self.log.now()

    def least(self, since: Moment) -> dict[Incarnation, Position]:
        """The least position that an up-to-date answer may end at, unless it is a live read's."""
        return since.tails if self.tail == "asked" else since.acked

    def believable(self, since: Moment, answer: Answer) -> list[Incarnation]:
        return self.log.believable(since)

    def mistake_a_reply(self) -> None:
        """Have the origin answer the next read with another stream's bytes, which end at an offset of this one."""
        assert self.log.alive is not None
        named = {
            "Content-Type": self.content_type,
            "Stream-Next-Offset": self.log.alive.tail.token,
            "Stream-Up-To-Date": "true",
        }
        self.poison = self.origin.faults.replace(200, named, self.body(2), kind="catchup")

    def may_be_mistaken(self, since: Moment) -> bool:
        """Whether a read since then may have been answered with bytes that were confirmed before the mistake."""
        if self.poison is not None and self.poison.hits:
            self.poison, self.poisoned_at = None, self.log.now()
        return since.at <= self.poisoned_at + self.trust_s

    def judge(self, answer: Answer, offset: str | None, since: Moment, *, is_live: bool) -> None:
        """Fail unless the answer is true of one of the incarnations that it may come from."""
        is_stale = self.poisoned_at > -math.inf and "stale_if_error" in answer.headers.get("Cache-Status", "")
        if self.may_be_mistaken(since) or is_stale:
            return
        if self.is_excused(answer, since, is_live=is_live):
            return
        candidates = [one for one in self.log.believable(since) if one.begin(offset) is not None]
        was_here = self.log.had_throughout(since, offset)
        if not was_here and (answer.status == 400 or not self.strip(answer)):
            # Not an offset of the stream at the time of the request: any answer of the origin is allowed.
            return
        assert answer.status in (200, 204), f"{answer.status} {answer.body!r}"
        self.judge_end(
            answer, self.matching(self.strip(answer), offset, answer.end, candidates), since, is_live=is_live
        )
        assert answer.end is not None
        self.tokens.append(answer.end)
        if not answer.is_up_to_date:
            assert self.strip(answer), "an answer without bytes that is not up to date leads nowhere"

    def strip(self, answer: Answer) -> bytes:
        if not self.is_json or answer.status == 204:
            return answer.body
        assert (answer.body[:1], answer.body[-1:]) == (b"[", b"]"), answer.body
        return answer.body[1:-1]

    def matching(
        self, text: bytes, offset: str | None, end: str | None, candidates: list[Incarnation]
    ) -> list[Incarnation]:
        """The incarnations in which `text` is exactly the bytes between the two offsets."""
        found = []
        for one in candidates:
            start, stop = one.begin(offset), one.position_of(end)
            if start is not None and stop is not None and start <= stop and one.between(start, stop) == text:
                found.append(one)
        assert found, f"no incarnation has {text!r} from {offset} to {end}"
        return found

    def judge_end(self, answer: Answer, candidates: list[Incarnation], since: Moment, *, is_live: bool = False) -> None:
        assert any(
            self.is_true(one, answer.end, answer.is_up_to_date, answer.is_closed, since, is_live=is_live)
            for one in candidates
        ), (
            f"from {since.tick}: end {answer.end}, up to date {answer.is_up_to_date}, closed {answer.is_closed}, but "
            f"{[(one.born_at, one.died_at, one.tail.token, one.is_closed) for one in candidates]} {answer.headers}"
        )

    def is_true(
        self, one: Incarnation, end: str | None, up_to_date: bool, is_closed: bool, since: Moment, *, is_live: bool
    ) -> bool:
        """Whether the answer's claims about the tail were true of this incarnation at some time since the moment."""
        place = one.position_of(end)
        if place is None:
            return False
        if is_closed:
            return up_to_date and one.is_closed and place == one.tail
        if not up_to_date:
            return True
        if is_live or self.tail == "followed":
            # A live read learns of writes behind the gateway's back on arrival, of others before their acknowledgement.
            at_least, was_closed = since.acked.get(one, place), one in since.close_acked
        else:
            at_least, was_closed = since.tails.get(one, place), one in since.closed
            if one.died_at is not None and one.died_at < since.tick:
                return False
        return place >= at_least and not was_closed

    # -- faults

    def cause_trouble(self) -> None:
        self.has_trouble = True

    async def restart_origin(self, meanwhile: Callable[[], object] | None = None) -> None:
        """Cut every connection to the origin; it returns at the same address, after `meanwhile` has run."""
        self.has_trouble = True
        await self.served.stop(grace_s=0)
        if meanwhile is not None:
            meanwhile()
        settings = OriginSettings(port=self.served.port)
        self.served = await start_origin(settings, origin=self.origin)

    def create_anew(self) -> None:
        """Delete the stream and create it with three messages, at once and behind the gateway's back."""
        now = self.origin.clock.wall()
        self.was_out_of_band = True
        self.made_unseen_at = self.log.now()
        self.origin.store.delete(PATH, now)
        self.origin.store.create(PATH, CreateParams(self.content_type, body=self.body(1)), now)
        for _ in range(2):
            self.origin.store.append(PATH, AppendParams(body=self.body(1), content_type=self.content_type), now)

    # -- quiet

    async def reach_quiet(self) -> None:
        """End all faults, let every request be answered, and let every reader reach the tail."""
        self.release_all()
        async with asyncio.timeout(PATIENCE_S):
            while others := self.tasks - {reader.task for reader in self.readers if reader.task is not None}:
                await asyncio.wait(others)
                self.raise_failures()
            await self.until(lambda: all(reader.has_arrived for reader in self.readers))
            # While the gateway considers the origin unreachable it sends nothing, and only requests make it probe.
            while any(origin.retry_in_s is not None for origin in self.gateway.engine.origins.snapshot()):
                await self._exchange("HEAD", self.url(False), {})
                await self.rest()
        self.has_trouble = False

    async def until(self, condition: Callable[[], bool]) -> None:
        """Run the world until the condition holds; not every relevant change in the gateway has a signal."""

        def holds() -> bool:
            self.raise_failures()
            return condition()

        await eventually(holds, within_s=2 * PATIENCE_S, look_s=0.002)

    async def rest(self, seconds: float = 0.5) -> None:
        """Let some system time pass."""
        await pause(seconds / SPEED)

    # -- the end

    async def close(self) -> None:
        """Disconnect all clients, and check that nothing is left in the gateway."""
        for reader in self.readers:
            reader.leave()
        await self.reach_quiet()
        await self.http.close()
        engine = self.gateway.engine
        try:
            async with asyncio.timeout(PATIENCE_S):
                await self.until(lambda: not self.left_over())
                await self.origin.counters.live_is(0)
        except TimeoutError:
            raise AssertionError(f"left over: {self.left_over()}") from None
        assert engine.store.cost == sum(stream.cost for stream in engine.store)

    def left_over(self) -> list[str]:
        """What the gateway still holds although no client needs it."""
        engine = self.gateway.engine
        left = [repr(engine.tasks)] if engine.tasks else []
        left += [f"{count} {what}" for what, count in (
            ("topics", len(engine.live)),
            ("flights", len(engine.fetches)),
            ("connections", engine.client.open_connections),
            ("pins", sum(stream.holds for stream in engine.store)),
        ) if count]  # fmt: skip
        return left

    def end(self) -> None:
        try:
            if not self.failures:
                self.run(self.close())
        finally:
            self.loop.run_until_complete(self._stop())
            self.loop.close()

    def release_all(self) -> None:
        """Remove all faults, and release all held replies."""
        self.origin.faults.clear()
        while self.holds:
            self.release(-1)

    async def _stop(self) -> None:
        self.release_all()
        for reader in self.readers:
            reader.leave()
        tasks = list(self.tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.http.close()
        await self.gateway.stop()
        await self.served.stop(grace_s=0)
        leftover = asyncio.all_tasks() - {asyncio.current_task()}
        if leftover:
            await asyncio.wait(leftover, timeout=2)
        await self.loop.shutdown_asyncgens()


class Reader(ABC):
    """A client that stays: it resumes from its last offset after any failure, until its stream has ended."""

    def __init__(self, world: World, offset: str, credentials: str | None = None) -> None:
        self.world = world
        self.headers = {"Authorization": credentials} if credentials else {}
        self.at = offset
        self.alive = world.log.alive
        self.has_seen_end = False
        self.has_left = False
        self.requests = 0
        self.up_to_date_at: list[str] = []
        """The offsets at which it was up to date."""
        self.cursor: str | None = None
        self.task: asyncio.Task[None] | None = None
        world.readers.append(self)
        self.task = world.spawn(self._live())

    @property
    def is_orphan(self) -> bool:
        """Whether the incarnation that it began with is dead."""
        return self.alive is None or self.alive.died_at is not None

    @property
    def has_arrived(self) -> bool:
        """Whether it has everything that there is, and has been told so."""
        if self.has_left or self.task is None or self.task.done():
            return True
        if self.is_orphan or self.alive is None:
            return False  # its next answer will say so, and it will leave
        is_there = self.at == self.alive.tail.token
        return is_there and (self.has_seen_end or not self.alive.is_closed)

    def leave(self) -> None:
        self.has_left = True
        if self.task is not None:
            self.task.cancel()

    async def _live(self) -> None:
        while not self.has_seen_end:
            self.requests += 1
            if not await self.once():
                return
            if self.is_orphan:
                return

    @abstractmethod
    async def once(self) -> bool:
        """Send one request; returns whether to continue."""


class PollReader(Reader):
    """Long-polls for ever."""

    async def once(self) -> bool:
        answer = await self.world.long_poll(self.at, self.cursor, self.headers)
        if answer.status is None or answer.status >= 500:
            await self.world.rest()
            return True
        if answer.status not in (200, 204):
            return False
        assert answer.end is not None
        self.at, self.cursor = answer.end, answer.headers.get("Stream-Cursor")
        self.has_seen_end = answer.is_closed
        return True


_LINE: Final = re.compile(rb"\r\n|\r|\n")


class SseReader(Reader):
    """Reads events and comes back when the connection ends."""

    async def once(self) -> bool:
        world = self.world
        since = world.log.moment()
        url = world.read_url(self.at, "sse", self.cursor)
        try:
            async with world.http.get(url, headers=self.headers) as reply:
                if reply.status != 200:
                    answer = Answer(reply.status, reply.headers, await reply.read())
                    if reply.status == 400:
                        # Earlier events may be of a stream that the gateway did not know to be dead.
                        assert self.is_orphan or world.was_out_of_band, answer
                        return False
                    world.is_excused(answer, since, is_live=True)
                    await world.rest()
                    return answer.status is not None and answer.status >= 500
                assert reply.headers["Content-Type"] == "text/event-stream"
                is_base64 = reply.headers.get("Stream-SSE-Data-Encoding") == "base64"
                assert is_base64 is not (world.is_json or world.is_text)
                await self._take(reply.content, is_base64, since)
        except (ClientError, ConnectionError, TimeoutError):
            assert world.has_trouble or self.is_orphan, "an SSE connection broke without a cause"
        await world.rest()
        return True

    async def _take(self, content: Any, is_base64: bool, since: Moment) -> None:
        world = self.world
        name, lines, data = "", list[bytes](), list[bytes]()
        candidates = world.log.believable(since)
        async for raw in content:
            line = _LINE.sub(b"", raw)
            if line.startswith(b":"):
                continue
            if line:
                field_name, _, value = line.partition(b":")
                value = value.removeprefix(b" ")
                if field_name == b"event":
                    name = value.decode()
                elif field_name == b"data":
                    lines.append(value)
                continue
            if not lines:
                continue
            event, name, text, lines = name, "", b"\n".join(lines), []
            if event == "data":
                assert not data, "a data event without a control event behind it"
                data.append(base64.b64decode(text) if is_base64 else text[1:-1] if world.is_json else text)
                continue
            assert event == "control"
            control = json.loads(text)
            if self.is_orphan and not data:
                return  # its offset may not exist in the present stream: any answer of the origin is allowed
            self._advance(b"".join(data), control, candidates, since)
            data = []
            if self.has_seen_end:
                return

    def _advance(self, text: bytes, control: dict[str, Any], candidates: list[Incarnation], since: Moment) -> None:
        world = self.world
        end, is_closed = control["streamNextOffset"], control.get("streamClosed", False)
        up_to_date = control.get("upToDate", False)
        # One connection reports one incarnation: those that do not fit here were never the one.
        candidates[:] = world.matching(text, self.at, end, candidates)
        assert any(world.is_true(one, end, up_to_date, is_closed, since, is_live=True) for one in candidates), (
            f"{control} but {[(one.died_at, one.tail.token, one.acked.token, one.is_closed) for one in candidates]}"
        )
        if not is_closed:
            assert int(control["streamCursor"]) >= int(self.cursor or -1)
        if up_to_date:
            self.up_to_date_at.append(end)
        self.at, self.cursor = end, control.get("streamCursor")
        self.has_seen_end = is_closed


async def ignoring_result(work: Coroutine[Any, Any, Any]) -> None:
    """Await work whose result has been judged already."""
    await work


async def going_on(spins: int = 20) -> None:
    """Let everything that is due happen, without letting time pass."""
    await pass_turns(spins)
