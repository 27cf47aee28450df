"""The verdict by which a live request joins others without being parsed, with plain values."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gateway.aio.clock import ManualClock
from gateway.auth.remembered_verdicts import Allowed, Verdicts
from gateway.auth.verdict import Principal
from gateway.engine.route import Route
from gateway.protocol.mode import Mode
from gateway.server.guarded_live_reads import MOST_EARLY_S
from gateway.server.header_meanings import Presented, Section
from gateway.server.live_requests import LiveRequests
from gateway.server.query_credentials import NamedStream

MOST_S = 20.0


class _Route:
    name = "r"
    guard = object()


class Scene:
    """A section with the verdict of one stream, and a live request of that stream."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.verdicts = Verdicts(self.clock.wall, self.clock.now)
        self.route = cast(Route, _Route())
        self.stream = NamedStream(self.route, "/s", "", b"signature=s")
        self.allowed = self.verdicts.allow(Principal("ada", (), self.clock.wall() + MOST_S + MOST_EARLY_S + 1))
        self.section = Section(b"\r\n\r\n")
        self.section.allowed = {self.stream: self.allowed}
        self.admitted: list[object] = []
        self.channel: Any = SimpleNamespace(scheme="http", proxies=None, client="192.0.2.1", use=object())
        self.requests: Any = SimpleNamespace(
            _admission=SimpleNamespace(begin_join=self._begin_join),
            _observers=SimpleNamespace(is_traced=False),
            _others=None,
            _refusals=(),
            _verdicts=self.verdicts,
        )

    def _begin_join(self, channel: object, account: object, route: str, parties: object) -> bool:
        self.admitted.append(parties)
        return False

    def is_allowed(self, stream: NamedStream, presented: bytes | None = None, kept: Allowed | None = None) -> bool:
        """Whether a live request for this stream gets as far as its admission."""
        read = SimpleNamespace(route=self.route, key=SimpleNamespace(group="g"))
        join: Any = SimpleNamespace(read=read, mode=Mode.LONGPOLL, verdict_key=stream, most_s=MOST_S)
        own = None
        if presented is not None:
            own = Presented(join, b"GET", stream._replace(credentials=presented), kept)
        LiveRequests.join(self.requests, self.channel, join, self.section, own)
        return bool(self.admitted)


def test_a_live_request_joins_by_the_verdict_of_its_stream_and_credentials() -> None:
    scene = Scene()
    assert scene.is_allowed(scene.stream)
    assert scene.admitted == [scene.allowed.parties]
    # The client's own credentials replace those of the first request.
    scene.admitted.clear()
    assert scene.is_allowed(scene.stream._replace(credentials=b"signature=other"), b"signature=s")


@pytest.mark.parametrize(
    "change",
    [{"path": "/t"}, {"query": "x=1"}, {"route": None}, {"credentials": b"signature=other"}, {"credentials": b""}],
)
def test_a_verdict_of_another_stream_or_credential_lets_no_live_request_join(change: dict[str, Any]) -> None:
    scene = Scene()
    assert not scene.is_allowed(scene.stream._replace(**change))
    assert not scene.is_allowed(scene.stream, b"signature=other")


def _revoked(scene: Scene) -> None:
    scene.verdicts.begin_edition()


def _expires_during_the_read(scene: Scene) -> None:
    scene.clock.advance(1)


def _of_another_scheme(scene: Scene) -> None:
    scene.allowed.scheme = "https"


def _not_remembered(scene: Scene) -> None:
    scene.section.drop()


@pytest.mark.parametrize("change", [_revoked, _expires_during_the_read, _of_another_scheme, _not_remembered])
def test_a_live_request_is_parsed_if_its_verdict_may_not_hold_for_the_whole_read(
    change: Callable[[Scene], None],
) -> None:
    scene = Scene()
    change(scene)
    assert not scene.is_allowed(scene.stream)


@pytest.mark.parametrize("change", [_revoked, _expires_during_the_read, _of_another_scheme])
def test_a_verdict_that_a_connection_has_kept_is_judged_like_one_of_its_section(
    change: Callable[[Scene], None],
) -> None:
    scene = Scene()
    scene.section.drop()
    assert scene.is_allowed(scene.stream, b"signature=s", scene.allowed)
    scene.admitted.clear()
    change(scene)
    assert not scene.is_allowed(scene.stream, b"signature=s", scene.allowed)


def test_a_renewed_verdict_need_not_outlast_the_read() -> None:
    scene = Scene()
    renewal: Any = object()
    scene.allowed = Allowed(Principal("ada", (), scene.clock.wall() + 1), 0, renewal=renewal)
    scene.section.allowed = {scene.stream: scene.allowed}
    assert scene.is_allowed(scene.stream)
    scene.admitted.clear()
    scene.clock.advance(1)
    assert not scene.is_allowed(scene.stream)
