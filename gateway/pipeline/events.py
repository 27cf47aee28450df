"""Sources of access-log lines: local files, the stream that a gateway logs to, or late lines in the lake.

A command line names either one stream's URL, or any mixture of files, folders and globs.  A folder stands for all files
in it and in its subfolders, except hidden files and Delta tables.  Files may be compressed (`.gz`, `.zst`, `.bz2`,
`.xz`), or Parquet with a column `line`.  A gateway may still be writing a file: the next ingest reads its new lines.
"""

from __future__ import annotations

import glob
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote, urlsplit

from gateway.config.variables import ADMIN_TOKEN_VARIABLE
from gateway.pipeline.errors import PipelineFailed

AUTHORIZATION_VARIABLE: Final = "DURABLE_GATEWAY_PIPELINE_AUTHORIZATION"
"""Environment variable with the Authorization header for the stream.

It is not a flag, because other users can see flags in the process list.
"""

_SCHEMES: Final = {"http": 80, "https": 443}
"""Accepted schemes and their default ports."""
MARK: Final = "stream "
"""Prefix of the name under which a lake records the progress in a stream.  The stream's URL follows."""
_BATCH_BYTES: Final = 1 << 30
"""Most bytes in one batch of a stream.  A larger backlog is ingested in several batches."""
_NOT_TO_BE_CHOSEN: Final = {
    **dict.fromkeys(("url", "path", "stream", "streams", "streamsprefix"), "the URL names the stream"),
    **dict.fromkeys(("format", "mode", "chunkbytes"), "lines are taken in as they are"),
    "tails": "a log is written at its origin, past the gateway, and the tail that the gateway knows may be an old one",
}
_REFUSED: Final = re.compile(r"stream .*?: 40[13]\b.*")


@dataclass(frozen=True, slots=True)
class Files:
    """Lines in files.  `patterns` are names of files, folders and globs."""

    patterns: tuple[str, ...]

    def found(self, lake: Path | None = None) -> list[Path]:
        """Return the existing files, each once and sorted.

        In folders, the files of `lake` and of Delta tables are left out.  Raises PipelineFailed for a pattern without a
        file, and for a folder that has only Delta tables of another lake.
        """
        found: dict[Path, None] = {}
        for pattern in self.patterns:
            path = Path(pattern)
            if path.is_dir():
                candidates = _beneath(path, lake, pattern)
            elif path.exists():
                if not path.is_file():
                    raise PipelineFailed(f"{pattern}: is neither a file nor a folder")
                candidates = [path]
            else:
                candidates = [Path(name) for name in sorted(glob.glob(pattern))]  # noqa: PTH207 -- absolute or not
                if not candidates:
                    raise PipelineFailed(f"{pattern}: no such file")
            # Regular files only: reading a pipe may block.
            found.update((file.absolute(), None) for file in candidates if file.is_file())
        return list(found)

    def size(self, lake: Path | None = None) -> int:
        """Return the total size of the files on disk, in bytes."""
        return sum(path.stat().st_size for path in self.found(lake))


@dataclass(frozen=True, slots=True)
class LogStream:
    """Lines in a stream of JSON messages (`log.sink = "stream"`).

    `options` are further options of the Spark source, with names in lower case.
    """

    url: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    format: str = "messages"

    @property
    def reading(self) -> dict[str, str]:
        """All options of the Spark source, with names in lower case."""
        parts = urlsplit(self.url)
        says_where = any(name.startswith("starting") for name in self.options)
        return {
            **({} if says_where else {"startingoffsets": "earliest"}),
            "maxbytespertrigger": str(_BATCH_BYTES),
            **self.options,
            "url": f"{parts.scheme}://{parts.netloc}",
            "stream": unquote(parts.path),
            "format": self.format,
        }

    @property
    def mark(self) -> str:
        """The name under which a lake records the progress in this stream.

        It is the same for all spellings of the URL that the Spark source reads as the same stream.
        """
        parts = urlsplit(self.url)
        host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
        port = "" if parts.port in (None, _SCHEMES[parts.scheme]) else f":{parts.port}"
        return f"{MARK}{parts.scheme}://{host}{port}/{quote(unquote(parts.path).strip().lstrip('/'))}"

    def check(self, *, free: Collection[str] = ()) -> None:
        """Raise PipelineFailed for an option that the Spark source rejects, and for an option that may not be set here.
        Options in `free` may be set.  Raises ImportError without Spark."""
        from pyspark_durable_streams.errors import BadOption
        from pyspark_durable_streams.options import read_options

        for name in self.options:
            if name not in free and (reason := _NOT_TO_BE_CHOSEN.get(name)) is not None:
                raise PipelineFailed(f"option {name}: {reason}")
        try:
            read_options(self.reading, is_streaming=True)
        except BadOption as error:
            raise PipelineFailed(str(error)) from None


@dataclass(frozen=True, slots=True)
class LateLines:
    """The lines that the lake has rejected as too late."""


Source = Files | LogStream | LateLines


def source_of(
    texts: Sequence[str], options: Mapping[str, str] | None = None, environ: Mapping[str, str] | None = None
) -> Files | LogStream:
    """Return the source that a command line names.

    A stream gets `options`, and credentials from `environ`.  Raises PipelineFailed for an invalid source.
    """
    urls = [text for text in texts if "://" in text]
    if not urls:
        if not texts:
            raise PipelineFailed("no source: name files of access-log lines, or the stream that a gateway logs to")
        if options:
            raise PipelineFailed(f"option {_beginning(min(options))}: options are for a stream, and these are files")
        return Files(tuple(texts))
    for url in urls:
        _check(url)
    if len(texts) > 1:
        raise PipelineFailed("one stream at a time, and no files with it: each source has an ingest of its own")
    return LogStream(urls[0], _with_credentials(options or {}, environ or {}))


def _beneath(folder: Path, lake: Path | None, named: str) -> list[Path]:
    """Return everything in a folder and its subfolders, except hidden files, `lake`, Delta tables and lakes' spools.

    Raises PipelineFailed if that leaves no file, and the folder has Delta tables of another lake.
    """
    root = folder.resolve()
    above = {root, *root.parents}
    every = sorted(root.rglob("*"))
    hidden = {one for one in every if one.name[0] in "._"}
    tables = {one.parent for one in every if one.name == "_delta_log"} - above
    spools = {table.with_name("spool") for table in tables if table.name == "bronze"}
    own = {lake.resolve(), lake.resolve() / "spool"} if lake else set()
    left_out = (hidden | tables | spools | own) - above
    found = [one for one in every if left_out.isdisjoint([one, *one.parents])]
    others = [one for one in tables if root not in own and (hidden | (own - above)).isdisjoint([one, *one.parents])]
    if others and not any(one.is_file() for one in found):
        wanted = "name the folder of one, such as bronze/kind=lines of a lake"
        raise PipelineFailed(f"{named}: has only Delta tables: {wanted}")
    return found


def with_hint(said: str) -> str:
    """Add a hint to an error of the Spark source if there is a remedy."""
    if _REFUSED.fullmatch(said):
        return f"{said} (authorization is read from {AUTHORIZATION_VARIABLE})"
    return said.replace("; failOnDataLoss=", "; --option failOnDataLoss=")


def _check(url: str) -> None:
    """Raise PipelineFailed unless `url` is a valid URL of a stream."""
    try:
        parts = urlsplit(url)
        is_place = parts.port != 0 and parts.scheme in _SCHEMES and parts.hostname and parts.path.strip("/")
    except ValueError:
        raise PipelineFailed(f"{_shown(url)}: is no URL") from None
    if parts.username is not None:
        reason = f"credentials do not belong into a URL, which is shown: they are read from {AUTHORIZATION_VARIABLE}"
    elif not is_place:
        reason = "a source is files of this machine, or a stream's http:// or https:// URL"
    elif parts.query or parts.fragment:
        reason = "a stream's URL has no query and no fragment"
    else:
        return
    raise PipelineFailed(f"{_shown(url)}: {reason}")


def _shown(url: str) -> str:
    """Return the URL without the parts that may be secret."""
    scheme, _, rest = url.partition("://")
    rest = re.split(r"[?#]", rest)[0]
    _, at, place = rest.rpartition("@")
    if at:
        rest = f"…@{place}"
    elif "@" in url:
        rest = "…"
    return f"{_beginning(scheme)}://{rest}"


def _beginning(name: str) -> str:
    found = re.match(r"[\w.+-]{0,60}", name)
    return found[0] if found else ""


def _with_credentials(options: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    found = {name.lower(): value for name, value in options.items()}
    if authorization := _secret(environ, AUTHORIZATION_VARIABLE):
        found.setdefault("headers.authorization", authorization)
    if "catalogue" in found and (token := _secret(environ, ADMIN_TOKEN_VARIABLE)):
        found.setdefault("catalogueheaders.authorization", f"Bearer {token}")
    return found


def _secret(environ: Mapping[str, str], name: str) -> str:
    value = environ.get(name, "")
    if not (value.isascii() and value.isprintable()):
        raise PipelineFailed(f"{name} holds what cannot be sent in a header")
    return value
