"""The list of streams to read; the protocol itself has none.

A stream of names is complete.  The messages of that JSON stream are names, or objects with a `stream` and, for one that
no longer exists, `"deleted": true`; or the events in which an origin records its own streams, by the State Protocol:
`{"type": "stream", "key": name, "headers": {"operation": "insert"}}`.  The reference server keeps such a stream under
`__registry__`.

A gateway's admin API lists what the gateway has in memory, with tails, ten thousand in one answer: a stream that was
not read through it, or that it has evicted, is missing.  Names are relative to the reader's URL.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Any, Final, Protocol
from urllib.parse import urlsplit

from pyspark_durable_streams.admin import AdminApi
from pyspark_durable_streams.client import Client
from pyspark_durable_streams.errors import BadOption, BadReply
from pyspark_durable_streams.framing import Unit
from pyspark_durable_streams.options import ReadOptions
from pyspark_durable_streams.places import Place
from pyspark_durable_streams.walk import Walk

_STREAM: Final = "stream"
_DELETE: Final = "delete"
_log: Final = logging.getLogger("pyspark_durable_streams")


class Listing(Protocol):
    """Names of streams, with their tails if they are known."""

    is_complete: bool
    """Whether streams that are not listed must not be read."""

    def tails(self) -> Mapping[str, str | None]:
        """All streams to read; None for an unknown tail."""


def admin_of(options: ReadOptions) -> AdminApi | None:
    """The admin API of the gateway for this read, if an option names it."""
    admin = options.catalogue.admin if options.catalogue is not None else None
    return AdminApi(Client(admin), urlsplit(options.client.url).path, _log.warning) if admin is not None else None


def listing_of(options: ReadOptions, client: Client, admin: AdminApi | None) -> Listing:
    """The source of this read's list of streams."""
    catalogue = options.catalogue
    if catalogue is not None and catalogue.stream is not None:
        return _NamesStream(client, catalogue.stream, options.prefix or "")
    if catalogue is None or (options.prefix is None and not catalogue.tells_news):
        return _Named(options.streams)
    assert admin is not None
    if options.prefix is not None:
        _log.warning(
            "streamsPrefix: the catalogue is a gateway's memory, which lacks streams that were not read through it;"
            " catalogueStream, a stream of names, lists all"
        )
    return _Admin(admin, options.streams, options.prefix)


class _Named:
    """The streams that the options name."""

    is_complete = True

    def __init__(self, streams: tuple[str, ...]) -> None:
        self._tails = dict.fromkeys(streams)

    def tails(self) -> Mapping[str, str | None]:
        return self._tails


class _NamesStream:
    """A stream of names, read incrementally."""

    is_complete = True

    def __init__(self, client: Client, stream: str, prefix: str) -> None:
        self._prefix = prefix
        self._stream = stream
        self._names: dict[str, None] = {}
        self._client = client
        self._place = Place()

    def tails(self) -> Mapping[str, str | None]:
        walk = Walk(self._client, self._stream, self._place)
        for part in walk.parts():
            if walk.unit is not Unit.ELEMENT:
                raise BadOption(f"option catalogueStream: {self._stream} is not a stream of JSON")
            for line in part.piece.data.split(b"\n")[:-1]:
                self._take(json.loads(line))
        self._place = walk.place
        return dict.fromkeys(self._names)

    def _take(self, said: Any) -> None:
        name, is_gone = said, False
        if isinstance(said, dict) and isinstance(headers := said.get("headers"), dict):
            if "control" in headers or said.get("type") != _STREAM:
                return
            name, is_gone = said.get("key"), headers.get("operation") == _DELETE
        elif isinstance(said, dict):
            name, is_gone = said.get("stream"), said.get("deleted") is True
        if not isinstance(name, str) or not name.lstrip("/"):
            raise BadReply(
                f"stream {self._stream}: a message that names no stream:"
                ' a text, {"stream": …} or an event of the State Protocol is expected'
            )
        name = name.lstrip("/")
        if is_gone:
            self._names.pop(name, None)
        elif name.startswith(self._prefix):
            self._names[name] = None


class _Admin:
    """The tails that a gateway lists; a stream that it has evicted may still exist."""

    is_complete = False

    def __init__(self, api: AdminApi, streams: tuple[str, ...], prefix: str | None) -> None:
        self._api = api
        self._streams = streams
        self._prefix = prefix

    def tails(self) -> Mapping[str, str | None]:
        return self._api.tails_of(self._streams) if self._prefix is None else self._api.tails_below(self._prefix)
