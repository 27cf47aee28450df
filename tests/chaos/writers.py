"""Writers: what they send, and what they know of it afterwards.

One writer leads each stream: it alone creates and deletes, and mostly repeats what was not answered until it is
settled.  A second one may append beside it.  A plain append whose answer was lost is never sent again; a producer's is,
with the same sequence number, until it is acknowledged or refused (section 5.2.1).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from random import Random

from tests.answers import Answer
from tests.chaos import judge
from tests.chaos.client import HUNG, Client, Hung
from tests.chaos.history import History, Life
from tests.chaos.judge import Asked
from tests.chaos.run import Place, Run
from tests.waiting import pause

_LARGE = 120
"""Positions after which a stream is deleted rather than appended to."""
_SHORT_S = (10, 40)
_PAUSE_S = 0.03
_QUIET_PAUSE_S = 2.0
_PAD = "." * 64


@dataclass
class Scribe:
    """Makes messages that differ in everything but their length, so that the offsets of two lives agree."""

    place: Place
    name: str
    count: int = 0

    def body(self, messages: int) -> bytes:
        parts = [self._message() for _ in range(messages)]
        return b"[" + b",".join(parts) + b"]" if self.place.is_json else b"".join(parts)

    def _message(self) -> bytes:
        self.count += 1
        # Long enough for a reply to hold a dozen at most: most reads are of a part.
        text = f"{self.name}:{self.count:06d}{_PAD}"
        if self.place.is_json:
            return f'"{text},[]"'.encode()
        if self.place.is_text:
            return f"{text}é\n{text}.".encode()
        return text.encode() + b"\r\n\x00\xff."


@dataclass
class Writer:
    """Writes to one stream as one party."""

    run: Run
    place: Place
    party: str
    rng: Random
    leads: bool
    client: Client
    scribe: Scribe
    producer_seq: int = 0
    epoch: int = 0
    lifetimes: int = field(default=100_000)

    @property
    def history(self) -> History:
        return self.run.history(self.place.path, self.party)

    async def work(self) -> None:
        """Write until the run ends."""
        try:
            while True:
                await self._turn()
                await pause(self.rng.random() * (_QUIET_PAUSE_S if self.place.is_quiet else _PAUSE_S))
        finally:
            self.client.leave()

    async def _turn(self) -> None:
        life, rng = self.history.last, self.rng
        if not self.leads:
            if life is not None and life.died_at is None:
                await self._append(is_producer=rng.random() < 0.5)
            return
        if life is None or self.history.is_over(life):
            # For a while there is no stream to read.
            await pause(rng.random() * rng.choice((0.02, 0.1, 0.4)))
            await self.create()
            return
        ends_at = life.stream.lifetime.expires_at
        if ends_at is not None and rng.random() < 0.3:
            await self._outlive(ends_at)
            return
        # What a party has for itself is only written: the gateway takes a path's end for the end of all it names.
        may_end = not self.place.is_own
        is_large = life.tail.ordinal > _LARGE
        if may_end and rng.random() < 0.03:
            await self._delete_as_on_a_host()
            return
        choice = rng.random()
        if may_end and (is_large or choice < (0.3 if life.is_closed else 0.08)):
            await self._delete()
            if rng.random() < 0.7:
                await self.create()
        elif life.is_closed or is_large:
            await pause(rng.random() * 0.1)
        elif may_end and choice < 0.12:
            await self._append(is_closing=True, messages=rng.choice((0, 1)))
        else:
            await self._append(is_producer=choice < 0.4, messages=rng.choice((1, 1, 2, 5)))

    async def _outlive(self, ends_at: float) -> None:
        """Let the stream's time run out, and have it read at that very moment."""
        clock = self.run.system.clock
        await pause(max(0.0, ends_at - clock.wall()) / clock.speed)
        for _ in range(3):
            self.run.acknowledged(self.place)
            await pause(0.03)

    # -- one write each

    async def create(self) -> None:
        """Create the stream, and do not rest until that is settled."""
        headers, rng = {"Content-Type": self.place.content_type}, self.rng
        kind = rng.random()
        self.lifetimes += 1
        # Where the stream proves to be there still, it knows the producer of before.
        self.producer_seq, self.epoch = 0, 0
        if self.place.is_own or kind < 0.5:
            # A lifetime that no other life has, so that a HEAD tells which one it names.
            headers["Stream-TTL"] = str(self.lifetimes)
        elif kind < 0.65:
            headers["Stream-TTL"] = str(rng.randint(*_SHORT_S))
        elif kind < 0.9:
            ends_at = self.run.system.clock.wall() + rng.uniform(*_SHORT_S)
            headers["Stream-Expires-At"] = datetime.fromtimestamp(ends_at, UTC).isoformat()
        if not self.place.is_own and rng.random() < 0.1:
            headers["Stream-Closed"] = "true"
        body = self.scribe.body(rng.choice((0, 1, 3)))
        if body == b"[]":
            body = b""
        for _ in range(self.rng.choice((1, 20, 20))):
            asked = self._asked("PUT")
            answer = await self._send(asked, headers, body)
            if answer is None:
                return
            if answer.status == 201:
                self.history.created(asked.since)
                self._check(asked, answer)
                return
            if answer.status == 200:
                self._settled(asked, answer)
                return
            if answer.status is not None and answer.status < 500 and answer.status != 429:
                return
            await pause(self.rng.random() * 0.05)

    async def _delete(self) -> None:
        for _ in range(self.rng.choice((1, 20, 20))):
            asked = self._asked("DELETE")
            answer = await self._send(asked, {}, None)
            if answer is None:
                return
            if answer.status in (204, 404, 410):
                self.history.deleted(asked.since, answer.status)
                self._check(asked, answer)
                return
            await pause(self.rng.random() * 0.05)

    async def _delete_as_on_a_host(self) -> None:
        """Delete by a path that an origin which resolves URLs takes for the stream's own.  No gateway passes it on."""
        asked = self._asked("DELETE")
        answer = await self._send(replace(asked, path=f"//host{asked.path}"), {}, None)
        if answer is not None and answer.status == 204:
            self.history.deleted(asked.since, answer.status)
            self._check(asked, answer)

    async def _append(self, *, is_producer: bool = False, is_closing: bool = False, messages: int = 1) -> None:
        body = self.scribe.body(messages) if messages else b""
        headers = {"Content-Type": self.place.content_type} if body else {}
        if is_closing:
            headers["Stream-Closed"] = "true"
        if is_producer and body:
            headers |= {
                "Producer-Id": f"{self.scribe.name.strip()}-{self.lifetimes}",
                "Producer-Epoch": str(self.epoch),
                "Producer-Seq": str(self.producer_seq),
            }
        for _ in range(20 if is_producer else 1):
            asked = self._asked("POST")
            answer = await self._send(asked, headers, body)
            if answer is None:
                return
            is_settled = answer.status is not None and answer.status < 500 and answer.status != 429
            if answer.status in (200, 204):
                self.producer_seq += is_producer
                self._appended(asked, answer, body, is_closing=is_closing)
                self._check(asked, answer)
                return
            if is_settled:
                break
            await pause(self.rng.random() * 0.05)
        if is_producer:
            # Refused by another life that has not heard of this producer, or given up: the number may be taken.
            self.epoch, self.producer_seq = self.epoch + 1, 0

    # -- what is known then

    def _asked(self, method: str) -> Asked:
        return Asked(method, self.place.path, self.party, self.history.moment(), is_calm=self.run.is_calm)

    async def _send(self, asked: Asked, headers: dict[str, str], body: bytes | None) -> Answer | None:
        """The answer, judged; None where it is wrong."""
        run, history, epoch = self.run, self.history, self.run.epoch
        if body:
            history.sent.add(body)
        history.creating += asked.method == "PUT"
        try:
            answer = await self.client.ask(asked, headers, body)
        except Hung:
            run.violate(str(asked), "nothing", HUNG, history)
            return None
        finally:
            history.creating -= asked.method == "PUT"
        history.note(f"{asked.method} -> {answer.status}{' ' + answer.end if answer.end else ''}")
        is_calm = run.was_calm(asked, epoch)
        verdict = run.judge(
            asked, answer, history, lambda: judge.write(history, asked, answer, is_calm=is_calm) or answer
        )
        return answer if verdict is not None else None

    def _check(self, asked: Asked, answer: Answer) -> None:
        """See that what was acknowledged has happened, and have readers look at it at once."""
        self.run.acknowledged(self.place)
        self.run.judge(asked, answer, self.history, lambda: True)
        self.run.counts[asked.method] -= 1

    def _settled(self, asked: Asked, answer: Answer) -> None:
        """A PUT found the stream there."""
        found = [life for life in self.history.lives if life.died_at is None or life.died_at > asked.since.tick]
        if len(found) == 1:
            self.history.acknowledged(found[0], found[0].position_of(answer.end), is_closed=False)

    def _appended(self, asked: Asked, answer: Answer, body: bytes, *, is_closing: bool) -> None:
        history = self.history
        life: Life | None
        if body:
            life = history.stored.get(body)
            if life is None:
                history.wrong.append(f"an append was acknowledged that the origin does not have: {body[:80]!r}")
                return
        else:
            closed = [one for one in history.lives if one.is_closed and one.tail.token == answer.end]
            life = next((one for one in closed if one.died_at is None or one.died_at > asked.since.tick), None)
            if life is None:
                history.wrong.append("a closure was acknowledged, and the origin has closed nothing")
                return
        place = life.position_of(answer.end)
        if place is None:
            history.wrong.append(f"an acknowledged append names {answer.end}, which is no offset of {life}")
            return
        history.acknowledged(life, place, is_closed=is_closing)
