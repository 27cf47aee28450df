"""Which streams there are: the protocol has no listing, so somebody has to say.

Either a gateway's admin API does, which lists the streams that it holds and how far each has come, ten thousand in one
answer; or a stream of names does, whose JSON messages are names, or objects with a `stream` and, for one that is gone,
`"deleted": true`.  Names are below the reader's URL.
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

_log: Final = logging.getLogger("pyspark_durable_streams")


class Listing(Protocol):
    """Names of streams, and how far they have come where that is known."""

    is_complete: bool
    """Whether a stream that is not named is none that is read."""

    def tails(self) -> Mapping[str, str | None]:
        """All streams that are to be read; None for a tail that is not known."""


def admin_of(options: ReadOptions) -> AdminApi | None:
    """The admin API of the gateway that this read goes through, where it was named."""
    admin = options.catalogue.admin if options.catalogue is not None else None
    return AdminApi(Client(admin), urlsplit(options.client.url).path, _log.warning) if admin is not None else None


def listing_of(options: ReadOptions, client: Client, admin: AdminApi | None) -> Listing:
    """Where this read has its streams from."""
    catalogue = options.catalogue
    if catalogue is not None and catalogue.stream is not None:
        return _NamesStream(client, catalogue.stream, options.prefix or "")
    if catalogue is None or (options.prefix is None and not catalogue.tells_news):
        return _Named(options.streams)
    assert admin is not None
    return _Admin(admin, options.streams, options.prefix)


class _Named:
    """The streams that the user named."""

    is_complete = True

    def __init__(self, streams: tuple[str, ...]) -> None:
        self._tails = dict.fromkeys(streams)

    def tails(self) -> Mapping[str, str | None]:
        return self._tails


class _NamesStream:
    """A stream of names; what was read of it is not read again."""

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
                raise BadOption(f"option catalogueStream: {self._stream} is no stream of JSON")
            for line in part.piece.data.split(b"\n")[:-1]:
                self._take(json.loads(line))
        self._place = walk.place
        return dict.fromkeys(self._names)

    def _take(self, said: Any) -> None:
        name, is_gone = said, False
        if isinstance(said, dict):
            name, is_gone = said.get("stream"), said.get("deleted") is True
        if not isinstance(name, str) or not name.lstrip("/"):
            raise BadReply(
                f'stream {self._stream}: a message that names no stream: a text or {{"stream": …}} is wanted'
            )
        name = name.lstrip("/")
        if is_gone:
            self._names.pop(name, None)
        elif name.startswith(self._prefix):
            self._names[name] = None


class _Admin:
    """A gateway's bulk tails; one that it has forgotten may well be there."""

    is_complete = False

    def __init__(self, api: AdminApi, streams: tuple[str, ...], prefix: str | None) -> None:
        self._api = api
        self._streams = streams
        self._prefix = prefix

    def tails(self) -> Mapping[str, str | None]:
        return self._api.tails_of(self._streams) if self._prefix is None else self._api.tails_below(self._prefix)
