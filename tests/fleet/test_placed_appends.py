"""An owner never sends bytes that lack an append which the asking member has seen acknowledged."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Final, NamedTuple, cast

from hypothesis import given
from hypothesis import strategies as st

from gateway.aio.clock import ManualClock
from gateway.engine.fleet_processes import Met
from gateway.engine.fleet_writes import CountedWrites, SeenWrites
from gateway.engine.path_events import AppendedElsewhere
from gateway.engine.relayed_request import NO_CHANGE, SentRequest
from gateway.live.topics import LiveTopics
from gateway.protocol.fleet_headers import MemberField
from gateway.protocol.mode import Mode
from gateway.protocol.sharing import Group, Partition, StreamKey
from gateway.protocol.stream_version import Version
from gateway.tape.stream import Stream
from gateway.tape.tape import Tape
from gateway.upstream.reply import Reply
from gateway.workers.member_owners import MemberOwners

GROUP: Final = Group("http://origin", "/s")


def token(length: int) -> str:
    return f"{length:06}"


class Question(NamedTuple):
    """A request of a member for the stream, or a probe, on its way to the owner."""

    field: MemberField
    least: int | None
    """The length of the stream by the latest append that the member had seen acknowledged; None for a probe."""


class OwnersRead(NamedTuple):
    """A request of the owner to the origin."""

    sent_at: float
    version: Version
    length: int
    """The length of the stream when the origin has answered."""


class World:
    """The origin, two members that append to its stream, and the owner, which reads the stream."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.stream = Stream(StreamKey(GROUP, "", Partition("r")), Tape())
        self.seen = SeenWrites(lambda: self, self.clock.now, most=1)
        self.length = self.held = 0
        self.counts = {name: CountedWrites(MemberOwners(["b", "c", "o"], 0, b"key of the cells")) for name in "bc"}
        self.acknowledged = dict.fromkeys("bc", 0)
        self.appends: list[tuple[str, int]] = []
        """The appends that the origin has executed, and not answered yet."""
        self.questions: list[Question] = []
        self.reads: list[OwnersRead] = []
        self.sent = 0
        """How often the owner has sent bytes while the origin failed."""

    # -- writes that the owner learns of

    def apply_anything(self, group: Group) -> None:
        raise AssertionError

    def apply_earlier(self, group: Group, before: float) -> None:
        assert before < self.clock.now()

    def apply_appends(self, group: Group, acknowledged_by: float | None) -> None:
        assert acknowledged_by is not None, "all appends were acknowledged"
        AppendedElsewhere(cast(LiveTopics, None), acknowledged_by, self.clock.now(), self.clock.wall())(self.stream)

    # -- steps

    def tick(self, _: int) -> None:
        self.clock.advance(1)

    def append(self, which: int) -> None:
        self.length += 1
        self.appends.append(("bc"[which % 2], self.length))

    def acknowledge(self, which: int) -> None:
        if self.appends:
            name, end = self.appends.pop(which % len(self.appends))
            request = SimpleNamespace(group=GROUP, mode=Mode.APPEND)
            write = SimpleNamespace(request=request, change=NO_CHANGE, is_overtaken=False, is_cut_short=False)
            self.counts[name].answered(cast(SentRequest, write), cast(Reply, SimpleNamespace(status=204)))
            self.acknowledged[name] = max(self.acknowledged[name], end)

    def ask(self, which: int) -> None:
        name = "bc"[which % 2]
        field = MemberField(name, "1" * 16, "2" * 16, writes=self.counts[name].count(GROUP))
        self.questions.append(Question(field._replace(appended=self.counts[name].appended()), self.acknowledged[name]))

    def probe(self, which: int) -> None:
        name = "bc"[which % 2]
        field = MemberField(name, "1" * 16, "2" * 16, appended=self.counts[name].appended())
        self.questions.append(Question(field, None))

    def arrive(self, which: int) -> None:
        if self.questions:
            field, least = self.questions.pop(which % len(self.questions))
            self.seen.hear(field)
            if least is not None:
                self.seen.look(field, GROUP, Met(self.clock.now() - 1))
                self.answer_while_the_origin_fails(least)

    def answer_while_the_origin_fails(self, least: int) -> None:
        if self.held and not self.stream.may_lack_acknowledged(token(self.held)):
            assert self.held >= least
            self.sent += 1

    def read(self, _: int) -> None:
        self.reads.append(OwnersRead(self.clock.now(), self.stream.version, self.length))

    def progress(self, which: int) -> None:
        """The origin answers a request at some time after it was sent."""
        if self.reads:
            at = which % len(self.reads)
            self.reads[at] = self.reads[at]._replace(length=self.length)

    def _answered(self, which: int) -> int:
        sent_at, version, length = self.reads.pop(which % len(self.reads))
        self.stream.read_up_to_tail(version, token(length))
        self.stream.origin_stated_tail(token(length), sent_at)
        self.stream.revalidated(version)
        return length

    def head(self, which: int) -> None:
        if self.reads:
            self._answered(which)

    def body(self, which: int) -> None:
        if self.reads:
            self.held = max(self.held, self._answered(which))


STEPS: Final = ("tick", "append", "acknowledge", "ask", "probe", "arrive", "read", "progress", "head", "body")


@given(st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 3)), max_size=60))
def test_no_question_is_answered_without_the_members_own_append(steps: list[tuple[str, int]]) -> None:
    world = World()
    for step, which in steps:
        getattr(world, step)(which)


def test_an_append_that_was_read_after_a_probe_has_told_of_it_is_sent_at_the_first_question() -> None:
    world = World()
    for step in ("append", "acknowledge", "probe", "arrive", "tick", "read", "body", "ask", "arrive"):
        getattr(world, step)(0)
    assert world.sent == 1
    # The next append is not read, except for its end, by a HEAD.
    for step in ("append", "acknowledge", "probe", "arrive", "tick", "read", "head", "ask", "arrive"):
        getattr(world, step)(0)
    assert world.sent == 1
    # The one after that is not read at all.
    for step in ("append", "acknowledge", "ask", "arrive"):
        getattr(world, step)(0)
    assert world.sent == 1
