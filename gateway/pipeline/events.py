"""Where access-log lines come from: files of this machine, or the stream that a gateway logs to.

A source is told by texts, as a command line has them: files, folders (every file in them that is not hidden) and globs,
which may be mixed, or one URL of a stream.  Files may be compressed (`.gz`, `.zst`).  The log of a running gateway may
be among them: what it grows by comes with the next ingest.
"""

from __future__ import annotations

import glob
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from gateway.pipeline.errors import PipelineFailed

_SCHEMES: Final = frozenset({"http", "https"})


@dataclass(frozen=True, slots=True)
class Files:
    """Lines in files: `patterns` are files, folders and globs."""

    patterns: tuple[str, ...]

    def found(self) -> list[Path]:
        """The files that are there now, each once and in order.  PipelineFailed where a pattern leads to none."""
        found: dict[Path, None] = {}
        for pattern in self.patterns:
            path = Path(pattern)
            if path.is_dir():
                candidates = [file for file in sorted(path.iterdir()) if not file.name.startswith(".")]
            elif path.exists():
                if not path.is_file():
                    raise PipelineFailed(f"{pattern}: is neither a file nor a folder")
                candidates = [path]
            else:
                candidates = [Path(name) for name in sorted(glob.glob(pattern))]  # noqa: PTH207 -- absolute or not
                if not candidates:
                    raise PipelineFailed(f"{pattern}: no such file")
            # A pipe among them would be waited for.
            found.update((file.absolute(), None) for file in candidates if file.is_file())
        return list(found)


@dataclass(frozen=True, slots=True)
class LogStream:
    """Lines in a stream of JSON messages (`log.sink = "stream"`); `options` are more of the Spark source's own."""

    url: str
    options: dict[str, str] = field(default_factory=dict)


Source = Files | LogStream


def source_of(texts: Sequence[str], options: dict[str, str] | None = None) -> Source:
    """The source that a command line names; PipelineFailed where that cannot be one."""
    urls = [text for text in texts if "://" in text]
    if not urls:
        if not texts:
            raise PipelineFailed("no source: name files of access-log lines, or the stream that a gateway logs to")
        return Files(tuple(texts))
    for url in urls:
        if urlsplit(url).scheme not in _SCHEMES or not urlsplit(url).path.strip("/"):
            raise PipelineFailed(f"{url}: a source is files of this machine, or a stream's http:// or https:// URL")
    if len(texts) > 1:
        raise PipelineFailed("one stream at a time, and no files with it: each source has an ingest of its own")
    return LogStream(urls[0], options or {})
