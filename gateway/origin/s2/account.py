"""An account: basins with their streams, and access tokens.

All functions are synchronous, and `now` (Unix seconds) is an argument.  Callers validate names (`names.py`).  Deletion
takes effect immediately, and the name can be used again.

If its configuration says so, a basin creates missing streams on append or on read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Generic, TypeVar

from gateway.origin.s2.config import BasinConfig, Json
from gateway.origin.s2.names import BadName, check_token_id
from gateway.origin.s2.refusals import Refused, invalid, malformed
from gateway.origin.s2.stream import Stream
from gateway.s2.errors import S2ErrorCode

LARGEST_PAGE: Final = 1000
_OPERATION_GROUPS: Final = ("account", "basin", "stream")

Item = TypeVar("Item")


class Provision(StrEnum):
    """The effect of a PUT, as stated in the header `s2-provision-result`."""

    CREATED = "created"
    UPDATED = "updated"
    NOOP = "noop"


@dataclass(frozen=True, slots=True)
class PageQuery:
    """The requested part of a list: names with a prefix, after a name, up to a limit."""

    prefix: str = ""
    start_after: str = ""
    limit: int = LARGEST_PAGE


@dataclass(frozen=True, slots=True)
class Page(Generic[Item]):
    """A part of a list, sorted by name, and whether there is more."""

    items: tuple[Item, ...]
    has_more: bool


@dataclass(frozen=True, slots=True)
class _Creation:
    """The request that created a basin or stream.  Repeating the same request is not a conflict."""

    request_token: str | None
    change: Json

    def is_repeated_by(self, other: _Creation) -> bool:
        return self.request_token is not None and self == other


@dataclass(slots=True)
class Basin:
    """A basin and its streams."""

    name: str
    config: BasinConfig
    created_at: float
    creation: _Creation
    streams: dict[str, Stream] = field(default_factory=dict)
    _creations: dict[str, _Creation] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"<Basin {self.name}: {len(self.streams)} streams>"

    def create_stream(self, name: str, change: Json, now: float, request_token: str | None = None) -> Stream:
        """Create a stream.  Raises Refused: 409 if it exists, unless the same request created it; 422."""
        creation = _Creation(request_token, change)
        existing = self._found(name, now)
        if existing is not None:
            if not self._creations[name].is_repeated_by(creation):
                raise Refused(S2ErrorCode.RESOURCE_ALREADY_EXISTS, f"stream {name} already exists")
            return existing
        config = self.config.default_stream_config.changed(change)
        stream = self.streams[name] = Stream(name, config, now, cipher=self.config.stream_cipher)
        self._creations[name] = creation
        return stream

    def ensure_stream(self, name: str, change: Json, now: float) -> tuple[Stream, Provision]:
        """Create or update a stream so that it has this configuration over the basin's defaults.  Raises Refused
        (422)."""
        stream = self._found(name, now)
        if stream is None:
            return self.create_stream(name, change, now), Provision.CREATED
        config = self.config.default_stream_config.changed(change)
        if stream.config == config:
            return stream, Provision.NOOP
        stream.config = config
        return stream, Provision.UPDATED

    def reconfigure_stream(self, name: str, change: Json, now: float) -> Stream:
        """Change some fields of a stream's configuration.  Raises Refused (404, 422)."""
        stream = self.stream(name, now)
        stream.config = stream.config.changed(change)
        return stream

    def delete_stream(self, name: str, now: float) -> None:
        """Delete a stream.  Raises Refused (404)."""
        self._drop(self.stream(name, now))

    def stream(self, name: str, now: float) -> Stream:
        """Return a stream after removing expired records.  Raises Refused (404)."""
        stream = self._found(name, now)
        if stream is None:
            raise Refused(S2ErrorCode.STREAM_NOT_FOUND, f"stream {name} does not exist")
        return stream

    def stream_to_append(self, name: str, change: Json, now: float) -> Stream:
        """Return a stream, creating a missing one if the basin creates streams on append.  Raises Refused (404,
        422)."""
        return self._stream_or_created(name, change, now, creates=self.config.creates_on_append)

    def stream_to_read(self, name: str, change: Json, now: float) -> Stream:
        """Return a stream, creating a missing one if the basin creates streams on read.  Raises Refused (404, 422)."""
        return self._stream_or_created(name, change, now, creates=self.config.creates_on_read)

    def page(self, query: PageQuery, now: float) -> Page[Stream]:
        """Return a part of the list of streams."""
        names = _names(tuple(self.streams), query)
        streams = [stream for name in names if (stream := self._found(name, now)) is not None]
        return _page(streams, query)

    def delete(self) -> None:
        """Delete every stream."""
        for stream in tuple(self.streams.values()):
            self._drop(stream)

    def _stream_or_created(self, name: str, change: Json, now: float, *, creates: bool) -> Stream:
        if creates and self._found(name, now) is None:
            return self.create_stream(name, change, now)
        return self.stream(name, now)

    def _found(self, name: str, now: float) -> Stream | None:
        stream = self.streams.get(name)
        if stream is not None:
            stream.expire(now)
            if stream.is_due_for_deletion(now):
                self._drop(stream)
                return None
        return stream

    def _drop(self, stream: Stream) -> None:
        del self.streams[stream.name], self._creations[stream.name]
        stream.delete()


class Account:
    """All basins and access tokens."""

    def __init__(self) -> None:
        self.basins: dict[str, Basin] = {}
        self.tokens: dict[str, Json] = {}
        """The information about each access token, by its id."""

    def __repr__(self) -> str:
        return f"<Account {len(self.basins)} basins>"

    def create_basin(self, name: str, change: Json, now: float, request_token: str | None = None) -> Basin:
        """Create a basin.  Raises Refused: 409 if it exists, unless the same request created it; 422."""
        creation = _Creation(request_token, change)
        existing = self.basins.get(name)
        if existing is not None:
            if not existing.creation.is_repeated_by(creation):
                raise Refused(S2ErrorCode.RESOURCE_ALREADY_EXISTS, f"basin {name} already exists")
            return existing
        basin = self.basins[name] = Basin(name, BasinConfig().changed(change), now, creation)
        return basin

    def ensure_basin(self, name: str, change: Json, now: float) -> tuple[Basin, Provision]:
        """Create or update a basin so that it has this configuration over the defaults.  Raises Refused (422)."""
        basin = self.basins.get(name)
        if basin is None:
            return self.create_basin(name, change, now), Provision.CREATED
        config = BasinConfig().changed(change)
        if basin.config == config:
            return basin, Provision.NOOP
        basin.config = config
        return basin, Provision.UPDATED

    def reconfigure_basin(self, name: str, change: Json) -> Basin:
        """Change some fields of a basin's configuration.  Raises Refused (404, 422)."""
        basin = self.basin(name)
        basin.config = basin.config.changed(change)
        return basin

    def basin(self, name: str) -> Basin:
        """Return a basin.  Raises Refused (404)."""
        basin = self.basins.get(name)
        if basin is None:
            raise Refused(S2ErrorCode.BASIN_NOT_FOUND, f"basin {name} does not exist")
        return basin

    def delete_basin(self, name: str) -> None:
        """Delete a basin and its streams.  Raises Refused (404)."""
        self.basin(name).delete()
        del self.basins[name]

    def page(self, query: PageQuery) -> Page[Basin]:
        """Return a part of the list of basins."""
        return _page([self.basins[name] for name in _names(self.basins, query)], query)

    def issue_token(self, info: Json) -> str:
        """Issue an access token.  Raises Refused: 409 if the id is in use; 400; 422."""
        token_id, scope = info.get("id"), info.get("scope")
        if not isinstance(token_id, str) or not isinstance(scope, Mapping):
            raise malformed("a token has an id and a scope")
        try:
            check_token_id(token_id)
        except BadName as error:
            raise malformed(str(error)) from None
        if not _permits_something(scope):
            raise invalid("a token permits at least one operation")
        if info.get("auto_prefix_streams") and not _prefix_of_streams(scope):
            raise invalid("a token that prefixes the names of streams has a prefix of streams in its scope")
        if token_id in self.tokens:
            raise Refused(S2ErrorCode.RESOURCE_ALREADY_EXISTS, f"access token {token_id} already exists")
        self.tokens[token_id] = {"auto_prefix_streams": False, "expires_at": None, **info}
        return f"token-{token_id}"

    def revoke_token(self, token_id: str) -> None:
        """Revoke an access token.  Raises Refused (404)."""
        if self.tokens.pop(token_id, None) is None:
            raise Refused(S2ErrorCode.ACCESS_TOKEN_NOT_FOUND, f"access token {token_id} does not exist")

    def token_page(self, query: PageQuery) -> Page[Json]:
        """Return a part of the list of access tokens."""
        return _page([self.tokens[name] for name in _names(self.tokens, query)], query)


def _permits_something(scope: Json) -> bool:
    groups = scope.get("op_groups")
    permissions = [groups.get(name) for name in _OPERATION_GROUPS] if isinstance(groups, Mapping) else []
    return bool(scope.get("ops")) or any(
        isinstance(one, Mapping) and (one.get("read") or one.get("write")) for one in permissions
    )


def _prefix_of_streams(scope: Json) -> object:
    streams = scope.get("streams")
    return streams.get("prefix") if isinstance(streams, Mapping) else None


def _names(names: Iterable[str], query: PageQuery) -> list[str]:
    return sorted(name for name in names if name.startswith(query.prefix) and name > query.start_after)


def _page(items: list[Item], query: PageQuery) -> Page[Item]:
    limit = min(query.limit or LARGEST_PAGE, LARGEST_PAGE)
    return Page(tuple(items[:limit]), len(items) > limit)
