"""What the origin has held, and what each member has acknowledged of it.

Every life of a stream begins with a piece that names it, and every appended piece is unlike all others.  So the bytes
of an answer show which life they are from, and a piece that the origin was sent twice shows at once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from gateway.origin.store import Store


@dataclass(eq=False)
class Life:
    """A stream from its creation to its deletion."""

    number: int
    content: bytearray
    died_at: float | None = None

    @property
    def is_alive(self) -> bool:
        return self.died_at is None


@dataclass(frozen=True)
class Floor:
    """What a member has acknowledged of a path: reads through it may not show less."""

    life: int = 0
    """The number of the oldest life that may be shown."""
    length: int = 0
    """The bytes of that life which must be shown."""
    exists: bool = False
    """Whether the member has acknowledged that this life exists."""


class Truth:
    """The lives of all streams, oldest first, and the floors."""

    def __init__(self, store: Store, now: Callable[[], float]) -> None:
        self._store = store
        self._now = now
        self.lives: Final[dict[str, list[Life]]] = defaultdict(list)
        self._floors: dict[tuple[str, str], Floor] = {}
        self.most_live = 0
        """The most live requests for one stream that the origin has had at once."""
        for name, then in (("create", self._created), ("append", self._appended), ("delete", self._deleted)):
            self._watch(name, then)

    def _watch(self, name: str, then: Callable[..., None]) -> None:
        original = getattr(self._store, name)

        def watched(path: str, *arguments: Any) -> Any:
            result = original(path, *arguments)
            then(path, result, *arguments)
            return result

        setattr(self._store, name, watched)

    def _created(self, path: str, result: tuple[object, bool], params: Any, _: float) -> None:
        if result[1]:
            lives = self.lives[path]
            lives.append(Life(len(lives), bytearray(params.body)))

    def _appended(self, path: str, _: object, params: Any, __: float) -> None:
        content = self.lives[path][-1].content
        assert params.body not in content, f"the origin was sent {params.body!r} twice"
        content += params.body

    def _deleted(self, path: str, *_: object) -> None:
        self.lives[path][-1].died_at = self._now()

    def alive(self, path: str) -> Life | None:
        """The present life of a stream."""
        lives = self.lives[path]
        return lives[-1] if lives and lives[-1].is_alive else None

    def live_requests(self, path: str) -> int:
        """The live requests for the stream that the origin has now."""
        if self.alive(path) is None:
            return 0
        found = self._store.get(path, 0.0).live_readers
        self.most_live = max(self.most_live, found)
        return found

    # -- what members have acknowledged

    def floor(self, member: str, path: str) -> Floor:
        """What reads through the member must show from now on."""
        return self._floors.get((member, path), Floor())

    def _raise(self, member: str, path: str, floor: Floor) -> None:
        known = self.floor(member, path)
        if (floor.life, floor.length) >= (known.life, known.length):
            self._floors[member, path] = floor

    def acknowledge(self, member: str, path: str, piece: bytes) -> None:
        """Record that a member has acknowledged this piece, which the origin must have."""
        for life in reversed(self.lives[path]):
            end = life.content.find(piece) + len(piece)
            if end >= len(piece):
                self._raise(member, path, Floor(life.number, end, exists=True))
                return
        raise AssertionError(f"{member} has acknowledged {piece!r}, and the origin has never had it")

    def acknowledge_end(self, member: str, path: str, since: float) -> None:
        """Record that a member has acknowledged a DELETE that was sent at that time."""
        dead = [life for life in self.lives[path] if life.died_at is not None and life.died_at >= since]
        assert dead, f"{member} has acknowledged a DELETE of {path} that the origin has not seen"
        self._raise(member, path, Floor(dead[0].number + 1))

    # -- judgement

    def judge(self, path: str, floor: Floor, status: int, body: bytes, *, is_up_to_date: bool) -> Life | None:
        """Judge a read of the whole stream; return the life that it shows."""
        lives = self.lives[path]
        if status == 404:
            missed = floor.exists and lives[floor.life].is_alive
            assert not missed, f"404 for {path}, which this member has acknowledged: {floor}"
            return None
        assert status == 200, status
        shown = [life for life in lives if life.content.startswith(body)] if body else lives[-1:]
        assert shown, f"{path} never held {body[-40:]!r}"
        life = shown[-1]
        assert life.number >= floor.life, f"{path} shows life {life.number} behind {floor}"
        if is_up_to_date and life.number == floor.life:
            assert len(body) >= floor.length, f"{path} shows {len(body)} bytes behind {floor}"
        return life

    def earlier(self, path: str, floor: Floor, data: bytes) -> Life:
        """Return the dead life that begins with this data, and that may still be shown."""
        lives = self.lives[path][floor.life :]
        found = [life for life in lives if not life.is_alive and life.content.startswith(data)]
        assert found, f"{path} begins with {data[:40]!r}, behind {floor}"
        return found[-1]


@dataclass
class Counts:
    """How often each thing has happened, so that a test can see that it has."""

    of: dict[str, int] = field(default_factory=lambda: defaultdict(int))

    def count(self, name: str) -> None:
        self.of[name] += 1
