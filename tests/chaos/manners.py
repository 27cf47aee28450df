"""How the origin's answers restrict sharing: by tenant, by web origin, and to one reader.

The run's seed switches the last two on.  Which streams have answers for one reader alone changes during a run.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Final

from aiohttp import web

TENANT: Final = "/tenant/"
"""Below this path each `X-Tenant` names a stream of its own, and answers have `Vary: X-Tenant`."""

SHOWN_TO: Final = "X-Shown-To"
"""Names, in an answer for one reader alone, the User-Agent that it was given to: shared requests have none."""

_NOBODY: Final = "nobody"


@dataclass(frozen=True)
class Mood:
    """Which answers of one stream are for one reader alone, and what says so."""

    is_stored: bool
    """Answers to reads that are not live."""
    is_live: bool
    field: tuple[str, str]


_FIELDS: Final = (("Cache-Control", "private"), ("Set-Cookie", "id=1; Path=/"), ("Vary", "User-Agent"))


@dataclass
class Manners:
    """How one run's origin speaks of sharing."""

    is_personal: bool
    """Whether it has moods."""
    is_by_origin: bool
    """Whether it allows the web origin that a request names, and says `Vary: Origin`."""
    moods: dict[str, Mood] = field(default_factory=dict)
    """By the path that clients know."""

    @classmethod
    def of(cls, seed: int) -> Manners:
        """Those of a seed: of six seeds in a row three are personal, and two answer by the web origin."""
        return cls(seed % 2 == 1, seed % 3 == 1)

    def change(self, path: str, rng: Random) -> Mood | None:
        """Have another mood for one stream; None if its answers may be shared."""
        is_stored, is_live = rng.choice(((False, False), (False, True), (True, True), (True, False)))
        if not (is_stored or is_live):
            return self.moods.pop(path, None) and None
        self.moods[path] = Mood(is_stored, is_live, rng.choice(_FIELDS))
        return self.moods[path]

    async def dress(self, request: web.Request, response: web.StreamResponse) -> None:
        """Add the fields to an answer."""
        path, headers = request.rel_url.raw_path.partition("~")[0], response.headers
        if path.startswith(TENANT):
            headers.add("Vary", "X-Tenant")
        if self.is_by_origin:
            headers.add("Vary", "Origin")
            headers.pop("Access-Control-Allow-Origin", None)
            if (origin := request.headers.get("Origin")) is not None:
                headers["Access-Control-Allow-Origin"] = origin
        mood = self.moods.get(path)
        if mood is None or response.status not in (200, 204) or request.method not in ("GET", "HEAD"):
            return
        if mood.is_live if "live" in request.rel_url.query else mood.is_stored:
            headers.add(*mood.field)
            headers[SHOWN_TO] = request.headers.get("User-Agent", _NOBODY)
