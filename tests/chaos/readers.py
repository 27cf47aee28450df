"""Readers of every kind; each judges every answer that it is given."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import Final

from multidict import CIMultiDict

from tests.answers import BROKEN, Answer
from tests.chaos import judge
from tests.chaos.client import HUNG, LOST, Client, Hung, until_gone
from tests.chaos.history import History, Life
from tests.chaos.judge import Asked, Following, Shown, Wrong
from tests.chaos.run import Place, Run
from tests.scenarios.wire import Event, Wire
from tests.waiting import pause

_PAUSE_S: Final = 0.1
_CODINGS: Final = ((), (), (), (), ("gzip",), ("br", "gzip"), ("zstd",), ("zstd", "br", "gzip"))
_LOOK_S: Final = 0.25


@dataclass
class Reader(ABC):
    """One client that reads, now this stream and now that one."""

    run: Run
    client: Client
    rng: Random

    async def work(self) -> None:
        """Read until the run ends."""
        try:
            while True:
                place = await self.run.next_write(self.rng.random() * _PAUSE_S)
                await self.turn(place or self.rng.choice(self.run.places))
        finally:
            self.client.leave()

    @abstractmethod
    async def turn(self, place: Place) -> None:
        """A request, or several that belong together."""

    @property
    def party(self) -> str:
        return self.client.party

    def token(self, place: Place) -> str | None:
        """An offset to read from: the start, the tail, or one that was named before."""
        choice = self.rng.random()
        if choice < 0.4:
            # Most send the very same request, which is what a gateway remembers answers to.
            return None if choice < 0.1 else "-1"
        last = self.run.history(place.path, self.party).last
        if choice < 0.6 and last is not None:
            return last.tail.token
        return self.rng.choice(self.run.tokens[place.path, self.party])

    def asked(self, place: Place, method: str = "GET", offset: str | None = None, **more: object) -> Asked:
        since = self.run.history(place.path, self.party).moment()
        return Asked(method, place.path, self.party, since, offset, is_calm=self.run.is_calm, **more)  # type: ignore[arg-type]

    async def read(self, place: Place, asked: Asked) -> Answer | None:
        """One read, judged; None where it is wrong or brought nothing."""
        run, history, epoch = self.run, self.run.history(place.path, self.party), self.run.epoch
        try:
            answer = await self.client.ask(asked)
        except Hung:
            run.violate(str(asked), "nothing", HUNG, history)
            return None
        is_calm = run.was_calm(asked, epoch)

        def rule() -> list[Life]:
            judge.own(answer, name=self.client.name, web_origin=self.client.web_origin)
            judge.stays(answer, is_calm=is_calm)
            if asked.method == "HEAD":
                return judge.head(history, asked, answer, is_calm=is_calm)
            lives = judge.read(history, asked, plain, is_json=place.is_json, is_calm=is_calm)
            self._hold(place, asked, plain, answer)
            return lives

        plain = answer
        if answer.status == 200 and asked.method == "GET":
            body = run.judge(asked, answer, history, lambda: judge.decoded(asked, answer))
            if body is None:
                return None
            plain = Answer(200, answer.headers, body)
            run.counts[asked.live or "GET"] -= 1
        lives = run.judge(asked, answer, history, rule)
        if not lives:
            return None
        history.was_shown(self.party, lives)
        is_relayed = "fwd=method" in answer.headers.get("Cache-Status", "")
        if asked.method == "HEAD" and run.system.keeps_facts and not is_relayed:
            history.was_told_lifetime(self.party, lives)
        if answer.end is not None:
            run.tokens[place.path, self.party].append(answer.end)
        return plain

    async def leave_early(self, place: Place, offset: str | None, live: str | None) -> None:
        """Send a request and go, before or in the middle of the answer."""
        asked = self.asked(place, offset=offset, live=live)
        if asked.live and asked.offset is None:
            return
        entry = self.client.entry(asked)
        try:
            wire = await self.client.wire()
            await self.client.send(wire, asked, {}, entry=entry)
            await pause(self.rng.choice((0, 0.001, 0.01)))
        except (*LOST, TimeoutError):
            pass
        finally:
            if entry is not None:
                entry.ended(None, None)
        self.client.leave()

    def _hold(self, place: Place, asked: Asked, plain: Answer, answer: Answer) -> None:
        etag = answer.headers.get("ETag")
        if "fwd=bypass" in answer.headers.get("Cache-Status", "") and asked.offset in (None, "-1"):
            # The tag of a relayed answer is the origin's own.  It does not change when the origin trims the start.
            return
        if answer.status == 200 and etag is not None and plain.end is not None:
            coding = answer.headers.get("Content-Encoding", "identity")
            shown = Shown(etag, plain.body, coding, plain.end, plain.is_closed)
            # JSON's brackets are no part of what a stream's bytes are compared with.
            self.run.hold(place.path, self.party, asked.offset, shown)


class CatchUpReader(Reader):
    """Catches up, from anywhere and often to the tail, with and without conditions and codings; sometimes only asks
    where the tail is."""

    async def turn(self, place: Place) -> None:
        choice = self.rng.random()
        if choice < 0.1:
            await self.read(place, self.asked(place, "HEAD"))
        elif choice < 0.17:
            await self.read(place, self.asked(place, offset="now"))
        elif choice < 0.22:
            live = self.rng.choice((None, None, "long-poll", "sse"))
            await self.leave_early(place, self.token(place), live)
        else:
            await self._walk(place, self.token(place), self.rng.randint(1, 6))

    async def _walk(self, place: Place, offset: str | None, steps: int) -> None:
        for _ in range(steps):
            is_conditional = self.rng.random() < 0.4
            held = self.run.held(place.path, self.party, offset) if is_conditional else ()
            answer = await self.read(
                place, self.asked(place, offset=offset, accepts=self.rng.choice(_CODINGS), held=held)
            )
            if answer is None or answer.status != 200 or answer.is_up_to_date:
                return
            offset = answer.end


class PollReader(Reader):
    """Long-polls on, for a while, from where each answer ended."""

    async def turn(self, place: Place) -> None:
        await self.go_on(place, self.token(place) or "-1", self.rng.choice((None, None, "9000000")))

    async def go_on(self, place: Place, offset: str | None, cursor: str | None = None) -> None:
        """Long-poll from this offset on."""
        for _ in range(self.rng.randint(1, 12)):
            held = self.run.held(place.path, self.party, offset) if self.rng.random() < 0.1 else ()
            answer = await self.read(
                place, self.asked(place, offset=offset, live="long-poll", cursor=cursor, held=held)
            )
            if answer is None or answer.status not in (200, 204) or answer.is_closed:
                return
            offset, cursor = answer.end, answer.headers.get("Stream-Cursor")


class SseReader(Reader):
    """Follows by SSE and comes back from its last offset when the connection ends; some are slow, some stop reading."""

    async def turn(self, place: Place) -> None:
        await self.go_on(place, self.token(place) or "-1")

    async def go_on(self, place: Place, at: str) -> None:
        """Follow from this offset on."""
        history, cursor = self.run.history(place.path, self.party), None
        for _ in range(self.rng.randint(1, 4)):
            asked = self.asked(place, offset=at, live="sse", cursor=cursor)
            try:
                following = await self._follow(place, history, asked)
            except Hung:
                self.run.violate(str(asked), "nothing", HUNG, history)
                return
            if following is None or following.at == "-1":
                return
            at, cursor = following.at, following.cursor

    async def _follow(self, place: Place, history: History, asked: Asked) -> Following | None:
        """One connection; where its client stands then, None where there is nothing to come back for."""
        run, epoch, entry = self.run, self.run.epoch, self.client.entry(asked)
        wire: Wire | None = None
        status: int | None = None
        try:
            system = run.system
            if not self.client.is_far and system.gateway is None:
                return None
            url = system.client_side.url if self.client.is_far else system.running.url
            wire = await self.client.open(url, 4_096 if self.rng.random() < 0.2 else None)
            await self.client.send(wire, asked, {}, entry=entry)
            head = await wire.head()
            status = head.status
            if status != 200:
                answer = Answer(status, head.headers, await wire.body())
                run.judge(asked, answer, history, lambda: self._refused(history, asked, answer, epoch))
                return None
            is_calm = run.was_calm(asked, epoch)
            checked = partial(_true, self._check_own, head.headers, is_calm)
            if run.judge(asked, str(head.headers), history, checked) is None:
                return None
            run.counts["sse"] -= 1
            lives = history.showable(asked.since, self.party)
            if any(asked.since.is_beyond(life, asked.offset) for life in lives):
                lives = []
            seen = replace(asked, is_stale=judge.is_stale(head.headers))
            following = Following(seen, lives, asked.offset or "-1", asked.cursor, place.content_type)
            await self._listen(place, history, wire, following, epoch)
            return following
        except LOST:
            run.judge(asked, BROKEN, history, lambda: self._refused(history, asked, BROKEN, epoch))
            return None
        except TimeoutError:
            raise Hung from None
        finally:
            if entry is not None:
                entry.ended(status, wire)
            if wire is not None:
                await until_gone(wire)

    def _check_own(self, headers: CIMultiDict[str], is_calm: bool) -> None:
        answer = Answer(200, headers, b"")
        judge.own(answer, name=self.client.name, web_origin=self.client.web_origin)
        judge.stays(answer, is_calm=is_calm)

    def _refused(self, history: History, asked: Asked, answer: Answer, epoch: int) -> list[Life]:
        alive = asked.since.alive
        is_over = alive is None or history.is_over(alive)
        is_calm = self.run.was_calm(asked, epoch) and not (answer.status is None and is_over)
        if judge.refusal(history, asked, answer.status, is_calm=is_calm):
            return []
        if answer.status == 400 and (is_over or alive is None or alive.begin(asked.offset) is None):
            return []
        raise Wrong(f"status {answer.status} for a live read")

    async def _listen(self, place: Place, history: History, wire: Wire, following: Following, epoch: int) -> None:
        run, rng, asked = self.run, self.rng, following.asked
        until = run.now() + rng.choice((0.2, 1.0, 4.0))
        is_slow, stops = rng.random() < 0.1, rng.random() < 0.05
        # One task for one event: what a cancelled read has taken from the connection would be lost.
        upcoming: asyncio.Task[Event | None] | None = None
        was_orphan = not following.lives
        try:
            while run.now() < until or following.waiting is not None:
                if stops:
                    await pause(rng.uniform(0.1, 1.5))
                    return
                upcoming = upcoming or asyncio.get_running_loop().create_task(wire.event())
                done, _ = await asyncio.wait({upcoming}, timeout=_LOOK_S)
                if not done:
                    # Silent, and not only behind with what has come.
                    if not self.client.is_far and not was_orphan:
                        self._check_ended(history, following)
                    if run.now() >= until:
                        return
                    continue
                event, upcoming = upcoming.result(), None
                if event is None or event.name == ":":
                    if event is None:
                        return
                    continue
                if was_orphan:
                    return  # an offset of another life: whatever the origin makes of it
                take = following.data if event.name == "data" else following.control
                if run.judge(asked, event.data, history, partial(_true, take, event.data)) is None:
                    return
                if event.name == "data":
                    run.counts["sse"] -= 1
                    continue
                history.was_shown(self.party, following.lives)
                run.tokens[place.path, self.party].append(following.at)
                if following.is_closed:
                    return
                if is_slow:
                    await pause(rng.random() * 0.2)
        finally:
            if upcoming is not None:
                upcoming.cancel()
                await asyncio.gather(upcoming, return_exceptions=True)

    def _check_ended(self, history: History, following: Following) -> None:
        run = self.run
        run.judge(
            following.asked,
            f"a connection that stands at {following.at} and is open still",
            history,
            partial(_true, judge.late, history, following.lives, run.now()),
        )
        run.counts["sse"] -= 1


@dataclass
class Crowd(Reader):
    """Clients that read a quiet stream live from the same offset, and come back for more in the same moment: one event
    wakes all of them.  The client of the crowd itself finds where the tail is.  Some come late, when it is known what
    the first have asked."""

    members: Sequence[PollReader | SseReader] = ()

    async def work(self) -> None:
        try:
            await super().work()
        finally:
            for member in self.members:
                member.client.leave()

    async def turn(self, place: Place) -> None:
        place = self.rng.choice([place for place in self.run.places if place.is_quiet])
        found = await self.read(place, self.asked(place, offset="now"))
        if found is not None and found.end is not None and not found.is_closed:
            await asyncio.gather(*(self._send(member, place, found.end) for member in self.members))

    async def _send(self, member: PollReader | SseReader, place: Place, offset: str) -> None:
        await pause(self.rng.choice((0, 0, 0.03, 0.1)))
        if self.rng.random() < 0.2:
            await member.leave_early(place, offset, "sse" if isinstance(member, SseReader) else "long-poll")
        else:
            await member.go_on(place, offset)


def _true(rule: Callable[..., None], *about: object) -> bool:
    """Not None, where the rule raises nothing."""
    rule(*about)
    return True
