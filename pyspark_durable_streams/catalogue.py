"""Which streams there are: the protocol has no listing, so somebody has to say.

Either a gateway's admin API does, which lists the streams that it holds and how far each has come, ten thousand in one
answer; or a stream of names does, whose JSON messages are names, or objects with a `stream` and, for one that is gone,
`"deleted": true`.  Names are below the reader's URL.  A gateway's paths are as its origin is asked for them, so the
URL's path has to be the origin's there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, Protocol
from urllib.parse import quote, unquote, urlsplit

from pyspark_durable_streams.client import Client, refusal
from pyspark_durable_streams.errors import BadOption, BadReply
from pyspark_durable_streams.framing import Unit
from pyspark_durable_streams.options import ReadOptions
from pyspark_durable_streams.places import Place
from pyspark_durable_streams.walk import Walk

_MOST_PAGES: Final = 10_000
_MOST_NAMED: Final = 5_000


class Listing(Protocol):
    """Names of streams, and how far they have come where that is known."""

    is_complete: bool
    """Whether a stream that is not named is none that is read."""

    def tails(self) -> Mapping[str, str | None]:
        """All streams that are to be read; None for a tail that is not known."""


def listing_of(options: ReadOptions, client: Client) -> Listing:
    """Where this read has its streams from."""
    catalogue = options.catalogue
    if catalogue is None:
        return _Named(options.streams)
    if catalogue.stream is not None:
        return _NamesStream(client, catalogue.stream, options.prefix or "")
    assert catalogue.admin is not None
    return _Admin(Client(catalogue.admin), urlsplit(options.client.url).path, options.streams, options.prefix)


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

    def __init__(self, client: Client, base: str, streams: tuple[str, ...], prefix: str | None) -> None:
        self._client = client
        self._base = f"{base.rstrip('/')}/"
        self._streams = streams
        self._prefix = prefix

    def tails(self) -> Mapping[str, str | None]:
        return self._of_named() if self._prefix is None else self._of_prefix(self._prefix)

    def _of_named(self) -> dict[str, str | None]:
        found: dict[str, str | None] = {}
        for at in range(0, len(self._streams), _MOST_NAMED):
            paths = {self._path(name): name for name in self._streams[at : at + _MOST_NAMED]}
            body = json.dumps({"streams": list(paths)}).encode()
            tails = self._asked("POST", "/api/tails", body)["tails"]
            found.update({name: tails.get(path) for path, name in paths.items()})
        return found

    def _of_prefix(self, prefix: str) -> dict[str, str | None]:
        found: dict[str, str | None] = {}
        after = ""
        for _ in range(_MOST_PAGES):
            query = f"prefix={quote(self._path(prefix), safe='')}&after={quote(after, safe='')}"
            page = self._asked("GET", f"/api/tails?{query}", None)
            for path, tail in page["tails"].items():
                found[unquote(path.removeprefix(self._base)) if "%" in path else path.removeprefix(self._base)] = tail
            after = page["next"]
            if after is None:
                return found
        raise BadReply("the catalogue has no end")

    def _path(self, name: str) -> str:
        return quote(self._base + name, safe="/:@!$&'()*+,;=~-._%?")

    def _asked(self, method: str, path: str, body: bytes | None) -> Any:
        headers = {"content-type": "application/json"} if body is not None else None
        reply = self._client.request(method, path, headers, body)
        if reply.status != 200:
            raise refusal(reply, "catalogue")
        try:
            said = json.loads(reply.body)
            if not isinstance(said["tails"], dict):
                raise TypeError
            said.setdefault("next", None)
        except (ValueError, TypeError, KeyError) as error:
            raise BadReply("catalogue: an answer that is not a gateway's; is it the URL of its admin port?") from error
        return said
